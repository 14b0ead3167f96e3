package inspect

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An owner reference is what its writer likes: the API server checks neither its kind nor its name. No view ends because of one, and
// none prints a line that it has written.
func TestHostileOwnerReferences(t *testing.T) {
	const forged = "Everything is as it should be."
	names := map[string]string{
		"white space": "x" + strings.Repeat(" ", 3000) + "y", "line breaks": "x\n" + forged + "\ny", "tabs": "x\t" + forged, "colors": "\x1b[32m" + forged + "\x1b[0m",
		"a long one": strings.Repeat("x", 100_000), "separators": "\u2028" + forged + "\u0085", "no text": "\xff\xfe",
	}
	for what, name := range names {
		t.Run(what, func(t *testing.T) {
			hostile := func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "K" + name, Name: name, UID: "o", Controller: new(true)}}
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "stowage.dev/xyz"}}
			}
			seated := pod("seated", "0", 1, hostile)
			waits := pod("waits", "0", 2, func(p *corev1.Pod) {
				hostile(p)
				p.Spec.NodeName = ""
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: name}}
			})
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"p": "a"}}}
			i := newInspector(t, node, seated, waits, pod("gated", "", 0, func(p *corev1.Pod) {
				hostile(p)
				p.Spec.NodeName = ""
			}))
			r, err := i.Status(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			ofPod, err := i.Explain(t.Context(), "ns", "waits")
			if err != nil {
				t.Fatal(err)
			}
			ofNode, err := i.ExplainNode(t.Context(), "node-a")
			if err != nil {
				t.Fatal(err)
			}
			for _, color := range []bool{false, true} {
				var out strings.Builder
				for _, width := range []int{0, 40, 80} {
					for _, format := range []string{"table", "wide"} {
						if err := r.Print(&out, Layout{Format: format, AllNamespaces: true, All: true, Width: width, Color: color}); err != nil {
							t.Fatal(err)
						}
					}
				}
				out.WriteString(ofPod.text() + ofNode.text())
				for line := range strings.Lines(out.String()) {
					if strings.HasPrefix(strings.TrimLeft(line, " \t"), forged) || strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\t\r\v\f\u2028\u0085") || strings.Contains(line, "\x1b[32m"+forged) {
						t.Errorf("a line of somebody else: %q", line)
					}
				}
			}
		})
	}
}
