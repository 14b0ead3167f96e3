package podpatch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// CheckItems reports a pod that would take too long to look at, or too much memory while it waits for a seat. A pod of 150 containers with two
// requests and two limits each, and 100 labels and annotations, is within the bound.
func (p *Pod) CheckItems() error {
	if n, _ := p.items(); n > mostItems {
		return fmt.Errorf("it has over %d owners, containers, resources, labels, annotations, tolerations, volumes, spread constraints and terms of affinity", mostItems)
	}
	return nil
}

// What an item of a decoded pod takes in memory, about, with its two copies: sizing and the seat change a copy of the pod each. An entry of a map
// has two texts of at least 8 bytes, and 38 to 75 bytes in each map. A value of an affinity is not copied.
const (
	itemSize  = 256
	valueSize = 32
)

// Size is about how many bytes of memory the pod and its copies take while it is decided about, beside the texts.
func (p *Pod) Size() int64 {
	items, values := p.items()
	return int64(itemSize*items + valueSize*values)
}

// items returns how many list items and map entries a pod has, and how many values its node affinity. The memory of a map is made for eight
// entries at once, so a map counts as three more.
func (p *Pod) items() (items, values int) {
	entries := func(n int) {
		if n > 0 {
			items += 3 + n
		}
	}
	resources := func(r *Resources) {
		if r != nil {
			items += 1 + len(r.Claims)
			entries(len(r.Requests))
			entries(len(r.Limits))
		}
	}
	items = len(p.Metadata.OwnerReferences) + len(p.Spec.Tolerations) + len(p.Spec.SchedulingGates) + len(p.Spec.TopologySpreadConstraints) + len(p.Spec.Volumes)
	entries(len(p.Metadata.Labels))
	entries(len(p.Metadata.Annotations))
	entries(len(p.Spec.NodeSelector))
	resources(p.Spec.Resources)
	for ctr := range p.AllContainers() {
		items += 1 + len(ctr.Env)
		resources(ctr.Resources)
	}
	term := func(t *corev1.NodeSelectorTerm) {
		items += 1 + len(t.MatchExpressions) + len(t.MatchFields)
		for _, list := range [][]corev1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
			for i := range list {
				values += len(list[i].Values)
			}
		}
	}
	if a := p.Spec.Affinity; a != nil {
		items += len(a.Together) // the whole of it is bounded by mostTogether
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				term(&required.NodeSelectorTerms[i])
			}
		}
		for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			term(&a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
	}
	return items, values
}
