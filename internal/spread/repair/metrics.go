package repair

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// Metrics counts repairs.
type Metrics struct {
	repairs  *prometheus.CounterVec
	distance *prometheus.GaugeVec
}

// The repairs of pods that stay. With those of package planner that remove pods, they are a metric label.
const (
	repairAdopt    = "adopt"
	repairRenumber = "renumber"
)

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		repairs:  set.CounterVec("stowage_repairs_total", "Pods repaired, by what was done: adopt (given a seat), renumber (given another one), recreate or evict (removed, so that their owner recreates them).", "action"),
		distance: set.GaugeVec("stowage_spread_distance", "Pods that are in a pool with too many, in none, or not in the pool of their seat, by workload. Workloads in which every pool has what it should have are not there.", "namespace", "kind", "name"),
	}
	return m
}

// outside returns how many pods are not in the pool of their seat, which the strategy has. Where pods only prefer their pool, none
// is.
func (r *run) outside(ctx context.Context, p *policy.Policy, records []seats.Record) int64 {
	if p.Preferred {
		return 0
	}
	var d division.Division
	pods := make([]division.Pod, len(records))
	for i := range records {
		rec := &records[i]
		pods[i] = division.Pod{Pool: rec.Pool, Place: division.PlaceOf(rec.Node, r.World.NodeLabels(ctx, rec.Node), rec.Selector, p.Preferred)}
	}
	d.AddPods(p.Whole, pods)
	return d.Outside()
}

// report publishes a workload's distance from its targets.
func (r *run) report(owner ledger.Owner, distance int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if distance > 0 {
		r.reported[owner.Key()] = owner
		r.Metrics.distance.WithLabelValues(owner.Namespace, owner.Kind, owner.Name).Set(float64(distance))
		return
	}
	delete(r.reported, owner.Key())
	r.Metrics.gone(owner)
}

func (m *Metrics) gone(owner ledger.Owner) {
	m.distance.DeleteLabelValues(owner.Namespace, owner.Kind, owner.Name)
}
