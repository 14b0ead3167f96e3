package policy

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Adds returns what new pods of the workload get beside what their owner asks for. Each has that of one pool.
func (p *Policy) Adds() (out refusal.Added) {
	if p == nil || p.Layout == nil {
		return nil
	}
	add := func(part refusal.Part) {
		part.By = p.Source
		out.Add(part)
	}
	whole := p.Whole()
	for pool := range p.Len() {
		p.addNodes(whole.Nodes(pool, -1), add)
		for _, t := range p.TolerationsOf(pool) {
			add(refusal.Part{Field: refusal.Toleration, Key: t.Key, Values: values(t.Value)})
		}
		carry, _ := p.Gives(pool)
		for _, key := range slices.Sorted(maps.Keys(carry.Labels)) {
			add(refusal.Part{Field: refusal.Label, Key: key, Values: values(carry.Labels[key])})
		}
		for _, key := range slices.Sorted(maps.Keys(carry.Annotations)) {
			add(refusal.Part{Field: refusal.Annotation, Key: key, Values: values(carry.Annotations[key])})
		}
		if carry.PriorityClass != "" {
			add(refusal.Part{Field: refusal.PriorityClass, Key: carry.PriorityClass})
		}
		if carry.GracePeriod != nil {
			add(refusal.Part{Field: refusal.GracePeriod})
		}
	}
	labels, annotations := []string{stowage.PoolLabel, stowage.SeatLabel}, []string{stowage.ClaimAnnotation, corev1.PodDeletionCost}
	if whole.Across() != nil {
		labels = append(labels, stowage.DomainLabel)
	}
	if p.Distributor != nil {
		labels, annotations = append(labels, stowage.MutatedByKey), append(annotations, stowage.MutatedByKey)
	}
	for _, key := range labels {
		add(refusal.Part{Field: refusal.Label, Key: key, Own: true})
	}
	for _, key := range annotations {
		add(refusal.Part{Field: refusal.Annotation, Key: key, Own: true})
	}
	return out
}

// addNodes adds how a seat in a pool of some nodes has pods select them: see [placement.Seat.Apply].
func (p *Policy) addNodes(nodes nodeset.Set, add func(refusal.Part)) {
	field := refusal.NodeSelector
	if p.Preferred || !nodes.Equalities() {
		field = refusal.NodeAffinity
	}
	requirements, text := nodes.Requirements(), nodes.String()
	if across := p.Whole().Across(); across != nil {
		requirements, text = append(requirements, corev1.NodeSelectorRequirement{Key: across.Key}), text+","+across.Key
	}
	for _, r := range requirements {
		add(refusal.Part{Field: field, Key: r.Key, Values: r.Values, Text: text})
	}
}

// values is the value of an entry, if it has one.
func values(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}
