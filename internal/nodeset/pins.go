package nodeset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pins are what a pod asks of its node by labels.
type Pins struct {
	Selector map[string]string         // its node selector
	Terms    []corev1.NodeSelectorTerm // of the node affinity that it requires; they are alternatives
}

// PinsOf returns what a pod asks of its node, or nil if it asks for nothing.
func PinsOf(spec *corev1.PodSpec) *Pins {
	p := &Pins{Selector: spec.NodeSelector}
	if required := RequiredOf(spec.Affinity); required != nil {
		p.Terms = required.NodeSelectorTerms
	}
	if len(p.Selector)+len(p.Terms) == 0 {
		return nil
	}
	return p
}

// RequiredOf returns what an affinity requires of a node's labels, or nil.
func RequiredOf(a *corev1.Affinity) *corev1.NodeSelector {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// Bytes is about how many bytes the pins take.
func (p *Pins) Bytes() (n int) {
	if p == nil {
		return 0
	}
	n = Set{Labels: p.Selector}.Bytes()
	for i := range p.Terms {
		n += 64 + Set{Expressions: p.Terms[i].MatchExpressions}.Bytes() + Set{Expressions: p.Terms[i].MatchFields}.Bytes()
	}
	return n
}

// AskFor reports whether the pod asks for nodes of a set, as one does that has a seat there: by its node selector if the set is one of label
// equalities, and else in each term of its affinity that is not empty.
func (p *Pins) AskFor(s Set) bool {
	if p == nil {
		return s.Empty()
	}
	if s.Equalities() {
		for k, v := range s.Labels {
			if has, ok := p.Selector[k]; !ok || has != v {
				return false
			}
		}
		return true
	}
	requirements := s.Requirements()
	for i := range p.Terms {
		t := &p.Terms[i]
		if len(t.MatchExpressions)+len(t.MatchFields) > 0 && slices.ContainsFunc(requirements, func(r corev1.NodeSelectorRequirement) bool { return !In(t.MatchExpressions, &r) }) {
			return false
		}
	}
	return len(p.Terms) > 0
}

// Name reports whether the pod asks for something of a label.
func (p *Pins) Name(key string) bool {
	if p == nil {
		return false
	}
	if _, ok := p.Selector[key]; ok {
		return true
	}
	return slices.ContainsFunc(p.Terms, func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == key })
	})
}
