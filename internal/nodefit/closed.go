package nodefit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Closed is why a node takes no new pods such as one, whatever room it has.
type Closed int

// The answers. A pod may tolerate a cordon, and a node that is not ready.
const (
	Open Closed = iota
	Cordoned
	NotReady
	Tainted
	NotSelected
)

// ClosedTo returns why a node takes no new pods such as this one now, with the taint if that is why.
func ClosedTo(pod *corev1.Pod, node *corev1.Node) (Closed, corev1.Taint) {
	s := &subject{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod)}
	if s.selectsOthers(node) != "" {
		return NotSelected, corev1.Taint{}
	}
	return s.closed(node)
}

func (s *subject) closed(node *corev1.Node) (Closed, corev1.Taint) {
	refused := func(taints ...corev1.Taint) (corev1.Taint, bool) { return untolerated(&s.pod.Spec, taints, repels) }
	if taint, is := refused(corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}); is && node.Spec.Unschedulable {
		return Cordoned, taint
	}
	if taint, is := refused(corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}); is && !Ready(node) {
		return NotReady, taint
	}
	if taint, is := refused(node.Spec.Taints...); is {
		return Tainted, taint
	}
	return Open, corev1.Taint{}
}

// Nodes says in short which nodes there are.
type Nodes int

// The answers. NodesUnknown is that of nodes that may not be read.
const (
	NodesUnknown Nodes = iota
	NoNodes
	NodesCordoned // each of them
	SomeNodes
)

// NodesOf returns which nodes there are.
func NodesOf(nodes []corev1.Node) Nodes {
	switch {
	case len(nodes) == 0:
		return NoNodes
	case !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return !n.Spec.Unschedulable }):
		return NodesCordoned
	}
	return SomeNodes
}
