package supply

import "github.com/stowage-dev/stowage/internal/platform/metrics"

// Metrics tells which VMs there are, and which types are closed.
type Metrics struct {
	vms, vcpus, memory, price *metrics.BoundedGauge
	closed                    *metrics.BoundedGauge

	was map[Place]Use // what is published
	// wasClosed are the types that are published as closed.
	wasClosed map[closedType]float64
}

type closedType struct{ catalog, name, zone string }

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	of := []string{"namespace", "type"}
	return &Metrics{
		vms:    set.BoundedGauge("stowage_peerpods_vms", "VMs of peer pods with a VMCatalog, by the namespace and the type, from the leader. Pods without a type of the catalog have none.", of...),
		vcpus:  set.BoundedGauge("stowage_peerpods_vcpus", "vCPUs of these VMs, as the catalog has them, or else the pods' annotations.", of...),
		memory: set.BoundedGauge("stowage_peerpods_memory_bytes", "Memory of these VMs, as the catalog has it, or else the pods' annotations.", of...),
		price:  set.BoundedGauge("stowage_peerpods_price_per_hour", "What these VMs cost in an hour, in the currency of the catalog. Types without a price cost nothing.", of...),
		closed: set.BoundedGauge("stowage_peerpods_types_closed", "For how many namespaces a type of a VMCatalog is closed in a zone, because its VMs could not be made, from the leader. Nodes without a zone are in zone \"\".",
			"catalog", "type", "zone"),
	}
}

// publish publishes what was counted. It is called by one goroutine at a time.
func (m *Metrics) publish(now map[Place]Use, closed map[closedType]float64) {
	for at := range m.was {
		if _, still := now[at]; !still {
			m.set(at, Use{})
		}
	}
	for at, u := range now {
		m.set(at, u)
	}
	for of := range m.wasClosed {
		if _, still := closed[of]; !still {
			m.closed.Set(0, of.catalog, of.name, of.zone)
		}
	}
	for of, n := range closed {
		m.closed.Set(n, of.catalog, of.name, of.zone)
	}
	m.was, m.wasClosed = now, closed
}

func (m *Metrics) set(at Place, u Use) {
	m.vms.Set(float64(u.VMs), at.Namespace, at.Type)
	m.vcpus.Set(float64(u.VCPUs), at.Namespace, at.Type)
	m.memory.Set(float64(u.Memory), at.Namespace, at.Type)
	m.price.Set(float64(u.Price)/1e6, at.Namespace, at.Type)
}
