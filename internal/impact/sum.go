package impact

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// fixed returns the pods that stay where they are.
func (c *comparison) fixed() []*pod { return append(slices.Clone(c.live.others), c.stay...) }

// sum sums up the plans.
func (c *comparison) sum(plans []*plan, e *estimator) {
	r := c.report
	type poolKey struct{ name, labels string }
	pools := map[poolKey]*Pool{}
	changedVMs := VMs{}
	for _, p := range plans {
		if p.Waiting = e.waiting[p]; e.needs[p] > 0 && len(p.Pools) > 0 {
			p.Unsure = append(p.Unsure, are(e.needs[p], "pod finds", "pods find")+" no room on the present nodes, by estimate")
		}
		r.Workloads = append(r.Workloads, p.Workload)
		r.Cluster.Workloads++
		r.Cluster.add(&p.Counts)
		if len(p.Unsure) > 0 {
			r.Cluster.Unsure++
		}
		if v := p.VMs; v != nil {
			changedVMs.Now, changedVMs.Then = changedVMs.Now+v.Now, changedVMs.Then+v.Then
		}
		c.policy(p)
		for i, pool := range p.Pools {
			of := p.strategy.Pool(i)
			at := poolKey{of.Name, labels.Set(of.Labels).String()}
			if pools[at] == nil {
				pools[at] = &Pool{Name: at.name, Labels: at.labels, Estimate: e.of(of.Labels)}
				pools[at].Nodes = e.nodesOf(of.Labels)
			}
			pools[at].Now += pool.Now
			pools[at].Then += pool.Then
		}
	}
	for _, pool := range pools {
		r.Pools = append(r.Pools, *pool)
	}
	for _, p := range c.policies {
		r.Policies = append(r.Policies, *p)
	}
	r.Cluster.NodesLacking, r.Cluster.NodesFreed = int64(len(e.lacking)), e.freed(nil)
	if changedVMs != (VMs{}) {
		changedVMs.Capacity = e.vmCapacity
		r.VMs = &changedVMs
	}
}

// policy adds a workload to the policy that divides it, or did.
func (c *comparison) policy(p *plan) {
	for _, source := range []struct{ name, change string }{{p.Policy, ""}, {p.Former, "removed"}} {
		if source.name == "" || source.change == "removed" && p.Policy != "" && c.stillThere(source.name) {
			continue
		}
		of := c.policies[source.name]
		if of == nil {
			of = &Policy{Source: source.name, Change: cmp.Or(source.change, c.changeOf(source.name))}
			c.policies[source.name] = of
		}
		if source.change == "removed" && p.Policy != "" {
			continue // it is counted for the other one
		}
		of.Workloads++
		of.add(&p.Counts)
		if len(p.Unsure) > 0 {
			of.Unsure++
		}
		if len(p.Unsuitable) > 0 {
			of.Unsuitable++
		}
	}
}

// stillThere reports whether a source divides a workload after the change.
func (c *comparison) stillThere(source string) bool {
	for _, d := range c.after.of {
		if sourceOf(d) == source {
			return true
		}
	}
	return false
}

// changeOf says what a change does to a source that divides workloads after it.
func (c *comparison) changeOf(source string) string {
	find := func(o *outlook) *policy.Policy {
		for _, d := range o.of {
			if sourceOf(d) == source {
				return d.policy
			}
		}
		return nil
	}
	is, was := find(c.after), find(c.before)
	switch {
	case is != nil && was == nil:
		return "added"
	case is == nil || was == nil || is.AsWritten() == nil || was.AsWritten() == nil:
		return ""
	case is.AsWritten().Fingerprint() != was.AsWritten().Fingerprint() || is.Evict != was.Evict || is.Repair != was.Repair:
		return "changed"
	}
	return ""
}

// warnings says what the report does not know.
func (c *comparison) warnings(change Change, known, found []string) (out []string) {
	if len(c.live.hidden) > 0 {
		out = append(out, "what is not read is left out: "+strings.Join(c.live.hidden, ", ")+"; the ClusterRoles view and stowage-inspect allow to read all of it")
	}
	if c.live.absent {
		out = append(out, "Stowage is not installed here; the report is about a cluster in which its webhook is asked about every pod")
	}
	if change.Manifests != nil {
		out = append(out, change.Manifests.Warnings...)
	}
	for _, text := range found {
		if !slices.Contains(known, text) && !strings.Contains(text, ": stowage (audit): ") {
			out = append(out, text)
		}
	}
	for _, p := range c.after.in.Objects.Policies.Namespaced {
		if p.Spec.Mode == stowage.PolicyAudit && change.Manifests != nil && slices.ContainsFunc(change.Manifests.Objects.Policies.Namespaced, func(m *stowage.SpreadPolicy) bool { return m.Name == p.Name && m.Namespace == p.Namespace }) {
			out = append(out, fmt.Sprintf("SpreadPolicy %s/%s is in Audit, so it changes nothing; --enforce shows what it would do", p.Namespace, p.Name))
		}
	}
	for _, p := range c.after.in.Objects.Policies.Cluster {
		if p.Spec.Mode == stowage.PolicyAudit && change.Manifests != nil && slices.ContainsFunc(change.Manifests.Objects.Policies.Cluster, func(m *stowage.ClusterSpreadPolicy) bool { return m.Name == p.Name }) {
			out = append(out, fmt.Sprintf("ClusterSpreadPolicy %s is in Audit, so it changes nothing; --enforce shows what it would do", p.Name))
		}
	}
	return out
}
