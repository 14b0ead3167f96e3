package suite

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Zones are the domains of tests that have some.
var Zones = []string{"a", "b", "c"}

// ZoneNode makes a node of a pool of the test's own in a zone, with room for so many pods of 1 CPU.
func (n *Tenant) ZoneNode(t *testing.T, pool, zone string, cpus int) *corev1.Node {
	t.Helper()
	return n.ZoneNodeNamed(t, pool, zone, zone, cpus)
}

// ZoneNodeNamed is [Tenant.ZoneNode] for one of several nodes of a zone.
func (n *Tenant) ZoneNodeNamed(t *testing.T, pool, zone, name string, cpus int) *corev1.Node {
	t.Helper()
	node := n.PoolNode(t, pool, name, cpus)
	Must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, zone))))
	return node
}

// Across divides pools evenly over the zones.
func Across() *versprei.Across {
	a := &versprei.Across{TopologyKey: corev1.LabelTopologyZone}
	for _, zone := range Zones {
		a.Domains = append(a.Domains, versprei.Domain{Value: versprei.LabelValue(zone)})
	}
	return a
}

// Distribution returns the strategy of a PodDistributor.
func (n *Tenant) Distribution(t *testing.T, name string) *sequence.Strategy {
	t.Helper()
	pd := &versprei.PodDistributor{}
	Must(t, n.Get(t.Context(), n.Key(name), pd))
	c := policy.Compile(pd)
	Must(t, c.Err)
	return c.Strategy
}

// Cells are the pods with a node in each pool, by zone.
type Cells map[string][]int64

// CellsOf returns where the pods of an app run. It returns an error if one is not ready, has no seat of its own, or is not where its
// labels say.
func (n *Tenant) CellsOf(ctx context.Context, app string, replicas int) (Cells, error) {
	pods, err := n.Pods(ctx, app)
	if err != nil {
		return nil, err
	}
	nodes, err := nodeLabels(ctx)
	if err != nil {
		return nil, err
	}
	if len(pods) != replicas {
		return nil, fmt.Errorf("%d pods of %d", len(pods), replicas)
	}
	cells, seats := Cells{}, map[string]string{}
	for i := range pods {
		p := &pods[i]
		pool, zone, seat := p.Labels[stowage.PoolLabel], p.Labels[stowage.DomainLabel], p.Labels[stowage.PoolLabel]+"/"+p.Labels[stowage.SeatLabel]
		at := nodes[p.Spec.NodeName]
		switch {
		case !podstatus.Ready(p):
			return nil, fmt.Errorf("pod %s is not ready", p.Name)
		case at[PoolLabel] != n.Namespace+"."+pool || at[corev1.LabelTopologyZone] != zone:
			return nil, fmt.Errorf("pod %s is on node %s, and its labels say pool %s, domain %s", p.Name, p.Spec.NodeName, pool, zone)
		case seats[seat] != "":
			return nil, fmt.Errorf("pods %s and %s have the seat %s", seats[seat], p.Name, seat)
		}
		seats[seat] = p.Name
		if cells[pool] == nil {
			cells[pool] = make([]int64, len(Zones))
		}
		cells[pool][slices.Index(Zones, zone)]++
	}
	return cells, nil
}

// off returns how far, at most, the pools are from their targets, and cells and zones from their shares.
func (c Cells) off(s *sequence.Strategy, replicas int) (pools int64, cells, zones float64) {
	sum := make([]int64, len(Zones))
	for i := range s.Len() {
		have, count := c[s.Pool(i).Name], int64(0)
		for z := range have {
			count += have[z]
			sum[z] += have[z]
		}
		for z := range have {
			cells = max(cells, math.Abs(float64(have[z])-float64(count)/float64(len(have))))
		}
		off := count - s.Target(i, int64(replicas))
		pools = max(pools, off, -off)
	}
	for _, have := range sum {
		zones = max(zones, math.Abs(float64(have)-float64(replicas)/float64(len(sum))))
	}
	return pools, cells, zones
}

// Exact reports whether each pool has its target.
func (c Cells) Exact(s *sequence.Strategy, replicas int) bool {
	pools, _, _ := c.off(s, replicas)
	return pools == 0
}

// InCells waits until the pods of an app are divided exactly over the pools. Cells may be so far from their shares, and zones.
func (n *Tenant) InCells(t *testing.T, app string, replicas int, s *sequence.Strategy, cell, zone float64) {
	t.Helper()
	n.settles(t, app, replicas, func(ctx context.Context) error {
		cells, err := n.CellsOf(ctx, app, replicas)
		if err != nil {
			return err
		}
		if p, c, z := cells.off(s, replicas); p > 0 || c > cell || z > zone {
			return fmt.Errorf("%v: pools are %d from their targets, cells %.2f from their shares, zones %.2f", cells, p, c, z)
		}
		return nil
	})
}

// PositionsAgree waits until the deletion costs of each pool's pods are those of its first ranks.
func (n *Tenant) PositionsAgree(t *testing.T, app string, s *sequence.Strategy) {
	t.Helper()
	Eventually(t, "the deletion costs agree with the positions", func() (bool, error) {
		pods, err := n.Pods(t.Context(), app)
		have, want := map[string]bool{}, map[string]bool{}
		counts := map[string]int64{}
		for i := range pods {
			have[pods[i].Annotations[corev1.PodDeletionCost]] = true
			counts[pods[i].Labels[stowage.PoolLabel]]++
		}
		for i := range s.Len() {
			for o := range counts[s.Pool(i).Name] {
				want[sequence.DeletionCost(s.RankOrNone(sequence.Seat{Pool: i, Ordinal: o + 1}))] = true
			}
		}
		for cost := range want {
			if !have[cost] {
				return false, err
			}
		}
		return len(have) == len(want), err
	})
}

// Highest returns the pod of a pool with the highest ordinal.
func (n *Tenant) Highest(t *testing.T, app, pool string) (pod *corev1.Pod, ordinal int) {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	Must(t, err)
	for i := range pods {
		if o, err := strconv.Atoi(pods[i].Labels[stowage.SeatLabel]); err == nil && pods[i].Labels[stowage.PoolLabel] == pool && o > ordinal {
			pod, ordinal = &pods[i], o
		}
	}
	return pod, ordinal
}

// OverZones makes a Deployment over two pools, od (base 1, 20) and spot (80), and three zones, without creating it.
func (n *Tenant) OverZones(t *testing.T, name string, replicas int, change func(*versprei.PodDistributorSpec)) *appsv1.Deployment {
	t.Helper()
	return n.Shortage(t, name, replicas, func(spec *versprei.PodDistributorSpec) {
		spec.Across = Across()
		for i := range spec.Distribution {
			spec.Distribution[i].Spill = nil
		}
		spec.Distribution[0].Base = 1
		if change != nil {
			change(spec)
		}
	})
}
