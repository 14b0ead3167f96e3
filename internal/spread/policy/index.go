package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/selector"
	"github.com/stowage-dev/stowage/internal/world"
)

// policyIndex is the policies of a namespace, or of the cluster, found by the labels of namespaces and pod templates. It does not change.
type policyIndex struct {
	of *world.Policies
	// by are the policies that need one label of a namespace or of a pod template, by that label, and rest those that need none.
	by   map[needed][]*SpreadPolicy
	rest []*SpreadPolicy
	// evaluations counts evaluations of selectors.
	evaluations atomic.Int64
}

// needed is a label that a policy needs: of the namespace, or of the pod template.
type needed struct {
	ofNamespace bool
	key, value  string
}

// SpreadPolicy is a SpreadPolicy or a ClusterSpreadPolicy, with its selectors compiled.
type SpreadPolicy struct {
	Kind string // SpreadPolicy or ClusterSpreadPolicy
	*metav1.ObjectMeta
	Spec *stowage.SpreadPolicySpec

	namespaces, templates labels.Selector
	needs                 []needed
	err                   error // the selectors are invalid
}

// String names the policy.
func (p *SpreadPolicy) String() string { return p.Kind + " " + p.Name }

// clusterWide reports whether the policy selects namespaces.
func (p *SpreadPolicy) clusterWide() bool { return p.namespaces != nil }

// The kinds of policies.
const (
	kindPolicy        = "SpreadPolicy"
	kindClusterPolicy = "ClusterSpreadPolicy"
)

// FromSpreadPolicy returns what a SpreadPolicy selects.
func FromSpreadPolicy(p *stowage.SpreadPolicy) *SpreadPolicy {
	s := &SpreadPolicy{Kind: kindPolicy, ObjectMeta: &p.ObjectMeta, Spec: &p.Spec}
	s.templates = s.compile("selector", false, &p.Spec.Selector)
	return s
}

// FromClusterSpreadPolicy returns what a ClusterSpreadPolicy selects.
func FromClusterSpreadPolicy(p *stowage.ClusterSpreadPolicy) *SpreadPolicy {
	s := &SpreadPolicy{Kind: kindClusterPolicy, ObjectMeta: &p.ObjectMeta, Spec: &p.Spec.SpreadPolicySpec}
	s.templates = s.compile("selector", false, &p.Spec.Selector)
	s.namespaces = s.compile("namespaceSelector", true, &p.Spec.NamespaceSelector)
	return s
}

// compile returns a selector, and notes the labels that it needs. One that is invalid selects nothing.
func (p *SpreadPolicy) compile(field string, ofNamespace bool, s *stowage.Selector) labels.Selector {
	of, all, err := selector.Compile(field, s)
	if err != nil {
		p.err = errors.Join(p.err, err) // of at most two selectors
	}
	for i := range all {
		if values := all[i].ValuesUnsorted(); all[i].Operator() == selection.In && len(values) == 1 {
			p.needs = append(p.needs, needed{ofNamespace, all[i].Key(), values[0]})
		}
	}
	return of
}

// newIndex returns all policies that count, for lookups. What is compiled already is not compiled again.
func (f *Finder) newIndex(of *world.Policies) *policyIndex {
	index := &policyIndex{of: of, by: map[needed][]*SpreadPolicy{}}
	var all []*SpreadPolicy
	for _, p := range world.CountingOf(of.Namespaced) {
		all = append(all, f.OfSpreadPolicy(p))
	}
	for _, p := range of.Cluster {
		all = append(all, f.OfClusterSpreadPolicy(p))
	}
	// Each policy stands where the fewest do, so that a lookup finds few that do not match.
	count := map[needed]int{}
	for _, p := range all {
		for _, n := range p.needs {
			count[n]++
		}
	}
	for _, p := range all {
		if len(p.needs) == 0 {
			index.rest = append(index.rest, p)
			continue
		}
		n := slices.MinFunc(p.needs, func(a, b needed) int { return cmp.Compare(count[a], count[b]) })
		index.by[n] = append(index.by[n], p)
	}
	return index
}

// OfSpreadPolicy is [FromSpreadPolicy], computed once for each generation.
func (f *Finder) OfSpreadPolicy(p *stowage.SpreadPolicy) *SpreadPolicy {
	return f.selectorsOf(kindPolicy, &p.ObjectMeta, &p.Spec, func() *SpreadPolicy { return FromSpreadPolicy(p) })
}

// OfClusterSpreadPolicy is [FromClusterSpreadPolicy], computed once for each generation.
func (f *Finder) OfClusterSpreadPolicy(p *stowage.ClusterSpreadPolicy) *SpreadPolicy {
	return f.selectorsOf(kindClusterPolicy, &p.ObjectMeta, &p.Spec.SpreadPolicySpec, func() *SpreadPolicy { return FromClusterSpreadPolicy(p) })
}

// version is one generation of a policy.
type version struct {
	kind       string
	uid        types.UID
	generation int64
}

// selectorsOf returns a policy with its selectors, compiled once for each generation.
func (f *Finder) selectorsOf(kind string, m *metav1.ObjectMeta, s *stowage.SpreadPolicySpec, compile func() *SpreadPolicy) *SpreadPolicy {
	key := version{kind, m.UID, m.Generation}
	if known, ok := f.selectors.Get(key); ok && m.UID != "" {
		return known
	}
	p := compile()
	f.selectors.Add(key, p, selectorBytes(s), rememberFor)
	return p
}

// selectorBytes is about what the compiled selectors of a policy take: a text is in the object, in a requirement and in a set.
func selectorBytes(s *stowage.SpreadPolicySpec) int64 {
	return policyBytes + 8*int64(world.SelectorBytes(&s.Selector))
}

// owner is what policies select by.
type owner struct {
	namespace string
	labels    map[string]string // of the namespace
	ref       world.Ref
	template  map[string]string // labels of the pod template
}

// selecting returns the policies of indexes that select an owner, in the order in which they win. Those in Audit are among them.
func selecting(indexes [2]*policyIndex, o *owner) (out []*SpreadPolicy) {
	for _, f := range indexes {
		if f != nil {
			out = append(out, f.selecting(o)...)
		}
	}
	slices.SortFunc(out, before)
	return out
}

// selecting returns the policies that select an owner, in any order.
func (f *policyIndex) selecting(o *owner) []*SpreadPolicy {
	var out []*SpreadPolicy
	consider := func(list []*SpreadPolicy) {
		for _, p := range list {
			if f.evaluations.Add(1); p.selects(o) {
				out = append(out, p)
			}
		}
	}
	consider(f.rest)
	for key, value := range o.labels {
		consider(f.by[needed{true, key, value}])
	}
	for key, value := range o.template {
		consider(f.by[needed{false, key, value}])
	}
	return out
}

// selects reports whether a policy selects an owner.
func (p *SpreadPolicy) selects(o *owner) bool {
	if p.err != nil || !p.clusterWide() && p.Namespace != o.namespace || !p.divides(o.ref) {
		return false
	}
	return (p.namespaces == nil || p.namespaces.Matches(labels.Set(o.labels))) && p.templates.Matches(labels.Set(o.template))
}

// Before reports whether a policy wins over another one that selects the same pods, if neither is in Audit.
func (p *SpreadPolicy) Before(other *SpreadPolicy) bool { return before(p, other) < 0 }

// SelectsNamespace reports whether a policy selects a namespace with these labels.
func (p *SpreadPolicy) SelectsNamespace(name string, of map[string]string) bool {
	if !p.clusterWide() {
		return p.err == nil && p.Namespace == name
	}
	return p.err == nil && p.namespaces.Matches(labels.Set(of))
}

// divides reports whether a policy divides pods of owners of a kind.
func (p *SpreadPolicy) divides(ref world.Ref) bool {
	if len(p.Spec.Kinds) == 0 {
		return ref.Kind == "ReplicaSet" && ref.Group() == "apps"
	}
	return slices.ContainsFunc(p.Spec.Kinds, func(k stowage.OwnerKind) bool { return k.Kind == ref.Kind && k.Group == ref.Group() })
}

// before orders policies: the first one wins. A SpreadPolicy comes before a ClusterSpreadPolicy, then the highest priority, the
// oldest, and the first name.
func before(a, b *SpreadPolicy) int {
	return cmp.Or(
		strings.Compare(b.Kind, a.Kind), // SpreadPolicy comes later in the alphabet
		world.RankOf(a.ObjectMeta, a.Spec).Compare(world.RankOf(b.ObjectMeta, b.Spec)),
	)
}

// whyBefore says by what one policy wins over another, for people.
func whyBefore(winner, loser *SpreadPolicy) string {
	switch {
	case loser.Spec.Mode != stowage.PolicyEnforce:
		return "it is in Audit"
	case winner.Kind != loser.Kind:
		return "a " + winner.Kind + " wins over a " + loser.Kind
	case winner.Spec.Priority != loser.Spec.Priority:
		return fmt.Sprintf("its priority is %d, below %d", loser.Spec.Priority, winner.Spec.Priority)
	case !winner.CreationTimestamp.Equal(&loser.CreationTimestamp):
		return "it is younger"
	}
	return "its name comes later"
}

// first returns the policy that wins: the first that is not in Audit. It returns nil if there is none.
func first(selecting []*SpreadPolicy) *SpreadPolicy {
	if i := slices.IndexFunc(selecting, func(p *SpreadPolicy) bool { return p.Spec.Mode == stowage.PolicyEnforce }); i >= 0 {
		return selecting[i]
	}
	return nil
}
