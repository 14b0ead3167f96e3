package server

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// AddPaused registers a metric of what is paused.
func AddPaused(set *metrics.Set, scopes *scope.Scope, cached client.Reader) {
	set.GaugeFunc("stowage_paused", pausedHelp, func() float64 {
		var list corev1.NamespaceList
		if err := cached.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
			return 0
		}
		paused := 0
		for i := range list.Items {
			if scopes.PausedEverywhere() || scope.IsPaused(&list.Items[i]) {
				paused++
			}
		}
		return float64(paused)
	})
}

const pausedHelp = "How many namespaces are paused (kubectl stowage pause), or all of them while the cluster is: no pod that exists is changed or evicted there."
