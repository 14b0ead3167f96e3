package inspect

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// What chooses the nodes of a pod is in its pod template, or has come at admission: from Stowage, from a RuntimeClass, or from somebody's policy.

// choosesNodes reports whether a pod may only run on some nodes.
func choosesNodes(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return spec.NodeName != "" || len(spec.NodeSelector) > 0 || a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}

// addedLater reports whether the template of a pod is known and does not choose nodes. Class is its RuntimeClass then, which may.
func (c *cells) addedLater(pod *corev1.Pod) (later bool, class string) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || c.owners[owner.UID] == nil || !c.owners[owner.UID].MakesPods() { // of the others, no template is kept
		return false, ""
	}
	template := c.created[owner.UID]
	if choosesNodes(&template.Spec) {
		return false, ""
	}
	return true, runtimeClass(pod)
}

// pin is how pods without a seat choose their nodes, though their template does not.
type pin struct {
	later bool
	class string // their RuntimeClass, which may be why
	// pool is the one whose nodes they select, as a pod with a seat there does. Somebody may have removed their labels, or their claim.
	pool string
}

// pinOf looks how a pod without a seat chooses its nodes.
func pinOf(c *cells, p *policy.Policy, pod *corev1.Pod) (out pin) {
	if out.later, out.class = c.addedLater(pod); !out.later {
		return out
	}
	pins := nodeset.PinsOf(&pod.Spec)
	for n := range p.Len() {
		if pins.AskFor(p.Nodes(n, -1)) {
			out.pool = p.Pool(n).Name
		}
	}
	return out
}
