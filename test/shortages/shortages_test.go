// Package shortages tests what becomes of many pods while pools have no room, on a real control plane. It takes minutes and
// is part of `make test-long`; test/e2e has the short forms.
package shortages

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/suite"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(true, func(context.Context) (int, error) { return m.Run(), nil }))
}

// 500 pods, 80 of a hundred in spot, which has room for 200.
func TestFiveHundredPods(t *testing.T) {
	n := suite.NewTenant(t)
	n.PoolNode(t, "spot", "0", 200)
	n.PoolNode(t, "od", "0", 1000)
	d := n.Shortage(t, "web", 500, nil)
	suite.Must(t, n.Create(t.Context(), d))
	suite.EventuallyWithin(t, 3*time.Minute, "spot is full", func() (bool, error) {
		have, err := n.PoolCounts(t.Context(), "web")
		return slices.Contains(strings.Fields(have), "spot=200"), err
	})
	running := n.WithNode(t, "web") // and no more of them, if the machine is slow, because the first that waited may have moved
	suite.EventuallyWithin(t, time.Minute, "the pool is exhausted", func() (bool, error) {
		state, err := n.PoolState(t.Context(), d.UID)
		return state != nil, err
	})
	tripped := time.Now()
	waiting := n.Waiting(t, "web", "spot")
	n.InPools(t, "web", "od=300 spot=200")
	moved := n.Seen("web") - 500
	t.Logf("%d pods moved within %.0f s of the trip, at 5 a second", moved, time.Since(tripped).Seconds())
	if took := time.Since(tripped); took > time.Minute {
		t.Errorf("all pods had a node after %s", took)
	}
	// Pods that are created after the trip go to the other pool at once.
	if moved < waiting || moved > 200 {
		t.Errorf("%d pods were evicted; %d waited at the trip, and 200 had no room", moved, waiting)
	}
	have := n.WithNode(t, "web")
	for uid := range running {
		if !have[uid] {
			t.Error("a pod with a node was evicted")
		}
	}
}

// A rollout of 100 pods during an outage, with 40 of them in the pool without room.
func TestRollouts(t *testing.T) {
	for name, limits := range map[string]appsv1.RollingUpdateDeployment{
		"25% surge, 25% unavailable":  {MaxSurge: new(intstr.FromString("25%")), MaxUnavailable: new(intstr.FromString("25%"))},
		"25% surge, none unavailable": {MaxSurge: new(intstr.FromString("25%")), MaxUnavailable: new(intstr.FromInt32(0))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := suite.NewTenant(t)
			n.PoolNode(t, "spot", "0", 40)
			n.PoolNode(t, "od", "0", 1000)
			d := n.Shortage(t, "web", 100, nil)
			d.Spec.Strategy.RollingUpdate = &limits
			suite.Must(t, n.Create(t.Context(), d))
			n.InPools(t, "web", "od=60 spot=40")
			n.Revise(t, d, "2")
			var spot int
			suite.EventuallyWithin(t, 3*time.Minute, "the rollout is complete", func() (bool, error) {
				pods, err := n.Pods(t.Context(), "web")
				done := len(pods) == 100
				spot = 0
				for i := range pods {
					done = done && pods[i].Annotations["revision"] == "2" && podstatus.Ready(&pods[i])
					if pods[i].Labels[stowage.PoolLabel] == "spot" {
						spot++
					}
				}
				return done, err
			})
			t.Logf("%d pods of the new revision are in spot when the rollout is complete", spot)
			n.InPools(t, "web", "od=60 spot=40")
		})
	}
}

// Scale-downs in an outage are exact at every number of pods.
func TestScaleDowns(t *testing.T) {
	n := suite.NewTenant(t)
	n.PoolNode(t, "spot", "0", 12)
	n.PoolNode(t, "od", "0", 100)
	d := n.Shortage(t, "web", 40, nil)
	suite.Must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=28 spot=12")
	// The pods of spot that found a node have any of its 32 seats. Repair numbers them anew.
	suite.EventuallyWithin(t, time.Minute, "the pods of spot have the seats 1 to 12", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			seat, err := strconv.Atoi(p.Labels[stowage.SeatLabel])
			return p.Labels[stowage.PoolLabel] == "spot" && (err != nil || seat > 12)
		}), err
	})
	var pd versprei.PodDistributor
	pd.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	pd.Spec.Distribution = []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)}
	s := policy.Compile(&pd).Strategy
	for m := 39; m > 0; m-- {
		state, err := n.PoolState(t.Context(), d.UID)
		suite.Must(t, err)
		short := s
		if state != nil && state.Pools[0].Phase != stowage.PoolAvailable {
			short = s.Without([]sequence.Gap{{}, {From: 12, Count: sequence.All}})
		}
		n.Scale(t, d, m)
		var want []string
		for i, name := range []string{"od", "spot"} {
			if count := short.Target(i, int64(m)); count > 0 {
				want = append(want, fmt.Sprintf("%s=%d", name, count))
			}
		}
		n.InPools(t, "web", strings.Join(want, " "))
	}
}

// Of a StatefulSet of 30 pods, only those that waited have another pool, and each pod keeps its pool over ten restarts.
func TestStatefulSet(t *testing.T) {
	n := suite.NewTenant(t)
	n.PoolNode(t, "spot", "0", 10)
	n.PoolNode(t, "od", "0", 60)
	d := n.Shortage(t, "db", 30, func(s *versprei.PodDistributorSpec) { s.Target.Kind = "StatefulSet" }) // 6 and 24
	sts := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template, PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
	suite.Must(t, n.Create(t.Context(), sts))
	n.InPools(t, "db", "od=6 spot=10 spot(waits)=14")
	pools := func() (pools map[string]string, waiting map[string]bool) {
		pods, err := n.Pods(t.Context(), "db")
		suite.Must(t, err)
		pools, waiting = map[string]string{}, map[string]bool{}
		for i := range pods {
			pools[pods[i].Name] = pods[i].Labels[stowage.PoolLabel]
			waiting[pods[i].Name] = pods[i].Spec.NodeName == ""
		}
		return pools, waiting
	}
	own, waited := pools()
	n.InPools(t, "db", "od=20 spot=10")
	before, _ := pools()
	for name, pool := range before {
		if pool != own[name] && !waited[name] {
			t.Errorf("pod %s had a node in pool %s and has pool %s now", name, own[name], pool)
		}
	}
	for ordinal := 0; ordinal < 30; ordinal += 3 {
		name := fmt.Sprintf("db-%d", ordinal)
		suite.Must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}))
		n.Ready(t, "db", 30)
		if after, _ := pools(); after[name] != before[name] {
			t.Errorf("pod %s had pool %s before its restart, and has pool %s now", name, before[name], after[name])
		}
		n.InPools(t, "db", "od=20 spot=10")
	}
}

// Any replica is killed while pods move, the leader too. In the end it is as if it had lived.
func TestKilledReplicas(t *testing.T) {
	for round := range 3 {
		n := suite.NewTenant(t)
		n.PoolNode(t, "spot", "0", 20)
		n.PoolNode(t, "od", "0", 200)
		d := n.Shortage(t, "web", 100, nil)
		suite.Must(t, n.Create(t.Context(), d))
		n.InPools(t, "web", "od=20 spot=20 spot(waits)=60")
		suite.EventuallyWithin(t, time.Minute, "pods begin to move", func() (bool, error) {
			_, err := n.PoolCounts(t.Context(), "web")
			return n.Seen("web") > 105, err
		})
		suite.RestoreFleet(t)
		victim := suite.Cluster.Processes()[round%len(suite.Cluster.Processes())]
		victim.Kill()
		suite.Must(t, suite.Cluster.Restart(t.Context(), victim))
		n.InPools(t, "web", "od=80 spot=20")
		t.Logf("round %d: %d pods were evicted for 60 that had no room", round, n.Seen("web")-100)
	}
}

// ofProcesses are the resources that a process reads or writes however many pods there are.
var ofProcesses = []string{"leases", "mutatingwebhookconfigurations", "secrets", "selfsubjectaccessreviews"}

// Ten workloads rest in an outage. The waits between tries are a tenth of the usual ones, so three minutes stand for half an
// hour.
func TestRestInAnOutage(t *testing.T) {
	const workloads, pods, scale = 10, 50, 10
	suite.RestoreFleet(t)
	o := suite.Fleet
	o.Args = append(slices.Clip(o.Args), "--probe-interval=6s", "--probe-max-interval=3m", "--repair-resync=30s", "--repair-quiet=2s")
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
	n := suite.NewTenant(t)
	n.PoolNode(t, "spot", "0", workloads*pods/5)
	n.PoolNode(t, "od", "0", 1000)
	names := make([]string, workloads)
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", i)
		suite.Must(t, n.Create(t.Context(), n.Shortage(t, names[i], pods, nil)))
	}
	rest := func() (settled bool, err error) {
		for _, name := range names {
			have, err := n.PoolCounts(t.Context(), name)
			if err != nil || len(n.WithNode(t, name)) < pods || strings.Contains(have, "waits") {
				return false, err
			}
		}
		return true, nil
	}
	suite.EventuallyWithin(t, 3*time.Minute, "all pods have a node", rest)
	// None of these is evicted: the pools' phases change, but nothing waits.
	resting := map[string]map[types.UID]bool{}
	for _, name := range names {
		resting[name] = n.WithNode(t, name)
	}

	begin := time.Now()
	before := requests(t)
	probes := map[string]bool{}
	for time.Since(begin) < 30*time.Minute/scale { // what is measured is time that passes
		var states stowage.PoolStateList
		suite.Must(t, n.List(t.Context(), &states))
		for i := range states.Items {
			for _, p := range states.Items[i].Pools {
				if p.Phase == stowage.PoolProbing {
					probes[fmt.Sprint(states.Items[i].Name, p.Since.Time)] = true
				}
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	after, asked := requests(t), 0
	for what, n := range after {
		if n -= before[what]; n > 0 {
			asked += n
			t.Logf("%5d  %s", n, what)
		}
	}
	minutes := time.Since(begin).Minutes()
	spot := 0
	for _, name := range names {
		if now := n.WithNode(t, name); !maps.Equal(now, resting[name]) {
			t.Errorf("%s rested with the pods %v, and has %v now", name, resting[name], now)
		}
		pods, err := n.Pods(t.Context(), name)
		suite.Must(t, err)
		for i := range pods {
			if pods[i].Labels[stowage.PoolLabel] == "spot" {
				spot++
			}
		}
	}
	if want := workloads * pods / 5; spot != want {
		t.Errorf("%d pods are in spot, want %d: all that it has room for", spot, want)
	}
	t.Logf("%d workloads of %d pods, %.1f minutes: %d probes, %d requests to the API server, %.3f a pod and minute",
		workloads, pods, minutes, len(probes), asked, float64(asked)/(workloads*pods*minutes))
	if perPod := float64(asked) / (workloads * pods * minutes); perPod > 0.06 {
		t.Errorf("%.3f requests a pod and minute", perPod)
	}
	if perWorkload := float64(len(probes)) / workloads; perWorkload > 6 {
		t.Errorf("%.1f probes for a workload", perWorkload)
	}
}

// requests counts the requests of Stowage, without watches. What a process asks each minute however many pods there are, such as for its rights, is left
// out: a minute of the test stands for ten.
func requests(t *testing.T) map[string]int {
	t.Helper()
	count := map[string]int{}
	events, err := suite.Cluster.Audit()
	suite.Must(t, err)
	for i := range events {
		if e := &events[i]; strings.HasPrefix(e.UserAgent, "stowage/") && e.Verb != "watch" && !slices.Contains(ofProcesses, e.ObjectRef.Resource) {
			count[e.Verb+" "+e.ObjectRef.Resource+" "+e.ObjectRef.Subresource]++
		}
	}
	return count
}
