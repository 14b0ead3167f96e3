package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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
)

// patchRegistration changes our registration for a while; the returned function changes
// it back.
func patchRegistration(t *testing.T, patch func(*admissionregistrationv1.MutatingWebhook)) (restore func()) {
	t.Helper()
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	update := func(ctx context.Context, change func(*admissionregistrationv1.MutatingWebhook)) error {
		if err := cluster.Client.Get(ctx, client.ObjectKey{Name: "stowage"}, &reg); err != nil {
			return err
		}
		before := reg.DeepCopy()
		change(&reg.Webhooks[0])
		return cluster.Client.Patch(ctx, &reg, client.MergeFrom(before))
	}
	var original admissionregistrationv1.MutatingWebhook
	must(t, update(t.Context(), func(h *admissionregistrationv1.MutatingWebhook) {
		original = *h.DeepCopy()
		patch(h)
	}))
	restored := false
	restore = func() {
		if restored {
			return
		}
		restored = true
		if err := update(context.Background(), func(h *admissionregistrationv1.MutatingWebhook) {
			h.ClientConfig.URL, h.ObjectSelector, h.NamespaceSelector, h.MatchConditions = original.ClientConfig.URL, original.ObjectSelector, original.NamespaceSelector, original.MatchConditions
		}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // every API server learns of it; there is nothing to wait for
	}
	t.Cleanup(restore)
	time.Sleep(time.Second)
	return restore
}

// uids returns the pods of an app by name, and which of them have no seat.
func (n *tenant) uids(t *testing.T, app string) (all []string, unseated int) {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	must(t, err)
	for i := range pods {
		all = append(all, string(pods[i].UID))
		if pods[i].Labels[stowage.SeatLabel] == "" {
			unseated++
		}
	}
	slices.Sort(all)
	return all, unseated
}

// Controllers that stand by read no pods. Once the leader is gone, another replica learns which pods there are, and repairs.
func TestStandby(t *testing.T) {
	n := newTenant(t)
	const strategy = "nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	must(t, n.Create(t.Context(), n.Deployment("web", 6, annotated(strategy))))
	n.Spreads(t, "web", 6, strategyOf(t, strategy))
	twoControllers(t)
	var leader *controlplane.Replica
	leads := func(among []*controlplane.Replica) func() (bool, error) {
		return func() (bool, error) {
			follow := 0
			for _, r := range among {
				version, err := podVersion(r)
				if err != nil {
					return false, err
				}
				if version != 0 {
					leader = r
					follow++
				}
			}
			if follow > 1 {
				t.Errorf("%d replicas watch pods", follow)
			}
			return follow == 1, nil
		}
	}
	eventually(t, "one of the controllers watches pods", leads(cluster.Controllers()))
	first := leader
	first.Kill()
	others := slices.DeleteFunc(slices.Clone(cluster.Controllers()), func(r *controlplane.Replica) bool { return r == first })
	eventually(t, "the other one does", leads(others))
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	must(t, n.Patch(t.Context(), &pods[0], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+stowage.SeatLabel+`":null}}}`))))
	eventually(t, "the pod has a seat again", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 6 && unseated == 0, nil
	})
}

// podVersion returns how far a process's watch of pods is, or 0.
func podVersion(r *controlplane.Replica) (uint64, error) {
	resp, err := http.Get(strings.TrimSuffix(r.MetricsURL, "/metrics") + "/debug/seats")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var dump struct {
		PodVersion uint64 `json:"podVersion"`
	}
	return dump.PodVersion, json.NewDecoder(resp.Body).Decode(&dump)
}

// Pods come while the API server cannot reach the webhook. Those that run in a pool are
// adopted; the others stay until a later pod shows that the webhook is back (test/controllers), and
// are then recreated one at a time.
func TestRepairAfterUnreachableWebhook(t *testing.T) {
	restore := patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
	n := newTenant(t)
	// The nodes of type default are in neither pool.
	const strategy = "nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	s := strategyOf(t, strategy)
	d := n.Deployment("web", 12, annotated(strategy))
	must(t, n.Create(t.Context(), d))
	eventually(t, "those in pools are adopted", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		outside, seated := 0, 0
		for i := range pods {
			if strings.HasPrefix(pods[i].Spec.NodeName, "od4") {
				outside++
			}
			if pods[i].Labels[stowage.SeatLabel] != "" {
				seated++
			}
		}
		return len(pods) == 12 && outside > 0 && seated == 12-outside, err
	})
	restore()
	n.Scale(t, d, 13)
	eventually(t, "every pod has a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 13 && unseated == 0, nil
	})
	eventually(t, "the owner has events", func() (bool, error) {
		return n.hasEvent(t, "PodRecreated", "had no seat") && n.hasEvent(t, "PodsAdopted", "the webhook was not reached"), nil
	})
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.Spreads(t, "web", 13, s)
}

// A pod that does not start is recreated once: its replacement has a seat, whether it starts or not.
func TestRepairOfPodsThatDoNotStart(t *testing.T) {
	restore := patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
	n := newTenant(t)
	const strategy = "nodesize=spot4vcpu16gb,weight=1"
	d := n.Deployment("web", 2, annotated(strategy))
	d.Spec.Template.Spec.NodeSelector = map[string]string{"nowhere": "true"}
	must(t, n.Create(t.Context(), d))
	eventually(t, "two pods wait without a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 2 && unseated == 2, nil
	})
	restore()
	n.Scale(t, d, 3)
	eventually(t, "all have a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 3 && unseated == 0, nil
	})
}

// Deployment tools create workloads before custom resources. Pods that came a moment before their policy are
// put right, and nobody has to ask for that.
func TestPoliciesThatComeAfterTheirPods(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	t.Run("a PodDistributor", func(t *testing.T) {
		d := n.Deployment("web", 10, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "web", 10)
		must(t, n.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			Distribution: []versprei.Pool{
				{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 80},
				{NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20},
			},
		}}))
		n.Spreads(t, "web", 10, strategyOf(t, eightyOf))
		eventually(t, "events say why", func() (bool, error) {
			return n.hasEvent(t, "PodsAdopted", "created before the PodDistributor web") && n.hasEvent(t, "PodRecreated", "created before its policy"), nil
		})
	})
	t.Run("a SpreadPolicy", func(t *testing.T) {
		d := n.Deployment("selected", 10, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "selected", 10)
		p := n.lateSpreadPolicy(t, "selected", poolsOf(0, 80, 20))
		n.Spreads(t, "selected", 10, strategyOfPolicy(t, policy.FromSpreadPolicy(p)))
	})
	t.Run("a SpreadPolicy, of a workload that has none evicted", func(t *testing.T) {
		d := n.Deployment("kept", 10, map[string]string{stowage.RepairAnnotation: string(stowage.RepairAdopt)})
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "kept", 10)
		before, _ := n.uids(t, "kept")
		n.lateSpreadPolicy(t, "kept", poolsOf(0, 1, 100))
		eventually(t, "the pods have seats where they run", func() (bool, error) {
			_, unseated := n.uids(t, "kept")
			return unseated == 0, nil
		})
		if after, _ := n.uids(t, "kept"); !slices.Equal(before, after) {
			t.Error("pods were evicted")
		}
	})
	t.Run("an annotation", func(t *testing.T) {
		d := n.Deployment("annotated", 10, nil)
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "annotated", 10)
		must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true",%q:%q}}}`,
			stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, eightyOf))))
		n.Spreads(t, "annotated", 10, strategyOf(t, eightyOf))
	})
	t.Run("a FlexDaemonsetTemplate", func(t *testing.T) {
		n.node(t, "a", "cpu=4,memory=8Gi,ephemeral-storage=10Gi")
		n.node(t, "b", "cpu=8,memory=16Gi,ephemeral-storage=10Gi")
		d := n.daemonSet("agent", "late-"+n.Namespace, agent())
		must(t, n.Create(t.Context(), d))
		n.earlier(t, "agent", 2)
		must(t, n.Create(t.Context(), &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "late-" + n.Namespace}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
			CPUPercentage: new(int32(10)), StoragePercentage: new(int32(5)), // storage cannot be resized in place
		}}))
		eventually(t, "the pods are sized", func() (bool, error) {
			pods, err := n.Pods(t.Context(), "agent")
			for i := range pods {
				r := pods[i].Spec.Containers[0].Resources.Requests
				if cpu := r.Cpu().MilliValue(); cpu != 400 && cpu != 800 || r.StorageEphemeral().IsZero() {
					return false, err
				}
			}
			return len(pods) == 2, err
		})
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
		for range 20 {
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
			n.Spreads(t, "fleet", 6, strategyOfPolicy(t, policy.FromSpreadPolicy(&p)))
		}
	}
}

// A SpreadPolicy that comes when the pods of a young workload are at rest is exact soon. With the default times, the next look at every
// workload would come too late: nobody evicts what is in use.
func TestPolicyAfterPodsAtRest(t *testing.T) {
	restoreFleet(t)
	o := fleet
	o.Args = slices.DeleteFunc(slices.Clone(o.Args), func(arg string) bool { return strings.HasPrefix(arg, "--repair-") })
	must(t, cluster.StartStowage(t.Context(), o))
	n := newTenant(t)
	must(t, n.Create(t.Context(), n.Deployment("web", 10, nil)))
	eventually(t, "the pods are at rest", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		young := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return time.Since(p.CreationTimestamp.Time) < 8*time.Second })
		return len(pods) == 10 && !young, err
	})
	p := n.lateSpreadPolicy(t, "web", poolsOf(1, 0, 1))
	n.Spreads(t, "web", 10, strategyOfPolicy(t, policy.FromSpreadPolicy(p)))
}

// lateSpreadPolicy creates a SpreadPolicy for the pods of an app.
func (n *tenant) lateSpreadPolicy(t *testing.T, app string, pools []stowage.PolicyPool) *stowage.SpreadPolicy {
	t.Helper()
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "late-" + app}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": versprei.LabelValue(app)}}, Pools: pools,
	}}
	must(t, n.Create(t.Context(), p))
	return p
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
	if after, _ := n.uids(t, "web"); len(after) != 10 {
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
	before, first := refused(), fmt.Sprint(n.uids(t, "web"))
	edit(half)
	eventually(t, "the budget refuses an eviction", func() (bool, error) { return refused() > before, nil })
	if now := fmt.Sprint(n.uids(t, "web")); now != first {
		t.Error("pods were evicted though the budget forbids it")
	}
	must(t, n.Delete(t.Context(), budget))
	n.Spreads(t, "web", 10, strategyOf(t, half))
	eventually(t, "an event says so", func() (bool, error) { return n.hasEvent(t, "PodEvicted", "has too many pods"), nil })
}
