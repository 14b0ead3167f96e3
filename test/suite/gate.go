package suite

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Gated gives a pod template the gate.
func Gated(spec *corev1.PodSpec) {
	spec.SchedulingGates = append(spec.SchedulingGates, corev1.PodSchedulingGate{Name: stowage.SeatGate})
}

// Gates are the names of a pod's gates.
func Gates(pod *corev1.Pod) string {
	var names []string
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return strings.Join(names, " ")
}

// Undecidable makes pods about which nobody can decide, so that the leader leaves them at the gate for a minute.
func (n *Tenant) Undecidable(t *testing.T, count int, change func(*corev1.PodSpec)) (pods []corev1.Pod) {
	t.Helper()
	d := n.Deployment("web", count, Annotated("no strategy at all"))
	change(&d.Spec.Template.Spec)
	Must(t, n.Create(t.Context(), d))
	Eventually(t, "the pods wait", func() (_ bool, err error) {
		pods, err = n.Pods(t.Context(), "web")
		return len(pods) == count && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !strings.Contains(Gates(&p), stowage.SeatGate) }), err
	})
	return pods
}
