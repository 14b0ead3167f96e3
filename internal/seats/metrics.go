package seats

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/metrics"

	"github.com/stowage-dev/stowage/internal/ledger"
)

// Metrics counts claims and the writes that they cost.
type Metrics struct {
	claims *prometheus.CounterVec
	states *prometheus.GaugeVec
	writes *prometheus.CounterVec
	sizes  prometheus.Histogram
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		claims: set.CounterVec("stowage_claims_total", "Seats asked for, by what became of it: claimed, hurried (claimed, with no time to find out which pods are gone), unshared (the API was too slow), or full (no pool may take a pod).", "result"),
		states: set.GaugeVec("stowage_claims", "Claims that this replica keeps, by state: deciding (its pod waits for us), pending (its pod was not seen yet), settled (it was), or dead (it never came).", "state"),
		writes: set.CounterVec("stowage_ledger_writes_total", "Writes of seat ledgers, by result: ok, conflict (another replica was first), uncertain, or refused.", "result"),
		sizes:  set.Histogram("stowage_ledger_write_claims", "New claims in one write of a seat ledger.", prometheus.ExponentialBuckets(1, 2, 10)),
	}
	return m
}

func (m *Metrics) claim(r ledger.Result) {
	result := "claimed"
	switch {
	case r.Err != nil:
		result = "full"
	case !r.Written:
		result = "unshared"
	case r.Hurried:
		result = "hurried"
	}
	m.claims.WithLabelValues(result).Inc()
}

func (m *Metrics) write(r ledger.WriteResult) {
	m.writes.WithLabelValues([]string{"ok", "conflict", "uncertain", "refused"}[r]).Inc()
}

// keeps publishes how many claims there are in each state.
func (m *Metrics) keeps(states map[string]int) {
	for _, state := range ledger.States {
		m.states.WithLabelValues(state).Set(float64(states[state]))
	}
}

func (m *Metrics) batch(b *ledger.Book) { m.sizes.Observe(float64(b.Unwritten())) }
