package status

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// Metrics count what policies divide, and would divide.
type Metrics struct {
	workloads, pods *metrics.BoundedGauge
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	return &Metrics{
		workloads: set.BoundedGauge("stowage_policy_workloads", "Workloads that a policy selects: balanced, unbalanced, audited, shadowed by another source, not_reached by the webhook, kept by a volume, or with an unsuitable pool.", "namespace", "kind", "name", "state"),
		pods:      set.BoundedGauge("stowage_policy_pods", "Pods of these workloads: seated or without_seat; in mode Audit in_place, in_other_pool, in_other_domain, outside of all pools, or waiting for a node.", "namespace", "kind", "name", "state"),
	}
}

// AddServed registers a metric of whether the API server has the kinds of policies.
func AddServed(set *metrics.Set, served func() bool) {
	set.GaugeFunc("stowage_policy_kinds_served", "1 while the API server has the kinds SpreadPolicy and ClusterSpreadPolicy, 0 while it has not, so that no policy has an effect", func() float64 {
		if served() {
			return 1
		}
		return 0
	})
}

// set publishes what was counted: of the cluster's policies first, and then of one policy of each namespace in turn. Anybody who may write SpreadPolicies
// makes more, and where not all of them have room, those that a namespace has beyond others have none.
func (m *Metrics) set(tallies map[types.UID]*tally) {
	m.workloads.Reset()
	m.pods.Reset()
	all := slices.SortedFunc(maps.Values(tallies), func(a, b *tally) int {
		return cmp.Or(cmp.Compare(a.of.Namespace, b.of.Namespace), cmp.Compare(a.of.Name, b.of.Name))
	})
	of := func(i int) string { return all[i].of.Namespace }
	order := fair.Turns(len(all), of)
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(min(1, len(of(i))), min(1, len(of(j)))) }) // the cluster's first
	for _, i := range order {
		t := all[i]
		st := t.status
		workloads := map[string]int32{"shadowed": st.Shadowed, "not_reached": st.NotReached, "kept": st.KeptByVolume, "unsuitable": st.Unsuitable}
		pods := map[string]int32{}
		if a := st.Audit; a != nil {
			workloads["audited"] = a.Workloads
			pods["in_place"], pods["in_other_pool"], pods["in_other_domain"] = a.InPlace, a.InOtherPool, a.InOtherDomain
			pods["outside"], pods["waiting"] = a.Outside, a.Waiting
		} else {
			workloads["balanced"], workloads["unbalanced"] = t.balanced, st.Workloads-t.balanced
			pods["seated"], pods["without_seat"] = st.Pods-st.WithoutSeat, st.WithoutSeat
		}
		for state, n := range workloads {
			m.workloads.Set(float64(n), t.of.Namespace, t.of.Kind, t.of.Name, state)
		}
		for state, n := range pods {
			m.pods.Set(float64(n), t.of.Namespace, t.of.Kind, t.of.Name, state)
		}
	}
}
