package status

import (
	"math"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/finding"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

const rollOut = "roll out (kubectl -n ns rollout restart deployment/web)"

const refused = "correct what the message names, such as an admission policy or a webhook, or apply the ClusterRoles of this version again"

// The condition Balanced names the first cause, and what helps.
func TestBalanced(t *testing.T) {
	s, err := sequence.Parse("p=a,weight=1:p=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	across, err := s.WithDomains(sequence.Across{Key: "zone", Domains: []sequence.Domain{{Value: "x", Weight: 1}, {Value: "y", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	on := func(pool string, n int) (pods []divisions.Pod) {
		for range n {
			pods = append(pods, divisions.Pod{Pool: pool, Domain: "x", Ready: true, OnNode: true, Age: time.Hour})
		}
		return pods
	}
	for name, tc := range map[string]struct {
		pods     []divisions.Pod
		replicas int64
		edit     func(*divisions.Division)
		policy   policy.Policy
		said     said
		paused   bool
		noNodes  string // pools
		cordoned string
		reason   stowage.ConditionReason
		text     string
	}{
		"all is well": {
			pods: append(on("0", 1), on("1", 1)...), replicas: 2, reason: stowage.ReasonBalanced, text: "each pool has the pods that it should have",
		},
		"pods wait": {
			pods: []divisions.Pod{{Pool: "0", Age: time.Hour}, {Pool: "1", Age: time.Hour}}, replicas: 2,
			reason: stowage.ReasonPodsPending, text: "1 pod(s) of pool 0 and 1 pod(s) of pool 1 wait for a node",
		},
		"a pool has no room": {
			pods: on("0", 2), replicas: 2, edit: func(d *divisions.Division) {
				d.Shortages = []spill.Shortage{{Pool: "1", State: spill.Pool{Phase: spill.Exhausted, Max: 3}}}
			},
			reason: stowage.ReasonSpilled, text: "pool 1 has had no room since 0001-01-01T00:00:00Z, and keeps at most 3 pod(s); other pools take the pods that wait for it, and it is tried again at 0001-01-01T00:00:00Z; add nodes to the pool; Stowage tries it again by itself",
		},
		"a pool has no room, and no other takes its pods": {
			pods: on("0", 2), replicas: 2, edit: func(d *divisions.Division) {
				d.Shortages = []spill.Shortage{{Pool: "1", State: spill.Pool{Phase: spill.Exhausted, Max: 3}}}
				d.Untaken = "pool 0 has its maximum"
			},
			reason: stowage.ReasonSpilled, text: "pool 1 has had no room since 0001-01-01T00:00:00Z, and keeps at most 3 pod(s); no other pool takes more of the pods that wait for it: pool 0 has its maximum, and it is tried again at 0001-01-01T00:00:00Z; add nodes to the pool; Stowage tries it again by itself",
		},
		"what Stowage adds is refused": {
			pods: on("0", 1), replicas: 2, edit: func(d *divisions.Division) { d.Moving = true }, said: said{refused: "denied: node selectors are not for tenants", pods: 1}, reason: "PodsRefused",
			text: "1 of 2 pods exist, because the API server refuses to create more: denied: node selectors are not for tenants; Stowage gives pods the node selector p=a or p=b (PodDistributor d); have what refuses the pods allow it; or set enforcement: Preferred, with which pods prefer their pool by node affinity; or give each pool matchExpressions that are no equality, such as {key: kubernetes.io/os, operator: Exists}, with which pods require it by node affinity; until then, the label stowage.dev/mode=Audit on the namespace lets new pods come as they are written",
		},
		"a quota": {
			pods: on("0", 1), replicas: 2, edit: func(d *divisions.Division) { d.Stuck = true }, said: said{stuck: "it has one pod for minutes"},
			reason: stowage.ReasonNotReached, text: "it has one pod for minutes",
		},
		"pods come": {
			pods: on("0", 1), replicas: 2, edit: func(d *divisions.Division) { d.Moving = true }, reason: stowage.ReasonProgressing, text: "pods are being created or removed",
		},
		"outside of its pool": {
			pods: append(on("0", 1), divisions.Pod{Pool: "1", OnNode: true, Node: map[string]string{"p": "a"}}), replicas: 2,
			reason: stowage.ReasonOutsidePool, text: "1 pod(s) are outside the pool of their seat: the labels of pools or nodes, or the order of pools, have changed; " + rollOut,
		},
		"where that is allowed": {
			pods: append(on("0", 1), divisions.Pod{Pool: "1", OnNode: true, Node: map[string]string{"p": "a"}}), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Preferred: true}},
			reason: stowage.ReasonOutsidePool, text: "1 pod(s) are outside the pool of their seat, as enforcement Preferred allows; make room in the pool, and " + rollOut,
		},
		"too many": {
			pods: on("0", 2), replicas: 2, reason: stowage.ReasonOverTarget, text: "pool 0 has 2 pods and should have 1; " + rollOut + ", or set rebalance: Evict in PodDistributor d",
		},
		"too many, and they may be evicted": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Evict: true}},
			reason: stowage.ReasonOverTarget, text: "pool 0 has 2 pods and should have 1; wait: Stowage evicts one pod after the other",
		},
		"too many, and repair is off": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Repair: stowage.RepairOff}},
			reason: stowage.ReasonOverTarget, text: "pool 0 has 2 pods and should have 1; " + rollOut,
		},
		"too many, and they could be evicted if repair were not off": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Evict: true, Repair: stowage.RepairOff}},
			reason: stowage.ReasonOverTarget, text: "pool 0 has 2 pods and should have 1; " + rollOut + ", or remove the annotation stowage.dev/repair, which is Off: then Stowage evicts one pod after the other",
		},
		"a pool is gone, and repair is off": {
			pods: append(on("0", 1), on("gone", 1)...), replicas: 3, edit: func(d *divisions.Division) { d.Unseated = 2 }, policy: policy.Policy{Rules: policy.Rules{Evict: true, Repair: stowage.RepairOff}},
			reason: stowage.ReasonWithoutSeat, text: "1 pod(s) are in a pool that was removed from the strategy: gone; " + rollOut + ", or remove the annotation stowage.dev/repair, which is Off: then Stowage evicts one pod after the other",
		},
		"too many, and a pod crashes": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Evict: true}}, said: said{hindrances: []stowage.Hindrance{{Reason: stowage.HindranceNotReady, Pod: "web-1"}}}, reason: "NotAllPodsReady",
			text: "pool 0 has 2 pods and should have 1: none is evicted while a pod such as web-1 is not ready; find out why it is not ready: kubectl -n ns describe pod web-1; Stowage goes on by itself once all pods are ready",
		},
		"updates of pods are refused": {
			pods: on("0", 1), replicas: 2, edit: func(d *divisions.Division) { d.Unseated = 1 }, said: said{hindrances: []stowage.Hindrance{{Reason: stowage.HindranceUpdateRefused, Pod: "web-1", Count: 1, Message: "no"}}}, reason: "PodUpdateRefused",
			text: "the API server has refused to give pods such as web-1 a seat: no; " + refused,
		},
		"so that none is evicted": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Evict: true}}, said: said{hindrances: []stowage.Hindrance{{Reason: stowage.HindranceUpdateRefused, Pod: "web-1", Message: "no"}}}, reason: "PodUpdateRefused",
			text: "pool 0 has 2 pods and should have 1: the API server has refused to give pods such as web-1 a seat: no; " + refused,
		},
		"while all are where they should be": {
			pods: append(on("0", 1), on("1", 1)...), replicas: 2, said: said{hindrances: []stowage.Hindrance{{Reason: stowage.HindranceUpdateRefused, Pod: "web-1", Message: "no"}}}, reason: stowage.ReasonBalanced,
			text: "each pool has the pods that it should have; the API server has refused to give pods such as web-1 a seat: no; " + refused,
		},
		"too many, and the Deployment is paused": {
			pods: on("0", 2), replicas: 2, paused: true, reason: stowage.ReasonOverTarget,
			text: "pool 0 has 2 pods and should have 1; resume the Deployment (kubectl -n ns rollout resume deployment/web), and roll out, or set rebalance: Evict in PodDistributor d",
		},
		"too many, and no node has the labels of the other pool": {
			pods: on("0", 2), replicas: 2, noNodes: "1 (p=b)", reason: stowage.ReasonOverTarget,
			text: "pool 0 has 2 pods and should have 1; first correct the labels of pool 1 (p=b), or add nodes with them: no node has them, so that new pods wait unless a node autoscaler makes one; then " + rollOut + ", or set rebalance: Evict in PodDistributor d",
		},
		"too many, and the nodes of the other pool are cordoned": {
			pods: on("0", 2), replicas: 2, cordoned: "1", reason: stowage.ReasonOverTarget,
			text: "pool 0 has 2 pods and should have 1; first kubectl uncordon nodes of pool 1, or add others: all are cordoned, so that new pods wait unless a node autoscaler makes one; then " + rollOut + ", or set rebalance: Evict in PodDistributor d",
		},
		"a preferred pool has no node": {
			pods: append(on("0", 1), divisions.Pod{Pool: "1", OnNode: true, Node: map[string]string{"p": "a"}}), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Preferred: true}}, noNodes: "1 (p=b)",
			reason: stowage.ReasonOutsidePool, text: "1 pod(s) are outside the pool of their seat, as enforcement Preferred allows; first correct the labels of pool 1 (p=b), or add nodes with them: no node has them; then " + rollOut,
		},
		"too many, and one is held": {
			pods: on("0", 2), replicas: 2, policy: policy.Policy{Rules: policy.Rules{Evict: true}}, said: said{hindrances: []stowage.Hindrance{{Reason: stowage.HindrancePodHeld, Message: "one stays"}}}, reason: "PodHeld", text: "pool 0 has 2 pods and should have 1: one stays; none is needed; to move them, " + rollOut,
		},
		"a pool is gone": {
			pods: append(on("0", 1), on("gone", 1)...), replicas: 3, edit: func(d *divisions.Division) { d.Unseated = 2 },
			reason: stowage.ReasonWithoutSeat, text: "1 pod(s) are in a pool that was removed from the strategy: gone; " + rollOut + ", or set rebalance: Evict in PodDistributor d",
		},
		"without a seat": {
			pods: on("0", 1), replicas: 2, edit: func(d *divisions.Division) { d.Unseated = 1 },
			reason: stowage.ReasonWithoutSeat, text: "1 pod(s) have no seat: they were created before the PodDistributor d, or bypassed the webhook; " + rollOut + ", or set stowage.dev/repair to Recreate",
		},
		"costs of somebody else": {
			pods: append(on("0", 1), on("1", 1)...), replicas: 2, edit: func(d *divisions.Division) { d.Costs.Foreign = 2 },
			reason: stowage.ReasonBalanced, text: "each pool has the pods that it should have; 2 pod(s) have no pod-deletion-cost, or one that is not from Stowage; scale-downs remove the lowest first",
		},
		"too many in a domain": {
			pods: append(on("0", 2), on("1", 2)...), replicas: 4,
			reason: stowage.ReasonBalanced, text: "each pool has the pods that it should have; 2 pod(s) are in a domain that has too many of their pool; " + rollOut + ", or set rebalance: Evict in PodDistributor d",
		},
		"too many in a domain, and they may be evicted": {
			pods: append(on("0", 2), on("1", 2)...), replicas: 4, policy: policy.Policy{Rules: policy.Rules{Evict: true}},
			reason: stowage.ReasonBalanced, text: "each pool has the pods that it should have; 2 pod(s) are in a domain that has too many of their pool; " + rollOut,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d divisions.Division
			of := testkit.Layout(s, layout.Workload{})
			if tc.replicas == 4 {
				of = testkit.Layout(across, layout.Workload{Orders: &layout.Orders{}})
			}
			d.AddPods(of.Strategy, tc.pods)
			d.AddTargets(of, of.Divide(tc.replicas, nil, layout.Elsewhere{}))
			if tc.edit != nil {
				tc.edit(&d)
			}
			tc.policy.Source, tc.policy.Distributor, tc.policy.Layout = "PodDistributor d", &versprei.PodDistributor{}, of
			status, reason, text := balanced(world.Object{Namespace: "ns", Ref: world.Ref{Kind: "Deployment", Name: "web"}}, &tc.policy, &d, tc.said, func(v *finding.Values) { v.Paused, v.NoNodes, v.Cordoned = tc.paused, tc.noNodes, tc.cordoned })
			if (status == metav1.ConditionTrue) != (tc.reason == stowage.ReasonBalanced) || reason != tc.reason || text != tc.text {
				t.Errorf("it is %s, %s: %q, want %s: %q", status, reason, text, tc.reason, tc.text)
			}
		})
	}
}

// What a rollout does is asked for each reason whose remedy is one, of those that the condition tells.
func TestRollsOut(t *testing.T) {
	for _, r := range finding.Reasons() {
		if told := reasons[r] != "" || noted[r] || r == finding.OverInDomain; told && strings.Contains(r.Example().Remedy(), "roll out") && !rollsOut[r] {
			t.Errorf("the remedy of %s is a rollout", r)
		}
	}
}

// Workloads that ask for billions of pods do not turn a sum below zero.
func TestAdd(t *testing.T) {
	for _, tc := range []struct {
		count int32
		more  int64
		want  int32
	}{{1, 2, 3}, {math.MaxInt32, 1, math.MaxInt32}, {math.MaxInt32, math.MaxInt64, math.MaxInt32}, {0, 1 << 40, math.MaxInt32}} {
		if got := add(tc.count, tc.more); got != tc.want {
			t.Errorf("%d and %d are %d, want %d", tc.count, tc.more, got, tc.want)
		}
	}
}
