package gate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/world"
)

// watcher is the store of a watch of the pods without a node. It keeps those that wait at the gate, in a queue.
type watcher struct {
	queue *queue
	found func(namespace string) // is called for each pod that is new in the queue

	passing int // bytes of pods that were let through whole, and that the queue does not have yet; the reflector's goroutine uses it
}

var _ cache.TransformingStore = &watcher{}

// Transformer drops the pods that do not wait at the gate, also from the reflector's own first list.
func (w *watcher) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
		if !gated(pod) {
			return slim, nil
		}
		pod.ManagedFields = nil // about half of a pod
		if size := pod.Size(); w.queue.bytes()+w.passing+size <= keptBytes {
			w.passing += size
			return pod, nil
		}
		// A first list is kept as a whole until it is complete.
		slim.CreationTimestamp, slim.DeletionTimestamp, slim.Status.Phase = pod.CreationTimestamp, pod.DeletionTimestamp, pod.Status.Phase
		slim.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
		if c := metav1.GetControllerOfNoCopy(pod); c != nil && world.Plausible(c) {
			slim.OwnerReferences = []metav1.OwnerReference{*c}
		}
		return slim, nil
	}
}

// gated reports whether a pod waits at the gate.
func gated(pod *corev1.Pod) bool {
	return (&podpatch.Pod{Spec: podpatch.Spec{SchedulingGates: pod.Spec.SchedulingGates}}).Gated(stowage.SeatGate)
}

func (w *watcher) see(obj any) (types.UID, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return "", fmt.Errorf("unexpected %T", obj)
	}
	if !gated(pod) || !podstatus.Active(pod) {
		w.queue.drop(pod.UID)
		return pod.UID, nil
	}
	one := waiting{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, created: pod.CreationTimestamp.Unix()}
	if c := metav1.GetControllerOfNoCopy(pod); c != nil && world.Plausible(c) {
		one.owner = c.UID
	}
	whole := pod
	if len(pod.Spec.Containers) == 0 {
		whole = nil // see Transformer
	}
	if w.queue.put(one, whole) {
		w.found(pod.Namespace)
	}
	return pod.UID, nil
}

// Add implements cache.ReflectorStore.
func (w *watcher) Add(obj any) error { return w.Update(obj) }

// Update implements cache.ReflectorStore.
func (w *watcher) Update(obj any) error {
	_, err := w.see(obj)
	w.passing = 0
	return err
}

// Delete implements cache.ReflectorStore. The pod may have got a node.
func (w *watcher) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	w.queue.drop(o.GetUID())
	return nil
}

// Replace implements cache.ReflectorStore.
func (w *watcher) Replace(list []any, _ string) error {
	there := make(map[types.UID]bool, len(list))
	for _, obj := range list {
		uid, err := w.see(obj)
		if err != nil {
			return err
		}
		there[uid] = true
	}
	w.queue.keep(there)
	w.passing = 0
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *watcher) Resync() error { return nil }
