// Package domains tests that the pods of each pool are divided over zones, on a real control plane with three replicas of the webhook.
package domains

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(true, func(ctx context.Context) (int, error) {
		o := suite.Fleet
		o.Replicas = 3
		if err := suite.Cluster.StartStowage(ctx, o); err != nil {
			return 0, err
		}
		return m.Run(), nil
	}))
}

// The bounds of two pools and three equal zones: see docs/design/domains.md.
const (
	cellBound = 0.67
	zoneBound = 0.67
	anyBound  = 1.34 // of zones at counts of the pools that the sequence does not have
)

// twoByThree makes two pools over three zones, with room for all. It returns the nodes by pool and zone, such as "spotc".
func twoByThree(t *testing.T) (*suite.Tenant, map[string]*corev1.Node) {
	t.Helper()
	n, nodes := suite.NewTenant(t), map[string]*corev1.Node{}
	for _, zone := range suite.Zones {
		for _, pool := range []string{"od", "spot"} {
			nodes[pool+zone] = n.ZoneNode(t, pool, zone, 1000)
		}
	}
	return n, nodes
}

// beforePolicy makes two pools over three zones, and pods without a PodDistributor. None of those pods is on the nodes to avoid.
func beforePolicy(t *testing.T, replicas int, avoid ...string) (*suite.Tenant, *appsv1.Deployment) {
	t.Helper()
	n, nodes := twoByThree(t)
	var avoided []*corev1.Node
	for _, name := range avoid {
		avoided = append(avoided, nodes[name])
	}
	cordon(t, n, avoided, true)
	d := n.Deployment("web", replicas, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	suite.Must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", replicas)
	cordon(t, n, avoided, false)
	return n, d
}

// Bursts of 500, scale-downs, rollouts, and a replica that is killed: pools are exact at each rest, and so are zones.
func TestBursts(t *testing.T) {
	n, _ := twoByThree(t)
	d := n.OverZones(t, "web", 500, nil)
	s := n.Distribution(t, "web")
	suite.Must(t, n.Create(t.Context(), d))
	for _, replicas := range []int{500, 333, 500, 100, 47, 8, 3, 1, 500} {
		n.Scale(t, d, replicas)
		n.InCells(t, "web", replicas, s, cellBound, zoneBound)
	}
	n.Scale(t, d, 60)
	n.InCells(t, "web", 60, s, cellBound, zoneBound)
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.InCells(t, "web", 60, s, cellBound, zoneBound)
}

// A replica dies in a burst. The pods that bypassed the webhook are adopted where they run, and evicted from where there are too many.
func TestReplicaDies(t *testing.T) {
	n, _ := twoByThree(t)
	d := n.OverZones(t, "web", 300, func(spec *versprei.PodDistributorSpec) { spec.Rebalance = versprei.RebalanceEvict })
	s := n.Distribution(t, "web")
	suite.Must(t, n.Create(t.Context(), d))
	suite.Eventually(t, "the burst is under way", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) > 40, err
	})
	victim := suite.Cluster.Replicas()[0]
	victim.Kill()
	suite.Must(t, suite.Cluster.Restart(t.Context(), victim))
	n.InCells(t, "web", 300, s, cellBound, zoneBound)
	n.PositionsAgree(t, "web", s)
	n.Scale(t, d, 50)
	n.InCells(t, "web", 50, s, cellBound, zoneBound)
}

// cordon has the scheduler leave out nodes, or not.
func cordon(t *testing.T, n *suite.Tenant, nodes []*corev1.Node, on bool) {
	t.Helper()
	for _, node := range nodes {
		text := `{"spec":{"unschedulable":false}}`
		if on {
			text = `{"spec":{"unschedulable":true}}`
		}
		suite.Must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(text))))
	}
}

// A zone is drained, and comes back: its pods wait, and nothing else moves.
func TestZoneIsDrained(t *testing.T) {
	n, nodes := twoByThree(t)
	zone := []*corev1.Node{nodes["odc"], nodes["spotc"]}
	d := n.OverZones(t, "web", 90, nil)
	s := n.Distribution(t, "web")
	suite.Must(t, n.Create(t.Context(), d))
	n.InCells(t, "web", 90, s, cellBound, zoneBound)
	before := n.WithNode(t, "web")

	cordon(t, n, zone, true)
	pods, err := n.Pods(t.Context(), "web")
	suite.Must(t, err)
	evicted := 0
	for i := range pods {
		if pods[i].Spec.NodeName == zone[0].Name || pods[i].Spec.NodeName == zone[1].Name {
			suite.Must(t, n.SubResource("eviction").Create(t.Context(), &pods[i], &policyv1.Eviction{}))
			delete(before, pods[i].UID)
			evicted++
		}
	}
	suite.Eventually(t, "the pods of the zone wait for it", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		waiting := 0
		for i := range pods {
			if pods[i].Spec.NodeName == "" && pods[i].Spec.NodeSelector[corev1.LabelTopologyZone] == "c" {
				waiting++
			}
		}
		return len(pods) == 90 && waiting == evicted, err
	})
	cordon(t, n, zone, false)
	n.InCells(t, "web", 90, s, cellBound, zoneBound)
	after := n.WithNode(t, "web")
	for uid := range before {
		if !after[uid] {
			t.Error("a pod of another zone was moved")
		}
	}
}

// Pods that were there before the PodDistributor run in any cells. They are adopted where they run. From then on the pools are exact,
// whatever the cells are, and the cells are once more pods come, or with a rollout.
func TestAdoption(t *testing.T) {
	n, d := beforePolicy(t, 24, "oda", "odb", "spotc")
	n.OverZones(t, "web", 24, nil) // the PodDistributor alone
	s := n.Distribution(t, "web")
	suite.Eventually(t, "all pods are adopted", func() (bool, error) {
		_, err := n.CellsOf(t.Context(), "web", 24)
		return err == nil, nil
	})
	n.PositionsAgree(t, "web", s)
	n.Scale(t, d, 150) // no pool is over its target any more
	n.InCells(t, "web", 150, s, 3, 6)
	for _, replicas := range []int{90, 31, 17, 5, 40} {
		n.PositionsAgree(t, "web", s)
		n.Scale(t, d, replicas)
		n.InCells(t, "web", replicas, s, 20, 20) // the pools are exact, wherever the pods are
	}
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.InCells(t, "web", 40, s, cellBound, zoneBound)
}

// Pods are moved from a domain that has too many, one at a time, where that was asked for.
func TestRebalance(t *testing.T) {
	n, _ := beforePolicy(t, 10, "odb", "odc", "spotc")
	n.OverZones(t, "web", 10, func(spec *versprei.PodDistributorSpec) { spec.Rebalance = versprei.RebalanceEvict })
	n.InCells(t, "web", 10, n.Distribution(t, "web"), cellBound, anyBound)
}

// withSpill has other cells, and other pools, take pods that have waited for 10 s.
func withSpill(spec *versprei.PodDistributorSpec) {
	for i := range spec.Distribution {
		spec.Distribution[i].Spill = &versprei.Spill{After: "10s"}
	}
}

// settlesIn waits until the pods of an app run, exactly divided over the pools, with so many of spot in each zone.
func settlesIn(t *testing.T, n *suite.Tenant, app string, replicas int, s *sequence.Strategy, spot func(a, b, c int64) bool) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("last: %s", last)
		}
	}()
	suite.EventuallyWithin(t, 3*time.Minute, "the pods run where there is room", func() (bool, error) {
		cells, err := n.CellsOf(t.Context(), app, replicas)
		last = fmt.Sprint(cells, err)
		return err == nil && cells.Exact(s, replicas) && spot(cells["spot"][0], cells["spot"][1], cells["spot"][2]), nil
	})
}

// A zone has no room for spot. Its pods go to the other zones' spot, and the division over the pools stays exact. Once the zone has room again,
// its cell opens, and the next pods are divided as before.
func TestZoneWithoutSpot(t *testing.T) {
	n := suite.NewTenant(t)
	for _, zone := range suite.Zones {
		n.ZoneNode(t, "od", zone, 1000)
		if zone != "c" {
			n.ZoneNode(t, "spot", zone, 1000)
		}
	}
	n.ZoneNode(t, "spot", "c", 3)
	d := n.OverZones(t, "web", 60, withSpill)
	s := n.Distribution(t, "web")
	suite.Must(t, n.Create(t.Context(), d))
	// Zones a and b have the other seats in turns. A try, here every few seconds, gives c one seat more and shifts the turns of the seats after it. So the
	// pods of a burst are of runs with other turns, and each run may be off by one or two.
	even := func(a, b, c int64) bool { return c == 3 && max(a, b)-min(a, b) <= 6 }
	settlesIn(t, n, "web", 60, s, even)
	state, err := n.PoolState(t.Context(), d.UID)
	suite.Must(t, err)
	kept := func(room stowage.PoolRoom) int64 { // beside those of a try
		if room.Phase == stowage.PoolProbing {
			return room.Max - room.Step
		}
		return room.Max
	}
	if len(state.Pools) != 1 || state.Pools[0].Domain != "c" || kept(state.Pools[0]) != 3 {
		t.Errorf("the state is %+v", state.Pools)
	}
	for _, replicas := range []int{90, 60} {
		n.Scale(t, d, replicas)
		settlesIn(t, n, "web", replicas, s, even)
	}

	big := n.PoolNode(t, "spot", "more", 1000)
	suite.Must(t, n.Patch(t.Context(), big, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"c"}}}`, corev1.LabelTopologyZone))))
	suite.EventuallyWithin(t, 3*time.Minute, "the cell is tried with all the room that is seen", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state == nil || state.Pools[0].Phase == "Probing" && state.Pools[0].Max > 30, err
	})
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.InCells(t, "web", 60, s, cellBound, zoneBound)
	suite.EventuallyWithin(t, 3*time.Minute, "the cell has room again", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state == nil, err
	})
	n.Scale(t, d, 150)
	n.InCells(t, "web", 150, s, cellBound, zoneBound)
}

// No zone has room for spot. Then the other pool takes its pods, as without domains, divided over the zones.
func TestNoZoneHasSpot(t *testing.T) {
	n := suite.NewTenant(t)
	for _, zone := range suite.Zones {
		n.ZoneNode(t, "od", zone, 1000)
		n.ZoneNode(t, "spot", zone, 4)
	}
	d := n.OverZones(t, "web", 40, withSpill)
	suite.Must(t, n.Create(t.Context(), d))
	last := ""
	defer func() {
		if t.Failed() {
			state, err := n.PoolState(context.Background(), d.UID)
			t.Log(last, state, err)
			n.LogPods(t, "web")
		}
	}()
	suite.EventuallyWithin(t, 3*time.Minute, "on demand takes the pods", func() (bool, error) {
		cells, err := n.CellsOf(t.Context(), "web", 40)
		last = fmt.Sprint(cells, err)
		return err == nil && slices.Equal(cells["spot"], []int64{4, 4, 4}) && slices.Max(cells["od"])-slices.Min(cells["od"]) <= 2, nil
	})
}

// A maximum as a percentage, without domains: a pool keeps to it at each count, also while the other pool has no room.
func TestPercentage(t *testing.T) {
	n := suite.NewTenant(t)
	n.PoolNode(t, "od", "1", 20)
	n.PoolNode(t, "spot", "1", 1000)
	half := func(spec *versprei.PodDistributorSpec) {
		spec.Distribution[1].MaxReplicas = new(intstr.FromString("50%"))
	}
	d := n.Shortage(t, "web", 40, half)
	suite.Must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=20 spot=20")
	n.Scale(t, d, 11)
	n.InPools(t, "web", "od=6 spot=5")
	n.Scale(t, d, 60) // od has room for 20: the others wait there, because spot may not have them
	n.InPools(t, "web", "od=20 od(waits)=10 spot=30")
}
