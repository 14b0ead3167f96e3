package podstatus

import corev1 "k8s.io/api/core/v1"

// protections are the annotations by which people keep a pod where it runs, with their values. See
// https://karpenter.sh/docs/concepts/disruption/ and the FAQ of the Cluster Autoscaler.
var protections = []struct{ annotation, value string }{
	{"karpenter.sh/do-not-disrupt", "true"},
	{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"},
}

// Protected returns the annotation that keeps a pod where it runs, or "". A pod without a node runs nowhere.
func Protected(pod *corev1.Pod) string {
	for _, p := range protections {
		if pod.Spec.NodeName != "" && pod.Annotations[p.annotation] == p.value {
			return p.annotation
		}
	}
	return ""
}
