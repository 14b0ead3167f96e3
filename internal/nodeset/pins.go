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
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		p.Terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(p.Selector)+len(p.Terms) == 0 {
		return nil
	}
	return p
}

// Size is how many bytes the texts of the pins have, and 16 for each of them.
func (p *Pins) Size() (n int) {
	if p == nil {
		return 0
	}
	of := func(texts ...string) {
		for _, text := range texts {
			n += 16 + len(text)
		}
	}
	for k, v := range p.Selector {
		of(k, v)
	}
	for i := range p.Terms {
		for _, requirements := range [][]corev1.NodeSelectorRequirement{p.Terms[i].MatchExpressions, p.Terms[i].MatchFields} {
			for j := range requirements {
				of(requirements[j].Key, string(requirements[j].Operator))
				of(requirements[j].Values...)
			}
		}
	}
	return n + 16*len(p.Terms)
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
