package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodsOn lists the pods of a node. With cached, the API server answers from its watch cache, which has an index of pods by
// node and may be behind.
func PodsOn(ctx context.Context, uncached client.Reader, node string, cached bool) ([]corev1.Pod, error) {
	options := []client.ListOption{client.MatchingFields{"spec.nodeName": node}}
	if cached {
		// The client writes the selector into these options, so each list needs its own.
		options = append(options, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	}
	var list corev1.PodList
	err := uncached.List(ctx, &list, options...)
	return list.Items, err
}
