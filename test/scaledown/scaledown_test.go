// Package scaledown tests that scale-downs keep the spread of pods, with Stowage as it is installed without its webhook.
package scaledown

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/test/suite"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(true, func(ctx context.Context) (int, error) {
		o := suite.Fleet
		o.WithoutWebhook = true
		if err := suite.Cluster.StartStowage(ctx, o); err != nil {
			return 0, err
		}
		started = time.Now()
		return m.Run(), nil
	}))
}

// started is when the installation without the webhook was complete.
var started time.Time

const zone, host = corev1.LabelTopologyZone, corev1.LabelHostname

// area is the nodes of one test.
type area struct {
	*suite.Tenant
	nodes []*corev1.Node
	zones map[string]string // of each node
}

// newArea makes nodes in zones: so many in zone a, b and so on.
func newArea(t *testing.T, perZone ...int) *area {
	t.Helper()
	a := &area{Tenant: suite.NewTenant(t), zones: map[string]string{}}
	for z, count := range perZone {
		for range count {
			a.addNode(t, string(rune('a'+z)))
		}
	}
	return a
}

func (a *area) addNode(t *testing.T, in string) {
	t.Helper()
	node := a.ZoneNodeNamed(t, "area", in, fmt.Sprintf("%s-%d", in, len(a.nodes)), 1000)
	a.nodes = append(a.nodes, node)
	a.zones[node.Name] = in
}

// constraints are ways to ask for a spread over two keys, in their order.
var constraints = map[string]func(spec *corev1.PodSpec, own *metav1.LabelSelector, keys ...string){
	"DoNotSchedule": func(spec *corev1.PodSpec, own *metav1.LabelSelector, keys ...string) {
		constrain(spec, own, corev1.DoNotSchedule, keys...)
	},
	"ScheduleAnyway": func(spec *corev1.PodSpec, own *metav1.LabelSelector, keys ...string) {
		constrain(spec, own, corev1.ScheduleAnyway, keys...)
	},
	"anti-affinity": func(spec *corev1.PodSpec, own *metav1.LabelSelector, keys ...string) {
		anti := &corev1.PodAntiAffinity{}
		for _, key := range keys {
			anti.PreferredDuringSchedulingIgnoredDuringExecution = append(anti.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.WeightedPodAffinityTerm{Weight: 50, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: own}})
		}
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: anti}
	},
	"the policy": func(*corev1.PodSpec, *metav1.LabelSelector, ...string) {},
}

func constrain(spec *corev1.PodSpec, own *metav1.LabelSelector, otherwise corev1.UnsatisfiableConstraintAction, keys ...string) {
	for _, key := range keys {
		skew := int32(1)
		if key == host {
			skew = 30 // zones have different numbers of hosts
		}
		spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: otherwise, LabelSelector: own,
		})
	}
}

// deployment makes a Deployment whose pods run in the area.
func (a *area) deployment(t *testing.T, name string, replicas int, kind string, keys ...string) *appsv1.Deployment {
	t.Helper()
	d := a.Deployment(name, replicas, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	d.Spec.Template.Spec.NodeSelector = map[string]string{suite.PoolLabel: a.Namespace + ".area"}
	constraints[kind](&d.Spec.Template.Spec, d.Spec.Selector, keys...)
	suite.Must(t, a.Create(t.Context(), d))
	return d
}

// policy makes a ScaleDownPolicy for all workloads of the namespace.
func (a *area) policy(t *testing.T, change ...func(*stowage.ScaleDownPolicySpec)) *stowage.ScaleDownPolicy {
	t.Helper()
	p := &stowage.ScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: "all"}, Spec: stowage.ScaleDownPolicySpec{Mode: stowage.PolicyEnforce}}
	for _, c := range change {
		c(&p.Spec)
	}
	suite.Must(t, a.Create(t.Context(), p))
	return p
}

// written waits until an app has so many ready pods, and each zone the layers 1 to n without gaps. It returns the counts of the zones.
func (a *area) written(t *testing.T, app string, replicas int) map[string]int {
	t.Helper()
	var counts map[string]int
	problem := ""
	defer func() {
		if problem != "" {
			t.Log(problem)
		}
	}()
	suite.EventuallyWithin(t, 2*suite.WaitTimeout, "all costs are written", func() (bool, error) {
		pods, err := a.Pods(t.Context(), app)
		if err != nil {
			return false, err
		}
		counts, problem = a.layersOf(pods)
		switch {
		case len(pods) != replicas:
			problem = fmt.Sprintf("%d pods, want %d", len(pods), replicas)
		case slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !podstatus.Ready(&p) }):
			problem = "not all pods are ready"
		}
		return problem == "", nil
	})
	return counts
}

// layersOf returns how many pods each zone has, and what is wrong with their costs.
func (a *area) layersOf(pods []corev1.Pod) (counts map[string]int, problem string) {
	counts, seen := map[string]int{}, map[string]bool{}
	for i := range pods {
		counts[a.zones[pods[i].Spec.NodeName]]++
	}
	for i := range pods {
		p := &pods[i]
		in, cost := a.zones[p.Spec.NodeName], p.Annotations[corev1.PodDeletionCost]
		layer, err := strconv.Atoi(cost)
		place := in + cost
		if err != nil || p.Annotations[stowage.ScaleDownCostAnnotation] != cost || seen[place] || layer >= 0 || -layer > counts[in] {
			return counts, fmt.Sprintf("pod %s of %d in zone %q has cost %q and mark %q", p.Name, counts[in], in, cost, p.Annotations[stowage.ScaleDownCostAnnotation])
		}
		seen[place] = true
	}
	return counts, ""
}

// stepTo scales down, and fails if the zones are more uneven then than they have to be.
func (a *area) stepTo(t *testing.T, d *appsv1.Deployment, replicas int) {
	t.Helper()
	before := a.written(t, d.Name, int(*d.Spec.Replicas))
	a.scale(t, d, replicas)
	after := map[string]int{}
	for z := range before {
		after[z] = 0
	}
	for _, p := range a.Ready(t, d.Name, replicas) {
		after[a.zones[p.Spec.NodeName]]++
	}
	if skew, least := layers.Skew(after), layers.LeastSkew(before, replicas); skew > max(1, least) {
		t.Errorf("a step from %v to %d pods left %v, with a skew of %d; %d is possible", before, replicas, after, skew, least)
	}
	t.Logf("%v -> %v", before, after)
}

func (a *area) scale(t *testing.T, d *appsv1.Deployment, replicas int) {
	t.Helper()
	a.Scale(t, d, replicas)
	suite.Must(t, a.Get(t.Context(), client.ObjectKeyFromObject(d), d))
}

// drain evicts the pods of a node, as `kubectl drain` does, and lets the node take pods again.
func (a *area) drain(t *testing.T, node *corev1.Node, app string) (evicted int) {
	t.Helper()
	cordon := func(on bool) {
		suite.Must(t, a.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on))))
	}
	cordon(true)
	pods, err := a.Pods(t.Context(), app)
	suite.Must(t, err)
	for i := range pods {
		if pods[i].Spec.NodeName == node.Name {
			suite.Must(t, a.SubResource("eviction").Create(t.Context(), &pods[i], &policyv1.Eviction{}))
			evicted++
		}
	}
	cordon(false)
	return evicted
}

// made counts the pods of all walks, and those that drains evicted.
var made struct {
	sync.Mutex
	pods, drained int
}

// Random zones, scale-ups, scale-downs, a drain and a new node, with each kind of constraints in both orders: the zones are even at each rest, with about
// one write a pod.
func TestWalks(t *testing.T) {
	before := writes(t)
	t.Run("all", func(t *testing.T) {
		seed := uint64(0)
		for _, kind := range []string{"DoNotSchedule", "ScheduleAnyway", "anti-affinity", "the policy"} {
			for _, keys := range [][]string{{zone, host}, {host, zone}, {zone}} {
				seed++
				of := seed
				t.Run(fmt.Sprintf("%s over %d keys, %s first", kind, len(keys), keys[0]), func(t *testing.T) {
					t.Parallel()
					walk(t, rand.New(rand.NewPCG(of, 79)), kind, keys)
				})
			}
		}
	})
	wrote := writes(t) - before
	made.Lock()
	defer made.Unlock()
	t.Logf("%.0f writes for %d pods; %d were drained", wrote, made.pods, made.drained)
	if most := 1.05*float64(made.pods) + float64(made.drained); wrote > most {
		t.Errorf("%.0f writes for %d pods, %d of them drained; at most %.0f are allowed", wrote, made.pods, made.drained, most)
	}
	noEvictions(t)
}

func walk(t *testing.T, r *rand.Rand, kind string, keys []string) {
	perZone := []int{1 + r.IntN(4), 1 + r.IntN(4), 1 + r.IntN(4)}
	a := newArea(t, perZone[:2+r.IntN(2)]...)
	a.policy(t, func(s *stowage.ScaleDownPolicySpec) {
		if kind == "the policy" {
			s.TopologyKeys = keys
		}
	})
	replicas := 20 + r.IntN(40)
	d := a.deployment(t, "web", replicas, kind, keys...)
	seen := map[types.UID]bool{}
	drained := 0
	note := func(replicas int) {
		a.written(t, "web", replicas)
		pods, err := a.Pods(t.Context(), "web")
		suite.Must(t, err)
		for _, p := range pods {
			seen[p.UID] = true
		}
	}
	for step := range 8 {
		note(int(*d.Spec.Replicas))
		switch {
		case step == 3:
			drained += a.drain(t, a.nodes[r.IntN(len(a.nodes))], "web")
		case step == 5:
			a.addNode(t, []string{"a", "b"}[r.IntN(2)])
		case step%2 == 0:
			a.stepTo(t, d, 1+r.IntN(int(*d.Spec.Replicas)))
		default:
			a.scale(t, d, int(*d.Spec.Replicas)+r.IntN(40))
		}
	}
	note(int(*d.Spec.Replicas))
	a.stepTo(t, d, int(*d.Spec.Replicas)/3)
	made.Lock()
	defer made.Unlock()
	made.pods += len(seen)
	made.drained += drained
}

// writes returns how many costs the leader has written.
func writes(t *testing.T) (sum float64) {
	t.Helper()
	for _, outcome := range []string{"written", "moved"} {
		sum += suite.Metric(t, suite.Cluster.Controllers()[0], "stowage_scaledown_writes_total", `outcome="`+outcome+`"`)
	}
	return sum
}

// noEvictions fails if Stowage has evicted a pod, or called for anything that it has no right to.
func noEvictions(t *testing.T) {
	t.Helper()
	events, err := suite.Cluster.Audit()
	suite.Must(t, err)
	for _, e := range events {
		if e.Account() != "stowage-controllers" || e.RequestReceived.Before(started) || !strings.HasPrefix(e.UserAgent, "stowage/") {
			continue
		}
		if e.ObjectRef.Resource == "pods" && !slices.Contains([]string{"list", "watch", "patch"}, e.Verb) || strings.Contains(e.Annotations["authorization.k8s.io/decision"], "forbid") {
			t.Errorf("%s of %s/%s %s/%s: %s", e.Verb, e.ObjectRef.Resource, e.ObjectRef.Subresource, e.ObjectRef.Namespace, e.ObjectRef.Name, e.ResponseStatus.Message)
		}
	}
}

// The walk of kubernetes/kubernetes#4301: without a policy the zones are as uneven as in that issue, and with one they are even.
func TestThreeZones(t *testing.T) {
	a := newArea(t, 2, 3, 5)
	a.policy(t)
	d := a.deployment(t, "web", 300, "DoNotSchedule", zone)
	for _, replicas := range []int{200, 60, 12} {
		a.stepTo(t, d, replicas)
	}
	a.scale(t, d, 40)
	a.stepTo(t, d, 7)
}
