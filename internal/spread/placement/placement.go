// Package placement is what a seat means for a pod. It finds what in a pod chooses nodes already, and which rank a
// pod has by an ordinal of its own. It writes a seat into a pod and takes it out again.
//
// The package is pure: it takes pods and returns pods. Package sequence decides which seat is
// next, and package ledger which pod holds it.
package placement

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Pinned returns what in a pod chooses nodes by labels that pools choose theirs by, or chooses a node. Such a
// pod gets no seat. What an earlier pass wrote into the pod to have it run on its own nodes does not count.
func Pinned(pod *podpatch.Pod, s *sequence.Strategy, own nodeset.Set) (key string, pinned bool) {
	spec := &pod.Spec
	if spec.NodeName != "" {
		return "spec.nodeName", true
	}
	terms := pod.RequiredTerms()
	for i := range s.Len() {
		for _, key := range s.Keys(i) {
			if v, ok := spec.NodeSelector[key]; ok {
				if want, mine := own.Labels[key]; !mine || v != want {
					return "node label " + key, true
				}
			}
			for _, t := range terms {
				if slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == key && !requiredBy(own, &r) }) {
					return "node label " + key, true
				}
			}
		}
	}
	for _, t := range terms {
		if len(t.MatchFields) > 0 {
			return "a node's name", true
		}
	}
	return "", false
}

// requiredBy reports whether a seat on some nodes has a pod require this of its node. One on nodes of label equalities uses the pod's node selector.
func requiredBy(own nodeset.Set, r *corev1.NodeSelectorRequirement) bool {
	return !own.Equalities() && nodeset.In(own.Requirements(), r)
}

// mostAdded is how many bytes a seat may add to the node affinity of a pod. The API server stores no pod of over 1.5 MiB.
const mostAdded = 128 << 10

// TooLarge reports whether a pod has so many terms of node affinity that the requirements of a pool, in each of them, would be too large to be stored.
func TooLarge(pod *podpatch.Pod, s *sequence.Strategy) bool {
	terms := len(pod.RequiredTerms())
	if terms < 2 {
		return false
	}
	for i := range s.Len() {
		if nodes := s.Nodes(i, -1); !nodes.Equalities() && terms*nodes.Bytes() > mostAdded {
			return true
		}
	}
	return false
}

// OwnRank returns the rank of a pod that has an ordinal of its own, and false for others.
// The first ordinal is that of a StatefulSet's first pod.
func OwnRank(pod *podpatch.Pod, firstOrdinal int64) (int64, bool) {
	owner := pod.Controller()
	if owner == nil {
		return 0, false
	}
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	m := &pod.Metadata
	switch {
	case owner.Kind == "StatefulSet" && group == appsv1.GroupName:
		text := m.Labels[appsv1.PodIndexLabel]
		if text == "" {
			text = OrdinalInName(m.Name)
		}
		n, err := strconv.ParseInt(text, 10, 32)
		return n - firstOrdinal + 1, err == nil && n >= firstOrdinal
	case owner.Kind == "Job" && group == batchv1.GroupName:
		n, err := strconv.ParseInt(m.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 32)
		return n + 1, err == nil && n >= 0
	}
	return 0, false
}

// OrdinalInName returns the ordinal in the name of a StatefulSet's pod.
func OrdinalInName(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

// AsCreated returns a pod as its owner made it, as far as its placement goes. It is on the node that its template
// names, if it names one, and without what Stowage wrote into it.
func AsCreated(pod *podpatch.Pod, s *sequence.Strategy, templateNode string) *podpatch.Pod {
	created := pod.Clone()
	created.Spec.NodeName = templateNode
	_, claimed := pod.Metadata.Annotations[stowage.ClaimAnnotation]
	_, pooled := pod.Metadata.Labels[stowage.PoolLabel]
	if claimed || pooled {
		keys := keysOf(s)
		for _, key := range keys {
			delete(created.Spec.NodeSelector, key)
		}
		created.Unrequire(func(r *corev1.NodeSelectorRequirement) bool { return slices.Contains(keys, r.Key) })
	}
	return created
}

// keysOf are the keys of the labels by which pools have their nodes. A pod that names one of them itself has no seat.
func keysOf(s *sequence.Strategy) (keys []string) {
	for i := range s.Len() {
		keys = append(keys, s.Keys(i)...)
	}
	return keys
}

// Successor returns the pod that the owner of a pod creates in its place, with a seat in one of the pools and domains. The domain is
// -1 where it does not matter. A pod with a seat in a former pool selects nodes by labels that the strategy does not have any more. Its selector is left out.
func Successor(pod *corev1.Pod, s *sequence.Strategy, pool, domain int, tolerations []corev1.Toleration, former bool) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
	out.Spec.NodeName = ""
	out.Spec.NodeSelector = maps.Clone(pod.Spec.NodeSelector)
	if out.Spec.NodeSelector == nil || former {
		out.Spec.NodeSelector = map[string]string{}
	}
	keys := keysOf(s)
	for _, key := range keys {
		delete(out.Spec.NodeSelector, key)
	}
	required := nodeset.Without(nodeset.RequiredOf(pod.Spec.Affinity), func(r *corev1.NodeSelectorRequirement) bool { return former || slices.Contains(keys, r.Key) })
	if nodes := s.Nodes(pool, domain); nodes.Equalities() {
		maps.Copy(out.Spec.NodeSelector, nodes.Labels)
	} else {
		required = nodeset.Require(required, nodes.Requirements())
	}
	out.Spec.Affinity = withRequired(pod.Spec.Affinity, required)
	out.Spec.Tolerations = append(slices.Clone(pod.Spec.Tolerations), tolerations...)
	out.Spec.TopologySpreadConstraints = withoutMinDomains(pod.Spec.TopologySpreadConstraints, s, pool)
	return out
}

// withRequired returns an affinity with another node affinity that is required.
func withRequired(affinity *corev1.Affinity, required *corev1.NodeSelector) *corev1.Affinity {
	if required == nil && (affinity == nil || affinity.NodeAffinity == nil) {
		return affinity
	}
	out, of := corev1.Affinity{}, corev1.NodeAffinity{}
	if affinity != nil {
		out = *affinity
	}
	if out.NodeAffinity != nil {
		of = *out.NodeAffinity
	}
	of.RequiredDuringSchedulingIgnoredDuringExecution = required
	out.NodeAffinity = &of
	return &out
}

// InCell is [Successor] with a seat in a cell.
func InCell(pod *corev1.Pod, s *sequence.Strategy, at sequence.Cell, tolerations []corev1.Toleration) *corev1.Pod {
	domain := at.Domain
	if s.Across() == nil {
		domain = -1
	}
	return Successor(pod, s, at.Pool, domain, tolerations, false)
}

// Seat is a seat with how a pod is held to it.
type Seat struct {
	sequence.Seat
	Strategy *sequence.Strategy
	// Domain is the index of the seat's domain, where the strategy has domains.
	Domain int
	// Claim proves that the seat was given to this pod's owner.
	Claim string
	// CostRank is the rank for which the claim says that the pod's deletion cost is written, or 0.
	CostRank int64
	// Rewrite is the rank whose deletion cost replaces the one that the pod has. If it is 0, only a pod without a cost gets
	// one: that of the seat.
	Rewrite int64
	// Exists says that the pod was created before. Its spec stays as it is.
	Exists bool
	// Preferred lets the pod run outside the pool.
	Preferred bool
	// OwnOrdinal says that the pod has an ordinal of its own, by which it is removed.
	OwnOrdinal bool
	// Distributed says that the seat comes from a PodDistributor.
	Distributed bool
	// Tolerations are those that the pool gives to its pods.
	Tolerations []corev1.Toleration
}

// PreferenceWeight is how much a preferred pool weighs; it is the API's maximum.
const PreferenceWeight = 100

// Apply writes the seat into a pod. To write it twice changes nothing. [podpatch.Diff] makes of it the patch for a create, and
// [podpatch.Merge] the one for a pod that exists.
func (s *Seat) Apply(pod *podpatch.Pod) {
	pool := s.Strategy.Pool(s.Pool)
	pod.SetLabel(stowage.PoolLabel, pool.Name)
	pod.SetLabel(stowage.SeatLabel, strconv.FormatInt(s.Ordinal, 10))
	if across := s.Strategy.Across(); across != nil {
		pod.SetLabel(stowage.DomainLabel, across.Domains[s.Domain].Value)
	} else {
		delete(pod.Metadata.Labels, stowage.DomainLabel)
	}
	pod.SetAnnotation(stowage.ClaimAnnotation, s.Claim)
	if s.Rewrite > 0 {
		pod.SetAnnotation(corev1.PodDeletionCost, sequence.DeletionCost(s.Rewrite))
	} else if _, set := pod.Metadata.Annotations[corev1.PodDeletionCost]; !set && !s.OwnOrdinal {
		if rank, ok := s.Strategy.Rank(s.Seat); s.CostRank > 0 || ok {
			pod.SetAnnotation(corev1.PodDeletionCost, sequence.DeletionCost(cmp.Or(s.CostRank, rank)))
		}
	}
	if s.Exists {
		return
	}
	if s.Distributed {
		pod.SetLabel(stowage.MutatedByKey, stowage.MutatedByValue)
		pod.SetAnnotation(stowage.MutatedByKey, stowage.MutatedByValue)
	}
	for _, t := range s.Tolerations {
		pod.AddToleration(t)
	}
	nodes := s.Nodes()
	if !s.Preferred {
		s.takeMinDomains(pod)
		if !nodes.Equalities() {
			pod.Require(nodes.Requirements())
			return
		}
		// A node selector holds beside each of the terms of an affinity, which are alternatives.
		for k, v := range nodes.Labels {
			pod.SetNodeSelector(k, v)
		}
		return
	}
	pod.AddPreference(corev1.PreferredSchedulingTerm{Weight: PreferenceWeight, Preference: corev1.NodeSelectorTerm{MatchExpressions: nodes.Requirements()}})
}

// Nodes are the seat's nodes.
func (s *Seat) Nodes() nodeset.Set { return s.Strategy.Nodes(s.Pool, s.Domain) }

// Withdraw removes what holds a pod to a seat that Stowage gave and that is not the pod's any more. Somebody copied
// it from another pod, or has chosen other nodes since, by the labels in keep. Tolerations and preferences hold it
// nowhere, and stay.
func (s *Seat) Withdraw(pod *podpatch.Pod, keep map[string]string) {
	if nodes := s.Nodes(); !s.Preferred && nodes.Equalities() {
		for k, v := range nodes.Labels {
			if _, kept := keep[k]; !kept && pod.Spec.NodeSelector[k] == v {
				delete(pod.Spec.NodeSelector, k)
			}
		}
	} else if !s.Preferred {
		pod.Unrequire(func(r *corev1.NodeSelectorRequirement) bool { return requiredBy(nodes, r) })
	}
	rank, ok := s.Strategy.Rank(s.Seat)
	if ok && sequence.RankOfCost(pod.Metadata.Annotations[corev1.PodDeletionCost], rank, s.CostRank) != 0 {
		delete(pod.Metadata.Annotations, corev1.PodDeletionCost)
	}
}

// OtherPool returns the labels of another pool that the pod's node selector asks for, if there is one. They may be in
// part those of the seat's pool.
func (s *Seat) OtherPool(pod *podpatch.Pod) map[string]string {
	for i := range s.Strategy.Len() {
		nodes := s.Strategy.Nodes(i, -1)
		asked := i != s.Pool && nodes.Equalities()
		for k, v := range nodes.Labels {
			asked = asked && pod.Spec.NodeSelector[k] == v
		}
		if asked {
			return nodes.Labels
		}
	}
	return nil
}

// Strip removes what only a pod with a seat carries.
func Strip(pod *podpatch.Pod) {
	if pod.Metadata.Labels[stowage.MutatedByKey] == stowage.MutatedByValue {
		delete(pod.Metadata.Labels, stowage.MutatedByKey)
	}
	if pod.Metadata.Annotations[stowage.MutatedByKey] == stowage.MutatedByValue {
		delete(pod.Metadata.Annotations, stowage.MutatedByKey)
	}
	delete(pod.Metadata.Labels, stowage.PoolLabel)
	delete(pod.Metadata.Labels, stowage.SeatLabel)
	delete(pod.Metadata.Labels, stowage.DomainLabel)
	delete(pod.Metadata.Annotations, stowage.ClaimAnnotation)
	giveBackMinDomains(pod)
}
