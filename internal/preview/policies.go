package preview

import (
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// policy reports whether a policy is one that the API server takes and that divides pods.
func (l *loader) policy(where string, s *policy.SpreadPolicy) bool {
	if !l.named(where, s.Name) {
		return false
	}
	if p := policy.CompilePolicy(s); p.Err != nil {
		l.fail("%s: %w", where, p.Err)
		return false
	}
	return true
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
		l.pools(where, policy.CompilePolicy(p).Whole)
	}
	for _, p := range of.Namespaced {
		check(policy.FromSpreadPolicy(p))
	}
	for _, p := range of.Cluster {
		check(policy.FromClusterSpreadPolicy(p))
	}
}
