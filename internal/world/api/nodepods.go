package api

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// PodsOn lists the pods of a node. With cached, the API server answers from its watch cache, which has an index of pods by
// node and may be behind. If that is too large for one answer, little more than the requests is kept of each pod.
func PodsOn(ctx context.Context, uncached client.Reader, node string, cached bool) ([]corev1.Pod, error) {
	ofNode := client.MatchingFields{"spec.nodeName": node}
	options := []client.ListOption{ofNode}
	if cached {
		// The client writes the selector into these options, so each list needs its own.
		options = append(options, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	}
	var list corev1.PodList
	if err := uncached.List(ctx, &list, options...); !errors.Is(err, errTooLarge) {
		return list.Items, err
	}
	var out []corev1.Pod
	err := Each(ctx, uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		out = append(out, inShort(pod))
		return nil
	}, ofNode)
	return out, err
}

// inShort is a pod with one container, which requests what the pod does.
func inShort(pod *corev1.Pod) corev1.Pod {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	// No node offers what a pod may name with an amount of zero.
	maps.DeleteFunc(requests, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.Sign() <= 0 })
	out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: world.Pick(pod.Labels, stowage.PeerPodLabel)}}
	out.Spec.NodeName, out.Status.Phase = pod.Spec.NodeName, pod.Status.Phase
	out.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
	return out
}
