package resize

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/metrics"
)

// Metrics counts resizes.
type Metrics struct {
	resizes *prometheus.CounterVec
}

// The outcomes of resizes. They are a metric label.
const (
	resizeAccepted   = "accepted"
	resizeRefused    = "refused"
	resizeFailed     = "failed"
	resizeDeferred   = "deferred"
	resizeInfeasible = "infeasible"
	resizeNodeError  = "node_error"
)

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{resizes: set.CounterVec("stowage_resizes_total", "Resizes of running pods, by outcome: accepted, refused or failed at the API server; and, of those accepted, deferred or infeasible at the node, or node_error (the kubelet tried and failed).", "outcome")}
	for _, outcome := range []string{resizeAccepted, resizeRefused, resizeFailed, resizeDeferred, resizeInfeasible, resizeNodeError} {
		m.resizes.WithLabelValues(outcome)
	}
	return m
}
