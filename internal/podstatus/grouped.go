package podstatus

import corev1 "k8s.io/api/core/v1"

// The labels of pods that run together, or not at all: those of a LeaderWorkerSet (https://lws.sigs.k8s.io) and of a JobSet
// (https://jobset.sigs.k8s.io). If one of them ends, all are deleted.
var groupLabels = []string{"leaderworkerset.sigs.k8s.io/name", "jobset.sigs.k8s.io/jobset-name"}

// Grouped reports whether a pod belongs to a group that is scheduled, or restarted, as a whole.
func Grouped(pod *corev1.Pod) bool {
	if pod.Spec.SchedulingGroup != nil {
		return true
	}
	for _, label := range groupLabels {
		if _, is := pod.Labels[label]; is {
			return true
		}
	}
	return false
}
