package e2e

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread"
)

// The three known strategies.
const (
	documented = "nodesize=od4vcpu16gb,base=1,weight=0:nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	eightyOf   = "type=default,weight=80:type=spot,weight=20"
	oneToThree = "karpenter.sh/capacity-type=on-demand,base=2,weight=1:karpenter.sh/capacity-type=spot,weight=3"
)

func strategyOf(t *testing.T, text string) *spread.Strategy {
	t.Helper()
	s, err := spread.Parse(text)
	must(t, err)
	return s
}

// annotated returns the annotations that give a strategy.
func annotated(strategy string) map[string]string {
	return map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: strategy}
}

// podTemplate is a small pod.
func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

// deployment makes a Deployment without creating it.
func (n *tenant) deployment(name string, replicas int, annotations map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name, Annotations: annotations},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: podTemplate(name),
		},
	}
}

func (n *tenant) scale(t *testing.T, obj client.Object, replicas int) {
	t.Helper()
	must(t, n.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
}

// pods returns the live pods of an app.
func (n *tenant) pods(ctx context.Context, app string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := n.List(ctx, &list, client.InNamespace(n.namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}

// nodeLabels are the labels of all nodes, which do not change.
func nodeLabels(ctx context.Context) (map[string]map[string]string, error) {
	var nodes corev1.NodeList
	if err := cluster.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, node := range nodes.Items {
		out[node.Name] = node.Labels
	}
	return out, nil
}

// distribution says what is wrong with the pods of an app: each must run, hold a seat of
// its own without gaps below it, and be on a node of its pool; and the counts must be
// those of the strategy.
func (n *tenant) distribution(ctx context.Context, app string, replicas int, s *spread.Strategy) error {
	pods, err := n.pods(ctx, app)
	if err != nil {
		return err
	}
	nodes, err := nodeLabels(ctx)
	if err != nil {
		return err
	}
	if len(pods) != replicas {
		return fmt.Errorf("%d pods of %d", len(pods), replicas)
	}
	onNodes := make([]int64, s.Len())
	seats := map[string][]int{}
	for i := range pods {
		p := &pods[i]
		if !isReady(p) {
			return fmt.Errorf("pod %s is not ready", p.Name)
		}
		for pool := range s.Len() {
			if hasLabels(nodes[p.Spec.NodeName], s.Pool(pool).Labels) {
				onNodes[pool]++
			}
		}
		ordinal, err := strconv.Atoi(p.Labels[stowage.SeatLabel])
		if err != nil {
			return fmt.Errorf("pod %s on node %s has no seat (labels %v)", p.Name, p.Spec.NodeName, p.Labels)
		}
		seats[p.Labels[stowage.PoolLabel]] = append(seats[p.Labels[stowage.PoolLabel]], ordinal)
	}
	for pool := range s.Len() {
		name := s.Pool(pool).Name
		want := s.Target(pool, int64(replicas))
		if onNodes[pool] != want || len(seats[name]) != int(want) {
			return fmt.Errorf("pools have %v pods on their nodes, and pool %s %d seats; it should have %d", onNodes, name, len(seats[name]), want)
		}
		slices.Sort(seats[name])
		for i, ordinal := range seats[name] {
			if ordinal != i+1 {
				return fmt.Errorf("the seats of pool %s are %v", name, seats[name])
			}
		}
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// spreads waits until an app's pods are divided as the strategy demands.
func (n *tenant) spreads(t *testing.T, app string, replicas int, s *spread.Strategy) {
	t.Helper()
	var wrong error
	err := wait.PollUntilContextTimeout(t.Context(), 2*waitInterval, 3*waitTimeout, true, func(ctx context.Context) (bool, error) {
		err := n.distribution(ctx, app, replicas, s)
		if ctx.Err() == nil {
			wrong = err
		}
		return err == nil, nil
	})
	if err != nil {
		pods, _ := n.pods(context.WithoutCancel(t.Context()), app)
		for i := range pods {
			p := &pods[i]
			t.Logf("%s %s/%s on %s, cost %s, created %s", p.Name, p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel], p.Spec.NodeName,
				p.Annotations[corev1.PodDeletionCost], p.CreationTimestamp.Format(time.TimeOnly))
		}
		t.Fatalf("%s at %d: %v", app, replicas, wrong)
	}
}

// withReplicas runs a test with one and with three webhook processes.
func withReplicas(t *testing.T, test func(t *testing.T)) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("webhooks=%d", replicas), func(t *testing.T) {
			o := fleet
			o.Replicas = replicas
			must(t, cluster.StartStowage(t.Context(), o))
			restoreFleet(t)
			test(t)
		})
	}
}

// long asks for bursts of all strategies and sizes; make test-long sets it.
var long = flag.Bool("long", false, "run the long form of the bursts")

// The spread under everything that happens to Deployments, with one webhook and three.
func TestSpreadConcurrent(t *testing.T) {
	withReplicas(t, func(t *testing.T) {
		for _, tc := range []struct {
			name string
			test func(*testing.T)
		}{
			{"bursts", testBursts},
			{"two Deployments at once", testTwoAtOnce},
			{"a rollout, and a rollback half-way", testRollout},
			{"a drain, and a third deleted", testDrain},
			{"a strategy is edited", testEdit},
			{"a scale-down meets pending pods", testPending},
			{"a webhook is killed, failing closed", testKilledClosed},
			{"a webhook is killed, failing open", testKilledOpen},
		} {
			t.Run(tc.name, tc.test)
		}
	})
}

// Deployments of all sizes, grown and shrunk.
func testBursts(t *testing.T) {
	for name, tc := range map[string]struct {
		strategy string
		known    map[int][]int64
	}{
		"documented": {documented, map[int][]int64{10: {1, 4, 5}}},
		"80-20":      {eightyOf, map[int][]int64{10: {8, 2}, 25: {20, 5}}},
		"1-3":        {oneToThree, map[int][]int64{10: {4, 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{10, 25, 10, 100, 500, 100}
			switch {
			case *long:
			case name == "1-3":
				sizes = []int{10, 25}
			case name == "documented" || len(cluster.Replicas()) == 1:
				sizes = []int{10, 25, 100, 10}
			}
			n := newTenant(t)
			s := strategyOf(t, tc.strategy)
			for at, want := range tc.known {
				for pool, count := range want {
					if got := s.Target(pool, int64(at)); got != count {
						t.Errorf("at %d pool %d has the target %d, want %d", at, pool, got, count)
					}
				}
			}
			d := n.deployment("web", 10, annotated(tc.strategy))
			must(t, n.Create(t.Context(), d))
			for i, replicas := range sizes {
				if i > 0 {
					n.scale(t, d, replicas)
				}
				n.spreads(t, "web", replicas, s)
			}
		})
	}
}

func testTwoAtOnce(t *testing.T) {
	n := newTenant(t)
	for name, strategy := range map[string]string{"one": documented, "two": eightyOf} {
		must(t, n.Create(t.Context(), n.deployment(name, 150, annotated(strategy))))
	}
	n.spreads(t, "one", 150, strategyOf(t, documented))
	n.spreads(t, "two", 150, strategyOf(t, eightyOf))
}

// revise changes a Deployment's template, so that it rolls out.
func (n *tenant) revise(t *testing.T, d *appsv1.Deployment, revision string) {
	t.Helper()
	must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"revision":%q}}}}}`, revision))))
}

// rolledOut waits until a Deployment has one revision.
func (n *tenant) rolledOut(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	eventually(t, "the rollout is complete", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
			d.Status.Replicas == *d.Spec.Replicas && d.Status.ReadyReplicas == *d.Spec.Replicas, err
	})
}

func testRollout(t *testing.T) {
	n := newTenant(t)
	s := strategyOf(t, documented)
	d := n.deployment("web", 60, annotated(documented))
	must(t, n.Create(t.Context(), d))
	n.spreads(t, "web", 60, s)
	n.revise(t, d, "2")
	n.rolledOut(t, d)
	n.spreads(t, "web", 60, s)

	n.revise(t, d, "3")
	eventually(t, "the rollout is half-way", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.UpdatedReplicas >= 20, err
	})
	n.revise(t, d, "2")
	n.rolledOut(t, d)
	n.spreads(t, "web", 60, s)
}

func testDrain(t *testing.T) {
	n := newTenant(t)
	s := strategyOf(t, documented)
	must(t, n.Create(t.Context(), n.deployment("web", 100, annotated(documented))))
	n.spreads(t, "web", 100, s)

	// A node goes: its pods are evicted all at once.
	pods, err := n.pods(t.Context(), "web")
	must(t, err)
	var evictions sync.WaitGroup
	for i := range pods[:30] {
		evictions.Go(func() {
			if err := n.SubResource("eviction").Create(t.Context(), &pods[i], &policyv1.Eviction{}); err != nil {
				t.Errorf("evict: %v", err)
			}
		})
	}
	evictions.Wait()
	n.spreads(t, "web", 100, s)

	pods, err = n.pods(t.Context(), "web")
	must(t, err)
	for i := range pods {
		if i%3 == 0 {
			must(t, client.IgnoreNotFound(n.Delete(t.Context(), &pods[i])))
		}
	}
	n.spreads(t, "web", 100, s)
}

func testEdit(t *testing.T) {
	n := newTenant(t)
	const half = "type=default,weight=50:type=spot,weight=50"
	d := n.deployment("web", 10, annotated(eightyOf))
	must(t, n.Create(t.Context(), d))
	n.spreads(t, "web", 10, strategyOf(t, eightyOf)) // 8 and 2
	must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAnnotation, half))))
	eventually(t, "the replicas know the edit", func() (bool, error) {
		var list appsv1.ReplicaSetList
		err := n.List(t.Context(), &list, client.InNamespace(n.namespace))
		return len(list.Items) == 1 && list.Items[0].Annotations[stowage.SpreadStrategyAnnotation] == half, err
	})
	n.scale(t, d, 16) // 8 and 8: no pool is over its target any more
	n.spreads(t, "web", 16, strategyOf(t, half))
	// The costs follow, so that it shrinks exactly, too.
	n.costsAgree(t, "web", strategyOf(t, half))
	n.scale(t, d, 9)
	n.spreads(t, "web", 9, strategyOf(t, half))
}

// costsAgree waits until each pod's deletion cost is that of its rank.
func (n *tenant) costsAgree(t *testing.T, app string, s *spread.Strategy) {
	t.Helper()
	eventually(t, "the deletion costs agree with the ranks", func() (bool, error) {
		pods, err := n.pods(t.Context(), app)
		for i := range pods {
			pool, _ := strconv.Atoi(pods[i].Labels[stowage.PoolLabel])
			ordinal, _ := strconv.ParseInt(pods[i].Labels[stowage.SeatLabel], 10, 64)
			rank, _ := s.Rank(spread.Seat{Pool: pool, Ordinal: ordinal})
			if pods[i].Annotations[corev1.PodDeletionCost] != strconv.FormatInt(1<<31-1-rank, 10) {
				return false, err
			}
		}
		return true, err
	})
}

func testPending(t *testing.T) {
	n := newTenant(t)
	// No node has the second pool's label, so its pods wait.
	const strategy = "type=default,weight=1:type=nowhere,weight=1"
	s := strategyOf(t, strategy)
	d := n.deployment("web", 20, annotated(strategy))
	must(t, n.Create(t.Context(), d))
	seats := func(replicas int, want ...int) {
		t.Helper()
		eventually(t, fmt.Sprintf("the seats at %d are %v", replicas, want), func() (bool, error) {
			pods, err := n.pods(t.Context(), "web")
			have := make([]int, s.Len())
			for i := range pods {
				if pool, err := strconv.Atoi(pods[i].Labels[stowage.PoolLabel]); err == nil {
					have[pool]++
				}
			}
			return len(pods) == replicas && slices.Equal(have, want), err
		})
	}
	seats(20, 10, 10)
	eventually(t, "the first pool's pods are ready", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.ReadyReplicas == 10, err
	})
	n.scale(t, d, 12)
	seats(12, 10, 2) // pending pods go first, whatever their rank
	n.scale(t, d, 20)
	seats(20, 10, 10)
}

// spentLedger is the SeatLedger of a pod that was created before the first test.
var spentLedger client.ObjectKey

// claimOnce makes a pod with a seat, so that there is a ledger whose claim ends a minute later.
func claimOnce(ctx context.Context) error {
	const namespace = "spent"
	if err := cluster.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Annotations: annotated(eightyOf)}}
	rs.Spec.Replicas = new(int32(1))
	rs.Spec.Template = podTemplate("web")
	rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: rs.Spec.Template.Labels}
	if err := cluster.Client.Create(ctx, rs); err != nil {
		return err
	}
	spentLedger = client.ObjectKey{Namespace: namespace, Name: string(rs.UID)}
	return wait.PollUntilContextTimeout(ctx, waitInterval, waitTimeout, true, func(ctx context.Context) (bool, error) {
		err := cluster.Client.Get(ctx, spentLedger, &stowage.SeatLedger{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// A SeatLedger without claims is removed: its pods were seen long ago. A claim holds for a minute,
// which has passed by now where all tests run.
func TestSpentLedgerIsRemoved(t *testing.T) {
	t.Parallel()
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		err := cluster.Client.Get(ctx, spentLedger, &stowage.SeatLedger{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Errorf("the ledger stays: %v", err)
	}
}

// failClosed makes the API server refuse pods while no webhook answers, for this test.
func failClosed(t *testing.T, policy admissionregistrationv1.FailurePolicyType) {
	t.Helper()
	set := func(ctx context.Context, p admissionregistrationv1.FailurePolicyType) error {
		reg := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
		return cluster.Client.Patch(ctx, reg, client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":%q}]`, p)))
	}
	must(t, set(t.Context(), policy))
	t.Cleanup(func() {
		if err := set(context.Background(), admissionregistrationv1.Ignore); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Second) // every API server learns of it; there is nothing to wait for
}

// killInBurst kills one webhook in the middle of a burst, and starts it again.
func killInBurst(t *testing.T, n *tenant, d *appsv1.Deployment) {
	t.Helper()
	must(t, n.Create(t.Context(), d))
	eventually(t, "the burst is under way", func() (bool, error) {
		pods, err := n.pods(t.Context(), d.Name)
		return len(pods) > 40, err
	})
	victim := cluster.Replicas()[0]
	victim.Kill()
	must(t, cluster.Restart(t.Context(), victim))
}

func testKilledClosed(t *testing.T) {
	failClosed(t, admissionregistrationv1.Fail)
	n := newTenant(t)
	d := n.deployment("web", 300, annotated(documented))
	killInBurst(t, n, d)
	n.spreads(t, "web", 300, strategyOf(t, documented))
}

func testKilledOpen(t *testing.T) {
	n := newTenant(t)
	s := strategyOf(t, documented)
	annotations := annotated(documented)
	if len(cluster.Replicas()) == 1 {
		// With nobody to take over, many pods bypass the webhook. They are adopted
		// where they run, which is reported, and a rollout is exact.
		d := n.deployment("web", 300, annotations)
		killInBurst(t, n, d)
		eventually(t, "all pods have a seat, and pools with too many are reported", func() (bool, error) {
			pods, err := n.pods(t.Context(), "web")
			seated := 0
			for i := range pods {
				if pods[i].Labels[stowage.SeatLabel] != "" {
					seated++
				}
			}
			return seated == 300 && metric(t, cluster.Replicas()[0], "stowage_spread_distance", "") > 0, err
		})
		n.revise(t, d, "2")
		n.rolledOut(t, d)
		n.spreads(t, "web", 300, s)
		return
	}
	annotations[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	d := n.deployment("web", 300, annotations)
	killInBurst(t, n, d)
	// Pods that bypassed the webhook are adopted, and evicted from pools with too many.
	n.spreads(t, "web", 300, s)
	n.costsAgree(t, "web", s)
	n.scale(t, d, 50)
	n.spreads(t, "web", 50, s)
}
