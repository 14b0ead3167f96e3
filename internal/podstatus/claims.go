package podstatus

import corev1 "k8s.io/api/core/v1"

// VolumeClaims returns the names of the PersistentVolumeClaims that a pod uses. A generic ephemeral volume goes with its pod, and its claim
// is not among them.
func VolumeClaims(pod *corev1.PodSpec) (names []string) {
	for i := range pod.Volumes {
		if claim := pod.Volumes[i].PersistentVolumeClaim; claim != nil {
			names = append(names, claim.ClaimName)
		}
	}
	return names
}
