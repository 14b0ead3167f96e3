package preview

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// connect warns of PodDistributors whose target is not in the input, and of strategies beside a PodDistributor. If there are Nodes,
// it warns of pools that none of them belongs to.
func (l *loader) connect() {
	objects := manifests.New(l.in.Objects)
	winners := l.winners()
	for i := range l.in.Objects.PodDistributors {
		d := &l.in.Objects.PodDistributors[i]
		l.connectTarget(d, winners[targetOf(d)])
		if c := policy.Compile(d); c.Err == nil {
			l.pools(fmt.Sprintf("PodDistributor %s/%s", d.Namespace, d.Name), c.Strategy)
		}
	}
	l.connectPolicies(objects)
	for i := range l.in.Workloads {
		w := &l.in.Workloads[i]
		own, template := w.own(), w.ofTemplate()
		text, ok := policy.StrategyText(own.Annotations)
		if template != nil {
			if t, of := policy.StrategyText(template.Annotations); of {
				text, ok = t, true
			}
		}
		if !ok {
			continue
		}
		if d := winners[w.identity()]; d != nil {
			l.warn("%s (%s): %s", w.source, w, policy.Beside(d))
		} else if strategy, err := sequence.Parse(text); err == nil { // an error was told
			l.pools(fmt.Sprintf("%s (%s)", w.source, w), strategy)
		}
	}
}

// targetOf is the identity of a PodDistributor's target.
func targetOf(d *versprei.PodDistributor) identity {
	target := world.TargetOf(d)
	return identity{schema.GroupKind{Group: target.Group(), Kind: target.Kind}, target.Namespace, target.Name}
}

// winners are the PodDistributors that divide the pods of their targets.
func (l *loader) winners() map[identity]*versprei.PodDistributor {
	winners := map[identity]*versprei.PodDistributor{}
	for i := range l.in.Objects.PodDistributors {
		d := &l.in.Objects.PodDistributors[i]
		if target := targetOf(d); world.Wins(d, winners[target]) {
			winners[target] = d
		}
	}
	return winners
}

// connectTarget warns of a PodDistributor that divides no pods of the input. The winner is the PodDistributor that divides those of its target.
func (l *loader) connectTarget(d, winner *versprei.PodDistributor) {
	target := targetOf(d)
	at, known := l.places[target]
	switch {
	case winner != d:
		l.warn("PodDistributor %s/%s: it has no effect, because PodDistributor %s has the same target, %s %s: the older one counts, or the first by name", d.Namespace, d.Name, winner.Name, target.Kind, target.name)
	case l.podless[target] || known && l.taken[at].workload == nil:
		l.warn("PodDistributor %s/%s: its target %s %s %s is in the input, but preview knows no pod template of that kind, so it shows none of its pods", d.Namespace, d.Name, d.Spec.Target.APIVersion, target.Kind, target.name)
	case !known:
		l.warn("PodDistributor %s/%s: its target %s %s %s is not in the input", d.Namespace, d.Name, d.Spec.Target.APIVersion, target.Kind, target.name)
	case l.taken[at].part:
		l.warn("PodDistributor %s/%s: its target %s %s is a part of the workload that made it, whose pods it does not divide; name that workload", d.Namespace, d.Name, target.Kind, target.name)
	}
}

// pools warns of the pools of a strategy that no Node has.
func (l *loader) pools(where string, s *sequence.Strategy) {
	if len(l.in.Objects.Nodes) == 0 {
		return
	}
	for i := range s.Len() {
		pool := s.Pool(i)
		if !slices.ContainsFunc(l.in.Objects.Nodes, func(n corev1.Node) bool { return s.HasNode(i, n.Labels) }) {
			l.warn("%s: no Node of the input has the labels of pool %s (%s)", where, pool.Name, pool.Nodes())
		}
	}
	if node, text := policy.Overlap(s, l.in.Objects.Nodes); node != "" {
		l.warn("%s: node %s %s", where, node, text)
	}
}

// connectPolicies warns of policies that select no workload of the input, and of those in Audit, which change nothing.
func (l *loader) connectPolicies(objects *manifests.Snapshot) {
	of := &l.in.Objects.Policies
	if len(of.Namespaced)+len(of.Cluster) == 0 {
		return
	}
	selected := map[types.UID]bool{}
	finder := policy.NewFinder(objects, policy.Settings{})
	for _, w := range l.in.Objects.Workloads {
		if !w.Labelled {
			continue
		}
		selecting, err := finder.Selecting(l.ctx, w.Namespace, world.Chain{Refs: []world.Ref{w.Ref}, Workloads: []*world.Workload{w}})
		if err != nil {
			continue // its own policies are compiled above
		}
		for _, p := range selecting {
			selected[p.UID] = true
		}
	}
	check := func(p *policy.SpreadPolicy) {
		where := p.Kind + " " + p.Name
		if p.Namespace != "" {
			where = p.Kind + " " + p.Namespace + "/" + p.Name
		}
		switch {
		case !selected[p.UID]:
			l.warn("%s: it selects no workload of the input", where)
		case p.Spec.Mode == stowage.PolicyAudit:
			l.warn("%s: it is in Audit, so it changes no pod", where)
		}
		if c := policy.CompilePolicy(p); c.Err == nil {
			l.pools(where, c.Strategy)
		}
	}
	for _, p := range of.Namespaced {
		check(policy.FromSpreadPolicy(p))
	}
	for _, p := range of.Cluster {
		check(policy.FromClusterSpreadPolicy(p))
	}
}
