package seats

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/world"
)

// Run watches until ctx ends.
func (p *Pods) Run(ctx context.Context, c rest.Interface) {
	lw := cache.ToListWatcherWithWatchListSemantics(cache.NewFilteredListWatchFromClient(c, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = stowage.SeatLabel
	}), c)
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods with a seat"}).RunWithContext(ctx)
}

// Transformer drops what no record has, also in the reflector's own first list.
func (p *Pods) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			Labels:      world.Pick(pod.Labels, stowage.PoolLabel, stowage.SeatLabel, stowage.DomainLabel),
			Annotations: world.Pick(pod.Annotations, stowage.ClaimAnnotation, corev1.PodDeletionCost),
		}}
		if c := metav1.GetControllerOfNoCopy(pod); c != nil {
			slim.OwnerReferences = []metav1.OwnerReference{*c}
		}
		if slim.Spec.NodeName = pod.Spec.NodeName; slim.Spec.NodeName == "" {
			if pins := observed.PinsOf(&pod.Spec); pins != nil {
				required := &corev1.NodeSelector{NodeSelectorTerms: pins.Terms}
				slim.Spec.NodeSelector = pins.Selector
				slim.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
			}
		}
		claims := observed.ClaimsOf(&pod.Spec)
		if len(claims) > 0 {
			if shape := observed.ShapeOf(pod); shape != nil {
				shape.Spec.NodeName = slim.Spec.NodeName
				slim.Spec = shape.Spec
			}
		}
		for _, claim := range claims {
			slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
		slim.Status.NominatedNodeName, slim.Status.Phase = pod.Status.NominatedNodeName, pod.Status.Phase
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady || c.Type == corev1.PodScheduled {
				slim.Status.Conditions = append(slim.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
			}
		}
		return slim, nil
	}
}
