// Package division compares how the pods of a workload are divided over pools with how they should be.
//
// It has facts and no sentences: the conditions of a PodDistributor, `stowage status` and `stowage explain` print them, each
// for its reader. The package is pure: its callers know the pods, and which of them are to count.
package division

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// patience is how long a pod may be without a node before it counts as one that waits. A node autoscaler needs longer, but
// until its node is there the pod waits all the same.
const patience = 30 * time.Second

// Pod is a pod with a seat.
type Pod struct {
	Pool   string // the [sequence.Pool.Key] of its seat
	Domain string // of its seat, or empty
	Ready  bool
	OnNode bool
	Age    time.Duration
	// Node is the labels of the pod's node, and Pins what it asks for while it waits for one. They are nil where that is not known, and where the
	// pod only prefers its pool and waits.
	Node map[string]string
	Pins *nodeset.Pins
	// NodeName is that of the pod's node, or empty. Gone says that there is no such node any more: the pod does not run, whatever its status says.
	NodeName string
	Gone     bool
	// Cost is the pod's deletion cost, and 0 without one. Rank is the one that it should stand for. ForeignCost says that Stowage did not write the
	// cost, or that it is gone.
	Cost, Rank  int64
	ForeignCost bool
}

// View is what pods are looked at with.
type View struct {
	Layout *layout.Layout
	// Preferred says that pods only prefer their pool.
	Preferred bool
	// Nodes returns the labels of a node, or nil if they are not known.
	Nodes func(name string) map[string]string
	// Gone reports whether there is no node of a name any more; nil where that is not known.
	Gone func(name string) bool
	Now  time.Time
}

// Pods returns the active ones of some pods as a division counts them.
func (v View) Pods(pods []observed.Pod) []Pod {
	out := make([]Pod, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		if !p.Active {
			continue
		}
		pod := v.pod(p)
		pod.Cost, _ = strconv.ParseInt(p.Cost, 10, 64) // the API server refuses one that is no number
		pod.Rank, pod.ForeignCost = p.CostRank(v.Layout)
		out = append(out, pod)
	}
	return out
}

// pod is a pod as a division counts it, without its deletion cost.
func (v View) pod(p *observed.Pod) Pod {
	out := Pod{Pool: p.Pool, Domain: p.Domain, Ready: p.Ready, OnNode: p.Node != "", Age: p.Age(v.Now), NodeName: p.Node}
	switch {
	case out.OnNode:
		out.Node = v.Nodes(p.Node)
		// Only pods that say they are ready are asked about: they have been on their node for a while.
		out.Gone = p.Ready && out.Node == nil && v.Gone != nil && v.Gone(p.Node)
		out.Ready = p.Ready && !out.Gone
	case !v.Preferred:
		out.Pins = p.Pins
	}
	return out
}

// outside reports whether a pod runs, or waits for a node, outside a pool.
func (p *Pod) outside(s *sequence.Strategy, pool int) bool {
	switch {
	case p.Node != nil:
		return !s.HasNode(pool, p.Node)
	case p.Pins == nil:
		return false
	}
	of := s.Cells().OfPool()
	for domain := range of {
		if p.Pins.AskFor(s.NodesOf(sequence.Cell{Pool: pool, Domain: domain})) {
			return false
		}
	}
	return true
}

// Outside returns how many of some pods are not in the pool of their seat, of those that the strategy has.
func (v View) Outside(pods []observed.Pod) (count int64) {
	for i := range pods {
		pool, known := v.Layout.PoolKeyed(pods[i].Pool)
		if pod := v.pod(&pods[i]); known && pod.outside(v.Layout.Strategy, pool) {
			count++
		}
	}
	return count
}

// Pool is what a pool has and should have, over all owners of a workload's pods.
type Pool struct {
	Name   string
	Key    string // see [sequence.Pool.Key]
	Nodes  nodeset.Set
	Share  float64 // of the pods that are asked for, exactly
	Target int64   // the share, in whole pods
	// Current are the pods with a seat in the pool that are there, and Ready those of them that are ready. Pending have no node,
	// and Waiting of these for longer than [patience].
	Current, Ready, Pending, Waiting int64
	// Gone are the pods that say that they are ready, on nodes that do not exist any more. Ready does not have them.
	Gone int64
	// Outside are the pods with a seat in the pool whose place does not have the labels.
	Outside int64
	// Removed says that the strategy does not have the pool any more. Its labels are not known.
	Removed bool
	// domains are those of the pool, if the strategy has some. Their pods are among those of the pool.
	domains []Domain
}

// Domain is what a domain of a pool has and should have.
type Domain struct {
	Name            string
	Current, Target int64
	// former is the target by the order that the domains had for the workload in a release before.
	former int64
}

// noteGone counts a pod whose node does not exist any more.
func (p *Pool) noteGone(pod Pod) {
	if pod.Gone {
		p.Gone++
	}
}

// domain returns a domain of the pool, which is added if it is not there.
func (p *Pool) domain(name string) *Domain {
	i := slices.IndexFunc(p.domains, func(d Domain) bool { return d.Name == name })
	if i < 0 {
		i = len(p.domains)
		p.domains = append(p.domains, Domain{Name: name})
	}
	return &p.domains[i]
}

// Domains returns the domains of the pool. Where none has more pods than by the order of a release before, that gives the targets.
func (p *Pool) Domains() []Domain {
	out := slices.Clone(p.domains)
	if !slices.ContainsFunc(out, func(d Domain) bool { return d.Current > d.former }) {
		for i := range out {
			out[i].Target = out[i].former
		}
	}
	return out
}

// Division is the pods of a workload.
type Division struct {
	Pools    []Pool
	Replicas int64 // that the owners ask for
	// Former are pods with a seat in a pool that the strategy does not have any more. Unseated are those without a seat that
	// should have one, Former included. Pinned are those of them that choose their nodes themselves, so that they get none.
	Former, Unseated, Pinned int64
	Costs                    Costs
	// Held are pods that are counted where their volumes are, in another cell than is due.
	Held int64
	// Shortages are the pools without room whose waiting pods other pools take.
	Shortages []spill.Shortage
	// Untaken says why no other pool takes more of these pods, and is empty where others take them all: see [Untaken].
	Untaken string
	// Moving says that pods are being created or removed. Stuck says that an owner has the same pods for minutes, and not as many
	// as it asks for.
	Moving, Stuck bool
}

// AddPods adds the pods of an owner that have a seat. It returns how many of them have it in a pool of the strategy.
func (d *Division) AddPods(s *sequence.Strategy, pods []Pod) (seated int64) {
	at := make([]int, s.Len())
	for i := range at {
		at[i] = d.pool(s.Pool(i))
		if a := s.Across(); a != nil {
			for _, in := range a.Domains {
				d.Pools[at[i]].domain(in.Value) // in the order of the strategy
			}
		}
	}
	var known []Pod
	for _, pod := range pods {
		i := slices.IndexFunc(at, func(n int) bool { return d.Pools[n].Key == pod.Pool })
		if i < 0 {
			d.Former++
			pool := &d.Pools[d.removed(pod.Pool)]
			pool.Current++
			pool.noteGone(pod)
			if pod.Ready {
				pool.Ready++
			}
			continue
		}
		seated++
		known = append(known, pod)
		pool := &d.Pools[at[i]]
		if pod.outside(s, i) {
			pool.Outside++
			continue
		}
		pool.Current++
		pool.noteGone(pod)
		if s.Across() != nil && pod.Domain != "" {
			pool.domain(pod.Domain).Current++
		}
		if pod.Ready {
			pool.Ready++
		}
		if !pod.OnNode {
			pool.Pending++
			if pod.Age >= patience {
				pool.Waiting++
			}
		}
	}
	d.Costs.add(costsOf(known))
	return seated
}

// AddTargets adds what an owner should have by its layout. It returns how many of its pods have a seat.
func (d *Division) AddTargets(l *layout.Layout, of layout.Division) (seats int64) {
	for i, target := range of.Pools {
		pool := &d.Pools[d.pool(l.Pool(i))]
		pool.Share += l.Whole().Share(i, of.Replicas)
		pool.Target += target
		seats += target
		if of.Domains.Now == nil {
			continue
		}
		for k, n := range of.Domains.Now[i] {
			to := pool.domain(l.DomainName(k))
			to.Target, to.former = to.Target+n, to.former+of.Domains.Former[i][k]
		}
	}
	d.Replicas += of.Replicas
	d.Held += int64(len(l.HeldPods()))
	return seats
}

// Merge adds the pods and targets of another division.
func (d *Division) Merge(other *Division) {
	for i := range other.Pools {
		o := &other.Pools[i]
		at := 0
		if o.Removed {
			at = d.removed(o.Key)
		} else {
			at = d.pool(sequence.Pool{Name: o.Name, ID: o.Key, Labels: o.Nodes.Labels, Expressions: o.Nodes.Expressions})
		}
		p := &d.Pools[at]
		p.Share += o.Share
		p.Target += o.Target
		p.Current += o.Current
		p.Ready += o.Ready
		p.Gone += o.Gone
		p.Pending += o.Pending
		p.Waiting += o.Waiting
		p.Outside += o.Outside
		for _, in := range o.domains {
			have := p.domain(in.Name)
			have.Current, have.Target, have.former = have.Current+in.Current, have.Target+in.Target, have.former+in.former
		}
	}
	d.Replicas += other.Replicas
	d.Former += other.Former
	d.Unseated += other.Unseated
	d.Pinned += other.Pinned
	d.Costs.add(other.Costs)
	d.Held += other.Held
	d.Shortages = append(d.Shortages, other.Shortages...)
	d.Untaken = cmp.Or(d.Untaken, other.Untaken)
	d.Moving, d.Stuck = d.Moving || other.Moving, d.Stuck || other.Stuck
}

// pool returns the index of a pool, which is added if it is not there. Revisions of a workload may name different pools.
func (d *Division) pool(p sequence.Pool) int {
	i := slices.IndexFunc(d.Pools, func(have Pool) bool { return have.Key == p.Key() })
	if i < 0 {
		i = len(d.Pools)
		d.Pools = append(d.Pools, Pool{Name: p.Name, Key: p.Key(), Nodes: p.Nodes()})
	}
	if pool := &d.Pools[i]; pool.Removed {
		pool.Removed, pool.Nodes = false, p.Nodes() // of another revision it is not
	}
	return i
}

// removed returns the index of a pool that no strategy has, which is added if it is not there.
func (d *Division) removed(key string) int {
	i := slices.IndexFunc(d.Pools, func(have Pool) bool { return have.Key == key })
	if i < 0 {
		i = len(d.Pools)
		d.Pools = append(d.Pools, Pool{Name: ledger.PoolName(key), Key: key, Removed: true})
	}
	return i
}

// formerPools names the pools with pods that the strategy does not have any more, three at most.
func (d *Division) formerPools() string {
	var names []string
	for i := range d.Pools {
		if pool := &d.Pools[i]; pool.Removed && pool.Current > 0 {
			names = append(names, pool.Name)
		}
	}
	if more := len(names) - 3; more > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// sum returns a sum over all pools.
func (d *Division) sum(of func(*Pool) int64) (n int64) {
	for i := range d.Pools {
		n += of(&d.Pools[i])
	}
	return n
}

// Outside returns how many pods are not in the pool of their seat, which the strategy has.
func (d *Division) Outside() int64 { return d.sum(func(p *Pool) int64 { return p.Outside }) }

// DomainSurplus returns how many pods are in a domain that has too many of their pool's pods.
func (d *Division) DomainSurplus() int64 {
	return d.sum(func(p *Pool) (n int64) {
		targets := int64(0)
		for _, in := range p.Domains() {
			targets += in.Target
			n += max(0, in.Current-in.Target)
		}
		if targets == 0 {
			return 0 // it is not known how many each should have
		}
		return n
	})
}

// Closed names the pools that should have pods and have no node, with their labels, and those whose nodes are all cordoned. nodesOf returns which
// nodes a pool has.
func (d *Division) Closed(nodesOf func(nodeset.Set) nodefit.Nodes) (none, cordoned string) {
	var names, closed []string
	for i := range d.Pools {
		pool := &d.Pools[i]
		if pool.Target == 0 || pool.Removed {
			continue
		}
		switch nodesOf(pool.Nodes) {
		case nodefit.NoNodes:
			names = append(names, fmt.Sprintf("%s (%s)", pool.Name, pool.Nodes))
		case nodefit.NodesCordoned:
			closed = append(closed, pool.Name)
		}
	}
	return strings.Join(names, " and "), strings.Join(closed, " and ")
}

// Even reports whether each pool has as many pods as it should have.
func (d *Division) Even() bool {
	return !slices.ContainsFunc(d.Pools, func(p Pool) bool { return p.Current != p.Target })
}

// Over returns the first pool that has too many pods, or nil.
func (d *Division) Over() *Pool {
	if i := slices.IndexFunc(d.Pools, func(p Pool) bool { return p.Current > p.Target && !p.Removed }); i >= 0 {
		return &d.Pools[i]
	}
	return nil
}

// Gone returns how many pods are on nodes that do not exist any more, and say that they are ready.
func (d *Division) Gone() int64 { return d.sum(func(p *Pool) int64 { return p.Gone }) }

// Balanced reports whether each pool has the pods that it should have, in the pool, and each of them has a node that exists.
func (d *Division) Balanced() bool {
	return d.Even() && d.Outside() == 0 && d.Gone() == 0 && d.sum(func(p *Pool) int64 { return p.Pending }) == 0
}
