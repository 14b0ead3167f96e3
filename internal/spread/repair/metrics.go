package repair

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// Metrics counts repairs.
type Metrics struct {
	repairs        *prometheus.CounterVec
	distance       *metrics.BoundedGauge
	domainDistance *metrics.BoundedGauge
	// desired, current and ready are the pods of each pool of a workload.
	desired, current, ready *metrics.BoundedGauge
	// foreignCosts are those of them whose deletion cost is gone or not from Stowage.
	foreignCosts *metrics.BoundedGauge
}

// The repairs of pods that stay. With those of package planner that remove pods, they are a metric label.
const (
	repairAdopt    = "adopt"
	repairRenumber = "renumber"
)

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	ofPool := func(name, help string) *metrics.BoundedGauge {
		return set.BoundedGauge("stowage_pool_"+name, help+", by workload.", "namespace", "kind", "name", "pool")
	}
	m := &Metrics{
		desired:        ofPool("desired_pods", "Pods that a pool should have of those that the workload asks for"),
		current:        ofPool("current_pods", "Pods with a seat in a pool"),
		ready:          ofPool("ready_pods", "Pods with a seat in a pool that are ready"),
		foreignCosts:   ofPool("foreign_cost_pods", "Pods with a seat in a pool whose deletion cost somebody else wrote or removed"),
		repairs:        set.CounterVec("stowage_repairs_total", "Pods repaired, by what was done: adopt (given a seat), renumber (given another one), recreate or evict (removed, so that their owner recreates them).", "action"),
		distance:       set.BoundedGauge("stowage_spread_distance", "Pods that are in a pool with too many, in none, or not in the pool of their seat, by workload.", "namespace", "kind", "name"),
		domainDistance: set.BoundedGauge("stowage_spread_domain_distance", "Pods that are in a domain, such as a zone, that has too many of their pool's pods, by workload.", "namespace", "kind", "name"),
	}
	return m
}

// outside returns how many pods are not in the pool of their seat, which the strategy has. Where pods only prefer their pool, none
// is.
func (r *run) outside(ctx context.Context, p *policy.Policy, pods []observed.Pod) int64 {
	if p.Preferred {
		return 0
	}
	nodes := func(name string) map[string]string { return r.World.NodeLabels(ctx, name) }
	return division.View{Layout: p.Layout, Nodes: nodes}.Outside(pods)
}

// poolName is what the metrics of a workload's pool are called by.
type poolName struct {
	workloadName
	pool string
}

// poolCount is the pods of an owner, or of a workload, in a pool.
type poolCount struct{ desired, current, ready, foreignCosts int64 }

// countPools publishes the pods of an owner in each pool, with those of the other owners of the same workload.
func (r *run) countPools(owner ledger.Owner, p *policy.Policy, targets []int64, records []observed.Pod) {
	of, now := nameOf(owner, p), map[poolName]poolCount{}
	for i, target := range targets {
		now[poolName{of, p.Pool(i).Name}] = poolCount{desired: target}
	}
	for i := range records {
		if at, known := p.PoolKeyed(records[i].Pool); known {
			name := poolName{of, p.Pool(at).Name}
			c := now[name]
			c.current++
			if records[i].Ready {
				c.ready++
			}
			if _, foreign := records[i].CostRank(p.Layout); foreign {
				c.foreignCosts++
			}
			now[name] = c
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaceCounts(owner.Key(), now)
}

// replaceCounts replaces the counts of an owner. The caller holds the lock.
func (r *run) replaceCounts(owner ledger.OwnerKey, now map[poolName]poolCount) {
	was := r.counted[owner]
	for name, c := range was {
		if now[name] != c {
			r.addCount(name, poolCount{-c.desired, -c.current, -c.ready, -c.foreignCosts})
		}
	}
	for name, c := range now {
		if was[name] != c {
			r.addCount(name, c)
		}
	}
	if r.counted[owner] = now; len(now) == 0 {
		delete(r.counted, owner)
	}
}

func (r *run) addCount(name poolName, more poolCount) {
	sum := r.sums[name]
	sum.desired, sum.current, sum.ready, sum.foreignCosts = sum.desired+more.desired, sum.current+more.current, sum.ready+more.ready, sum.foreignCosts+more.foreignCosts
	if r.sums[name] = sum; sum == (poolCount{}) {
		delete(r.sums, name)
	}
	r.Metrics.desired.Set(float64(sum.desired), name.namespace, name.kind, name.name, name.pool)
	r.Metrics.current.Set(float64(sum.current), name.namespace, name.kind, name.name, name.pool)
	r.Metrics.ready.Set(float64(sum.ready), name.namespace, name.kind, name.name, name.pool)
	r.Metrics.foreignCosts.Set(float64(sum.foreignCosts), name.namespace, name.kind, name.name, name.pool)
}

// nameOf is what the metrics of an owner's workload are called by. The policy may be nil.
func nameOf(owner ledger.Owner, p *policy.Policy) workloadName {
	if p != nil && p.Root != nil {
		return workloadName{owner.Namespace, p.Root.Kind, p.Root.Name}
	}
	return workloadName{owner.Namespace, owner.Kind, owner.Name}
}

// workloadName is what the metric of a workload is called by.
type workloadName struct{ namespace, kind, name string }

// distance is how far the pods of one owner are from their targets.
type distance struct {
	of        workloadName // the workload, which has several owners during a rollout
	pods      int64
	elsewhere int64 // in a domain with too many
}

// report publishes the distance of an owner's pods from their targets, with those of the other owners of the same workload. The
// policy may be nil if the distance is 0.
func (r *run) report(owner ledger.Owner, p *policy.Policy, pods, elsewhere int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setDistance(owner.Key(), distance{nameOf(owner, p), pods, elsewhere})
}

// setDistance replaces what is published of an owner. The caller holds the lock.
func (r *run) setDistance(owner ledger.OwnerKey, now distance) {
	was, known := r.reported[owner]
	if !known && now.pods+now.elsewhere == 0 {
		return
	}
	if delete(r.reported, owner); now.pods+now.elsewhere > 0 {
		r.reported[owner] = now
	}
	for _, of := range []workloadName{was.of, now.of} { // the first may be nobody's
		sum := distance{}
		for _, d := range r.reported { // those that are not as they should be are few
			if d.of == of {
				sum.pods, sum.elsewhere = sum.pods+d.pods, sum.elsewhere+d.elsewhere
			}
		}
		r.Metrics.distance.Set(float64(sum.pods), of.namespace, of.kind, of.name)
		r.Metrics.domainDistance.Set(float64(sum.elsewhere), of.namespace, of.kind, of.name)
	}
}
