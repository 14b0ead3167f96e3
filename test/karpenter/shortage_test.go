package karpenter

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A NodePool reaches its limit. The pods that wait move to the other pool, none that has a node or whose node is on the way
// does, and the division returns with a rollout once the limit is gone.
func TestNodePoolAtItsLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	t.Parallel()
	onDemand := pool{"limit-on-demand", "on-demand", "WhenEmpty", "c4"}
	spot := pool{"limit-spot", "spot", "WhenEmpty", "c4"}
	onDemand.create(t)
	spot.create(t)
	spot.limit(t, `{"cpu":"8"}`) // two nodes of 4 CPUs, with room for 7 pods each
	n := suite.NewTenant(t)
	text := fmt.Sprintf("%[1]s=%[2]s,weight=20:%[1]s=%[3]s,weight=80", poolLabel, onDemand.name, spot.name)
	annotations := suite.Annotated(text)
	annotations[stowage.SpillAnnotation] = "1h" // the limit takes the place of it
	d := requests(n.Deployment("web", 40, annotations), "500m", "1Gi")
	suite.Must(t, n.Create(t.Context(), d))

	n.InPools(t, "web", "0=26 1=14")
	if moved := n.Seen("web") - 40; moved != 18 { // 32 of 40 were to run in spot
		t.Errorf("%d pods were evicted for 18 that had no room", moved)
	}

	spot.limit(t, `null`)
	suite.EventuallyWithin(t, 3*time.Minute, "the pool is tried again, and the rollouts divide the pods by the strategy", func() (bool, error) {
		n.Revise(t, d, fmt.Sprint(time.Now().UnixNano()))
		n.RolledOut(t, d)
		have := ""
		suite.EventuallyWithin(t, time.Minute, "no pod waits for a node", func() (ready bool, err error) {
			have, err = n.PoolCounts(t.Context(), "web")
			return !strings.Contains(have, "waits"), err
		})
		return have == "0=8 1=32", nil
	})
}

// Spot has no capacity in one zone. Its pods go to spot in the other zone, and the division over the capacity types stays as it is. Once there
// is capacity, it returns with a rollout.
func TestZoneWithoutSpot(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	onDemand := pool{"zones-on-demand", "on-demand", "WhenEmpty", "c4"}
	spot := pool{"zones-spot", "spot", "WhenEmpty", "c4"}
	onDemand.create(t)
	spot.create(t)
	short := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-shortage"}, Data: map[string]string{"offerings": "spot/zone-b/*"}}
	suite.Must(t, suite.Cluster.Client.Create(t.Context(), short))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), short) })
	n := suite.NewTenant(t)
	pd := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}}
	pd.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	pd.Spec.Across = &versprei.Across{TopologyKey: corev1.LabelTopologyZone, Domains: []versprei.Domain{{Value: "zone-a"}, {Value: "zone-b"}}}
	for _, p := range []struct {
		pool
		weight int32
	}{{onDemand, 20}, {spot, 80}} {
		pd.Spec.Distribution = append(pd.Spec.Distribution, versprei.Pool{
			Name: p.capacity, NodeLabel: map[string]versprei.LabelValue{poolLabel: versprei.LabelValue(p.name)}, Weight: p.weight, Spill: &versprei.Spill{After: "20s"},
		})
	}
	suite.Must(t, n.Create(t.Context(), pd))
	d := requests(n.Deployment("web", 20, nil), "500m", "1Gi")
	suite.Must(t, n.Create(t.Context(), d))

	cells := func(want string) (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		count := map[string]int{}
		for i := range pods {
			at := pods[i].Labels[stowage.PoolLabel] + " " + pods[i].Labels[stowage.DomainLabel]
			if pods[i].Spec.NodeName == "" {
				at = "waits"
			}
			count[at]++
		}
		return fmt.Sprint(count) == want, err
	}
	suite.EventuallyWithin(t, 4*time.Minute, "spot of the other zone takes the pods", func() (bool, error) {
		return cells("map[on-demand zone-a:2 on-demand zone-b:2 spot zone-a:16]")
	})
	suite.Must(t, suite.Cluster.Client.Delete(t.Context(), short))
	suite.EventuallyWithin(t, 6*time.Minute, "the zone is tried again, and the rollouts divide the pods evenly", func() (bool, error) {
		n.Revise(t, d, fmt.Sprint(time.Now().UnixNano()))
		n.RolledOut(t, d)
		return cells("map[on-demand zone-a:2 on-demand zone-b:2 spot zone-a:8 spot zone-b:8]")
	})
}

// Nodes take longer than pods wait. None is evicted while its node is on the way.
func TestSlowNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	t.Parallel()
	p := pool{"slow-spot", "spot", "WhenEmpty", "c4"}
	other := pool{"slow-on-demand", "on-demand", "WhenEmpty", "c4"}
	other.create(t)
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), strings.NewReplacer("default", "slow", "1s", "40s").Replace(nodeClass)))
	p.createSlow(t)
	n := suite.NewTenant(t)
	annotations := suite.Annotated(fmt.Sprintf("%[1]s=%[2]s,weight=50:%[1]s=%[3]s,weight=50", poolLabel, other.name, p.name))
	annotations[stowage.SpillAnnotation] = "10s"
	suite.Must(t, n.Create(t.Context(), requests(n.Deployment("web", 10, annotations), "500m", "1Gi")))
	n.InPools(t, "web", "0=5 1=5")
	if moved := n.Seen("web") - 10; moved != 0 {
		t.Errorf("%d pods were evicted while their nodes were on the way", moved)
	}
}

// limit sets the limits of a NodePool.
func (p pool) limit(t *testing.T, limits string) {
	t.Helper()
	suite.Must(t, suite.Cluster.Client.Patch(t.Context(), p.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"limits":`+limits+`}}`))))
}

// createSlow creates a NodePool whose nodes take 40 s to register.
func (p pool) createSlow(t *testing.T) {
	t.Helper()
	p.create(t)
	suite.Must(t, suite.Cluster.Client.Patch(t.Context(), p.object(), client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"nodeClassRef":{"name":"slow"}}}}}`))))
}
