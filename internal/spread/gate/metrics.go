package gate

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// Metrics counts pods at the gate.
type Metrics struct {
	opened *prometheus.CounterVec
	left   *prometheus.CounterVec
	queue  atomic.Pointer[queue] // nil while another replica leads
}

// NewMetrics registers the metrics. The clock is for the ages of pods.
func NewMetrics(set *metrics.Set, clock clock.PassiveClock) *Metrics {
	m := &Metrics{
		opened: set.CounterVec("stowage_gates_removed_total", "Pods from which the leader removed the scheduling gate, by result: seated, nothing, or unseated. With nothing, there was nothing to decide. An unseated pod has no seat, because nobody could decide for a minute.", "result"),
		left:   set.CounterVec("stowage_gates_left_total", "Tries that left a pod at the scheduling gate, by reason: undecided, undecidable, late, conflict, refused or failed. Undecided means that the API, a SeatLedger or a cache was not there. Undecidable means an invalid strategy, or an owner that is gone. Late means that the claim was too old, conflict that the pod had changed. The API server refused a patch, or did not answer.", "reason"),
	}
	set.GaugeFunc("stowage_gated_pods", "Pods that wait at the scheduling gate stowage.dev/seat. Only the leader counts them.", func() float64 {
		n, _ := m.state()
		return float64(n)
	})
	set.GaugeFunc("stowage_gated_pods_oldest_seconds", "Age of the oldest pod that waits at the scheduling gate stowage.dev/seat, in seconds, or 0. Only the leader knows it.", func() float64 {
		n, oldest := m.state()
		if n == 0 || oldest.IsZero() {
			return 0
		}
		return max(0, clock.Since(oldest).Seconds())
	})
	return m
}

// state returns how many pods wait, and when the oldest of them was created.
func (m *Metrics) state() (int, time.Time) {
	if q := m.queue.Load(); q != nil {
		return q.state()
	}
	return 0, time.Time{}
}
