// Package policies says which ScaleDownPolicies and ClusterScaleDownPolicies select a workload, and which of them wins. They are another question than the
// spread: no SpreadPolicy, PodDistributor or annotation wins over one of them.
package policies

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/selector"
	"github.com/stowage-dev/stowage/internal/world"
)

// The kinds of policies.
const (
	Kind        = "ScaleDownPolicy"
	KindCluster = "ClusterScaleDownPolicy"
)

// Policy is a ScaleDownPolicy or a ClusterScaleDownPolicy, with its selectors compiled.
type Policy struct {
	Kind string
	*metav1.ObjectMeta
	Spec *stowage.ScaleDownPolicySpec
	// Err says why the policy selects nothing, and TooMany that others of its namespace come before it.
	Err     error
	TooMany bool

	namespaces, pods labels.Selector
}

// Of compiles a ScaleDownPolicy.
func Of(p *stowage.ScaleDownPolicy) *Policy {
	c := &Policy{Kind: Kind, ObjectMeta: &p.ObjectMeta, Spec: &p.Spec}
	c.pods, _, c.Err = selector.Compile("selector", &p.Spec.Selector)
	return c
}

// OfCluster compiles a ClusterScaleDownPolicy.
func OfCluster(p *stowage.ClusterScaleDownPolicy) *Policy {
	c := &Policy{Kind: KindCluster, ObjectMeta: &p.ObjectMeta, Spec: &p.Spec.ScaleDownPolicySpec}
	var err error
	c.pods, _, c.Err = selector.Compile("selector", &p.Spec.Selector)
	c.namespaces, _, err = selector.Compile("namespaceSelector", &p.Spec.NamespaceSelector)
	c.Err = errors.Join(c.Err, err)
	return c
}

// String names the policy.
func (p *Policy) String() string { return p.Kind + " " + p.Name }

// Enforces reports whether costs are written because of the policy.
func (p *Policy) Enforces() bool { return p.Spec.Mode == stowage.PolicyEnforce }

// Workload is what policies select by.
type Workload struct {
	Namespace string
	// NamespaceLabels are nil where the namespace is not known. Then no ClusterScaleDownPolicy selects it. The API server gives each namespace a label.
	NamespaceLabels, PodLabels map[string]string
}

// Selects reports whether a policy selects a workload.
func (p *Policy) Selects(w *Workload) bool {
	switch {
	case p.Err != nil || p.TooMany:
		return false
	case p.Kind == Kind && p.Namespace != w.Namespace,
		p.Kind == KindCluster && (w.NamespaceLabels == nil || !p.namespaces.Matches(labels.Set(w.NamespaceLabels))):
		return false
	}
	return p.pods.Matches(labels.Set(w.PodLabels))
}

// Sort puts the policy first that wins: a ScaleDownPolicy before a ClusterScaleDownPolicy, then the highest priority, the oldest and the first name. It
// marks those of a namespace that are too many: as with SpreadPolicies, the first [world.MostPolicies] count.
func Sort(all []*Policy) {
	slices.SortFunc(all, func(a, b *Policy) int {
		return cmp.Or(strings.Compare(b.Kind, a.Kind), rank(a).Compare(rank(b))) // ScaleDownPolicy comes later in the alphabet
	})
	count := map[string]int{}
	for _, p := range all {
		if p.Kind == Kind {
			count[p.Namespace]++
			p.TooMany = count[p.Namespace] > world.MostPolicies
		}
	}
}

func rank(p *Policy) world.PolicyRank {
	return world.PolicyRank{Priority: p.Spec.Priority, Created: p.CreationTimestamp, Name: p.Name}
}

// Winner returns the policy that wins of those that select a workload, in the order of [Sort], and the others. A policy in Audit wins only if none enforces, and
// then it writes nothing. Winner returns nil if there is none.
func Winner(sorted []*Policy, w *Workload) (winner *Policy, others []*Policy) {
	for _, p := range sorted {
		if p.Selects(w) {
			others = append(others, p)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	at := max(0, slices.IndexFunc(others, (*Policy).Enforces))
	return others[at], slices.Delete(slices.Clone(others), at, at+1)
}

// removesByCost are the kinds whose controllers remove the pods with the lowest cost first.
var removesByCost = map[string]bool{"apps/ReplicaSet": true, "/ReplicationController": true, cloneSet: true}

// A CloneSet keeps the constraints of its template itself (OpenKruise, "CloneSet", scale down).
const cloneSet = "apps.kruise.io/CloneSet"

// Keys returns the keys to keep the pods of an owner spread over, in no order, or why the policy leaves it alone. Seats says that a pod of it has a seat.
func (p *Policy) Keys(owner world.Ref, template *layers.Template, seats bool) (keys []layers.Key, not stowage.NotConcernedReason, why string) {
	kind := owner.Group() + "/" + owner.Kind
	switch {
	case !removesByCost[kind]:
		return nil, stowage.NotConcernedKind, fmt.Sprintf("a %s does not remove pods by their deletion cost", owner.Kind)
	case kind == cloneSet && template.Asks():
		return nil, stowage.NotConcernedKind, "a CloneSet keeps the spread that its template asks for itself"
	case seats:
		return nil, stowage.NotConcernedSeats, "its pods have seats, which their deletion costs follow"
	}
	if keys, why = template.Keys(p.Spec.TopologyKeys); why != "" {
		return nil, stowage.NotConcernedNoKeys, why
	}
	return keys, "", ""
}

// TooManyText says why a policy has no effect whose namespace has too many.
func TooManyText() string {
	return fmt.Sprintf("the policy has no effect: of a namespace, the first %d ScaleDownPolicies count, and others come before this one; remove some, or give this one a higher priority", world.MostPolicies)
}
