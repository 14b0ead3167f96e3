package e2e

import (
	"context"
	"fmt"
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

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// observation is how long a test watches that nothing happens: many times what the
// controllers wait for here.
const observation = 5 * time.Second

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
			h.ClientConfig.URL, h.ObjectSelector = original.ClientConfig.URL, original.ObjectSelector
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
	pods, err := n.pods(t.Context(), app)
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

// stays checks that an app's pods remain the same ones.
func (n *tenant) stays(t *testing.T, app string) {
	t.Helper()
	before, _ := n.uids(t, app)
	time.Sleep(observation) // that nothing happens has no sign
	if after, _ := n.uids(t, app); !slices.Equal(before, after) {
		t.Errorf("pods of %s were replaced: %d of %d are the same", app, len(after)-len(slices.DeleteFunc(slices.Clone(after), func(u string) bool { return slices.Contains(before, u) })), len(before))
	}
}

// Pods come while the API server cannot reach the webhook. Those that run in a pool are
// adopted; the others stay until a later pod shows that the webhook is back, and are then
// recreated one at a time.
func TestRepairAfterUnreachableWebhook(t *testing.T) {
	restore := patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
	n := newTenant(t)
	// The nodes of type default are in neither pool.
	const strategy = "nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	s := strategyOf(t, strategy)
	d := n.deployment("web", 12, annotated(strategy))
	must(t, n.Create(t.Context(), d))
	eventually(t, "those in pools are adopted", func() (bool, error) {
		pods, err := n.pods(t.Context(), "web")
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
	n.stays(t, "web")

	restore()
	n.stays(t, "web") // no later pod has come
	n.scale(t, d, 13)
	eventually(t, "every pod has a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 13 && unseated == 0, nil
	})
	if !n.hasEvent(t, "PodRecreated", "came without a seat") || !n.hasEvent(t, "PodsAdopted", "without a seat") {
		t.Error("the owner has no events")
	}
	n.revise(t, d, "2")
	n.rolledOut(t, d)
	n.spreads(t, "web", 13, s)
}

// Pods that the registration's selectors exclude are nobody's fault.
func TestRepairLeavesExcludedPods(t *testing.T) {
	n := newTenant(t)
	const strategy = "nodesize=spot4vcpu16gb,weight=1"
	d := n.deployment("web", 6, annotated(strategy))
	must(t, n.Create(t.Context(), d))
	n.spreads(t, "web", 6, strategyOf(t, strategy))
	patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) {
		h.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"web"}}}}
	})
	n.scale(t, d, 12)
	eventually(t, "six pods have no seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 12 && unseated == 6, nil
	})
	n.stays(t, "web")
	if _, unseated := n.uids(t, "web"); unseated != 6 {
		t.Errorf("%d pods have no seat", unseated)
	}
}

// A pod that does not start is not recreated again and again: its replacement has a seat,
// whether it starts or not.
func TestRepairOfPodsThatDoNotStart(t *testing.T) {
	restore := patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
	n := newTenant(t)
	const strategy = "nodesize=spot4vcpu16gb,weight=1"
	d := n.deployment("web", 2, annotated(strategy))
	d.Spec.Template.Spec.NodeSelector = map[string]string{"nowhere": "true"}
	must(t, n.Create(t.Context(), d))
	eventually(t, "two pods wait without a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 2 && unseated == 2, nil
	})
	restore()
	n.scale(t, d, 3)
	eventually(t, "all have a seat", func() (bool, error) {
		all, unseated := n.uids(t, "web")
		return len(all) == 3 && unseated == 0, nil
	})
	n.stays(t, "web")
}

// A seat that somebody wrote over is given back.
func TestRepairOfTamperedLabels(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	s := strategyOf(t, eightyOf)
	must(t, n.Create(t.Context(), n.deployment("web", 10, annotated(eightyOf))))
	n.spreads(t, "web", 10, s)
	pods, err := n.pods(t.Context(), "web")
	must(t, err)
	for i, label := range []string{`"99"`, `null`} {
		must(t, n.Patch(t.Context(), &pods[i], client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, stowage.SeatLabel, label))))
	}
	n.spreads(t, "web", 10, s)
	n.costsAgree(t, "web", s)
	if after, _ := n.uids(t, "web"); len(after) != 10 {
		t.Errorf("%d pods", len(after))
	}
}

// Rebalancing moves pods after an edit, one at a time, as PodDisruptionBudgets allow, and
// comes to an end.
func TestRebalance(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const half = "type=default,weight=50:type=spot,weight=50"
	annotations := annotated(eightyOf)
	annotations[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	d := n.deployment("web", 10, annotations)
	must(t, n.Create(t.Context(), d))
	n.spreads(t, "web", 10, strategyOf(t, eightyOf))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{
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
	edit(half)
	n.stays(t, "web") // the budget forbids it
	must(t, n.Delete(t.Context(), budget))
	n.spreads(t, "web", 10, strategyOf(t, half))
	n.stays(t, "web")
	if !n.hasEvent(t, "PodEvicted", "has too many pods") {
		t.Error("no event about an eviction")
	}

	// No node could take the pods of the new pool: nothing is evicted for it.
	edit("type=default,weight=1:type=nowhere,weight=1")
	time.Sleep(observation)
	pods, err := n.pods(t.Context(), "web")
	must(t, err)
	if len(pods) != 10 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeSelector["type"] == "nowhere" }) {
		t.Errorf("pods were evicted for a pool without nodes")
	}
}
