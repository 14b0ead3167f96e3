package inspect

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// unlooked is for how long a pod may be without an answer of a scheduler.
const unlooked = 30 * time.Second

// unscheduled returns why no scheduler has looked for a node for a pod, if that is so.
func (i *Inspector) unscheduled(pod *corev1.Pod) (finding.Reason, finding.Values) {
	_, looked := podstatus.Unschedulable(pod)
	if looked || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || hasGate(&pod.Spec) || i.Clock.Since(pod.CreationTimestamp.Time) < unlooked {
		return "", finding.Values{}
	}
	var gates []string
	for _, gate := range pod.Spec.SchedulingGates {
		if strings.HasPrefix(gate.Name, ownPrefix) {
			return "", finding.Values{} // that is a problem of its own
		}
		gates = append(gates, gate.Name)
	}
	v := finding.Values{Other: cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName), Objects: strings.Join(gates, " and "), Several: len(gates) > 1}
	if n := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }); n >= 0 && len(gates) == 0 {
		c := &pod.Status.Conditions[n]
		if c.Status == corev1.ConditionTrue {
			return "", v
		}
		v.Text = strings.Trim(c.Reason+": "+c.Message, ": ")
	}
	return finding.NotScheduled, v
}

// ours reports whether a pod waits as one that Stowage decides about: a policy divides it, or it has a seat or a size.
func (s *snapshot) ours(pod *corev1.Pod) bool {
	return s.policyOf(pod) != nil || proven(pod) || pod.Labels[stowage.SizedByLabel] != ""
}
