package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
)

// spotOfAKS is on the spot nodes of AKS. Its nodes on demand have no label instead (https://learn.microsoft.com/azure/aks/spot-node-pool).
const spotOfAKS, ofTenant = "kubernetes.azure.com/scalesetpriority", "expressions-test"

// aksNode makes a node of the test's own as AKS labels it.
func (n *tenant) aksNode(t *testing.T, pool, zone string, cpus int) *corev1.Node {
	t.Helper()
	node := n.ZoneNode(t, pool, zone, cpus)
	labels := fmt.Sprintf("%q:%q", ofTenant, n.Namespace)
	if pool == "spot" {
		labels += fmt.Sprintf(",%q:%q", spotOfAKS, "spot")
	}
	must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%s}}}`, labels))))
	return node
}

// aksPools are od (20), which is where no label says spot, and spot (80).
func (n *tenant) aksPools() []versprei.Pool {
	own := versprei.LabelValue(n.Namespace)
	return []versprei.Pool{
		{
			Name: "od", NodeLabel: map[string]versprei.LabelValue{ofTenant: own}, Weight: 20,
			MatchExpressions: []versprei.NodeRequirement{{Key: spotOfAKS, Operator: corev1.NodeSelectorOpDoesNotExist}},
		},
		{Name: "spot", NodeLabel: map[string]versprei.LabelValue{ofTenant: own, spotOfAKS: "spot"}, Weight: 80},
	}
}

// A pool is what other nodes are not: by each source the division is as exact as by labels, through a burst, scale-downs and a rollout.
func TestExpressions(t *testing.T) {
	t.Parallel()
	pools := func(n *tenant) (out []stowage.PolicyPool) {
		for _, p := range n.aksPools() {
			out = append(out, stowage.PolicyPool{Name: p.Name, NodeSelector: p.NodeLabel, MatchExpressions: p.MatchExpressions, Weight: p.Weight})
		}
		return out
	}
	for name, source := range map[string]func(*testing.T, *tenant) (*sequence.Strategy, map[string]string){
		"annotations": func(t *testing.T, n *tenant) (*sequence.Strategy, map[string]string) {
			text := fmt.Sprintf("%[1]s=%[2]s,!%[3]s,weight=20:%[1]s=%[2]s,%[3]s=spot,weight=80", ofTenant, n.Namespace, spotOfAKS)
			return strategyOf(t, text), annotated(text)
		},
		"PodDistributor": func(t *testing.T, n *tenant) (*sequence.Strategy, map[string]string) {
			must(t, n.Create(t.Context(), &versprei.PodDistributor{
				ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"},
				Spec:       versprei.PodDistributorSpec{Distribution: n.aksPools(), Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
			}))
			return n.Distribution(t, "web"), nil
		},
		"SpreadPolicy": func(t *testing.T, n *tenant) (*sequence.Strategy, map[string]string) {
			p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: pools(n)}}
			must(t, n.Create(t.Context(), p))
			n.Follows(t, map[string]string{"app": "web"}, p.UID, p.Generation)
			return suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(p)), nil
		},
		"ClusterSpreadPolicy": func(t *testing.T, n *tenant) (*sequence.Strategy, map[string]string) {
			p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}, Spec: stowage.ClusterSpreadPolicySpec{
				NamespaceSelector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{corev1.LabelMetadataName: versprei.LabelValue(n.Namespace)}},
				SpreadPolicySpec:  stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: pools(n)},
			}}
			must(t, n.Create(t.Context(), p))
			t.Cleanup(func() { _ = n.Delete(context.Background(), p) })
			n.Follows(t, map[string]string{"app": "web"}, p.UID, p.Generation)
			return suite.StrategyOfPolicy(t, policy.FromClusterSpreadPolicy(p)), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTenant(t)
			n.aksNode(t, "od", "a", 200)
			n.aksNode(t, "spot", "a", 200)
			s, annotations := source(t, n)
			d := n.Deployment("web", 25, annotations)
			suite.OneCPU(&d.Spec.Template.Spec)
			own := corev1.NodeSelectorRequirement{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"nowhere"}}
			terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{own}}}
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
			must(t, n.Create(t.Context(), d))
			for _, replicas := range []int{25, 10, 40, 5} {
				n.Scale(t, d, replicas)
				n.Spreads(t, "web", replicas, s)
				n.InPools(t, "web", fmt.Sprintf("%s=%d %s=%d", s.Pool(0).Name, s.Target(0, int64(replicas)), s.Pool(1).Name, s.Target(1, int64(replicas))))
			}
			n.Revise(t, d, "2")
			n.RolledOut(t, d)
			n.Spreads(t, "web", 5, s)
			out, errs, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
			if exit != 0 {
				t.Errorf("status: exit %d\n%s%s", exit, out, errs)
			}
		})
	}
}

// A pool of expressions is divided over zones, spills while its nodes are gone, and gets its pods back.
func TestExpressionsInShortage(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, zone := range suite.Zones {
		n.aksNode(t, "od", zone, 100)
		n.aksNode(t, "spot", zone, 100)
	}
	zones := n.OverZones(t, "zones", 30, func(spec *versprei.PodDistributorSpec) {
		spec.Distribution = n.aksPools()
	})
	must(t, n.Create(t.Context(), zones))
	n.InCells(t, "zones", 30, n.Distribution(t, "zones"), 0.67, 0.67)
	n.Scale(t, zones, 15)
	n.InCells(t, "zones", 15, n.Distribution(t, "zones"), 0.67, 0.67)

	other := newTenant(t)
	od := other.aksNode(t, "od", "a", 100)
	other.aksNode(t, "spot", "a", 100)
	must(t, other.Create(t.Context(), other.Shortage(t, "web", 10, func(spec *versprei.PodDistributorSpec) {
		spec.Distribution = other.aksPools()
		spec.Distribution[0].Spill, spec.Rebalance = &versprei.Spill{After: "10s"}, versprei.RebalanceEvict
	})))
	other.InPools(t, "web", "od=2 spot=8")
	must(t, other.Delete(t.Context(), od))
	other.InPools(t, "web", "spot=10")
	other.aksNode(t, "od", "a", 100)
	other.InPools(t, "web", "od=2 spot=8")
}
