package impact

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/preview"
)

// source names what divides the pods of a workload. All annotations are one.
type source struct {
	Name
	text string // for people
}

const annotations = "annotations"

// sourceOf names what divides the pods of a workload, or would if its mode let it.
func sourceOf(d *decided) source {
	switch {
	case d == nil || d.policy == nil:
		return source{}
	case d.policy.Distributor != nil:
		n := Name{Kind: "PodDistributor", Namespace: d.policy.Distributor.Namespace, Name: d.policy.Distributor.Name}
		return source{n, n.String()}
	case d.policy.Policy != nil:
		n := Name{Kind: d.policy.Policy.Kind, Namespace: d.policy.Policy.Namespace, Name: d.policy.Policy.Name}
		return source{n, n.String()}
	}
	return source{Name{Kind: annotations}, annotations}
}

// specOf returns what inputs have of a source, or "" if they do not have it.
func specOf(in *preview.Inputs, s source) string {
	var spec any
	for i := range in.Objects.PodDistributors {
		if o := &in.Objects.PodDistributors[i]; s.Name == (Name{Kind: "PodDistributor", Namespace: o.Namespace, Name: o.Name}) {
			spec = o.Spec
		}
	}
	for _, o := range in.Objects.Policies.Namespaced {
		if s.Name == (Name{Kind: "SpreadPolicy", Namespace: o.Namespace, Name: o.Name}) {
			spec = o.Spec
		}
	}
	for _, o := range in.Objects.Policies.Cluster {
		if s.Name == (Name{Kind: "ClusterSpreadPolicy", Namespace: s.Namespace, Name: o.Name}) {
			spec = o.Spec
		}
	}
	if spec == nil {
		return ""
	}
	data, _ := json.Marshal(spec) // it came from JSON
	return string(data)
}

// changeOf says what a change does to a source.
func (c *comparison) changeOf(s source) string {
	was, is := specOf(c.before.in, s), specOf(c.after.in, s)
	switch {
	case s.Kind == annotations || was == is:
		return ""
	case was == "":
		return "added"
	case is == "":
		return "removed"
	}
	return "changed"
}

// sum sums up the plans.
func (c *comparison) sum(plans []*plan, e *estimator) {
	r := c.report
	type poolKey struct{ name, labels string }
	pools := map[poolKey]*Pool{}
	vms, priceNow, priceThen := VMs{}, int64(0), int64(0)
	for _, p := range plans {
		if p.Waiting = e.waiting[p]; e.needs[p] > 0 && p.is.divides() {
			p.Unsure = append(p.Unsure, are(e.needs[p], "pod finds", "pods find")+" no room on the present nodes, by estimate")
			p.because(finding.NoRoomInPool)
		}
		r.Workloads = append(r.Workloads, p.Workload)
		r.Cluster.Workloads++
		r.Cluster.add(&p.Counts)
		r.Cluster.PodsWithoutRoom += e.needs[p]
		if len(p.Unsure) > 0 {
			r.Cluster.Unsure++
		}
		if p.Refused != "" {
			r.Cluster.Refused++
		}
		if v := p.VMs; v != nil {
			vms.Now, vms.Then = vms.Now+v.Now, vms.Then+v.Then
			priceNow, priceThen = priceNow+v.priceNow, priceThen+v.priceThen
		}
		c.policy(p)
		for i, pool := range p.Pools {
			of := p.strategy.Pool(i)
			at := poolKey{of.Name, of.Nodes().String()}
			if pools[at] == nil {
				pools[at] = &Pool{Name: at.name, Labels: at.labels, Nodes: len(e.nodesWith(of.Nodes())), Estimate: e.of(of.Nodes())}
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
	r.Cluster.NodesLacking, r.Cluster.NodesFreed = int64(len(e.lacking)), e.freed(nodeset.Set{})
	if vms != (VMs{}) {
		vms.Capacity = e.vmCapacity
		vms.PriceNow, vms.PriceThen = prices(vms.Now, vms.Then, priceNow, priceThen)
		r.VMs = &vms
	}
}

// policy adds a workload to the policy that divides it or, if none does after the change, to the one that did.
func (c *comparison) policy(p *plan) {
	s := p.source
	if s == (source{}) {
		s = p.former
	}
	if s == (source{}) {
		return
	}
	of := c.policies[s]
	if of == nil {
		of = &Policy{Source: s.text, Change: c.changeOf(s)}
		c.policies[s] = of
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

// warnings says what the report does not know.
func (c *comparison) warnings(change Change, known, found []string) (out []string) {
	if hidden := slices.Concat(c.live.blind, c.live.hidden); len(hidden) > 0 {
		out = append(out, "what is not read is left out: "+strings.Join(hidden, ", ")+"; the ClusterRoles view and stowage-inspect allow to read all of it")
	}
	if c.live.absent {
		out = append(out, "Stowage is not installed here; the report is about a cluster in which its webhook is asked about every pod")
	}
	if m := change.Manifests; m != nil {
		out = append(out, m.Warnings...)
		for _, ignored := range []struct{ what, of string }{{m.Ignored.String(), "these change nothing here"}, {m.Unknown.String(), "Kubernetes itself has no such kind"}} {
			if ignored.what != "" {
				out = append(out, fmt.Sprintf("ignored in the manifests, because %s: %s", ignored.of, ignored.what))
			}
		}
		for _, p := range m.Objects.Policies.Namespaced {
			if p.Spec.Mode == stowage.PolicyAudit && !change.Enforce {
				out = append(out, fmt.Sprintf("SpreadPolicy %s/%s is in Audit, so it changes nothing; --enforce shows what it would do", p.Namespace, p.Name))
			}
		}
		for _, p := range m.Objects.Policies.Cluster {
			if p.Spec.Mode == stowage.PolicyAudit && !change.Enforce {
				out = append(out, fmt.Sprintf("ClusterSpreadPolicy %s is in Audit, so it changes nothing; --enforce shows what it would do", p.Name))
			}
		}
	}
	for _, text := range found {
		if !slices.Contains(known, text) && !strings.Contains(text, ": stowage (audit): ") {
			out = append(out, text)
		}
	}
	return out
}
