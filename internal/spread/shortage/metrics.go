package shortage

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Metrics shows pools without room.
type Metrics struct {
	exhausted, waiting *prometheus.GaugeVec
	spilled            prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	labels := []string{"namespace", "kind", "name", "pool"}
	return &Metrics{
		exhausted: set.GaugeVec("stowage_pool_exhausted", "1 for each pool that has no room for the pods of a workload and whose policy has spill.", labels...),
		waiting:   set.GaugeVec("stowage_pool_pods_waiting", "Pods that wait for a node of a pool, for each workload whose policy has spill.", labels...),
		spilled:   set.Counter("stowage_pods_spilled_total", "Pods that waited for a pool without room and were evicted, so that another pool takes their successors."),
	}
}

func (m *Metrics) set(w world.Object, pool string, phase spill.Phase, waiting int64) {
	exhausted := 0.0
	if phase != spill.Available {
		exhausted = 1
	}
	m.exhausted.WithLabelValues(w.Namespace, w.Kind, w.Name, pool).Set(exhausted)
	m.waiting.WithLabelValues(w.Namespace, w.Kind, w.Name, pool).Set(float64(waiting))
}

func (m *Metrics) gone(w world.Object, pool string) {
	m.exhausted.DeleteLabelValues(w.Namespace, w.Kind, w.Name, pool)
	m.waiting.DeleteLabelValues(w.Namespace, w.Kind, w.Name, pool)
}

func (m *Metrics) reset() {
	m.exhausted.Reset()
	m.waiting.Reset()
}
