package preview

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// The pods of 200 templates are, in each field and number, what the arithmetic of this file makes of them.
func TestTemplates(t *testing.T) {
	var all []shape
	var input bytes.Buffer
	write := func(object fields) {
		data, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&input, "---\n%s", data)
	}
	for i := range machines {
		write(machines[i].manifest())
	}
	for i := range templates {
		write(templates[i].manifest())
	}
	for class, overhead := range overheads {
		object := fields{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": fields{"name": class}, "handler": class, "overhead": fields{"podFixed": overhead.manifest()}}
		if selector := classSelector[class]; selector != nil {
			object["scheduling"] = fields{"nodeSelector": selector}
		}
		write(object)
	}
	generator := shapes{rand.New(rand.NewPCG(20, 26))}
	for i := range 200 {
		w := generator.workload(i)
		all = append(all, w)
		write(w.manifest(i))
	}
	in, err := Load(t.Context(), Source{Names: []string{"-"}, In: &input, Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	pods, _, err := New(in, Settings{Namespace: "stowage-system", Spread: true, Sizing: true, PeerPods: true, PeerPodConfig: peerpod.DefaultConfig()}).Admit(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]*corev1.Pod{}
	for i := range pods {
		of[pods[i].Workload.Name] = append(of[pods[i].Workload.Name], pods[i].Pod)
	}
	checked := 0
	for i := range all {
		checked += all[i].check(t, of[all[i].name])
	}
	if checked != len(pods) {
		t.Errorf("%d pods are of the workloads, and there are %d", checked, len(pods))
	}
}

// check compares the pods of a workload, in order of creation, with what they should be. It returns how many there should be.
func (w *shape) check(t *testing.T, pods []*corev1.Pod) int {
	t.Helper()
	var nodes []*machine
	count := w.replicas
	if w.kind == "DaemonSet" {
		nodes = w.nodes()
		count = len(nodes)
	}
	if len(pods) != count {
		t.Errorf("%s %s has %d pods, want %d", w.kind, w.name, len(pods), count)
		return count
	}
	order := w.order(count)
	held := map[int]int{}
	for n, pod := range pods {
		want := wanted{shape: w, ordinal: n, pool: order[n]}
		if held[want.pool]++; want.pool >= 0 {
			want.seat = held[want.pool]
		}
		if nodes != nil {
			want.node = nodes[n]
		}
		if diff := cmp.Diff(want.spec(t), pod.Spec, sameAmounts); diff != "" {
			t.Errorf("%s %s, pod %d (-want +got):\n%s", w.kind, w.name, n, diff)
		}
		if diff := cmp.Diff(want.marks(), marksOf(pod)); diff != "" {
			t.Errorf("%s %s, pod %d, labels and annotations (-want +got):\n%s", w.kind, w.name, n, diff)
		}
	}
	return count
}

// sameAmounts compares quantities by what they are.
var sameAmounts = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })

// marksOf are the labels and annotations that Stowage decides by numbers.
func marksOf(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, of := range []map[string]string{pod.Labels, pod.Annotations} {
		for _, key := range []string{stowage.PoolLabel, stowage.SeatLabel, stowage.SizedByLabel, stowage.PeerPodLabel, corev1.PodDeletionCost,
			stowage.DefaultVCPUsAnnotation, stowage.DefaultMemoryAnnotation, stowage.DefaultMemAnnotation, stowage.DefaultGPUsAnnotation} {
			if value, ok := of[key]; ok {
				out[key] = value
			}
		}
	}
	return out
}
