package layers

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Written returns the layer that Stowage wrote on a pod with these annotations. It returns false if the pod has no deletion cost, or one of another writer.
func Written(annotations map[string]string) (layer int, ours bool) {
	text := annotations[corev1.PodDeletionCost]
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil || cost >= 0 || annotations[stowage.ScaleDownCostAnnotation] != text {
		return 0, false
	}
	return int(-cost), true
}
