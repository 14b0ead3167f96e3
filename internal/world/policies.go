package world

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// How many SpreadPolicies of a namespace count, and how many bytes their specs have together. The others have no effect.
const (
	MostPolicies    = 100
	MostPolicyBytes = 512 << 10
)

// PolicyRank is the place of a policy among those of its namespace, or of the cluster. The highest priority comes first, then the oldest
// policy, then the first name.
type PolicyRank struct {
	Priority int32
	Created  metav1.Time
	Name     string
}

// RankOf returns the rank of a policy.
func RankOf(m *metav1.ObjectMeta, s *stowage.SpreadPolicySpec) PolicyRank {
	return PolicyRank{s.Priority, m.CreationTimestamp, m.Name}
}

// Compare is negative for a policy that comes before another one.
func (r PolicyRank) Compare(other PolicyRank) int {
	return cmp.Or(cmp.Compare(other.Priority, r.Priority), r.Created.Compare(other.Created.Time), strings.Compare(r.Name, other.Name))
}

// Counting returns how many of some policies count, in the order of their ranks. Size returns the bytes of one.
func Counting(policies int, size func(i int) int) int {
	sum := 0
	for i := range min(policies, MostPolicies) {
		if sum += size(i); sum > MostPolicyBytes {
			return i
		}
	}
	return min(policies, MostPolicies)
}

// CountingOf returns those SpreadPolicies of a namespace that count, in the order of their ranks.
func CountingOf(policies []*stowage.SpreadPolicy) []*stowage.SpreadPolicy {
	all := slices.Clone(policies)
	slices.SortFunc(all, func(a, b *stowage.SpreadPolicy) int {
		return RankOf(&a.ObjectMeta, &a.Spec).Compare(RankOf(&b.ObjectMeta, &b.Spec))
	})
	return all[:Counting(len(all), func(i int) int { return PolicyBytes(&all[i].Spec) })]
}

// itemBytes is about what a pool, a toleration or a requirement takes beside its texts.
const itemBytes = 100

// PolicyBytes is about how many bytes a policy's spec takes.
func PolicyBytes(s *stowage.SpreadPolicySpec) int {
	n := SelectorBytes(&s.Selector)
	for _, k := range s.Kinds {
		n += len(k.Group) + len(k.Kind)
	}
	for i := range s.Pools {
		n += itemBytes + len(s.Pools[i].Name) + bytesOf(s.Pools[i].NodeSelector)
		for _, t := range s.Pools[i].Tolerations {
			n += itemBytes + len(t.Key) + len(t.Value)
		}
	}
	if s.Across != nil {
		n += len(s.Across.TopologyKey)
		for i := range s.Across.Domains {
			n += len(s.Across.Domains[i].Value)
		}
	}
	return n
}

// SelectorBytes is how many bytes the texts of a selector have.
func SelectorBytes(s *stowage.Selector) int {
	n := bytesOf(s.MatchLabels)
	for i := range s.MatchExpressions {
		n += len(s.MatchExpressions[i].Key)
		for _, v := range s.MatchExpressions[i].Values {
			n += len(v)
		}
	}
	return n
}

func bytesOf(labels map[string]versprei.LabelValue) (n int) {
	for k, v := range labels {
		n += len(k) + len(v)
	}
	return n
}
