package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A pod counts in the pool of its seat only while its node has the pool's labels. Each case changes a pool under running pods,
// which no seat shows: status says so, and that a rollout puts it right.
func TestPlaces(t *testing.T) {
	t.Parallel()
	status := func(t *testing.T, n *tenant) (string, int) {
		t.Helper()
		out, errs, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
		return out + errs, exit
	}
	says := func(t *testing.T, n *tenant, what string) {
		t.Helper()
		last := ""
		eventually(t, "status says: "+what, func() (bool, error) {
			out, exit := status(t, n)
			last = out
			return exit == 3 && strings.Contains(out, what) && strings.Contains(out, "roll out"), nil
		})
		if t.Failed() {
			t.Log(last)
		}
	}
	t.Run("the pools of an annotation in another order", func(t *testing.T) {
		t.Parallel()
		n := newTenant(t)
		const a, b = "nodesize=spot4vcpu16gb,weight=80", "nodesize=spot8vcpu32gb,weight=20"
		d := n.Deployment("web", 10, annotated(a+":"+b))
		must(t, n.Create(t.Context(), d))
		n.Spreads(t, "web", 10, strategyOf(t, a+":"+b))
		must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAnnotation, b+":"+a))))
		says(t, n, "10 pod(s) are outside the pool of their seat")
		n.Revise(t, d, "2")
		n.RolledOut(t, d)
		n.Spreads(t, "web", 10, strategyOf(t, b+":"+a))
		eventually(t, "all is well", func() (bool, error) { _, exit := status(t, n); return exit == 0, nil })
	})

	distributed := func(t *testing.T) (*tenant, *versprei.PodDistributor, *corev1.Node) {
		t.Helper()
		n := newTenant(t)
		n.PoolNode(t, "od", "1", 20)
		spot := n.PoolNode(t, "spot", "1", 20)
		must(t, n.Create(t.Context(), n.Shortage(t, "web", 10, nil)))
		n.InPools(t, "web", "od=2 spot=8")
		pd := &versprei.PodDistributor{}
		must(t, n.Get(t.Context(), n.Key("web"), pd))
		return n, pd, spot
	}
	condition := func(t *testing.T, n *tenant, want stowage.ConditionReason, current string) {
		t.Helper()
		var pd versprei.PodDistributor
		eventually(t, "the condition is "+string(want), func() (bool, error) {
			err := n.Get(t.Context(), n.Key("web"), &pd)
			c := meta.FindStatusCondition(pd.Status.Conditions, versprei.ConditionBalanced)
			return c != nil && c.Reason == string(want) && pd.Status.Current == current, err
		})
	}
	t.Run("a node gets other labels", func(t *testing.T) {
		t.Parallel()
		n, _, spot := distributed(t)
		for label := range n.Pool("spot", 1).NodeLabel {
			must(t, n.Patch(t.Context(), spot, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"else"}}}`, label))))
		}
		says(t, n, "8 pod(s) are outside the pool of their seat")
		condition(t, n, stowage.ReasonOutsidePool, "2/0")
	})
	t.Run("a pool gets labels that no node has", func(t *testing.T) {
		t.Parallel()
		n, pd, _ := distributed(t)
		before := pd.DeepCopy()
		pd.Spec.Distribution[1].NodeLabel = map[string]versprei.LabelValue{"nowhere": "true"}
		must(t, n.Patch(t.Context(), pd, client.MergeFrom(before))) // whatever the status has become
		says(t, n, "8 pod(s) are outside the pool of their seat")
		condition(t, n, stowage.ReasonOutsidePool, "2/0")
	})
	t.Run("a pool is removed", func(t *testing.T) {
		t.Parallel()
		n := newTenant(t)
		const a, b = "nodesize=spot4vcpu16gb,weight=1", "nodesize=spot8vcpu32gb,weight=1"
		annotations := annotated(a + ":" + b)
		annotations[stowage.RepairAnnotation] = string(stowage.RepairOff) // it would recreate the pods
		d := n.Deployment("web", 10, annotations)
		must(t, n.Create(t.Context(), d))
		n.Spreads(t, "web", 10, strategyOf(t, a+":"+b))
		must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAnnotation, a))))
		says(t, n, "5 pod(s) are in a pool that was removed")
	})
}
