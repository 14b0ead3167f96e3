package resize

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// Metrics counts resizes.
type Metrics struct {
	resizes *prometheus.CounterVec
	planned *metrics.BoundedGauge
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
	m.planned = set.BoundedRatio("stowage_daemonset_plan_ratio", "Size of a DaemonSet's pod on a class of nodes, divided by the size that Karpenter plans with: that of the DaemonSet's newest pod. It is 1 where the plan is right.", "namespace", "daemonset", "node_class", "resource")
	for _, outcome := range []string{resizeAccepted, resizeRefused, resizeFailed, resizeDeferred, resizeInfeasible, resizeNodeError} {
		m.resizes.WithLabelValues(outcome)
	}
	return m
}
