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
}

// The repairs of pods that stay. With those of package planner that remove pods, they are a metric label.
const (
	repairAdopt    = "adopt"
	repairRenumber = "renumber"
)

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		repairs:        set.CounterVec("stowage_repairs_total", "Pods repaired, by what was done: adopt (given a seat), renumber (given another one), recreate or evict (removed, so that their owner recreates them).", "action"),
		distance:       set.BoundedGauge("stowage_spread_distance", "Pods that are in a pool with too many, in none, or not in the pool of their seat, by the uppermost workload.", "namespace", "kind", "name"),
		domainDistance: set.BoundedGauge("stowage_spread_domain_distance", "Pods that are in a domain, such as a zone, that has too many of their pool's pods, by the uppermost workload.", "namespace", "kind", "name"),
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

// workloadName is what the metric of a workload is called by.
type workloadName struct{ namespace, kind, name string }

// distance is how far the pods of one owner are from their targets.
type distance struct {
	of        workloadName // the uppermost workload, which has several owners during a rollout
	pods      int64
	elsewhere int64 // in a domain with too many
}

// report publishes the distance of an owner's pods from their targets, with those of the other owners of the same workload. The
// policy may be nil if the distance is 0.
func (r *run) report(owner ledger.Owner, p *policy.Policy, pods, elsewhere int64) {
	of := workloadName{owner.Namespace, owner.Kind, owner.Name}
	if p != nil && p.Root != nil {
		of = workloadName{owner.Namespace, p.Root.Kind, p.Root.Name}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setDistance(owner.Key(), distance{of, pods, elsewhere})
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
