package impact

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Of returns what a change would do. Prices may be nil.
func (o *Options) Of(ctx context.Context, change Change, prices *Prices) (*Report, error) {
	// 1. What is there, and what the webhook makes of it before and after the change.
	l, err := o.readCluster(ctx)
	if err != nil {
		return nil, err
	}
	now := o.Clock.Now()
	changed, err := change.applied(l.in, now)
	if err != nil {
		return nil, err
	}
	l.restrict(o.Namespace, changed)
	before, known, err := o.look(ctx, l, l.in, nil)
	if err != nil {
		return nil, err
	}
	after, warnings, err := before, known, error(nil)
	if !change.none() {
		if after, warnings, err = o.look(ctx, l, changed, change.Exhausted); err != nil {
			return nil, err
		}
	}

	// 2. Compare it with where the pods are.
	r := &Report{APIVersion: Version, Kind: "Impact", Change: !change.none(), Policies: []Policy{}, Pools: []Pool{}, Workloads: []Workload{}, DaemonSets: []DaemonSet{}}
	c := &comparison{report: r, live: l, before: before, after: after, closed: change.Exhausted, nodes: map[string]map[string]string{}, policies: map[string]*Policy{}}
	for i := range changed.Objects.Nodes {
		c.nodes[changed.Objects.Nodes[i].Name] = changed.Objects.Nodes[i].Labels
	}
	keys := maps.Clone(after.of)
	for k, d := range before.of {
		if keys[k] == nil {
			keys[k] = d
		}
	}
	var plans []*plan
	for _, k := range slices.SortedFunc(maps.Keys(keys), func(a, b key) int { return cmp.Compare(a.String(), b.String()) }) {
		if p := c.compare(k); p != nil {
			plans = append(plans, p)
		}
	}

	// 3. Estimate what it takes.
	e := newEstimator(changed, l, o.Settings.PeerPodConfig.VMResource, prices)
	e.place(plans, c.fixed())
	c.sum(plans, e)
	r.Cost, r.others = e.cost(), c.others
	r.Warnings = c.warnings(change, known, warnings)
	r.sort()
	return r, nil
}

// restrict leaves out the workloads of other namespaces, which a change may have.
func (l *live) restrict(namespace string, changed *preview.Inputs) {
	if namespace == "" {
		return
	}
	var others []preview.Workload
	for _, w := range changed.Workloads {
		if w.Namespace != namespace {
			others = append(others, w)
		}
	}
	for i := range others {
		changed.Remove(others[i].Kind, others[i].Namespace, others[i].Name)
	}
}

// comparison compares two outlooks with where pods are.
type comparison struct {
	report        *Report
	live          *live
	before, after *outlook
	closed        map[string]int64
	nodes         map[string]map[string]string // labels by name
	policies      map[string]*Policy
	stay          []*pod     // of workloads that the change does not concern
	others        []Workload // those of them with a policy
}

// plan is a workload with what the estimates need.
type plan struct {
	Workload
	pods     []*pod
	is       *decided
	strategy *sequence.Strategy
	place    []int // of the pods: a pool, or one of the constants below
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
	if is != nil && is.sizes != nil || was != nil && was.sizes != nil {
		c.compareSizes(k, is, was, pods)
	}
	p := &plan{pods: pods, is: is, Workload: Workload{Kind: k.Kind, Namespace: k.namespace, Name: k.name, Unsure: slices.Clone(c.live.unsure[k])}}
	governing := is // whose pools the pods are counted in
	if is == nil || is.policy == nil || is.policy.Whole == nil {
		governing = was
	}
	if governing != nil && governing.policy != nil && governing.policy.Whole != nil && k.Kind != "DaemonSet" {
		p.strategy = governing.policy.AsWritten()
	}
	p.Policy, p.Former = sourceOf(is), sourceOf(was)
	if p.Former == p.Policy {
		p.Former = ""
	}
	c.count(p)
	c.doubt(p, was)
	concerned := p.Policy+p.Former != "" || p.VMs != nil || is == nil || was == nil || is.replicas != was.replicas
	if c.report.Change {
		same := is != nil && was != nil && alike(is, was)
		if same && p.strategy != nil && p.changes() {
			c.report.Cluster.Drift++
		}
		concerned = concerned && !same
	} else {
		concerned = concerned && p.changes()
	}
	if k.Kind == "DaemonSet" || k.Kind == "Pod" || !concerned && p.strategy == nil {
		c.stay = append(c.stay, pods...)
		return nil
	}
	if !concerned {
		c.report.Cluster.OtherWorkloads++
		c.stay = append(c.stay, pods...)
		p.Other = true
		c.others = append(c.others, p.Workload)
		return nil
	}
	return p
}

// sourceOf names what divides the pods of a workload, or would if its mode let it.
func sourceOf(d *decided) string {
	if d == nil || d.policy == nil {
		return ""
	}
	return d.policy.Source
}

// alike reports whether a workload has the same next pods before and after the change, and is treated alike until then.
func alike(a, b *decided) bool {
	if a.replicas != b.replicas || a.without != b.without || a.vms != b.vms || a.vm != b.vm || len(a.seats) != len(b.seats) {
		return false
	}
	if a.seats == nil {
		return a.unrecorded() == b.unrecorded()
	}
	if !slices.Equal(a.seats, b.seats) || a.policy.Evict != b.policy.Evict || a.policy.Preferred != b.policy.Preferred || a.policy.Repair != b.policy.Repair || !slices.EqualFunc(a.domains, b.domains, slices.Equal) {
		return false
	}
	for i := range a.seats {
		if !maps.Equal(a.policy.Whole.Pool(i).Labels, b.policy.Whole.Pool(i).Labels) {
			return false
		}
	}
	return true
}
