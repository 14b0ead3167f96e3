package karpenter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The pods of TestDeletionCostManagement before and after the scale-down. On demand are 2 and a fifth of the rest.
const manyCosts, fewCosts = 32, 17

// Karpenter's feature gate PodDeletionCostManagement writes deletion costs on the pods of Karpenter's own nodes. Here, the nodes on demand are of
// another maker, and their pods keep Stowage's costs. So a scale-down removes pods of spot alone. With the policy of config/deletioncosts, the counts
// are exact whatever Karpenter writes.
func TestDeletionCostManagement(t *testing.T) {
	if testing.Short() {
		t.Skip("Karpenter writes costs once a minute")
	}
	t.Run("gate off", func(t *testing.T) {
		c := newCosts(t, "off", "100%")
		c.Scale(t, c.web, fewCosts)
		c.Spreads(t, "web", fewCosts, c.strategy)
	})

	withGate(t)
	t.Run("gate on", func(t *testing.T) {
		c := newCosts(t, "on", "100%")
		suite.EventuallyWithin(t, 4*time.Minute, "Karpenter has ranked the nodes of spot", func() (bool, error) {
			onDemand, spot, err := c.foreign(t)
			if onDemand > 0 {
				return false, fmt.Errorf("%d pods of another maker's nodes have Karpenter's costs", onDemand)
			}
			return spot == int(c.strategy.Target(1, manyCosts)), err
		})
		c.Scale(t, c.web, fewCosts)
		counts := map[string]int{}
		for _, p := range c.Ready(t, "web", fewCosts) {
			counts[p.Labels[stowage.PoolLabel]]++
		}
		t.Logf("without the policy, %d pods on demand and %d on spot are left of %d and %d; due are %d and %d", counts["0"], counts["1"],
			c.strategy.Target(0, manyCosts), c.strategy.Target(1, manyCosts), c.strategy.Target(0, fewCosts), c.strategy.Target(1, fewCosts))
		if counts["0"] != int(c.strategy.Target(0, manyCosts)) {
			t.Errorf("the pools have %v pods; docs/karpenter.md says that all pods on demand are left", counts)
		}
	})
	t.Run("gate on, with the policy", func(t *testing.T) {
		suite.Applied(t, "config/deletioncosts/policy.yaml")
		c := newCosts(t, "kept", "50%") // Karpenter ranks half of the nodes, and removes the costs on the others
		c.inForce(t)
		before, failed := writes(t, "updated"), writes(t, "error")
		suite.EventuallyWithin(t, 4*time.Minute, "Karpenter has written as often as spot has pods", func() (bool, error) {
			onDemand, spot, err := c.foreign(t)
			if onDemand+spot > 0 {
				return false, fmt.Errorf("%d pods have other costs than Stowage's", onDemand+spot)
			}
			return writes(t, "updated")-before >= float64(c.strategy.Target(1, manyCosts)), err
		})
		c.Scale(t, c.web, fewCosts)
		c.Spreads(t, "web", fewCosts, c.strategy)
		if got := writes(t, "error"); got != failed {
			t.Errorf("%v writes of Karpenter failed", got-failed)
		}
	})
}

// costs is a Deployment over on-demand nodes of another maker and spot nodes of Karpenter.
type costs struct {
	*suite.Tenant
	web      *appsv1.Deployment
	strategy *sequence.Strategy
}

// newCosts makes one, until the test ends, and waits until its pods run and have Stowage's costs. The budget is that of the NodePool.
func newCosts(t *testing.T, name, budget string) *costs {
	t.Helper()
	c := &costs{Tenant: suite.NewTenant(t)}
	onDemand := pool{name: "costs-" + name + "-on-demand"}
	spot := pool{"costs-" + name + "-spot", "spot", "WhenEmpty", "c4"}
	spot.createWith(t, budget)
	size := testkit.ResourceList("cpu=16,memory=64Gi,pods=110")
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: onDemand.name, Labels: map[string]string{poolLabel: onDemand.name, corev1.LabelHostname: onDemand.name},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		},
		Status: corev1.NodeStatus{Allocatable: size, Capacity: size},
	}
	suite.Must(t, c.Create(t.Context(), node))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), node) })
	text := strategyFor(onDemand, spot)
	c.strategy, c.web = suite.StrategyOf(t, text), requests(c.Deployment("web", manyCosts, suite.Annotated(text)), "500m", "1Gi")
	suite.Must(t, c.Create(t.Context(), c.web))
	c.Spreads(t, "web", manyCosts, c.strategy)
	return c
}

// foreign returns how many pods of each pool have another cost than that of their seat.
func (c *costs) foreign(t *testing.T) (onDemand, spot int, err error) {
	t.Helper()
	pods, err := c.Pods(t.Context(), "web")
	for i := range pods {
		at, _ := strconv.Atoi(pods[i].Labels[stowage.PoolLabel])
		ordinal, _ := strconv.ParseInt(pods[i].Labels[stowage.SeatLabel], 10, 64)
		rank, _ := c.strategy.Rank(sequence.Seat{Pool: at, Ordinal: ordinal})
		switch {
		case pods[i].Annotations[corev1.PodDeletionCost] == sequence.DeletionCost(rank):
		case at == 0:
			onDemand++
		default:
			spot++
		}
	}
	return onDemand, spot, err
}

// inForce waits until the policy puts costs back.
func (c *costs) inForce(t *testing.T) {
	t.Helper()
	suite.Eventually(t, "the policy is in force", func() (bool, error) {
		pods, err := c.Pods(t.Context(), "web")
		if err != nil {
			return false, err
		}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"-1"}}}`, corev1.PodDeletionCost))
		err = c.Patch(t.Context(), &pods[0], patch, client.DryRunAll)
		return !strings.HasPrefix(pods[0].Annotations[corev1.PodDeletionCost], "-"), err
	})
}

// withGate has Karpenter run with the feature gate until the test ends.
func withGate(t *testing.T) {
	t.Helper()
	restart := func(ctx context.Context, env ...string) {
		suite.Cluster.StopKarpenter(karpenter)
		var err error
		karpenter, err = suite.Cluster.StartKarpenter(ctx, program, env...)
		suite.Must(t, err)
	}
	restart(t.Context(), "FEATURE_GATES=NodeOverlay=true,PodDeletionCostManagement=true")
	t.Cleanup(func() { restart(context.Background()) })
}

// writes returns how many of Karpenter's writes of deletion costs had a result.
func writes(t *testing.T, result string) float64 {
	t.Helper()
	return suite.MetricAt(t, karpenter.MetricsURL, "karpenter_pod_deletion_cost_pod_annotation_writes_total", `result="`+result+`"`)
}
