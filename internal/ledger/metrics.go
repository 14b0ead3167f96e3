package ledger

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts claims and the writes that they cost.
type Metrics struct {
	claims *prometheus.CounterVec
	states *prometheus.GaugeVec
	writes *prometheus.CounterVec
	sizes  prometheus.Histogram
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_claims_total",
			Help: "Seats asked for, by what became of it: claimed, hurried (claimed, with no time to find out which pods are gone), unshared (the API was too slow), or full (no pool may take a pod).",
		}, []string{"result"}),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_claims",
			Help: "Claims that this replica keeps, by state: deciding (its pod waits for us), pending (its pod was not seen yet), settled (it was), or dead (it never came).",
		}, []string{"state"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_ledger_writes_total",
			Help: "Writes of seat ledgers, by result: ok, conflict (another replica was first), uncertain, or refused.",
		}, []string{"result"}),
		sizes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "stowage_ledger_write_claims",
			Help:    "New claims in one write of a seat ledger.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
	}
	for _, c := range []prometheus.Collector{m.claims, m.states, m.writes, m.sizes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) claim(r Result) {
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

func (m *Metrics) write(r WriteResult) {
	m.writes.WithLabelValues([]string{"ok", "conflict", "uncertain", "refused"}[r]).Inc()
}

// keeps publishes how many claims there are in each state.
func (m *Metrics) keeps(states map[string]int) {
	for _, state := range []string{stateDeciding, statePending, stateSettled, stateDead} {
		m.states.WithLabelValues(state).Set(float64(states[state]))
	}
}

func (m *Metrics) batch(b *Book) {
	n := 0
	for _, c := range b.claims {
		if !c.written {
			n++
		}
	}
	m.sizes.Observe(float64(n))
}
