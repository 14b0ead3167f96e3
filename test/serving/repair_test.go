package serving

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
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

// Controllers that stand by read no pods. Once the leader is gone, another replica learns which pods there are, and repairs.
func TestStandby(t *testing.T) {
	n := newTenant(t)
	const strategy = "nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	must(t, n.Create(t.Context(), n.Deployment("web", 6, annotated(strategy))))
	n.Spreads(t, "web", 6, strategyOf(t, strategy))
	suite.TwoControllers(t)
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
		all, unseated := n.UIDs(t, "web")
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
		all, unseated := n.UIDs(t, "web")
		return len(all) == 13 && unseated == 0, nil
	})
	eventually(t, "the owner has events", func() (bool, error) {
		return n.HasEvent(t, "PodRecreated", "had no seat") && n.HasEvent(t, "PodsAdopted", "the webhook was not reached"), nil
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
		all, unseated := n.UIDs(t, "web")
		return len(all) == 2 && unseated == 2, nil
	})
	restore()
	n.Scale(t, d, 3)
	eventually(t, "all have a seat", func() (bool, error) {
		all, unseated := n.UIDs(t, "web")
		return len(all) == 3 && unseated == 0, nil
	})
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
	p := n.LateSpreadPolicy(t, "web", suite.PoolsOf(1, 0, 1))
	n.Spreads(t, "web", 10, suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(p)))
}
