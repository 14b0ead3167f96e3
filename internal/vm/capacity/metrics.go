package capacity

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Metrics tells what was advertised, and what of it is in use.
type Metrics struct {
	invalid        prometheus.Gauge
	writes         *prometheus.CounterVec
	capacity, used *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	m := &Metrics{
		invalid:  set.Gauge("stowage_peerpods_limit_invalid", "1 while the limit in the ConfigMap is refused and the last good one holds, or else 0."),
		writes:   set.CounterVec("stowage_peerpods_capacity_writes_total", "Changes of the VM capacity of nodes, by what they were: set, restored (somebody had changed it), withdrawn.", "change"),
		capacity: set.GaugeVec("stowage_peerpods_vm_capacity", "Peer-pod VMs that a node may have, from the leader.", "node"),
		used:     set.GaugeVec("stowage_peerpods_vm_used", "Peer-pod VMs that the pods of a node request, from the leader.", "node"),
	}
	return m
}

// use is how many VMs a node may have and its pods have.
type use struct{ capacity, used int64 }

// exceedsAnew reports whether there are more VMs than there may be, for the first time or with another capacity.
func (u use) exceedsAnew(was use) bool {
	return u.used > u.capacity && (was.used <= was.capacity || was.capacity != u.capacity)
}

// account publishes how many VMs a node may have and its pods take, and returns when to look again, if so. A
// limit below that is legal: it holds for pods to come.
func (r *run) account(ctx context.Context, name string, node *corev1.Node) time.Duration {
	if !r.pods.HasSynced() {
		return time.Second
	}
	var now use
	var again time.Duration
	if node != nil {
		now.capacity = max(0, peerpod.AdvertisedBy(node, string(r.Resource)).Allocatable)
		now.used, again = r.usedOf(ctx, node, now.capacity > 0)
	}
	r.mu.Lock()
	was := r.published[name]
	r.published[name] = now
	if now == (use{}) {
		delete(r.published, name)
	}
	r.mu.Unlock()
	if now == (use{}) {
		r.Metrics.capacity.DeleteLabelValues(name)
		r.Metrics.used.DeleteLabelValues(name)
		return again
	}
	r.Metrics.capacity.WithLabelValues(name).Set(float64(now.capacity))
	r.Metrics.used.WithLabelValues(name).Set(float64(now.used))
	down := now.capacity == 0 && r.byDaemon() // its pods stay, and the amount comes back with the daemon
	if node != nil && now.exceedsAnew(was) && !down {
		r.Events.Warn(node, stowage.EventOverCapacity, events.Advertise,
			"the node has %d peer-pod VM(s) and may have %d; they stay, and no new one is scheduled here until there are fewer", now.used, now.capacity)
	}
	return again
}
