package shortage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// exampleReader returns a pod of the newest owner to judge a cell by, or nil, and where its volumes can be that are still to be made.
type exampleReader func(at sequence.Cell) (*corev1.Pod, nodefit.Volumes, error)

// examples returns pods of the newest owner: for a cell one that waits there, or any other one, or the pod of the template. It is nil if
// nothing can be read. Each pod is read once, with its claims.
func (r *run) examples(ctx context.Context, v *picture) exampleReader {
	type example struct {
		pod     *corev1.Pod
		volumes nodefit.Volumes
	}
	known := map[types.NamespacedName]example{}
	return func(at sequence.Cell) (*corev1.Pod, nodefit.Volumes, error) {
		key := types.NamespacedName{} // of no pod: the template
		if waits := waitsIn(v, at, judgeAfter); waits != nil {
			key = *waits
		} else if newest := v.members[0]; len(newest.Pods) > 0 {
			key = types.NamespacedName{Namespace: newest.Pods[0].Namespace, Name: newest.Pods[0].Name}
		}
		if e, ok := known[key]; ok {
			return e.pod, e.volumes, nil
		}
		var e example
		var err error
		if e.pod, err = r.readExample(ctx, v, key); err == nil && e.pod != nil {
			e.volumes, _, err = r.volumesOf(ctx, e.pod)
		}
		if err == nil {
			known[key] = e
		}
		return e.pod, e.volumes, err
	}
}

// readExample reads a pod, or one without a seat, or the template if no pod is named.
func (r *run) readExample(ctx context.Context, v *picture, key types.NamespacedName) (*corev1.Pod, error) {
	if key.Name == "" {
		if pod, err := r.unseated(ctx, v.members[0].Workload); pod != nil || err != nil {
			return pod, err
		}
		return r.ofTemplate(ctx, v.members[0].Workload)
	}
	return r.readPod(ctx, key)
}

// readPod returns a pod, or nil if there is none.
func (r *run) readPod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, key, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return pod, nil
}

// unseated returns one of an owner's pods, where none of them has a seat. It returns nil if the owner has no pod.
func (r *run) unseated(ctx context.Context, w *world.Workload) (*corev1.Pod, error) {
	scale, err := worldapi.ReadScale(ctx, r.Uncached, w.Namespace, w.Ref)
	if err != nil || scale == nil {
		return nil, err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil || selector.Empty() {
		return nil, err
	}
	// Pods may be a megabyte each, so one alone is read as a whole.
	pods := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	if err := r.Uncached.List(ctx, pods, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.Limit(20)); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if c := metav1.GetControllerOfNoCopy(&pods.Items[i]); c != nil && c.UID == w.UID {
			return r.readPod(ctx, client.ObjectKeyFromObject(&pods.Items[i]))
		}
	}
	return nil, nil
}

// ofTemplate returns the pod of a workload's template.
func (r *run) ofTemplate(ctx context.Context, w *world.Workload) (*corev1.Pod, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(w.APIVersion, w.Kind))
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, u); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	template, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
	var pod corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
		return nil, fmt.Errorf("the pod template of %s %s: %w", w.Kind, w.Name, err)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: pod.Labels}, Spec: pod.Spec}, nil
}
