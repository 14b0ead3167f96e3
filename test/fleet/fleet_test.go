// Package fleet tests policies that select hundreds of workloads, on a real control plane. It takes minutes; test/e2e has the short
// forms.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(false, func(context.Context) (int, error) { return m.Run(), nil }))
}

// spec divides all pods of tier 2 over the nodes of two pools.
func spec(n *suite.Tenant, base, onDemand, spot int32) stowage.SpreadPolicySpec {
	pool := func(name string) map[string]versprei.LabelValue {
		return map[string]versprei.LabelValue{"pool": versprei.LabelValue(n.Namespace + "-" + name)}
	}
	return stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Enforcement: versprei.EnforcementRequired,
		Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"tier": "2"}},
		Kinds:    []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}},
		Pools: []stowage.PolicyPool{
			{Name: "on-demand", NodeSelector: pool("on-demand"), Base: base, Weight: onDemand},
			{Name: "spot", NodeSelector: pool("spot"), Weight: spot},
		},
	}
}

// tier is the labels by which the policies select.
var tier = map[string]string{"tier": "2"}

// nodes makes nodes for the pools.
func nodes(t *testing.T, n *suite.Tenant, each int, names ...string) {
	t.Helper()
	for _, name := range names {
		for i := range each {
			room := testkit.ResourceList("cpu=1000,memory=1Ti,pods=6000")
			node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: room, Capacity: room}, ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%s-%d", n.Namespace, name, i), Labels: map[string]string{"pool": n.Namespace + "-" + name, "fleet": n.Namespace},
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			}}
			suite.Must(t, n.Create(t.Context(), node))
			t.Cleanup(func() { _ = n.Delete(context.Background(), node) })
		}
	}
}

// counted is the active pods of each app in each pool, by the nodes that they run on, and whether all are ready with a seat there.
type counted struct {
	pools [2]int64
	wrong string
}

func count(t *testing.T, n *suite.Tenant) map[string]*counted {
	t.Helper()
	var pods corev1.PodList
	suite.Must(t, n.List(t.Context(), &pods, client.InNamespace(n.Namespace)))
	out := map[string]*counted{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !podstatus.Active(p) {
			continue
		}
		app := p.Labels["app"]
		c := out[app]
		if c == nil {
			c = &counted{}
			out[app] = c
		}
		at := map[string]int{"on-demand": 0, "spot": 1}
		pool := strings.TrimPrefix(p.Spec.NodeName, n.Namespace+"-")
		pool = pool[:max(0, strings.LastIndexByte(pool, '-'))]
		switch i, known := at[pool]; {
		case !podstatus.Ready(p):
			c.wrong = "pod " + p.Name + " is not ready"
		case !known:
			c.wrong = "pod " + p.Name + " runs on node " + p.Spec.NodeName
		case p.Labels[stowage.PoolLabel] != pool:
			c.wrong = fmt.Sprintf("pod %s on node %s has a seat in pool %q", p.Name, p.Spec.NodeName, p.Labels[stowage.PoolLabel])
		default:
			c.pools[i]++
		}
	}
	return out
}

// exact waits until each app has what the strategy gives it.
func exact(t *testing.T, n *suite.Tenant, what string, sizes map[string]int, s *sequence.Strategy) {
	t.Helper()
	var wrong []string
	defer func() {
		if t.Failed() {
			t.Logf("%s: %d apps are not exact, such as %v", what, len(wrong), wrong[:min(5, len(wrong))])
		}
	}()
	begin := time.Now()
	suite.EventuallyEvery(t, time.Second, 8*time.Minute, what+": every workload is exact", func() (bool, error) {
		have := count(t, n)
		wrong = nil
		for app, size := range sizes {
			want := [2]int64{s.Target(0, int64(size)), s.Target(1, int64(size))}
			c := have[app]
			if c == nil {
				c = &counted{}
			}
			if c.wrong != "" || c.pools != want {
				wrong = append(wrong, fmt.Sprintf("%s of %d has %v, not %v: %s", app, size, c.pools, want, c.wrong))
			}
		}
		return len(wrong) == 0, nil
	})
	t.Logf("%s: %d workloads are exact after %.0f s", what, len(sizes), time.Since(begin).Seconds())
}

// 200 Deployments, 20 StatefulSets and 5 ReplicaSets that another controller owns, of random sizes, are exact at each quiet point: after
// bursts, scale-downs and rollouts. There are three replicas, and one of them is killed.
func TestFleet(t *testing.T) {
	o := suite.Fleet
	o.Replicas = 3
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
	suite.RestoreFleet(t)
	n := suite.NewTenant(t)
	nodes(t, n, 2, "on-demand", "spot")
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "fleet"}, Spec: spec(n, 2, 20, 80)}
	suite.Must(t, n.Create(t.Context(), p))
	s := policy.CompilePolicy(policy.FromSpreadPolicy(p)).Strategy
	n.Follows(t, tier, p.UID, p.Generation)

	sizes, deployments := map[string]int{}, map[string]*appsv1.Deployment{}
	size := func(app string) int {
		sizes[app] = 1 + rand.IntN(12)
		return sizes[app]
	}
	template := func(app string) corev1.PodTemplateSpec {
		t := suite.PodTemplate(app)
		t.Labels["tier"] = "2"
		return t
	}
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	for i := range 200 {
		app := fmt.Sprint("web-", i)
		d := n.Deployment(app, size(app), nil)
		d.Spec.Template = template(app)
		deployments[app] = d
		suite.Must(t, n.Create(t.Context(), d))
	}
	for i := range 20 {
		app := fmt.Sprint("db-", i)
		suite.Must(t, n.Create(t.Context(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: app},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(size(app))), Selector: selector(app), Template: template(app), PodManagementPolicy: appsv1.ParallelPodManagement,
			},
		}))
	}
	for i := range 5 {
		app := fmt.Sprint("rollout-", i)
		suite.Must(t, n.Create(t.Context(), &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: app, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: app, UID: types.UID("rollout-" + strconv.Itoa(i)), Controller: new(true),
			}}},
			Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(size(app))), Selector: selector(app), Template: template(app)},
		}))
	}
	exact(t, n, "a burst", sizes, s)

	// Scale-ups and scale-downs at once.
	for app, d := range deployments {
		n.Scale(t, d, size(app))
	}
	exact(t, n, "scale-ups and scale-downs", sizes, s)

	// Rollouts, in which a replica is killed.
	revised := 0
	for _, d := range deployments {
		n.Revise(t, d, "2")
		if revised++; revised == 50 {
			suite.Cluster.Replicas()[0].Kill()
		}
	}
	suite.EventuallyEvery(t, time.Second, 8*time.Minute, "the rollouts are complete", func() (bool, error) {
		var list appsv1.DeploymentList
		err := n.List(t.Context(), &list, client.InNamespace(n.Namespace))
		return !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool {
			st := d.Status
			return st.ObservedGeneration != d.Generation || st.UpdatedReplicas != *d.Spec.Replicas || st.Replicas != *d.Spec.Replicas || st.ReadyReplicas != *d.Spec.Replicas
		}), err
	})
	exact(t, n, "rollouts, with a replica that is killed", sizes, s)
	suite.EventuallyWithin(t, time.Minute, "the status says so", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.Balanced == "225/225", err
	})
}

// A policy comes to 300 workloads with 5,000 pods that run. Nothing is evicted, pods in the pools get a seat at 20 in a second, no
// workload starves, and a rollout meanwhile is exact.
func TestAdoption(t *testing.T) {
	n := suite.NewTenant(t)
	nodes(t, n, 1, "on-demand", "spot", "other")
	const workloads = 300
	sizes, deployments := map[string]int{}, map[string]*appsv1.Deployment{}
	total := 0
	for i := range workloads {
		app := fmt.Sprint("web-", i)
		sizes[app] = 10 + i%15
		total += sizes[app]
		d := n.Deployment(app, sizes[app], nil)
		d.Spec.Template.Labels["tier"] = "2"
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fleet", Operator: corev1.NodeSelectorOpIn, Values: []string{n.Namespace}}}}},
		}}}
		deployments[app] = d
		suite.Must(t, n.Create(t.Context(), d))
	}
	list := func() []corev1.Pod {
		var pods corev1.PodList
		suite.Must(t, n.List(t.Context(), &pods, client.InNamespace(n.Namespace)))
		return pods.Items
	}
	before := map[types.UID]bool{}
	suite.EventuallyEvery(t, 2*time.Second, 8*time.Minute, "all pods run", func() (bool, error) {
		clear(before)
		for _, p := range list() {
			if podstatus.Ready(&p) {
				before[p.UID] = true
			}
		}
		return len(before) == total, nil
	})
	inPool := 0
	for _, p := range list() {
		if !strings.HasPrefix(p.Spec.NodeName, n.Namespace+"-other") {
			inPool++
		}
	}
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "late"}, Spec: spec(n, 2, 20, 80)}
	begin := time.Now()
	suite.Must(t, n.Create(t.Context(), p))
	s := policy.CompilePolicy(policy.FromSpreadPolicy(p)).Strategy
	n.Follows(t, tier, p.UID, p.Generation)
	n.Revise(t, deployments["web-7"], "2")
	n.RolledOut(t, deployments["web-7"])
	exact(t, n, "a rollout meanwhile", map[string]int{"web-7": sizes["web-7"]}, s)

	var written []int64 // when each pod got its seat, in seconds since 1970
	suite.EventuallyEvery(t, 5*time.Second, 10*time.Minute, "the pods that run in a pool have a seat", func() (bool, error) {
		written = written[:0]
		waiting := 0
		for _, p := range list() {
			switch {
			case p.Labels["app"] == "web-7": // it was rolled out
			case !before[p.UID]:
				t.Fatalf("pod %s was not there before the policy", p.Name)
			case p.Labels[stowage.SeatLabel] != "":
				written = append(written, seatedAt(t, &p))
			case !strings.HasPrefix(p.Spec.NodeName, n.Namespace+"-other"):
				waiting++
			}
		}
		return waiting == 0, nil
	})
	const window = 10 // seconds
	most := mostWithin(written, window)
	t.Logf("%d of %d pods of %d workloads ran in a pool; they had a seat after %.0f s, at most %d in %d s, with no eviction",
		inPool, total, workloads, time.Since(begin).Seconds(), most, window)
	if most > 20*(window+1)+80 { // 20 in a second, the turns at both edges, and what was left of four seconds before
		t.Errorf("%d pods were adopted in %d s", most, window)
	}
	status := time.Now()
	out, err := exec.CommandContext(t.Context(), suite.Binary, "status", "-n", n.Namespace, "--kubeconfig", suite.Cluster.Kubeconfig).CombinedOutput()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}
	t.Logf("status of %d workloads takes %.1f s and prints %d lines. The last ones are\n%s", workloads, time.Since(status).Seconds(), strings.Count(string(out), "\n"), out[max(0, len(out)-600):])
}

// seatedAt returns when Stowage wrote into a pod, in seconds since 1970.
func seatedAt(t *testing.T, p *corev1.Pod) int64 {
	t.Helper()
	for _, f := range p.ManagedFields {
		if strings.HasPrefix(f.Manager, "stowage") && f.Time != nil {
			return f.Time.Unix()
		}
	}
	t.Fatalf("nothing of pod %s is managed by Stowage: %v", p.Name, p.ManagedFields)
	return 0
}

// mostWithin returns how many of some times are within so many seconds, at most.
func mostWithin(times []int64, seconds int64) (most int) {
	slices.Sort(times)
	first := 0
	for i, at := range times {
		for at-times[first] >= seconds {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// What Audit says that a policy would do is what is there after Enforce and a restart of all workloads, in ten random clusters.
func TestForecast(t *testing.T) {
	for round := range 10 {
		n := suite.NewTenant(t)
		nodes(t, n, 1, "on-demand", "spot", "other")
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "forecast"}, Spec: spec(n, rand.Int32N(3), 1+rand.Int32N(99), 1+rand.Int32N(99))}
		p.Spec.Mode = stowage.PolicyAudit
		sizes, deployments, total := map[string]int{}, map[string]*appsv1.Deployment{}, 0
		for i := range 4 + rand.IntN(8) {
			app := fmt.Sprint("web-", i)
			sizes[app] = 1 + rand.IntN(15)
			total += sizes[app]
			d := n.Deployment(app, sizes[app], nil)
			d.Spec.Template.Labels["tier"] = "2"
			deployments[app] = d
			suite.Must(t, n.Create(t.Context(), d))
		}
		suite.Must(t, n.Create(t.Context(), p))
		var said stowage.SpreadPolicyStatus
		suite.EventuallyWithin(t, 2*time.Minute, "Audit has counted all", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
			said = p.Status
			return said.Audit != nil && int(said.Audit.Workloads) == len(sizes) && int(said.Audit.Pods) == total && said.Audit.Waiting == 0, err
		})
		sum := said.Audit.InPlace + said.Audit.InOtherPool + said.Audit.Outside
		if int(sum) != total {
			t.Errorf("round %d: %d pods in place, in another pool or outside, of %d", round, sum, total)
		}
		suite.Must(t, n.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"mode":"Enforce"}}`))))
		n.Follows(t, tier, p.UID, p.Generation)
		for _, d := range deployments {
			n.Revise(t, d, "2")
		}
		s := policy.CompilePolicy(policy.FromSpreadPolicy(p)).Strategy
		exact(t, n, fmt.Sprintf("round %d", round), sizes, s)
		var have [2]int64
		for _, c := range count(t, n) {
			have[0], have[1] = have[0]+c.pools[0], have[1]+c.pools[1]
		}
		for i, pool := range said.Pools {
			if int64(pool.Desired) != have[i] {
				t.Errorf("round %d: Audit said %d pods of pool %s, and there are %d", round, pool.Desired, pool.Name, have[i])
			}
		}
	}
}

// In the middle of a burst a policy is edited, another one comes before it, the first one goes to Audit and back, and the second one is
// deleted. No pod mixes two policies, or two versions of one. After the last change the next rollout is exact.
func TestChangesInABurst(t *testing.T) {
	n := suite.NewTenant(t)
	nodes(t, n, 1, "on-demand", "spot", "third")
	type version struct {
		uid        types.UID
		generation int64
	}
	versions := map[version]map[string]map[string]versprei.LabelValue{} // the node selector of each pool
	note := func(p *stowage.SpreadPolicy) {
		pools := map[string]map[string]versprei.LabelValue{}
		for _, pool := range p.Spec.Pools {
			pools[pool.Name] = pool.NodeSelector
		}
		versions[version{p.UID, p.Generation}] = pools
	}
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "first"}, Spec: spec(n, 2, 20, 80)}
	suite.Must(t, n.Create(t.Context(), p))
	note(p)
	other := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "second"}, Spec: spec(n, 0, 50, 50)}
	other.Spec.Priority = 5
	other.Spec.Pools[1].NodeSelector = map[string]versprei.LabelValue{"pool": versprei.LabelValue(n.Namespace + "-third")}
	n.Follows(t, tier, p.UID, p.Generation)

	sizes, deployments := map[string]int{}, map[string]*appsv1.Deployment{}
	for i := range 6 {
		app := fmt.Sprint("web-", i)
		sizes[app] = 80
		d := n.Deployment(app, 80, nil)
		d.Spec.Template.Labels["tier"] = "2"
		deployments[app] = d
		suite.Must(t, n.Create(t.Context(), d))
	}
	patch := func(text string) {
		t.Helper()
		suite.Must(t, n.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(text))))
		note(p)
	}
	seen := map[types.UID]bool{}
	more := func() { // a part of the burst, between two changes
		t.Helper()
		before := len(seen)
		suite.Eventually(t, "more pods are created", func() (bool, error) {
			var pods corev1.PodList
			err := n.List(t.Context(), &pods, client.InNamespace(n.Namespace))
			for i := range pods.Items {
				seen[pods.Items[i].UID] = true
			}
			return len(seen) >= before+10, err
		})
	}
	for round := range 4 {
		for app, d := range deployments { // each round is another burst
			n.Revise(t, d, fmt.Sprint("burst-", round, "-", app))
		}
		more()
		pools := p.DeepCopy().Spec.Pools
		pools[0].Base = int32(round) // and the pool spot goes to other nodes and back
		pools[1].NodeSelector = map[string]versprei.LabelValue{"pool": versprei.LabelValue(n.Namespace + map[int]string{0: "-third", 1: "-spot"}[round%2])}
		text, err := json.Marshal(pools)
		suite.Must(t, err)
		patch(fmt.Sprintf(`{"spec":{"pools":%s}}`, text)) // an update would meet those of the status
		more()
		created := other.DeepCopy()
		suite.Must(t, n.Create(t.Context(), created))
		note(created)
		more()
		patch(`{"spec":{"mode":"Audit"}}`)
		more()
		suite.Must(t, n.Delete(t.Context(), created))
		more()
		patch(`{"spec":{"mode":"Enforce"}}`)
	}

	// Each pod has its seat from one version of one policy.
	check := func() (seated int) {
		var pods corev1.PodList
		suite.Must(t, n.List(t.Context(), &pods, client.InNamespace(n.Namespace)))
		for i := range pods.Items {
			pod := &pods.Items[i]
			claim := pod.Annotations[stowage.ClaimAnnotation]
			if pod.Labels[stowage.SeatLabel] == "" {
				if _, chooses := pod.Spec.NodeSelector["pool"]; chooses {
					t.Errorf("pod %s has no seat and selects %v", pod.Name, pod.Spec.NodeSelector)
				}
				continue
			}
			seated++
			if strings.HasPrefix(claim, "a") {
				continue // adopted where it runs; its selector is of before
			}
			source := ledger.UnverifiedSource(claim)
			pools, known := versions[version{source.UID, source.Generation}]
			pool, has := pools[pod.Labels[stowage.PoolLabel]]
			if !known || !has || pod.Spec.NodeSelector["pool"] != string(pool["pool"]) {
				t.Errorf("pod %s has the claim %s, a seat in pool %s and selects %v; that version has %v", pod.Name, claim, pod.Labels[stowage.PoolLabel], pod.Spec.NodeSelector, pools)
			}
		}
		return seated
	}
	t.Logf("%d pods have a seat, of %d versions", check(), len(versions))
	n.Follows(t, tier, p.UID, p.Generation)
	for _, d := range deployments {
		n.Revise(t, d, "last")
	}
	s := policy.CompilePolicy(policy.FromSpreadPolicy(p)).Strategy
	for i, pool := range p.Spec.Pools { // the test counts by the names of nodes
		if want := n.Namespace + "-" + pool.Name; string(pool.NodeSelector["pool"]) != want {
			t.Fatalf("pool %d ends on nodes %s", i, pool.NodeSelector["pool"])
		}
	}
	exact(t, n, "the first rollout after the changes", sizes, s)
	check()
}
