package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/testkit"
)

// shortageLabel is on the nodes of one test of shortages, which repel every other pod. Its value is the test's namespace and
// the pool.
const shortageLabel = "shortage-test"

// poolNode makes a node of a pool of the test's own, with room for so many pods of 1 CPU.
func (n *tenant) poolNode(t *testing.T, pool, name string, cpus int) *corev1.Node {
	t.Helper()
	name = strings.Join([]string{n.Namespace, pool, name}, "-")
	size := testkit.ResourceList(fmt.Sprintf("cpu=%d,memory=64Gi,pods=200", cpus))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{shortageLabel: n.Namespace + "." + pool, corev1.LabelHostname: name},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: shortageLabel, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: size, Capacity: size},
	}
	must(t, n.Create(t.Context(), node))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), node) })
	return node
}

// shortage makes a Deployment over two pools, od and spot, of which both have spill.
func (n *tenant) shortage(t *testing.T, replicas int, change func(*versprei.PodDistributorSpec)) *appsv1.Deployment {
	t.Helper()
	d := n.Deployment("web", replicas, nil)
	oneCPU(&d.Spec.Template.Spec)
	n.distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) {
		s.Distribution = []versprei.Pool{n.pool("od", 20), n.pool("spot", 80)}
		if change != nil {
			change(s)
		}
	})
	must(t, n.Create(t.Context(), d))
	return d
}

func oneCPU(spec *corev1.PodSpec) {
	spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=1")
	spec.Tolerations = []corev1.Toleration{{Key: shortageLabel, Operator: corev1.TolerationOpExists}}
}

func (n *tenant) pool(name string, weight int32) versprei.Pool {
	return versprei.Pool{
		Name: name, NodeLabel: map[string]versprei.LabelValue{shortageLabel: versprei.LabelValue(n.Namespace + "." + name)}, Weight: weight,
		Spill: &versprei.Spill{After: "10s"},
	}
}

// inPools waits until an app has so many pods with a node in each pool, and no others.
func (n *tenant) inPools(t *testing.T, app, want string) {
	t.Helper()
	have := ""
	defer func() {
		if have != want {
			t.Logf("%s has %s", app, have)
		}
	}()
	eventuallyWithin(t, 3*waitTimeout, fmt.Sprintf("%s has %s", app, want), func() (bool, error) {
		var err error
		have, err = n.counts(t.Context(), app)
		return have == want, err
	})
}

// counts returns the pods of an app in each pool, by their nodes, and those without a node.
func (n *tenant) counts(ctx context.Context, app string) (string, error) {
	pods, err := n.Pods(ctx, app)
	if err != nil {
		return "", err
	}
	count := map[string]int{}
	for i := range pods {
		pool := pods[i].Labels[stowage.PoolLabel]
		if pods[i].Spec.NodeName == "" {
			pool += "(waits)"
		}
		count[pool]++
	}
	var out []string
	for _, pool := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%s=%d", pool, count[pool]))
	}
	return strings.Join(out, " "), nil
}

// state returns the PoolState of the Deployment web.
func (n *tenant) state(ctx context.Context, owner types.UID) (*stowage.PoolState, error) {
	state := &stowage.PoolState{}
	err := n.Get(ctx, client.ObjectKey{Namespace: n.Namespace, Name: string(owner)}, state)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return state, err
}

// A pool without room gets no more pods than it has, other pools take those that wait, and all is as before once there is room:
// through scale-downs, probes and a rollout.
func TestSpillAndReturn(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for i := range 2 {
		n.poolNode(t, "spot", fmt.Sprint(i), 5)
		n.poolNode(t, "od", fmt.Sprint(i), 30)
	}
	d := n.shortage(t, 30, nil) // 6 and 24

	// 1. Spot has room for 10. The pods that wait go elsewhere, those that run stay.
	n.inPools(t, "web", "od=6 spot=10 spot(waits)=14")
	running := n.withNode(t, "web")
	n.inPools(t, "web", "od=20 spot=10")
	n.stillThere(t, "web", running)
	state, err := n.state(t.Context(), d.UID)
	must(t, err)
	if state == nil || len(state.Pools) != 1 || state.Pools[0].Name != "spot" || state.Pools[0].Max < 10 || state.Pools[0].Max > 11 {
		t.Errorf("the PoolState is %+v", state)
	}
	n.condition(t, "web", versprei.ConditionCapacityAvailable, "False "+string(stowage.ReasonPoolExhausted))

	// 2. Scale-downs follow the order of the strategy: the pods of the ranks up to 15 stay.
	n.Scale(t, d, 15)
	n.inPools(t, "web", "od=5 spot=10")
	n.Scale(t, d, 30)
	n.inPools(t, "web", "od=20 spot=10")

	// 3. Room returns. A rollout, and the division is that of the strategy again.
	for i := range 4 {
		n.poolNode(t, "spot", fmt.Sprint("new", i), 10)
	}
	eventuallyWithin(t, 3*waitTimeout, "the room is seen", func() (bool, error) {
		state, err := n.state(t.Context(), d.UID)
		return state == nil || state.Pools[0].Max >= 24, err
	})
	n.Revise(t, d, "2")
	n.inPools(t, "web", "od=6 spot=24")
	n.condition(t, "web", versprei.ConditionBalanced, "True "+string(stowage.ReasonBalanced))
}

// withNode returns the UIDs of the pods of an app that have a node.
func (n *tenant) withNode(t *testing.T, app string) map[types.UID]bool {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	must(t, err)
	out := map[types.UID]bool{}
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			out[pods[i].UID] = true
		}
	}
	return out
}

// stillThere fails if one of some pods is gone.
func (n *tenant) stillThere(t *testing.T, app string, want map[types.UID]bool) {
	t.Helper()
	have := n.withNode(t, app)
	for uid := range want {
		if !have[uid] {
			t.Errorf("a pod that had a node is gone")
		}
	}
}

// condition waits for a condition of a PodDistributor, as status and reason.
func (n *tenant) condition(t *testing.T, name, kind, want string) {
	t.Helper()
	have := ""
	defer func() {
		if have != want {
			t.Logf("%s is %s", kind, have)
		}
	}()
	eventuallyWithin(t, waitTimeout, fmt.Sprintf("%s is %s", kind, want), func() (bool, error) {
		var d versprei.PodDistributor
		err := n.Get(t.Context(), client.ObjectKey{Namespace: n.Namespace, Name: name}, &d)
		if c := meta.FindStatusCondition(d.Status.Conditions, kind); c != nil {
			have = string(c.Status) + " " + c.Reason
		}
		return have == want, err
	})
}

// A pod that fits on no node of its pool closes nothing.
func TestMisfitClosesNothing(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.poolNode(t, "spot", "0", 5)
	n.poolNode(t, "od", "0", 30)
	d := n.Deployment("web", 5, nil)
	oneCPU(&d.Spec.Template.Spec)
	d.Spec.Template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=6") // of 5
	n.distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) {
		s.Distribution = []versprei.Pool{n.pool("od", 20), n.pool("spot", 80)}
	})
	must(t, n.Create(t.Context(), d))
	n.inPools(t, "web", "od=1 spot(waits)=4")
	time.Sleep(15 * time.Second) // twice what it takes otherwise; there is nothing to wait for
	n.inPools(t, "web", "od=1 spot(waits)=4")
	if state, err := n.state(t.Context(), d.UID); err != nil || state != nil {
		t.Errorf("there is a PoolState: %+v, %v", state, err)
	}
}

// A rollout in an outage: the new revision takes over the places in the pool without room, because the old one's pods there
// go first.
func TestSpillThroughARollout(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.poolNode(t, "spot", "0", 12)
	n.poolNode(t, "od", "0", 60)
	d := n.shortage(t, 30, nil)
	n.inPools(t, "web", "od=18 spot=12")
	n.Revise(t, d, "2")
	var count map[string]int
	defer func() { t.Logf("the new revision has %v", count) }()
	eventuallyWithin(t, 3*waitTimeout, "the rollout is complete, and the new pods have the places of the old ones", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		count = map[string]int{}
		for i := range pods {
			if pods[i].Annotations["revision"] == "2" && podstatus.Ready(&pods[i]) {
				count[pods[i].Labels[stowage.PoolLabel]]++
			}
		}
		return len(pods) == 30 && count["spot"] >= 11 && count["od"]+count["spot"] == 30, err
	})
}

// With rebalance Evict, the pods return one at a time once there is room. A PodDisruptionBudget of one is never violated.
func TestReturnByEviction(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.poolNode(t, "spot", "0", 6)
	n.poolNode(t, "od", "0", 60)
	d := n.shortage(t, 20, func(s *versprei.PodDistributorSpec) { s.Rebalance = versprei.RebalanceEvict })
	must(t, n.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: d.Spec.Selector},
	}))
	n.inPools(t, "web", "od=14 spot=6")
	n.poolNode(t, "spot", "new", 20)
	n.inPools(t, "web", "od=4 spot=16")
	eventually(t, "nothing is known of the shortage any more", func() (bool, error) {
		state, err := n.state(t.Context(), d.UID)
		return state == nil, err
	})
}

// Only those pods of a StatefulSet move that waited, and they keep their pool when they restart in the outage. Base seats move
// like others, and the pool of last resort is the one with an overflow weight.
func TestStatefulSetSpills(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.poolNode(t, "spot", "0", 3)
	n.poolNode(t, "od", "0", 60)
	sts := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(6)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: podTemplate("db"),
		},
	}
	oneCPU(&sts.Spec.Template.Spec)
	n.distributor(t, "db", "db", func(s *versprei.PodDistributorSpec) {
		s.Target.Kind = "StatefulSet"
		od, spot := n.pool("od", 0), n.pool("spot", 1)
		od.Base, od.Overflow = 1, 1
		s.Distribution = []versprei.Pool{od, spot}
	})
	must(t, n.Create(t.Context(), sts))
	n.inPools(t, "db", "od=3 spot=3") // before, 1 and 5
	pools := func() map[string]string {
		pods, err := n.Pods(t.Context(), "db")
		must(t, err)
		out := map[string]string{}
		for i := range pods {
			out[pods[i].Name] = pods[i].Labels[stowage.PoolLabel]
		}
		return out
	}
	before := pools()
	for _, name := range []string{"db-0", "db-3", "db-5"} {
		must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}))
		n.Ready(t, "db", 6)
	}
	if diff := cmp.Diff(before, pools()); diff != "" {
		t.Errorf("pools after restarts (-before +after):\n%s", diff)
	}
}

// Both pools are full: nothing is evicted again and again, the pods wait and are reported, and room in either is used.
func TestNowhereToGo(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.poolNode(t, "spot", "0", 4)
	n.poolNode(t, "od", "0", 6)
	d := n.shortage(t, 20, nil)
	eventuallyWithin(t, 3*waitTimeout, "ten pods run, and ten wait", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) == 20 && len(n.withNode(t, "web")) == 10, err
	})
	eventuallyWithin(t, 3*waitTimeout, "both pools are known to have no room", func() (bool, error) {
		state, err := n.state(t.Context(), d.UID)
		return state != nil && len(state.Pools) == 2, err
	})
	n.condition(t, "web", versprei.ConditionBalanced, "False "+string(stowage.ReasonPodsPending))
	out, _, exit := command(t, cluster, "status", "-n", n.Namespace)
	if exit != 3 || !strings.Contains(out, "pool spot") || !strings.Contains(out, "no room in pool") {
		t.Errorf("status, exit %d:\n%s", exit, out)
	}
	n.poolNode(t, "od", "new", 30)
	eventuallyWithin(t, 3*waitTimeout, "all pods run", func() (bool, error) { return len(n.withNode(t, "web")) == 20, nil })
}
