// Package podstatus answers questions about a pod's status that several packages ask.
package podstatus

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Ended reports whether a pod has run to its end: the scheduler does not count it any more.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Active reports whether a pod counts for its owner: it has not ended and is not being deleted.
func Active(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !Ended(pod) }

// Ready reports whether a pod has the condition Ready.
func Ready(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Unschedulable returns what the scheduler says of a pod for which it found no node, without the part about
// preemption.
func Unschedulable(pod *corev1.Pod) (message string, is bool) {
	c := unschedulable(pod)
	if c == nil {
		return "", false
	}
	message, _, _ = strings.Cut(c.Message, " preemption:")
	return strings.TrimSuffix(message, "."), true
}

// UnschedulableSince returns since when the scheduler has found no node for a pod, or zero if that is not so.
func UnschedulableSince(pod *corev1.Pod) time.Time {
	if c := unschedulable(pod); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

func unschedulable(pod *corev1.Pod) *corev1.PodCondition {
	if pod.Spec.NodeName != "" {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c
		}
	}
	return nil
}

// PolicyGrace is how long before its policy a pod may be created so that nobody can have meant to leave it out. Deployment
// tools create workloads before custom resources.
const PolicyGrace = 30 * time.Second

// watchLag is how long after its policy a pod may be created by a request of a replica that did not know the policy
// yet. The watch lags, and times of creation are whole seconds.
const watchLag = 2 * time.Second

// CreatedBefore reports whether a pod was created at most [PolicyGrace] before the policy that concerns it. It is false
// where the time of the policy is not known.
func CreatedBefore(created, policy time.Time) bool {
	return !policy.IsZero() && !created.Before(policy.Add(-PolicyGrace)) && !created.After(policy.Add(watchLag))
}
