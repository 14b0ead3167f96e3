package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what the handler decides. controller-runtime counts requests and
// their latency by path and code already.
type Metrics struct {
	admissions    *prometheus.CounterVec
	steps         *prometheus.HistogramVec
	droppedEvents prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_admissions_total",
			Help: "Decisions about new pods, by feature and outcome (applied, unchanged, audited, skipped, error, panic).",
		}, []string{"feature", "outcome"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "stowage_admission_step_seconds",
			Help: "Time that each step of an admission takes, in seconds.",
			// From the cost of a decision in memory (tens of microseconds) to
			// the default webhook timeout.
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"step"}),
	}
	m.droppedEvents = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "stowage_events_dropped_total",
		Help: "Kubernetes events that were not sent because there were too many.",
	})
	for _, c := range []prometheus.Collector{m.admissions, m.steps, m.droppedEvents} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) count(results []FeatureResult) {
	for _, r := range results {
		m.admissions.WithLabelValues(r.Feature, string(r.Outcome)).Inc()
	}
}

// undecodable counts a pod that could not be read at all.
func (m *Metrics) undecodable() {
	m.admissions.WithLabelValues("decode", string(OutcomeError)).Inc()
}

func (m *Metrics) step(name string, d time.Duration) {
	m.steps.WithLabelValues(name).Observe(d.Seconds())
}
