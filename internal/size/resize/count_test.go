package resize

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pods that wait for their nodes have a size, too. Each is the only one of its node.
func TestCountWithoutSize(t *testing.T) {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", UID: "d"}, Status: appsv1.DaemonSetStatus{CurrentNumberScheduled: 8}}
	pods := func(nodes ...string) (out []*corev1.Pod) {
		for i, node := range nodes {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("pod-", i)), OwnerReferences: []metav1.OwnerReference{{UID: "d", Controller: new(true)}}}}
			p.Spec.NodeName = node
			out = append(out, p)
		}
		return out
	}
	for name, tc := range map[string]struct {
		sized []*corev1.Pod
		want  int32
	}{
		"none":                      {want: 8},
		"one of each node":          {sized: pods("1", "2", "3", "4", "5", "6", "7", "8")},
		"all wait":                  {sized: pods("", "", "", "", "", "", "", "")},
		"some wait":                 {sized: pods("1", "2", "", "", "5"), want: 3},
		"two of a node":             {sized: pods("1", "1", "2"), want: 6},
		"more than there are nodes": {sized: pods("1", "2", "3", "4", "5", "6", "7", "8", "9")},
	} {
		if got := countWithoutSize(d, slices.Values(tc.sized)); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
