package seats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Metrics counts claims and the writes that they cost.
type Metrics struct {
	claims *prometheus.CounterVec
	states *prometheus.GaugeVec
	writes *prometheus.CounterVec
	sizes  prometheus.Histogram
	relays *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		claims: set.CounterVec("stowage_claims_total", "Requests for a seat, by result: claimed, ahead, unverified, unshared or full. A seat ahead was claimed before the pod was created, and an unverified one before Stowage knew which pods are gone. An unshared seat was not claimed, because the API server was too slow. With full, every pool is at its maximum.", "result"),
		states: set.GaugeVec("stowage_claims", "Claims in this replica's memory, by state: deciding (admission waits), pending (pod not seen yet), settled (pod seen), or dead (pod presumed never created).", "state"),
		writes: set.CounterVec("stowage_ledger_writes_total", "Writes of seat ledgers, by result: ok, conflict (another replica was first), uncertain (no answer), refused, or busy (the API server had no room).", "result"),
		sizes:  set.Histogram("stowage_ledger_write_claims", "New claims in one write of a seat ledger.", prometheus.ExponentialBuckets(1, 2, 10)),
		relays: set.CounterVec("stowage_claims_relayed_total", "Pods for which this replica asked the one that writes their SeatLedger for a seat, by result: granted, refused or failed (no answer). If there is no seat, this replica claims one itself. The other replica refuses if it does not know the strategy, could not claim a seat in time, or the owner asks for no more pods.", "result"),
	}
	return m
}

// AddLag registers a metric of how far the watch of pods is behind.
func AddLag(set *metrics.Set, lag func() time.Duration) {
	set.GaugeFunc("stowage_watch_lag_seconds", "For how long this replica's watch has not shown a pod that another replica has seen. 0 if there is no such pod.", func() float64 {
		return lag().Seconds()
	})
}

// Lag returns for how long the watch of pods has not shown a pod that another replica has seen, or 0.
func (l *Service) Lag() time.Duration {
	l.shared.Watch.Reached(l.pods.Version())
	return l.shared.Watch.Lag(l.now())
}

func (m *Metrics) claim(r ledger.Result) {
	result := "claimed"
	switch {
	case r.Err != nil:
		result = "full"
	case !r.Written:
		result = "unshared"
	case r.Unverified:
		result = "unverified"
	case r.Prepared:
		result = "ahead"
	}
	m.claims.WithLabelValues(result).Inc()
}

func (m *Metrics) write(r ledger.WriteResult) {
	m.writes.WithLabelValues([]string{"ok", "conflict", "uncertain", "refused", "busy"}[r]).Inc()
}

// relayed counts pods for which another replica was asked.
func (m *Metrics) relayed(result string, pods int) {
	m.relays.WithLabelValues(result).Add(float64(pods))
}

// keeps publishes how many claims there are in each state.
func (m *Metrics) keeps(states map[string]int) {
	for _, state := range ledger.States {
		m.states.WithLabelValues(state).Set(float64(states[state]))
	}
}

// batch counts the claims of a write. One that only gives seats back has none.
func (m *Metrics) batch(b *ledger.Book) {
	if n := b.Unwritten(); n > 0 {
		m.sizes.Observe(float64(n))
	}
}
