package costs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// What became of a write.
const (
	outcomeWritten  = "written"
	outcomeMoved    = "moved"
	outcomeRemoved  = "removed"
	outcomeConflict = "conflict"
	outcomeRefused  = "refused"
)

// Metrics tells what is written, and which policies do not keep what they promise.
type Metrics struct {
	writes           *prometheus.CounterVec
	delay            prometheus.Histogram
	uneven, refusing *metrics.BoundedGauge

	was map[of]counts
}

// of names a policy. The namespace is empty for a ClusterScaleDownPolicy.
type of struct{ namespace, name string }

// counts are how many workloads of a policy the next step leaves uneven, and of how many the API server refuses costs.
type counts struct{ uneven, refusing int32 }

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		writes: set.CounterVec("stowage_scaledown_writes_total", "Writes of deletion costs for ScaleDownPolicies, from the leader: written, moved to a gap that a pod left, removed, conflict (the pod has changed; it is written again), or refused.", "outcome"),
		delay: set.Histogram("stowage_scaledown_delay_seconds", "Time from when the leader saw that a new pod has a node until its deletion cost was written.",
			[]float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}),
		uneven:   set.BoundedGauge("stowage_scaledown_uneven_workloads", "Workloads of a ScaleDownPolicy, or of a ClusterScaleDownPolicy, that a step down to half would leave less spread than their pods allow, from the leader.", "namespace", "policy"),
		refusing: set.BoundedGauge("stowage_scaledown_refused_workloads", "Workloads of such a policy with pods whose deletion costs the API server refuses, from the leader.", "namespace", "policy"),
	}
	for _, outcome := range []string{outcomeWritten, outcomeMoved, outcomeRemoved, outcomeConflict, outcomeRefused} {
		m.writes.WithLabelValues(outcome)
	}
	return m
}

// wrote counts a write that was done, of a pod that got its node so long ago.
func (m *Metrics) wrote(w write, since time.Duration) {
	switch {
	case w.cost == 0:
		m.writes.WithLabelValues(outcomeRemoved).Inc()
	case w.moves:
		m.writes.WithLabelValues(outcomeMoved).Inc()
	default:
		m.writes.WithLabelValues(outcomeWritten).Inc()
		if w.fresh {
			m.delay.Observe(since.Seconds())
		}
	}
}

// set publishes the counts of all policies. One goroutine calls it.
func (m *Metrics) set(now map[of]counts) {
	for p := range m.was {
		if _, still := now[p]; !still {
			m.uneven.Set(0, p.namespace, p.name)
			m.refusing.Set(0, p.namespace, p.name)
		}
	}
	for p, n := range now {
		m.uneven.Set(float64(n.uneven), p.namespace, p.name)
		m.refusing.Set(float64(n.refusing), p.namespace, p.name)
	}
	m.was = now
}
