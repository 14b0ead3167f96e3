package sizing

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/testkit"
)

func TestNodePlans(t *testing.T) {
	agent := func(node, cpu string, created int64) *corev1.Pod {
		p := testkit.Pod("agent-"+node).Container("c", "cpu="+cpu+",memory=1Gi", "").Obj()
		p.Spec.NodeName, p.CreationTimestamp = node, metav1.NewTime(time.Unix(created, 0))
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: new(true)}}
		return p
	}
	classes := map[string]string{"small-1": "c4", "small-2": "c4", "large": "c64"}
	const gib = 1 << 30
	pods := []*corev1.Pod{agent("small-1", "400m", 1), agent("large", "6400m", 3), agent("small-2", "390m", 2), agent("by-hand", "1", 0), testkit.Pod("bare").Obj()}
	want := []NodePlan{
		{Namespace: "default", DaemonSet: "agent", Class: "c4", Nodes: 2, PlannedCPU: 6400, PlannedMemory: gib, CPU: 400, Memory: gib},
		{Namespace: "default", DaemonSet: "agent", Class: "c64", Nodes: 1, PlannedCPU: 6400, PlannedMemory: gib, CPU: 6400, Memory: gib},
	}
	got := NodePlans(pods, func(node string) string { return classes[node] })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if !got[0].Differs() || got[1].Differs() {
		t.Errorf("it differs on the small nodes: %t, on the large one: %t", got[0].Differs(), got[1].Differs())
	}
	for size, want := range map[int64]bool{100: false, 110: false, 111: true, 90: false, 89: true, 0: true} {
		if differs(100, size) != want {
			t.Errorf("%d of 100 differs: %t", size, !want)
		}
	}
}

// The overhead of a RuntimeClass is told of the resources that a template sized. A peer pod has its own.
func TestOverhead(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		overhead    string
		want        string
	}{
		"of what is sized": {annotations: map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{},"sized":["cpu"]}`}, overhead: "cpu=250m,memory=1Gi", want: "cpu 250m"},
		"of both":          {annotations: map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{},"sized":["cpu","memory"]}`}, overhead: "cpu=250m,memory=1Gi", want: "cpu 250m, memory 1Gi"},
		"none":             {annotations: map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{},"sized":["cpu"]}`}, overhead: "cpu=0"},
		"no size":          {overhead: "cpu=250m"},
		"a peer pod":       {annotations: map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{},"sized":["cpu"]}`, stowage.OriginalResourcesAnnotation: "{}"}, overhead: "cpu=250m"},
	} {
		pod := testkit.Pod("x").Obj()
		pod.Annotations, pod.Spec.Overhead = tc.annotations, testkit.ResourceList(tc.overhead)
		if got := Overhead(pod); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
