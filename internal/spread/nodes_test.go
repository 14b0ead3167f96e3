package spread

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodeset"
)

// The pods of a burst share one list of nodes, and the pods of a second later see what has changed. Many sets do not take much memory.
func TestRecentNodes(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	lists, nodes := 0, []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	with := recentNodes(func(nodeset.Set) []corev1.Node {
		lists++
		return nodes
	}, clock, clock)
	a, b := nodeset.Set{Labels: map[string]string{"p": "a"}}, nodeset.Set{Labels: map[string]string{"p": "b"}}
	for range 500 {
		if got := with(a); len(got.Nodes) != 1 || got.Growing {
			t.Fatalf("got %d nodes, and others may come: %t", len(got.Nodes), got.Growing)
		}
	}
	if with(b); lists != 2 {
		t.Errorf("there were %d lists of two sets", lists)
	}
	nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{karpenter.NodePoolLabel: "x"}}}, {}}
	clock.Step(nodesFor)
	if got := with(a); len(got.Nodes) != 2 || !got.Growing || !got.Now.Equal(clock.Now()) {
		t.Errorf("a second later there are %d nodes, and others may come: %t", len(got.Nodes), got.Growing)
	}
	nodes, lists = make([]corev1.Node, 6000), 0
	for i := range 20 {
		for range 2 {
			with(nodeset.Set{Labels: map[string]string{"p": fmt.Sprint(i)}})
		}
	}
	if lists != 20 {
		t.Errorf("there were %d lists of 20 sets", lists)
	}
}
