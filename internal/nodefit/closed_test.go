package nodefit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What keeps a pod from a node is what the pod neither selects nor tolerates.
func TestClosedTo(t *testing.T) {
	taint := corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	soft := corev1.Taint{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}
	for name, tc := range map[string]struct {
		edit      func(*corev1.Node)
		tolerates []string
		want      Closed
	}{
		"open":                          {want: Open},
		"cordoned":                      {edit: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: Cordoned},
		"cordoned, which it tolerates":  {edit: func(n *corev1.Node) { n.Spec.Unschedulable = true }, tolerates: []string{corev1.TaintNodeUnschedulable}, want: Open},
		"not ready":                     {edit: func(n *corev1.Node) { n.Status.Conditions = nil }, want: NotReady},
		"not ready, which it tolerates": {edit: func(n *corev1.Node) { n.Status.Conditions = nil }, tolerates: []string{corev1.TaintNodeNotReady}, want: Open},
		"a taint":                       {edit: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{soft, taint} }, want: Tainted},
		"a taint that it tolerates":     {edit: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{soft, taint} }, tolerates: []string{"team"}, want: Open},
		"another node":                  {edit: func(n *corev1.Node) { n.Labels = nil; n.Spec.Taints = []corev1.Taint{taint} }, want: NotSelected},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"p": "a"}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if tc.edit != nil {
			tc.edit(node)
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"p": "a"}}}
		for _, key := range tc.tolerates {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
		got, by := ClosedTo(pod, node)
		if got != tc.want || tc.want == Tainted && by.Key != "team" {
			t.Errorf("%s: it is %d by taint %q, want %d", name, got, by.Key, tc.want)
		}
	}
}
