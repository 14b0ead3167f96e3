package shortage

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Metrics shows pools without room.
type Metrics struct {
	exhausted, waiting *metrics.BoundedGauge
	spilled, corrected prometheus.Counter
	misfits            *prometheus.CounterVec // by what was decided
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	labels := []string{"namespace", "kind", "name", "pool", "domain"}
	return &Metrics{
		exhausted: set.BoundedGauge("stowage_pool_exhausted", "1 for each pool, or domain of one, that has no room for the pods of a workload and whose policy has spill. The domain is empty where pools are not divided over domains.", labels...),
		waiting:   set.BoundedGauge("stowage_pool_pods_waiting", "Pods that wait for a node of a pool, or of a domain of one, for each workload whose policy has spill.", labels...),
		corrected: set.Counter("stowage_pods_corrected_total", "Pods that waited for nodes of a pool as it was before a correction, and were evicted for that."),
		misfits:   set.CounterVec("stowage_pins_lifted_total", "Decisions that pods cannot run where their seats are: a pool or domain is unsuitable for a workload, or the pods of a revision only prefer their pools.", "decision"),
		spilled:   set.Counter("stowage_pods_spilled_total", "Pods that waited for a pool without room and were evicted, so that another pool takes their successors."),
	}
}

// place is a pool, or a domain of one, by name.
type place struct{ pool, domain string }

func (m *Metrics) set(w world.Object, at place, phase spill.Phase, waiting int64) {
	exhausted := 0.0
	if phase == spill.Exhausted || phase == spill.Probing {
		exhausted = 1
	}
	m.exhausted.Set(exhausted, w.Namespace, w.Kind, w.Name, at.pool, at.domain)
	m.waiting.Set(float64(waiting), w.Namespace, w.Kind, w.Name, at.pool, at.domain)
}

func (m *Metrics) gone(w world.Object, at place) {
	m.set(w, at, spill.Available, 0)
}

func (m *Metrics) reset() {
	m.exhausted.Reset()
	m.waiting.Reset()
}
