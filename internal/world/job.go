package world

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// IgnoresEvictions reports whether a Job does not count evicted pods as failed. A Job counts each pod that is deleted before
// it has succeeded against its backoffLimit, unless its podFailurePolicy ignores the condition DisruptionTarget. The
// eviction API sets that condition (KEP-3329). The Job controller delays the successors all the same, by up to 10 minutes
// (newBackoffRecord in pkg/controller/job of Kubernetes 1.37).
func IgnoresEvictions(job *batchv1.Job) bool {
	if job.Spec.PodFailurePolicy == nil {
		return false
	}
	for _, rule := range job.Spec.PodFailurePolicy.Rules { // the first rule that matches decides
		if slices.ContainsFunc(rule.OnPodConditions, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == corev1.DisruptionTarget && p.Status == corev1.ConditionTrue
		}) {
			return rule.Action == batchv1.PodFailurePolicyActionIgnore
		}
	}
	return false
}
