package nodefit

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// zoneLabels are the labels of a volume that the scheduler's filter VolumeZone compares, with the keys that nodes have.
var zoneLabels = []struct{ volume, node string }{
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
}

// mostTerms is how many terms volumes may make of a pod's node affinity.
const mostTerms = 64

// VolumeTerms returns the node selector terms of a volume, as the scheduler's filters VolumeBinding and VolumeZone read it. A node that
// matches one of them reaches the volume. Without terms, any node does. It returns false if no node reaches the volume, or if that is not known.
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
		return []corev1.NodeSelectorTerm{{MatchExpressions: zones}, {MatchExpressions: noZone()}}, true
	}
	var out []corev1.NodeSelectorTerm
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if len(t.MatchFields) > 0 {
			return nil, false
		}
		if len(t.MatchExpressions) > 0 { // an empty term matches nothing
			out = append(out, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(t.MatchExpressions, zones)})
			if len(zones) > 0 {
				out = append(out, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(t.MatchExpressions, noZone())})
			}
		}
	}
	return out, len(out) > 0
}

// noZone selects nodes that have none of the labels of zones. VolumeZone lets them take any volume.
func noZone() (out []corev1.NodeSelectorRequirement) {
	for _, label := range zoneLabels {
		out = append(out, corev1.NodeSelectorRequirement{Key: label.volume, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	return out
}

// zoneOfDriver reports whether a label is the zone of a node, as a CSI driver names it, such as topology.ebs.csi.aws.com/zone.
func zoneOfDriver(key string) bool {
	domain, name, _ := strings.Cut(key, "/")
	return name == "zone" && strings.HasPrefix(domain, "topology.")
}

// Reach is whether the nodes of a cell reach a volume.
type Reach int

// Not all is known by the labels of a cell: its nodes may be in several zones. A volume of certain nodes names them.
const (
	Elsewhere Reach = iota
	OfNodes
	Perhaps
	Everywhere
)

// ReachOf returns whether the nodes of a cell reach a volume with some terms, as far as the cell's labels show it.
func ReachOf(terms []corev1.NodeSelectorTerm, cell nodeset.Set) Reach {
	if len(terms) == 0 {
		return Everywhere
	}
	best := Elsewhere
	for _, t := range terms {
		of := Everywhere
		for i := range t.MatchExpressions {
			of = min(of, reachBy(&t.MatchExpressions[i], cell))
		}
		best = max(best, of)
	}
	return best
}

// reachBy returns what one requirement says: see [ReachOf].
func reachBy(r *corev1.NodeSelectorRequirement, cell nodeset.Set) Reach {
	if !cell.Names(r.Key) {
		switch {
		case zoneOfDriver(r.Key) && cell.Names(corev1.LabelTopologyZone):
			r = &corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: r.Operator, Values: r.Values}
		case r.Key == corev1.LabelHostname:
			return OfNodes
		}
	}
	return map[nodeset.Answer]Reach{nodeset.None: Elsewhere, nodeset.Some: Perhaps, nodeset.All: Everywhere}[cell.Meet(r)]
}

// Reaches reports whether nodes of a cell may reach a volume with some terms. Where the cell's labels leave that open, its nodes
// show it. The lister is nil where nodes are not known. Then they may reach it, as where the cell has no node yet. But a volume of certain nodes is
// nowhere else.
func Reaches(terms []corev1.NodeSelectorTerm, cell nodeset.Set, list Lister) bool {
	reach := ReachOf(terms, cell)
	if reach == Elsewhere || reach == Everywhere || list == nil {
		return reach > OfNodes
	}
	of, inReach := list(cell), reaching(terms)
	for i := range of.Nodes {
		if inReach(&of.Nodes[i]) {
			return true
		}
	}
	return reach == Perhaps && (of.Growing || len(of.Nodes) == 0)
}

// TermsOf returns the [VolumeTerms] of each volume that is not for any node. It returns false if those of one are not known.
func TermsOf(volumes []corev1.PersistentVolume) (terms [][]corev1.NodeSelectorTerm, known bool) {
	for i := range volumes {
		of, known := VolumeTerms(&volumes[i])
		if !known {
			return nil, false
		}
		if len(of) > 0 {
			terms = append(terms, of)
		}
	}
	return terms, true
}

// ReachesAll is [Reaches] for each of several volumes.
func ReachesAll(volumes [][]corev1.NodeSelectorTerm, cell nodeset.Set, list Lister) bool {
	return !slices.ContainsFunc(volumes, func(terms []corev1.NodeSelectorTerm) bool { return !Reaches(terms, cell, list) })
}

// InReach reports whether a node with some labels reaches a volume with some terms.
func InReach(terms []corev1.NodeSelectorTerm, node *corev1.Node) bool { return reaching(terms)(node) }

// reaching returns [InReach] for many nodes.
func reaching(terms []corev1.NodeSelectorTerm) func(*corev1.Node) bool {
	selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: terms})
	return func(node *corev1.Node) bool { return len(terms) == 0 || err == nil && selector.Match(node) }
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

// TopologyTerms returns the node selector terms of the volumes that a StorageClass makes, or nil if they may be anywhere. It returns false if they
// may be nowhere: a topology without expressions matches no node.
func TopologyTerms(class *storagev1.StorageClass) (out []corev1.NodeSelectorTerm, some bool) {
	for _, t := range class.AllowedTopologies {
		term := corev1.NodeSelectorTerm{}
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values})
		}
		if len(term.MatchExpressions) > 0 {
			out = append(out, term)
		}
	}
	return out, len(out) > 0 || len(class.AllowedTopologies) == 0
}
