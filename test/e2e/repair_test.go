package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// Deployment tools create workloads before custom resources. Pods that came a moment before their policy are
// put right, and nobody has to ask for that.
func TestPoliciesThatComeAfterTheirPods(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const few = 4 // they go one by one while the workload is younger than 30 s, which may be short on a machine with other work
	t.Run("a PodDistributor", func(t *testing.T) {
		d := n.Deployment("web", few, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "web", few)
		must(t, n.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			Distribution: []versprei.Pool{
				{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 80},
				{NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20},
			},
		}}))
		n.Spreads(t, "web", few, strategyOf(t, eightyOf))
		eventually(t, "events say why", func() (bool, error) {
			return n.HasEvent(t, "PodsAdopted", "created before the PodDistributor web") && n.HasEvent(t, "PodRecreated", "created before its policy"), nil
		})
	})
	t.Run("a SpreadPolicy", func(t *testing.T) {
		d := n.Deployment("selected", few, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "selected", few)
		p := n.LateSpreadPolicy(t, "selected", suite.PoolsOf(0, 80, 20))
		n.Spreads(t, "selected", few, suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(p)))
	})
	t.Run("a SpreadPolicy, of a workload that has none evicted", func(t *testing.T) {
		d := n.Deployment("kept", 10, map[string]string{stowage.RepairAnnotation: string(stowage.RepairAdopt)})
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "kept", 10)
		before, _ := n.UIDs(t, "kept")
		n.LateSpreadPolicy(t, "kept", suite.PoolsOf(0, 1, 100))
		eventually(t, "the pods have seats where they run", func() (bool, error) {
			_, unseated := n.UIDs(t, "kept")
			return unseated == 0, nil
		})
		if after, _ := n.UIDs(t, "kept"); !slices.Equal(before, after) {
			t.Error("pods were evicted")
		}
	})
	t.Run("an annotation", func(t *testing.T) {
		d := n.Deployment("annotated", few, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "annotated", few)
		must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true",%q:%q}}}`,
			stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, eightyOf))))
		n.Spreads(t, "annotated", few, strategyOf(t, eightyOf))
	})
	t.Run("a FlexDaemonsetTemplate", func(t *testing.T) {
		n.SizedNode(t, "a", "cpu=4,memory=8Gi,ephemeral-storage=10Gi")
		n.SizedNode(t, "b", "cpu=8,memory=16Gi,ephemeral-storage=10Gi")
		sized := func(name string) bool {
			d := n.SizedDaemonSet(name, name+"-"+n.Namespace, suite.Agent())
			must(t, n.Create(t.Context(), d))
			n.earlier(t, name, 2)
			must(t, n.Create(t.Context(), &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + n.Namespace}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
				CPUPercentage: new(int32(10)), StoragePercentage: new(int32(5)), // storage cannot be resized in place
			}}))
			return suite.Poll(t.Context(), waitInterval, waitTimeout/2, func() (bool, error) {
				pods, err := n.Pods(t.Context(), name)
				for i := range pods {
					r := pods[i].Spec.Containers[0].Resources.Requests
					if cpu := r.Cpu().MilliValue(); cpu != 400 && cpu != 800 || r.StorageEphemeral().IsZero() {
						return false, err
					}
				}
				return len(pods) == 2, err
			}) == nil
		}
		// Its pods are evicted while it is younger than 30 s, which may be short on a machine with other work.
		if !sized("late") && !sized("later") && !sized("last") {
			t.Error("the pods are not sized")
		}
	})
}

// The first `kubectl apply` of a policy and its workload in one file ends in the exact division, 20 times of 20, whichever of both the API
// server gets first: with -k, kubectl applies workloads before custom resources.
func TestFirstApply(t *testing.T) {
	t.Parallel()
	bin, err := controlplane.Locate(repo)
	must(t, err)
	sample, err := os.ReadFile(filepath.Join(repo, "config", "samples", "spread-policy.yaml"))
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "sample.yaml"), sample, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [sample.yaml]\n"), 0o644))
	for _, from := range [][]string{{"-f", filepath.Join(dir, "sample.yaml")}, {"-k", dir}} {
		var tenants []*tenant
		for range 6 {
			n := newTenant(t)
			cmd := exec.CommandContext(t.Context(), bin.Kubectl, append([]string{"--kubeconfig", cluster.Kubeconfig, "apply", "-n", n.Namespace}, from...)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			tenants = append(tenants, n)
		}
		for _, n := range tenants {
			var p stowage.SpreadPolicy
			must(t, n.Get(t.Context(), client.ObjectKey{Namespace: n.Namespace, Name: "tier-2"}, &p))
			n.Spreads(t, "fleet", 6, suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(&p)))
		}
	}
}

// earlier waits until a workload has all its pods, and a second has passed since: what comes now is later than they are.
func (n *tenant) earlier(t *testing.T, app string, pods int) {
	t.Helper()
	eventually(t, "the pods are older than a second", func() (bool, error) {
		list, err := n.Pods(t.Context(), app)
		old := slices.IndexFunc(list, func(p corev1.Pod) bool { return time.Since(p.CreationTimestamp.Time) < 1500*time.Millisecond }) < 0
		return len(list) == pods && old, err
	})
}

// A seat that somebody wrote over is given back.
func TestRepairOfTamperedLabels(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	s := strategyOf(t, eightyOf)
	must(t, n.Create(t.Context(), n.Deployment("web", 10, annotated(eightyOf))))
	n.Spreads(t, "web", 10, s)
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for i, label := range []string{`"99"`, `null`} {
		must(t, n.Patch(t.Context(), &pods[i], client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, stowage.SeatLabel, label))))
	}
	must(t, n.Patch(t.Context(), &pods[2], client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null,%q:null},"annotations":{%q:null}}}`, stowage.PoolLabel, stowage.SeatLabel, stowage.ClaimAnnotation))))
	n.Spreads(t, "web", 10, s)
	n.CostsAgree(t, "web", s)
	if after, _ := n.UIDs(t, "web"); len(after) != 10 {
		t.Errorf("%d pods", len(after))
	}
}

// Rebalancing moves pods after an edit, one at a time, as PodDisruptionBudgets allow.
func TestRebalance(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const half = "type=default,weight=50:type=spot,weight=50"
	annotations := annotated(eightyOf)
	annotations[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	d := n.Deployment("web", 10, annotations)
	must(t, n.Create(t.Context(), d))
	n.Spreads(t, "web", 10, strategyOf(t, eightyOf))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(0)), Selector: d.Spec.Selector,
	}}
	must(t, n.Create(t.Context(), budget))
	eventually(t, "the budget is known", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(budget), budget)
		return budget.Status.ObservedGeneration > 0 && budget.Status.ExpectedPods == 10, err
	})
	edit := func(strategy string) {
		must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAnnotation, strategy))))
	}
	refused := func() float64 {
		sum := 0.0
		for _, r := range cluster.Controllers() {
			sum += metric(t, r, "stowage_evictions_total", `result="refused"`)
		}
		return sum
	}
	before, first := refused(), fmt.Sprint(n.UIDs(t, "web"))
	edit(half)
	eventually(t, "the budget refuses an eviction", func() (bool, error) { return refused() > before, nil })
	if now := fmt.Sprint(n.UIDs(t, "web")); now != first {
		t.Error("pods were evicted though the budget forbids it")
	}
	must(t, n.Delete(t.Context(), budget))
	n.Spreads(t, "web", 10, strategyOf(t, half))
	eventually(t, "an event says so", func() (bool, error) { return n.HasEvent(t, "PodEvicted", "has too many pods"), nil })
}
