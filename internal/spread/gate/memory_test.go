package gate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// sized is a pod at the gate that is encoded in so many bytes.
func sized(t *testing.T, name string, bytes int) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(start),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		Annotations:     map[string]string{"large": strings.Repeat("x", bytes)},
	}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
	pod.Annotations["large"] = strings.Repeat("x", 2*bytes-pod.Size()) // what is beside the text takes some of it
	if size := pod.Size(); size != bytes {
		t.Fatalf("the pod has %d bytes, want %d", size, bytes)
	}
	return pod
}

// What is kept of pods is bounded, and the room of one that is forgotten or gone is another one's.
func TestKeptPodsAreBounded(t *testing.T) {
	const half = keptBytes / 2
	q := newQueue()
	see := func(name string, bytes int) {
		q.put(waiting{namespace: "ns", name: name, uid: types.UID(name), owner: "rs", created: 1}, sized(t, name, bytes))
	}
	expect := func(what, want string, bytes int) {
		t.Helper()
		var kept []string
		for _, uid := range slices.Sorted(maps.Keys(q.pods)) {
			if q.known(q.pods[uid]) != nil {
				kept = append(kept, string(uid))
			}
		}
		if got := strings.Join(kept, " "); got != want || q.bytes() != bytes {
			t.Errorf("%s: kept are %q of %d bytes, want %q of %d", what, got, q.bytes(), want, bytes)
		}
	}
	see("a", half)
	see("b", half)
	expect("all that may be kept", "a b", keptBytes)
	see("c", 1024)
	expect("one pod more", "a b", keptBytes)
	see("a", half)
	expect("a pod takes its own place", "a b", keptBytes)
	q.forget(q.pods["b"])
	expect("one is forgotten", "a", half)
	see("c", 1024)
	expect("another one is seen again", "a c", half+1024)
	see("b", half)
	expect("there is too little room", "a c", half+1024)
	see("a", 2048)
	expect("a pod is smaller now", "a c", 2048+1024)
	see("b", half)
	expect("there is room again", "a b c", half+2048+1024)
	q.drop("a")
	expect("one is gone", "b c", half+1024)
	q.keep(map[types.UID]bool{"c": true})
	expect("a new list", "c", 1024)
	q.drop("c")
	expect("all are gone", "", 0)
}

// The watch lets through no more pods whole than are kept, also while its first list is on its way. Of the others, it lets through what the
// queue needs.
func TestWatchIsBounded(t *testing.T) {
	const half = keptBytes / 2
	found := 0
	w := &watcher{queue: newQueue(), found: func(string) { found++ }}
	pass := func(pod *corev1.Pod, whole bool) *corev1.Pod {
		t.Helper()
		obj, err := w.Transformer()(pod)
		if err != nil {
			t.Fatal(err)
		}
		out := obj.(*corev1.Pod)
		if got := len(out.Spec.Containers) > 0; got != whole {
			t.Errorf("pod %s is let through whole: %t, want %t", out.Name, got, whole)
		}
		return out
	}
	managed := sized(t, "b", half)
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager"}} // which take no room
	ending, ended, other := sized(t, "ending", 1024), sized(t, "ended", 1024), sized(t, "other", 1024)
	ending.DeletionTimestamp, ended.Status.Phase, other.Spec.SchedulingGates = new(metav1.NewTime(start)), corev1.PodFailed, nil

	// 1. The first list.
	list := []any{pass(sized(t, "a", half), true), pass(managed, true), pass(sized(t, "c", 1024), false), pass(ending, false), pass(ended, false), pass(other, false)}
	if n := w.queue.bytes(); n != 0 {
		t.Errorf("%d bytes are kept before the list is complete", n)
	}
	slim := list[2].(*corev1.Pod)
	if err := w.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
	if n := w.queue.bytes(); n != keptBytes || found != 3 || len(w.queue.pods) != 3 {
		t.Errorf("%d bytes of %d pods are kept, and %d were found", n, len(w.queue.pods), found)
	}
	want := waiting{namespace: "ns", name: "c", uid: "c", owner: "rs", created: start.Unix()}
	if got := w.queue.pods["c"]; got == nil || *got != want {
		t.Errorf("a pod that is not kept waits as %+v, want %+v", got, want)
	}
	if slim.Annotations != nil {
		t.Error("a pod that is not kept has its annotations")
	}

	// 2. Pods go, and there is room. A part of a pod is not kept as if it were all of it.
	for _, name := range []string{"a", "b"} {
		if err := w.Delete(sized(t, name, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Update(slim); err != nil {
		t.Fatal(err)
	}
	if n := w.queue.bytes(); n != 0 || len(w.queue.pods) != 1 {
		t.Errorf("%d bytes of %d pods are kept", n, len(w.queue.pods))
	}

	// 3. What the queue has taken is on its way no more: after the list, and after each event.
	const third = keptBytes / 3
	if err := w.Replace([]any{pass(sized(t, "a", third), true), pass(sized(t, "b", third), true)}, "2"); err != nil {
		t.Fatal(err)
	}
	pass(sized(t, "c", third), true)
	w.passing = 0 // it never came
	if err := w.Delete(sized(t, "b", 1024)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := w.Update(pass(sized(t, "a", third), true)); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.queue.bytes(); n != third {
		t.Errorf("%d bytes of one pod are kept", n)
	}
}
