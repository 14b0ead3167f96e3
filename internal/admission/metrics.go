package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// Metrics count what the handler decides. controller-runtime counts requests and
// their latency by path and code already.
type Metrics struct {
	admissions    *prometheus.CounterVec
	steps         *prometheus.HistogramVec
	droppedEvents prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	return &Metrics{
		admissions: set.CounterVec("stowage_admissions_total", "Decisions about new pods, by feature and outcome (applied, unchanged, audited, skipped, dropped, error, panic). The feature gate is about scheduling gates, with the outcomes applied (removed) and waiting.", "feature", "outcome"),
		steps: set.HistogramVec("stowage_admission_step_seconds", "Time that each step of an admission takes, in seconds.",
			// From the cost of a decision in memory (tens of microseconds) to the default webhook timeout.
			[]float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}, "step"),
		droppedEvents: set.Counter("stowage_events_dropped_total", "Kubernetes events that were not sent because there were too many."),
	}
}

func (m *Metrics) count(results []pipeline.FeatureResult) {
	for _, r := range results {
		m.admissions.WithLabelValues(r.Feature, string(r.Outcome)).Inc()
	}
}

// undecodable counts a pod that could not be read at all.
func (m *Metrics) undecodable() {
	m.admissions.WithLabelValues("decode", string(pipeline.OutcomeError)).Inc()
}

func (m *Metrics) step(name string, d time.Duration) {
	m.steps.WithLabelValues(name).Observe(d.Seconds())
}
