package nodefit

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// zoneLabels are the labels of a volume that the scheduler's filter VolumeZone compares, with the keys that nodes have.
var zoneLabels = []struct{ volume, node string }{
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
}

// mostNodes is how many nodes of a volume that names its nodes are looked at.
const mostNodes = 16

// mostTerms is how many terms volumes may make of a pod's node affinity.
const mostTerms = 64

// VolumeTerms returns the terms of which a node must match one to reach a volume, as the scheduler's filters VolumeBinding and
// VolumeZone read it. None means any node. It returns false if no node reaches the volume, or if that cannot be told.
func VolumeTerms(v *corev1.PersistentVolume) ([]corev1.NodeSelectorTerm, bool) {
	var zones []corev1.NodeSelectorRequirement
	for _, label := range zoneLabels {
		if value, ok := v.Labels[label.volume]; ok { // some volumes are in several zones
			zones = append(zones, corev1.NodeSelectorRequirement{Key: label.node, Operator: corev1.NodeSelectorOpIn, Values: strings.Split(value, "__")})
		}
	}
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		if len(zones) == 0 {
			return nil, true
		}
		return []corev1.NodeSelectorTerm{{MatchExpressions: zones}}, true
	}
	var out []corev1.NodeSelectorTerm
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if len(t.MatchFields) > 0 {
			return nil, false
		}
		if len(t.MatchExpressions) > 0 { // an empty term matches nothing
			out = append(out, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(t.MatchExpressions, zones)})
		}
	}
	return out, len(out) > 0
}

// zoneOfDriver reports whether a label is the zone of a node, as a CSI driver names it, such as topology.ebs.csi.aws.com/zone.
func zoneOfDriver(key string) bool {
	domain, name, _ := strings.Cut(key, "/")
	return name == "zone" && strings.HasPrefix(domain, "topology.")
}

// Reaches reports whether nodes with some labels are known to reach a volume with some terms. Node returns all labels of a node by its name,
// or nil if they are not known: a local volume names its node.
func Reaches(terms []corev1.NodeSelectorTerm, cell map[string]string, node func(name string) map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return !holds(&r, cell, node) })
	})
}

// holds reports whether one requirement holds for nodes with some labels: see [Reaches].
func holds(r *corev1.NodeSelectorRequirement, cell map[string]string, node func(name string) map[string]string) bool {
	value, has := cell[r.Key]
	if !has && zoneOfDriver(r.Key) {
		value, has = cell[corev1.LabelTopologyZone]
	}
	switch {
	case r.Operator != corev1.NodeSelectorOpIn:
		return has && (r.Operator == corev1.NodeSelectorOpExists || r.Operator == corev1.NodeSelectorOpNotIn && !slices.Contains(r.Values, value))
	case has:
		return slices.Contains(r.Values, value)
	case r.Key != corev1.LabelHostname:
		return false
	}
	return slices.ContainsFunc(r.Values[:min(mostNodes, len(r.Values))], func(name string) bool {
		labels := node(name)
		if labels == nil {
			return false
		}
		for k, v := range cell {
			if labels[k] != v {
				return false
			}
		}
		return true
	})
}

// WithVolume adds the terms of a volume to the node affinity that a pod requires. It returns false if there are too many. What the
// pod shares with others stays as it is.
func WithVolume(pod *corev1.Pod, of []corev1.NodeSelectorTerm) bool {
	if len(of) == 0 {
		return true
	}
	affinity := pod.Spec.Affinity.DeepCopy()
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	terms := of
	if own := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; own != nil {
		terms = nil
		for _, a := range own.NodeSelectorTerms {
			if len(a.MatchExpressions)+len(a.MatchFields) == 0 {
				continue
			}
			for _, b := range of {
				terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(a.MatchExpressions, b.MatchExpressions), MatchFields: a.MatchFields})
			}
		}
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	pod.Spec.Affinity = affinity
	return len(terms) <= mostTerms
}
