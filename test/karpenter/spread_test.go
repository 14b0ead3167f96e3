package karpenter

import (
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
)

// strategyFor is the strategy of the tests: two pods on demand first, then one of five there.
func strategyFor(onDemand, spot pool) string {
	return fmt.Sprintf("%[1]s=%[2]s,base=2,weight=20:%[1]s=%[3]s,weight=80", poolLabel, onDemand.name, spot.name)
}

// From no nodes, Karpenter makes the nodes of each pool for the pods that have a seat there.
func TestFromNoNodes(t *testing.T) {
	t.Parallel()
	onDemand := pool{"first-on-demand", "on-demand", "WhenEmpty", "c4"}
	spot := pool{"first-spot", "spot", "WhenEmpty", "c4"}
	onDemand.create(t)
	spot.create(t)
	n := suite.NewTenant(t)
	text := strategyFor(onDemand, spot)
	suite.Must(t, n.Create(t.Context(), requests(n.Deployment("web", 100, suite.Annotated(text)), "500m", "1Gi")))
	strategy := suite.StrategyOf(t, text)
	n.Spreads(t, "web", 100, strategy)

	// A node of four CPUs has room for seven such pods, beside what Karpenter takes for the system.
	for i, p := range []pool{onDemand, spot} {
		pods := strategy.Target(i, 100)
		firstFit := int((pods + 6) / 7)
		if nodes := p.nodes(t); len(nodes) > firstFit+2 {
			t.Errorf("pool %s has %d nodes for %d pods; first fit needs %d", p.name, len(nodes), pods, firstFit)
		}
	}
}

// A pool may be what the nodes of another NodePool are not: Karpenter makes nodes for pods that ask for the absence of a label.
func TestFromNoNodesByExpressions(t *testing.T) {
	t.Parallel()
	onDemand := pool{"without-on-demand", "on-demand", "WhenEmpty", "c4"}
	spot := pool{"without-spot", "spot", "WhenEmpty", "c4"}
	onDemand.create(t)
	spot.create(t)
	const key = "example.com/may-end" // of the nodes of one of them
	suite.Must(t, suite.Cluster.Client.Patch(t.Context(), spot.object(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{%q:"true"}}}}}`, key))))
	n := suite.NewTenant(t)
	ours := versprei.NodeRequirement{Key: poolLabel, Operator: corev1.NodeSelectorOpIn, Values: []versprei.LabelValue{versprei.LabelValue(onDemand.name), versprei.LabelValue(spot.name)}}
	suite.Must(t, n.Create(t.Context(), &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"},
		Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			Distribution: []versprei.Pool{
				{Name: "od", Weight: 20, MatchExpressions: []versprei.NodeRequirement{ours, {Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}}, Spill: &versprei.Spill{After: "1m"}},
				{Name: "spot", Weight: 80, NodeLabel: map[string]versprei.LabelValue{key: "true"}, MatchExpressions: []versprei.NodeRequirement{ours}, Spill: &versprei.Spill{After: "1m"}},
			},
		},
	}))
	suite.Must(t, n.Create(t.Context(), requests(n.Deployment("web", 50, nil), "500m", "1Gi")))
	n.Spreads(t, "web", 50, n.Distribution(t, "web"))
	if od, spot := len(onDemand.nodes(t)), len(spot.nodes(t)); od == 0 || spot == 0 || od > 4 || spot > 8 {
		t.Errorf("there are %d nodes on demand and %d of spot", od, spot)
	}
}

// Karpenter consolidates a spread workload as it does Deployments that are pinned to the pools by hand, and the counts
// are exact whenever it rests.
func TestConsolidation(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	t.Parallel()
	spread, pinned := make(chan int, 2), make(chan int, 2)
	t.Run("policies", func(t *testing.T) {
		for _, policy := range []string{"WhenEmptyOrUnderutilized", "Balanced"} {
			t.Run(policy, func(t *testing.T) {
				t.Parallel()
				s, p := cycle(t, policy)
				spread <- s
				pinned <- p
				t.Logf("%s: Karpenter removed %d nodes of the spread workload and %d of the pinned ones", policy, s, p)
			})
		}
	})
	if t.Failed() {
		return
	}
	s, p := <-spread+<-spread, <-pinned+<-pinned
	// The order in which pods come and go differs from run to run, and such a count varies by about its square root.
	if float64(s) < 0.9*float64(p)-math.Sqrt(float64(p)) {
		t.Errorf("Karpenter consolidated %d nodes of the spread workload and %d of the pinned ones; want at least 0.9 times as many", s, p)
	}
}

// cycle scales a spread workload and its pinned counterpart up and down, and returns how many nodes of each Karpenter
// consolidated.
func cycle(t *testing.T, policy string) (spread, pinned int) {
	const many, few = 100, 10
	name := strings.ToLower(policy)
	types := "c4"
	ours := []pool{{name + "-on-demand", "on-demand", policy, types}, {name + "-spot", "spot", policy, types}}
	theirs := []pool{{name + "-pinned-on-demand", "on-demand", policy, types}, {name + "-pinned-spot", "spot", policy, types}}
	all := append(append([]pool{}, ours...), theirs...)
	for _, p := range all {
		p.create(t)
	}
	n := suite.NewTenant(t)
	text := strategyFor(ours[0], ours[1])
	strategy := suite.StrategyOf(t, text)
	web := requests(n.Deployment("web", few, suite.Annotated(text)), "500m", "1Gi")
	suite.Must(t, n.Create(t.Context(), web))
	var byHand []*appsv1.Deployment
	for i, p := range theirs {
		d := requests(n.Deployment(fmt.Sprintf("pinned-%d", i), int(strategy.Target(i, few)), nil), "500m", "1Gi")
		d.Spec.Template.Spec.NodeSelector = map[string]string{poolLabel: p.name}
		suite.Must(t, n.Create(t.Context(), d))
		byHand = append(byHand, d)
	}
	scale := func(replicas int) {
		n.Scale(t, web, replicas)
		for i, d := range byHand {
			n.Scale(t, d, int(strategy.Target(i, int64(replicas))))
		}
		n.Spreads(t, "web", replicas, strategy)
		atRest(t, all...)
		n.Spreads(t, "web", replicas, strategy)
	}
	for range *cycles {
		scale(many)
		scale(few)
	}
	for _, p := range ours {
		spread += p.consolidated(t)
	}
	for _, p := range theirs {
		pinned += p.consolidated(t)
	}
	for _, r := range suite.Cluster.Controllers() {
		if evictions := suite.Metric(t, r, "stowage_repairs_total", "action=\"evict\"") + suite.Metric(t, r, "stowage_repairs_total", "action=\"recreate\""); evictions != 0 {
			t.Errorf("Stowage evicted %v pods", evictions)
		}
	}
	return spread, pinned
}

// A pod with a seat costs Karpenter hardly more than a pod without a deletion cost, whose cost is 1.
func TestEvictionCost(t *testing.T) {
	t.Parallel()
	args := []string{"eviction-cost"}
	for rank := int64(1); rank < sequence.NoRank; rank *= 3 {
		args = append(args, sequence.DeletionCost(rank))
	}
	args = append(args, sequence.DeletionCost(sequence.NoRank))
	out, err := exec.CommandContext(t.Context(), program, args...).Output()
	suite.Must(t, err)
	lines := strings.Fields(string(out))
	if len(lines) != len(args)-1 {
		t.Fatalf("%d costs for %d pods: %q", len(lines), len(args)-1, out)
	}
	for i, line := range lines {
		cost, err := strconv.ParseFloat(line, 64)
		suite.Must(t, err)
		if cost > 1.1 || cost < 1 || math.IsNaN(cost) {
			t.Errorf("a pod with the deletion cost %s costs %v", args[i+1], cost)
		}
	}
}
