package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// A pool without room gets no more pods than it has, other pools take those that wait, and all is as before once there is room:
// through scale-downs, probes and a rollout.
func TestSpillAndReturn(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for i := range 2 {
		n.PoolNode(t, "spot", fmt.Sprint(i), 5)
		n.PoolNode(t, "od", fmt.Sprint(i), 30)
	}
	d := n.Shortage(t, "web", 30, nil) // 6 and 24
	must(t, n.Create(t.Context(), d))

	// 1. Spot has room for 10. The pods that wait go elsewhere, those that run stay.
	n.InPools(t, "web", "od=6 spot=10 spot(waits)=14")
	running := n.WithNode(t, "web")
	n.InPools(t, "web", "od=20 spot=10")
	n.stillThere(t, "web", running)
	state, err := n.PoolState(t.Context(), d.UID)
	must(t, err)
	if state == nil || len(state.Pools) != 1 || state.Pools[0].Name != "spot" || state.Pools[0].Max < 10 || state.Pools[0].Max > 11 {
		t.Errorf("the PoolState is %+v", state)
	}
	n.condition(t, "web", versprei.ConditionPoolsAvailable, "False "+string(stowage.ReasonPoolExhausted))

	// ... and every view says so. By now the pool may be tried again.
	out, _, exit := suite.CLI(t, cluster, "status", "-n", n.Namespace)
	if exit != 3 || !regexp.MustCompile(`pool spot (has had no room|is tried again) since .*\n  → add nodes to the pool`).MatchString(out) {
		t.Errorf("status, exit %d:\n%s", exit, out)
	}
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	moved := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		seat, _ := strconv.Atoi(p.Labels[stowage.SeatLabel])
		return p.Labels[stowage.PoolLabel] == "od" && seat > 6
	})
	out, _, _ = suite.CLI(t, cluster, "explain", "pod", pods[moved].Name, "-n", n.Namespace)
	if !strings.Contains(out, "The pod was to run in another pool: pool spot") {
		t.Errorf("explain:\n%s", out)
	}

	// 2. Scale-downs follow the order of the strategy: the pods of the ranks up to 15 stay.
	n.Scale(t, d, 15)
	n.InPools(t, "web", "od=5 spot=10")
	n.Scale(t, d, 30)
	n.InPools(t, "web", "od=20 spot=10")

	// 3. Room returns. A rollout, and the division is that of the strategy again.
	n.PoolNode(t, "spot", "new", 40) // one node: room that is seen counts once
	eventuallyWithin(t, 3*waitTimeout, "the room is seen", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state == nil || state.Pools[0].Max >= 24, err
	})
	n.Revise(t, d, "2")
	n.InPools(t, "web", "od=6 spot=24")
	n.condition(t, "web", versprei.ConditionBalanced, "True "+string(stowage.ReasonBalanced))
}

// The cluster autoscaler's status replaces the wait: a pool whose node groups are in back-off has no room at once. The test
// plays the autoscaler, whose module cannot be built here: it writes the status in the form of version 1.30 and later.
func TestNodeGroupsInBackOff(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "od", "1", 30)
	spot := n.PoolNode(t, "spot", "1", 4)
	must(t, n.Patch(t.Context(), spot, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"spot"}}}`, suite.NodeGroup))))
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cluster-autoscaler-status"}}
	say := func(scaleUp string) {
		status.Data = map[string]string{"status": fmt.Sprintf(`time: %s
autoscalerStatus: Running
nodeGroups:
- name: %s-7c9f
  health: {status: Healthy, cloudProviderTarget: 1, minSize: 0, maxSize: 5}
  scaleUp: {status: %s}
`, time.Now().UTC().Format("2006-01-02 15:04:05.999999999 -0700 MST"), suite.NodeGroup, scaleUp)}
	}
	say("InProgress")
	must(t, n.Create(t.Context(), status))
	t.Cleanup(func() { _ = n.Delete(context.Background(), status) })

	d := n.Shortage(t, "web", 10, func(spec *versprei.PodDistributorSpec) {
		spec.Distribution[1].NodeLabel = map[string]versprei.LabelValue{suite.NodeGroup: "spot"}
		spec.Distribution[1].Spill.After = "1h"
	})
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=2 spot=4 spot(waits)=4")
	running := n.WithNode(t, "web")
	say("Backoff")
	must(t, n.Update(t.Context(), status))
	n.InPools(t, "web", "od=6 spot=4")
	n.stillThere(t, "web", running)
	n.condition(t, "web", versprei.ConditionPoolsAvailable, "False "+string(stowage.ReasonPoolExhausted))
}

// The pods of a Job move if the Job ignores evictions. The Job does not count them as failed.
func TestJobSpills(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "od", "1", 30)
	node := n.PoolNode(t, "spot", "1", 2)
	full := n.Deployment("full", 2, nil)
	suite.OneCPU(&full.Spec.Template.Spec)
	full.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	must(t, n.Create(t.Context(), full))
	n.Ready(t, "full", 2)

	template := podTemplate("batch")
	suite.OneCPU(&template.Spec)
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "batch"},
		Spec: batchv1.JobSpec{
			Parallelism: new(int32(3)), Completions: new(int32(3)), BackoffLimit: new(int32(0)), Template: template,
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:          batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			}}},
		},
	}
	pd := &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "batch"},
		Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)},
			Target:       versprei.Target{APIVersion: "batch/v1", Kind: "Job", Name: "batch"},
		},
	}
	must(t, n.Create(t.Context(), pd))
	must(t, n.Create(t.Context(), job))
	// Pods of Jobs succeed as soon as they run here. One of the three is of pool od; the other two can run only if they move.
	// The Job controller waits for 20 s after two pods that failed, also where it ignores their failure. Probes of spot,
	// which are much more frequent here than usual, may take the last pod again and again.
	eventuallyWithin(t, 4*waitTimeout, "a pod that waited has succeeded", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(job), job)
		return job.Status.Succeeded >= 2, err
	})
	if job.Status.Failed != 0 {
		t.Errorf("the Job has %d failed pods", job.Status.Failed)
	}
}

// stillThere fails if one of some pods is gone.
func (n *tenant) stillThere(t *testing.T, app string, want map[types.UID]bool) {
	t.Helper()
	have := n.WithNode(t, app)
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

// With maxSpill, other pools take only a part of the pods for which a pool has no room; the others wait, and use room in the
// pool when there is some.
func TestSpillOfAPart(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "spot", "0", 10)
	for i := range 2 {
		n.PoolNode(t, "od", fmt.Sprint(i), 30)
	}
	d := n.Shortage(t, "web", 30, func(s *versprei.PodDistributorSpec) {
		s.Distribution[1].Spill.MaxSpill = new(intstr.FromString("50%")) // 12 of 24
	})
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=18 spot=10 spot(waits)=2")
	n.PoolNode(t, "spot", "1", 2)
	n.InPools(t, "web", "od=18 spot=12")
}

// What a PodDistributor says about spill is checked when it is written.
func TestSpillIsChecked(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for text, change := range map[string]func(*versprei.Pool){
		"after is 10s to 1h":                        func(p *versprei.Pool) { p.Spill.After = "5s" },
		"spec.distribution[1].spill.after":          func(p *versprei.Pool) { p.Spill.After = "soon" },
		"maxSpill is a number from 1":               func(p *versprei.Pool) { p.Spill.MaxSpill = new(intstr.FromInt32(0)) },
		"spec.distribution[1].spill.maxSpill":       func(p *versprei.Pool) { p.Spill.MaxSpill = new(intstr.FromString("150%")) },
		"maxSpill needs another pool with a weight": func(p *versprei.Pool) { p.Spill.MaxSpill = new(intstr.FromString("100%")) },
	} {
		d := &versprei.PodDistributor{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, GenerateName: "wrong-"},
			Spec: versprei.PodDistributorSpec{
				Distribution: []versprei.Pool{n.Pool("od", 0), n.Pool("spot", 80)},
				Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			},
		}
		change(&d.Spec.Distribution[1])
		if err := n.Create(t.Context(), d); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want %q, have %v", text, err)
		}
	}
}

// A pod that fits on no node of its pool closes nothing.
func TestMisfitClosesNothing(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "spot", "0", 5)
	n.PoolNode(t, "od", "0", 30)
	d := n.Deployment("web", 5, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	d.Spec.Template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=6") // of 5
	n.Distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) {
		s.Distribution = []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)}
	})
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=1 spot(waits)=4")
	// Pods that came later and that do fit have the same pool exhausted for their own workload.
	other := n.Shortage(t, "other", 10, nil)
	must(t, n.Create(t.Context(), other))
	eventuallyWithin(t, 3*waitTimeout, "the pool is exhausted for pods that fit", func() (bool, error) {
		state, err := n.PoolState(t.Context(), other.UID)
		return state != nil, err
	})
	n.InPools(t, "web", "od=1 spot(waits)=4")
	if state, err := n.PoolState(t.Context(), d.UID); err != nil || state != nil {
		t.Errorf("there is a PoolState: %+v, %v", state, err)
	}
}

// A rollout in an outage: the new revision takes over the places in the pool without room, because the old one's pods there
// go first.
func TestSpillThroughARollout(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "spot", "0", 12)
	n.PoolNode(t, "od", "0", 60)
	d := n.Shortage(t, "web", 30, nil)
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=18 spot=12")
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
	n.PoolNode(t, "spot", "0", 6)
	n.PoolNode(t, "od", "0", 60)
	d := n.Shortage(t, "web", 20, func(s *versprei.PodDistributorSpec) { s.Rebalance = versprei.RebalanceEvict })
	must(t, n.Create(t.Context(), d))
	must(t, n.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: d.Spec.Selector},
	}))
	n.InPools(t, "web", "od=14 spot=6")
	n.PoolNode(t, "spot", "new", 20)
	n.InPools(t, "web", "od=4 spot=16")
	eventually(t, "nothing is known of the shortage any more", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state == nil, err
	})
}

// Only those pods of a StatefulSet move that waited, and they keep their pool when they restart in the outage. Base seats move
// like others, and the pool of last resort is the one with an overflow weight.
func TestStatefulSetSpills(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "spot", "0", 3)
	n.PoolNode(t, "od", "0", 60)
	sts := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(6)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: podTemplate("db"),
		},
	}
	suite.OneCPU(&sts.Spec.Template.Spec)
	n.Distributor(t, "db", "db", func(s *versprei.PodDistributorSpec) {
		s.Target.Kind = "StatefulSet"
		od, spot := n.Pool("od", 0), n.Pool("spot", 1)
		od.Base, od.Overflow = 1, 1
		s.Distribution = []versprei.Pool{od, spot}
	})
	must(t, n.Create(t.Context(), sts))
	n.InPools(t, "db", "od=3 spot=3") // before, 1 and 5
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
	n.PoolNode(t, "spot", "0", 4)
	n.PoolNode(t, "od", "0", 6)
	d := n.Shortage(t, "web", 20, nil)
	must(t, n.Create(t.Context(), d))
	eventuallyWithin(t, 3*waitTimeout, "ten pods run, and ten wait", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) == 20 && len(n.WithNode(t, "web")) == 10, err
	})
	eventuallyWithin(t, 3*waitTimeout, "both pools are known to have no room", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state != nil && len(state.Pools) == 2, err
	})
	n.condition(t, "web", versprei.ConditionBalanced, "False "+string(stowage.ReasonPodsPending))
	out, _, exit := suite.CLI(t, cluster, "status", "-n", n.Namespace)
	if exit != 3 || !strings.Contains(out, "pool spot") || !strings.Contains(out, "no room in pool") {
		t.Errorf("status, exit %d:\n%s", exit, out)
	}
	running := n.WithNode(t, "web")
	n.Scale(t, d, 24)
	eventuallyWithin(t, 3*waitTimeout, "new pods wait in a pool, too", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) == 24 && len(n.WithNode(t, "web")) == 10 &&
			!slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[stowage.PoolLabel] == "" }), err
	})
	tried := func(times int32) {
		eventuallyWithin(t, 4*waitTimeout, fmt.Sprintf("both pools were tried in vain %d times", times), func() (bool, error) {
			state, err := n.PoolState(t.Context(), d.UID)
			return state != nil && len(state.Pools) == 2 && state.Pools[0].Tries >= times && state.Pools[1].Tries >= times, err
		})
	}
	uids := func() map[types.UID]bool {
		pods, err := n.Pods(t.Context(), "web")
		must(t, err)
		out := map[types.UID]bool{}
		for i := range pods {
			out[pods[i].UID] = true
		}
		return out
	}
	tried(2) // the first try of a pool may take a pod that waits in the other one
	before := uids()
	tried(4)
	if diff := cmp.Diff(before, uids()); diff != "" {
		t.Errorf("pods were evicted though no pool takes them (-before +after):\n%s", diff)
	}
	n.stillThere(t, "web", running)
	n.PoolNode(t, "od", "new", 30)
	eventuallyWithin(t, 3*waitTimeout, "all pods run", func() (bool, error) { return len(n.WithNode(t, "web")) == 24, nil })
}
