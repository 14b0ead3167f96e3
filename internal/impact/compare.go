package impact

import (
	"context"
	"maps"
	"slices"

	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Of returns what a change would do. Prices may be nil.
func (o *Options) Of(ctx context.Context, change Change, prices *Prices) (*Report, error) {
	// 1. What is there, and what the webhook makes of it before and after the change.
	l, err := o.readCluster(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := change.applied(l.in, o.Clock.Now())
	if err != nil {
		return nil, err
	}
	restrict(o.Namespace, changed)
	before, known, err := o.look(ctx, l, l.in, nil)
	if err != nil {
		return nil, err
	}
	after, warnings := before, known
	if !change.none() {
		if after, warnings, err = o.look(ctx, l, changed, change.Exhausted); err != nil {
			return nil, err
		}
	}

	// 2. Compare it with where the pods are.
	r := &Report{APIVersion: Version, Kind: "Impact", Change: !change.none(), Policies: []Policy{}, Pools: []Pool{}, Workloads: []Workload{}, DaemonSets: []DaemonSet{}}
	c := &comparison{report: r, live: l, before: before, after: after, nodes: map[string]map[string]string{}, stays: map[string]bool{}, policies: map[source]*Policy{}, catalogs: catalog.CompileAll(before.in.Objects.VMCatalogs)}
	for _, in := range []*preview.Inputs{before.in, after.in} {
		for i := range in.Objects.Nodes {
			n := &in.Objects.Nodes[i]
			c.nodes[n.Name], c.stays[n.Name] = n.Labels, in == after.in
		}
	}
	keys := maps.Clone(after.of)
	maps.Copy(keys, before.of)
	var plans []*plan
	for _, k := range sortedKeys(keys) {
		if p := c.compare(k); p != nil {
			plans = append(plans, p)
		}
	}

	// 3. Ask the API server whether it takes such pods.
	a := o.asker(l, after)
	for _, p := range plans {
		if err := p.ask(ctx, a); err != nil {
			return nil, err
		}
	}

	// 4. Estimate what it takes.
	e := newEstimator(before.in, after.in, l, o.Settings.PeerPodConfig.VMResource, prices)
	if !l.noRoom {
		e.place(plans, append(slices.Clone(l.others), c.stay...))
	}
	c.sum(plans, e)
	r.Cost, r.others = e.cost(), c.others
	r.Warnings = append(c.warnings(change, known, warnings), a.warnings()...)
	r.sort()
	return r, nil
}

// restrict leaves out the workloads of other namespaces, which a change may have.
func restrict(namespace string, changed *preview.Inputs) {
	if namespace == "" {
		return
	}
	for _, w := range slices.Clone(changed.Workloads) {
		if w.Namespace != namespace {
			changed.Remove(w.GroupKind(), w.Namespace, w.Name)
		}
	}
}

// comparison compares two outlooks with where pods are.
type comparison struct {
	report        *Report
	live          *live
	before, after *outlook
	nodes         map[string]map[string]string // labels by name, also of nodes that go
	stays         map[string]bool              // nodes that are there after the change
	policies      map[source]*Policy
	catalogs      []*catalog.Catalog // before the change
	stay          []*pod             // of workloads that the change does not concern
	others        []Workload         // those of them with a policy
}

// plan is a workload with what the estimates need.
type plan struct {
	Workload
	pods     []*pod
	is       *decided // nil if the workload goes
	strategy *sequence.Strategy
	place    []cell // of the pods; its pool may be one of the constants below
	source   source
	former   source
}

// newPlan returns a workload with what divides its pods. The pods are counted in the pools of what divides them then, or does now.
func newPlan(k key, is, was *decided) *plan {
	p := &plan{is: is, source: sourceOf(is), former: sourceOf(was), Workload: Workload{Kind: k.Kind, Namespace: k.namespace, Name: k.name}}
	for _, d := range []*decided{was, is} {
		if d != nil && laidOut(d.policy) {
			p.strategy = d.policy.AsWritten()
		}
	}
	if p.Policy = p.source.text; p.former != p.source {
		p.Former = p.former.text
	}
	return p
}

// Where a pod is, if it is in no pool.
const (
	nowhere = -1 // it waits for a node
	outside = -2
)

// compare returns what becomes of a workload, or nil if the change does not concern it.
func (c *comparison) compare(k key) *plan {
	is, was := c.after.of[k], c.before.of[k]
	pods := c.live.pods[k]
	if k.Kind == "DaemonSet" || k.Kind == "Pod" {
		if c.report.Change {
			c.compareSizes(k, is, was, pods)
		}
		c.stay = append(c.stay, pods...)
		return nil
	}
	p := newPlan(k, is, was)
	p.pods = pods
	c.count(p)
	c.doubt(p, was)

	same := is != nil && was != nil && alike(is, was) && p.Drained == 0
	concerned := !same
	if !c.report.Change {
		concerned = (p.Policy != "" || p.VMs != nil) && p.changes()
	} else if same && p.strategy != nil && p.changes() {
		c.report.Cluster.Drift++
	}
	if concerned {
		return p
	}
	c.stay = append(c.stay, pods...)
	if p.strategy != nil {
		c.report.Cluster.OtherWorkloads++
		p.Other = true
		c.others = append(c.others, p.Workload)
	}
	return nil
}
