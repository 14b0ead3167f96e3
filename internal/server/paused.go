package server

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// AddPaused registers a metric of how many namespaces are paused.
func AddPaused(set *metrics.Set, count func() float64) {
	set.GaugeFunc("stowage_paused", "How many namespaces are paused (kubectl stowage pause), or all of them while the cluster is: no pod that exists is changed or evicted there.", count)
}

// paused returns how many namespaces are paused, as the watch shows them.
func paused(ctx context.Context, scopes *scope.Scope, cached client.Reader) float64 {
	var list corev1.NamespaceList
	if err := cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0
	}
	n := 0
	for i := range list.Items {
		if scopes.PausedEverywhere() || scope.IsPaused(&list.Items[i]) {
			n++
		}
	}
	return float64(n)
}
