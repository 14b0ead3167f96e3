package controllers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/repair"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

const strategy = "pool=a,weight=1:pool=b,weight=1"

// resync is how often every workload is reconciled.
var resync = repair.DefaultTiming().Resync

func annotated(more ...string) map[string]string {
	out := map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: strategy}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// seat returns the seat that a pod has now, as pool/ordinal.
func (n *tenant) seat(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	must(t, n.get(t, p))
	if p.Labels[stowage.SeatLabel] == "" {
		return ""
	}
	return p.Labels[stowage.PoolLabel] + "/" + p.Labels[stowage.SeatLabel]
}

// seated makes a pod with a seat, as the webhook would.
func (n *tenant) seated(t *testing.T, rs *appsv1.ReplicaSet, pool string, ordinal int64, node *corev1.Node) *corev1.Pod {
	t.Helper()
	claim := key.Sign(ledger.OriginClaimed, ledger.NewID(), ledger.Holder{Namespace: n.namespace, Owner: string(rs.UID)}, ledger.Seat{Pool: pool, Ordinal: ordinal})
	s, err := sequence.Parse(strategy)
	must(t, err)
	at, err := strconv.Atoi(pool)
	must(t, err)
	cost := sequence.DeletionCost(s.RankOrNone(sequence.Seat{Pool: at, Ordinal: ordinal}))
	return n.pod(t, rs, template(rs).Label(stowage.PoolLabel, pool).Label(stowage.SeatLabel, fmt.Sprint(ordinal)).Annotation(stowage.ClaimAnnotation, claim).Annotation(corev1.PodDeletionCost, cost), node)
}

// filler makes a pod of nobody's on a node.
func (n *tenant) filler(t *testing.T, node *corev1.Node) *corev1.Pod {
	t.Helper()
	p := testkit.Pod("").Namespace(n.namespace).Container("c", "", "").Obj()
	p.Name, p.GenerateName, p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = "", "filler-", node.Name, new(int64(0))
	must(t, n.Create(t.Context(), p))
	return p
}

// laterThan waits until the API server gives another time of creation than an object's: those
// times are whole seconds.
func laterThan(t *testing.T, o client.Object) {
	t.Helper()
	eventually(t, "the second has passed", func() bool { return time.Since(o.GetCreationTimestamp().Time) > 1100*time.Millisecond })
}

// scale sets how many pods a ReplicaSet asks for and has.
func (n *tenant) scale(t *testing.T, rs *appsv1.ReplicaSet, replicas int32) {
	t.Helper()
	must(t, n.get(t, rs))
	rs.Spec.Replicas = &replicas
	must(t, n.Update(t.Context(), rs))
	rs.Status.Replicas = replicas
	must(t, n.Status().Update(t.Context(), rs))
}

// Pods that bypassed the webhook are adopted where they are in a pool. The others stay until a later
// pod shows that the webhook is reached; then they are evicted, as PodDisruptionBudgets allow.
func TestPodsThatBypassedTheWebhook(t *testing.T) {
	n := newTenant(t)
	a, b, other := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4"), n.node(t, "", "cpu=4")
	rs := n.replicaSet(t, 4, annotated())
	inA, inB := n.pod(t, rs, template(rs), a), n.pod(t, rs, template(rs), b)
	outside, waiting := n.pod(t, rs, template(rs), other), n.pod(t, rs, template(rs), nil)
	eventually(t, "those in pools are adopted", func() bool { return n.seat(t, inA) == "0/1" && n.seat(t, inB) == "1/1" })
	if inA.Annotations[stowage.ClaimAnnotation] == "" || inA.Annotations[corev1.PodDeletionCost] == "" {
		t.Errorf("the adopted pod has the annotations %v", inA.Annotations)
	}
	eventually(t, "an event says so", func() bool { return n.events(t, rs, stowage.EventPodsAdopted) > 0 })
	n.unchanged(t, "workload", pass(resync), inA, inB, outside, waiting)

	laterThan(t, waiting)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(0)), Selector: rs.Spec.Selector,
	}}
	must(t, n.Create(t.Context(), budget))
	allow := func(disruptions int32) {
		must(t, n.get(t, budget))
		budget.Status.ObservedGeneration, budget.Status.DisruptionsAllowed = budget.Generation, disruptions
		must(t, n.Status().Update(t.Context(), budget))
	}
	allow(0)
	n.scale(t, rs, 5)
	later := n.seated(t, rs, "0", 2, a)
	eventually(t, "the pod that waits is evicted", func() bool { return n.gone(t, waiting) })
	n.unchanged(t, "workload", pass(resync), inA, inB, outside, later) // the budget forbids it

	allow(1)
	n.seated(t, rs, "1", 2, b) // as the ReplicaSet's controller does
	eventually(t, "the pod outside of the pools is evicted", func() bool { return n.gone(t, outside) })
	n.unchanged(t, "workload", pass(resync), inA, inB, later)
}

// A PodDistributor is created just after its pods: those that are not ready are put right unasked, and
// those that are ready stay, because the workload is not young by the controllers' clock.
func TestPodsBeforeTheirPodDistributor(t *testing.T) {
	for name, ready := range map[string]bool{"not ready": false, "ready": true} {
		t.Run(name, func(t *testing.T) {
			n := newTenant(t)
			clock.Step(time.Minute)
			a, b := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
			rs := n.replicaSet(t, 4, nil)
			pods := []client.Object{}
			for _, node := range []*corev1.Node{a, a, a, b} {
				p := n.pod(t, rs, template(rs), node)
				if !ready {
					p.Status.Conditions[0].Status = corev1.ConditionFalse
					must(t, n.Status().Update(t.Context(), p))
				}
				pods = append(pods, p)
			}
			must(t, n.Create(t.Context(), n.distributor("web")))
			eventually(t, "they are adopted", func() bool {
				return !slices.ContainsFunc(pods, func(p client.Object) bool { return !n.gone(t, p) && n.seat(t, p.(*corev1.Pod)) == "" })
			})
			if ready {
				n.unchanged(t, "workload", pass(resync), pods...)
				return
			}
			gone := func() (gone int) {
				for _, p := range pods {
					if n.gone(t, p) {
						gone++
					}
				}
				return gone
			}
			eventually(t, "one is evicted", func() bool { return gone() > 0 })
			n.seated(t, rs, "1", 2, b) // as the ReplicaSet's controller and the webhook do
			reconciles(t, "workload", pass(resync))
			if gone() != 1 || n.gone(t, pods[3]) {
				t.Errorf("%d pods were evicted; one of the first three should be", gone())
			}
		})
	}
}

// Pods that the registration's selectors leave out stay as they are.
func TestPodsThatTheRegistrationLeavesOut(t *testing.T) {
	n := newTenant(t)
	change := func(ctx context.Context, selector *metav1.LabelSelector) {
		var registration admissionregistrationv1.MutatingWebhookConfiguration
		must(t, n.Get(ctx, client.ObjectKey{Name: server.Registration}, &registration))
		before := registration.DeepCopy()
		registration.Webhooks[0].ObjectSelector = selector
		must(t, n.Patch(ctx, &registration, client.MergeFrom(before)))
	}
	change(t.Context(), &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"web"}}}})
	t.Cleanup(func() { change(context.Background(), nil) })
	a, b := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
	rs := n.replicaSet(t, 3, annotated())
	n.unchanged(t, "workload", pass(resync), n.pod(t, rs, template(rs), a), n.pod(t, rs, template(rs), nil), n.seated(t, rs, "1", 1, b))
}

// After an edit of the strategy, pods move one at a time, if the workload asks for that and the new
// pool has a node.
func TestRebalance(t *testing.T) {
	n := newTenant(t)
	a, _ := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
	rs := n.replicaSet(t, 4, annotated(stowage.RebalanceAnnotation, string(versprei.RebalanceEvict), stowage.SpreadStrategyAnnotation, "pool=a,weight=1:pool=nowhere,weight=1"))
	pods := []client.Object{}
	for ordinal := range int64(4) {
		pods = append(pods, n.seated(t, rs, "0", ordinal+1, a))
	}
	n.unchanged(t, "workload", pass(resync), pods...) // no node could take a pod of the new pool

	edit := fmt.Sprintf(`{"annotations":{%q:%q}}`, stowage.SpreadStrategyAnnotation, strategy)
	must(t, n.Patch(t.Context(), rs, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":%s,"spec":{"template":{"metadata":%[1]s}}}`, edit))))
	eventually(t, "the pod of the highest rank is evicted", func() bool { return n.gone(t, pods[3]) })
	pods = pods[:3]
	n.unchanged(t, "workload", pass(resync), pods...) // until its successor is ready
}

// A running pod is evicted only if a node of the pool that gets its successor has room beside what runs there.
func TestRoomBeforeEviction(t *testing.T) {
	n := newTenant(t)
	a, b := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4,pods=1")
	filler := n.filler(t, b)
	rs := n.replicaSet(t, 4, annotated(stowage.RebalanceAnnotation, string(versprei.RebalanceEvict)))
	pods := []client.Object{}
	for ordinal := range int64(4) {
		pods = append(pods, n.seated(t, rs, "0", ordinal+1, a))
	}
	n.unchanged(t, "workload", pass(resync), pods...) // the node is full

	taint := func(value string) {
		must(t, n.Patch(t.Context(), b, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":`+value+`}}`))))
	}
	taint(`[{"key":"spot","effect":"NoSchedule"}]`)
	n.unchanged(t, "workload", pass(resync), pods...) // by now the controller has seen the taint
	must(t, n.Delete(t.Context(), filler))
	n.unchanged(t, "workload", pass(resync), pods...) // the node has a taint

	taint("null")
	eventually(t, "the pod of the highest rank is evicted", func() bool {
		clock.Step(resync)
		return n.gone(t, pods[3])
	})
}

// A StatefulSet's pod that runs without a seat in another pool than its ordinal's goes back, if that was asked for.
func TestStatefulSetPodInAnotherPool(t *testing.T) {
	n := newTenant(t)
	a, _ := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
	labels := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "db", Annotations: annotated(stowage.RebalanceAnnotation, string(versprei.RebalanceEvict))}}
	set.Spec.Replicas, set.Spec.Selector = new(int32(2)), &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: set.Annotations}, Spec: testkit.Pod("").Container("c", "", "").Obj().Spec}
	must(t, n.Create(t.Context(), set))
	set.Status.Replicas = 2
	must(t, n.Status().Update(t.Context(), set))
	pod := func(ordinal string) *corev1.Pod {
		p := testkit.Pod("").Container("c", "", "").Label("app", "db").Label(appsv1.PodIndexLabel, ordinal)
		for k, v := range set.Annotations {
			p.Annotation(k, v)
		}
		return n.pod(t, set, p, a)
	}
	first, second := pod("0"), pod("1") // the sequence has b, then a
	eventually(t, "the pod in its own pool is adopted", func() bool { return n.seat(t, second) == "0/1" })
	eventually(t, "the other one is evicted", func() bool {
		clock.Step(resync)
		return n.gone(t, first)
	})
	n.unchanged(t, "workload", pass(resync), second)
}

// A seat that the webhook gave to a later pod of another workload shows that the webhook is reached.
func TestLaterPodOfAnotherWorkload(t *testing.T) {
	n := newTenant(t)
	a, other := n.node(t, "a", "cpu=4"), n.node(t, "", "cpu=4")
	n.node(t, "b", "cpu=4")
	rs := n.replicaSet(t, 2, annotated())
	first, second := n.pod(t, rs, template(rs), other), n.pod(t, rs, template(rs), other)
	n.unchanged(t, "workload", pass(resync), first, second)

	laterThan(t, second)
	another := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "another", Annotations: rs.Annotations}, Spec: *rs.Spec.DeepCopy()}
	another.Spec.Replicas = new(int32(1))
	another.Spec.Selector.MatchLabels, another.Spec.Template.Labels = map[string]string{"app": "another"}, map[string]string{"app": "another"}
	must(t, n.Create(t.Context(), another))
	n.seated(t, another, "0", 1, a)
	eventually(t, "one of them is evicted", func() bool {
		clock.Step(resync)
		return n.gone(t, first) != n.gone(t, second)
	})
}

// distributor divides the pods of a ReplicaSet evenly, without creating it.
func (n *tenant) distributor(target string) *versprei.PodDistributor {
	return &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: target}, Spec: versprei.PodDistributorSpec{
		Target: versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: target},
		Distribution: []versprei.Pool{
			{NodeLabel: map[string]versprei.LabelValue{"pool": "a"}, Weight: 50},
			{NodeLabel: map[string]versprei.LabelValue{"pool": "b"}, Weight: 50},
		},
	}}
}

// The status of a PodDistributor is written when it changes, and then no more.
func TestPodDistributorStatus(t *testing.T) {
	n := newTenant(t)
	a, b := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
	d := n.distributor("web")
	must(t, n.Create(t.Context(), d))
	rs := n.replicaSet(t, 2, nil)
	n.seated(t, rs, "0", 1, a)
	second := n.seated(t, rs, "1", 1, b)
	balanced := func(want metav1.ConditionStatus) func() bool {
		return func() bool {
			must(t, n.get(t, d))
			return slices.ContainsFunc(d.Status.Conditions, func(c metav1.Condition) bool { return c.Type == versprei.ConditionBalanced && c.Status == want })
		}
	}
	eventually(t, "it is balanced", balanced(metav1.ConditionTrue))
	n.comesToRest(t, "poddistributor-status", pass(resync), d)
	must(t, n.Delete(t.Context(), second))
	eventually(t, "it is not", balanced(metav1.ConditionFalse))
	n.comesToRest(t, "poddistributor-status", pass(resync), d)
}

// A workload that never gets as many pods as it asks for is put in order with those that it has, and none is evicted.
func TestCountThatIsNeverReached(t *testing.T) {
	n := newTenant(t)
	a, b, other := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4"), n.node(t, "", "cpu=4")
	rs := n.replicaSet(t, 6, annotated(stowage.RebalanceAnnotation, string(versprei.RebalanceEvict)))
	rs.Status.Replicas = 3
	must(t, n.Status().Update(t.Context(), rs))
	inA, outside, third := n.pod(t, rs, template(rs), a), n.pod(t, rs, template(rs), other), n.seated(t, rs, "1", 3, b)
	eventually(t, "the pod in a pool is adopted, and the gap is closed", func() bool {
		clock.Step(resync)
		return n.seat(t, inA) == "0/1" && n.seat(t, third) == "1/1"
	})
	n.unchanged(t, "workload", pass(resync), inA, outside, third)
}
