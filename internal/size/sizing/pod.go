package sizing

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// TemplateName returns the name of a pod's template: by its own annotation, or else by that of its DaemonSet.
func TemplateName(own string, daemonSet map[string]string) string {
	if own != "" {
		return own
	}
	return daemonSet[flexdaemonsets.TemplateAnnotation]
}

// NodeOf returns the name of the node that a pod is for, if only one can be. The DaemonSet controller names it by a
// field selector in the node affinity.
func NodeOf(pod *podpatch.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	name := ""
	for _, term := range pod.RequiredTerms() {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1
		})
		if i < 0 || name != "" && term.MatchFields[i].Values[0] != name {
			return "" // terms are alternatives
		}
		name = term.MatchFields[i].Values[0]
	}
	return name
}
