package compare

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
)

// zoned is a Deployment of a contender's, and the nodes that it runs on.
type zoned struct {
	*suite.Tenant
	nodes []*corev1.Node
	zones map[string]string // of each node
	seen  map[types.UID]bool
	// wrote counts the writes of pods by rules that the test follows itself.
	wrote int
}

// newZoned makes nodes with room for all pods: so many in zone a, b and c.
func newZoned(t *testing.T, perZone ...int) *zoned {
	t.Helper()
	z := &zoned{Tenant: suite.NewTenant(t), zones: map[string]string{}, seen: map[types.UID]bool{}}
	for i, count := range perZone {
		for range count {
			z.addNode(t, suite.Zones[i])
		}
	}
	return z
}

func (z *zoned) addNode(t *testing.T, zone string) {
	t.Helper()
	node := z.ZoneNodeNamed(t, "area", zone, fmt.Sprintf("%s-%d", zone, len(z.nodes)), 1000)
	z.nodes = append(z.nodes, node)
	z.zones[node.Name] = zone
}

// in returns the nodes of a zone.
func (z *zoned) in(zone string) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(z.nodes), func(n *corev1.Node) bool { return z.zones[n.Name] != zone })
}

// deployment makes a Deployment without pods that a contender keeps spread.
func (z *zoned) deployment(t *testing.T, keep func(*testing.T, *zoned, *appsv1.Deployment)) *appsv1.Deployment {
	t.Helper()
	d := z.Deployment("web", 0, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	d.Spec.Template.Spec.NodeSelector = map[string]string{suite.PoolLabel: z.Namespace + ".area"}
	keep(t, z, d)
	suite.Must(t, z.Create(t.Context(), d))
	return d
}

// counts writes how many pods the zones have, as in 67/67/66.
func (z *zoned) counts(t *testing.T) string {
	t.Helper()
	have := map[string]int{}
	for _, p := range podsOf(t, z.Tenant) {
		have[z.zones[p.Spec.NodeName]]++
		z.seen[p.UID] = true
	}
	var out []string
	for _, zone := range suite.Zones {
		out = append(out, strconv.Itoa(have[zone]))
	}
	return strings.Join(out, "/")
}

// setCost writes the deletion cost of a pod, or removes it.
func (z *zoned) setCost(t *testing.T, p *corev1.Pod, cost string) {
	t.Helper()
	if p.Annotations[corev1.PodDeletionCost] == cost {
		return
	}
	value := "null"
	if cost != "" {
		value = strconv.Quote(cost)
	}
	suite.Must(t, client.IgnoreNotFound(z.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, corev1.PodDeletionCost, value)))))
	z.wrote++
}

// keeper is a way to keep pods spread over zones.
type keeper struct {
	name    string
	webhook string
	// keep prepares a Deployment, and what belongs to it.
	keep func(*testing.T, *zoned, *appsv1.Deployment)
	// settle waits until it writes and moves nothing any more; nil if it never does.
	settle func(*testing.T, *zoned)
	// evicted returns how many pods it has evicted; nil if it evicts none.
	evicted func(*testing.T) int
}

// Those that are rules here write at each rest, so each of their costs is there before the next step. Their programs may be later.
var keepers = []keeper{
	{name: "nothing", keep: func(*testing.T, *zoned, *appsv1.Deployment) {}},
	{name: "topology spread", keep: overZones(corev1.DoNotSchedule)},
	{name: "topology spread and descheduler", evicted: evictedByDescheduler, settle: func(t *testing.T, _ *zoned) { descheduled(t) }, keep: func(t *testing.T, z *zoned, d *appsv1.Deployment) {
		overZones(corev1.DoNotSchedule)(t, z, d)
		deschedule(t, z.Namespace)
	}},
	{name: "lablabs/pod-deletion-cost-controller (its rule)", keep: overZones(corev1.DoNotSchedule), settle: costsByZone},
	{name: "Karpenter's PodDeletionCostManagement (its rule), budget 10%", keep: overZones(corev1.DoNotSchedule), settle: costsByNode(10)},
	{name: "Karpenter's PodDeletionCostManagement (its rule), budget 100%", keep: overZones(corev1.DoNotSchedule), settle: costsByNode(100)},
	{name: "Stowage across", webhook: "yes", keep: across(nil), settle: func(t *testing.T, z *zoned) { z.PositionsAgree(t, "web", z.Distribution(t, "web")) }},
	{name: "Stowage ScaleDownPolicy", keep: withPolicy(corev1.DoNotSchedule), settle: layered},
}

// overZones has the scheduler spread the pods over the zones.
func overZones(otherwise corev1.UnsatisfiableConstraintAction) func(*testing.T, *zoned, *appsv1.Deployment) {
	return func(_ *testing.T, _ *zoned, d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: otherwise, LabelSelector: d.Spec.Selector,
		}}
	}
}

// across has Stowage pin each pod to a zone.
func across(spill *versprei.Spill) func(*testing.T, *zoned, *appsv1.Deployment) {
	return func(t *testing.T, z *zoned, d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = nil // Stowage leaves pods alone that choose a pool themselves
		pool := z.Pool("area", 1)
		pool.Spill = spill
		suite.Must(t, z.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: z.Namespace, Name: d.Name}, Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{pool}, Across: suite.Across(), Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name},
		}}))
	}
}

// withPolicy has a ScaleDownPolicy keep what the scheduler spreads.
func withPolicy(otherwise corev1.UnsatisfiableConstraintAction) func(*testing.T, *zoned, *appsv1.Deployment) {
	return func(t *testing.T, z *zoned, d *appsv1.Deployment) {
		overZones(otherwise)(t, z, d)
		p := &stowage.ScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: z.Namespace, Name: "all"}, Spec: stowage.ScaleDownPolicySpec{Mode: stowage.PolicyEnforce}}
		suite.Must(t, z.Create(t.Context(), p))
		t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), p) })
	}
}

// layered waits until the pods of each zone have the costs -1, -2 and so on, without gaps.
func layered(t *testing.T, z *zoned) {
	t.Helper()
	suite.Eventually(t, "all costs are written", func() (bool, error) {
		pods, err := z.Pods(t.Context(), "web")
		in, seen := map[string]int{}, map[string]bool{}
		for _, p := range pods {
			in[z.zones[p.Spec.NodeName]]++
		}
		for _, p := range pods {
			zone, text := z.zones[p.Spec.NodeName], p.Annotations[corev1.PodDeletionCost]
			cost, _ := strconv.Atoi(text) // 0 is no layer
			if cost >= 0 || -cost > in[zone] || seen[zone+text] || p.Annotations[stowage.ScaleDownCostAnnotation] != text {
				return false, err
			}
			seen[zone+text] = true
		}
		return true, err
	})
}

// costsByZone is the rule of lablabs/pod-deletion-cost-controller, v0.1.0: each pod without a cost gets the highest one, from the largest
// int32 down, that no other pod of its zone has. A cost that is written stays.
func costsByZone(t *testing.T, z *zoned) {
	t.Helper()
	pods, used := podsOf(t, z.Tenant), map[string]bool{}
	key := func(p *corev1.Pod, cost string) string { return z.zones[p.Spec.NodeName] + cost }
	for i := range pods {
		used[key(&pods[i], pods[i].Annotations[corev1.PodDeletionCost])] = true
	}
	for i := range pods {
		p := &pods[i]
		if p.Annotations[corev1.PodDeletionCost] != "" {
			continue
		}
		cost := math.MaxInt32
		for used[key(p, strconv.Itoa(cost))] {
			cost--
		}
		used[key(p, strconv.Itoa(cost))] = true
		z.setCost(t, p, strconv.Itoa(cost))
	}
}

// costsByNode is the rule of Karpenter's PodDeletionCostManagement, v1.15.0, for nodes of one price and one NodePool: those with the fewest
// pods are the first to go, and all pods of a node have its rank, from minus the number of ranked nodes up to -1. Only so many nodes are
// ranked as the budget lets Karpenter disrupt at once, and pods of others have no cost. A node without pods is none here: Karpenter would
// have removed it.
func costsByNode(budget int) func(*testing.T, *zoned) {
	return func(t *testing.T, z *zoned) {
		t.Helper()
		on := map[string][]corev1.Pod{}
		for _, p := range podsOf(t, z.Tenant) {
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
		}
		var names []string
		for name := range on {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(on[a]), len(on[b])), cmp.Compare(a, b)) })
		ranked := (len(names)*budget + 99) / 100
		for i, name := range names {
			cost := ""
			if i < ranked {
				cost = strconv.Itoa(i - ranked)
			}
			for j := range on[name] {
				z.setCost(t, &on[name][j], cost)
			}
		}
	}
}

// evictedByDescheduler sums what the descheduler says of each of its looks.
func evictedByDescheduler(t *testing.T) (sum int) {
	t.Helper()
	log, err := os.ReadFile(deschedulerLog())
	suite.Must(t, err)
	for _, m := range regexp.MustCompile(`totalEvicted=(\d+)`).FindAllStringSubmatch(string(log), -1) {
		n, err := strconv.Atoi(m[1])
		suite.Must(t, err)
		sum += n
	}
	return sum
}

// audited counts what Stowage did to pods of a namespace after they were created.
func audited(t *testing.T, namespace string) (evicted, wrote int) {
	t.Helper()
	events, err := suite.Cluster.Audit()
	suite.Must(t, err)
	for _, e := range events {
		if e.ObjectRef.Namespace != namespace || e.ObjectRef.Resource != "pods" {
			continue
		}
		switch e.Verb + e.ObjectRef.Subresource {
		case "createeviction", "delete":
			evicted++
		case "patch", "update":
			wrote++
		}
	}
	return evicted, wrote
}

// TestCompareZones takes each contender through scale-downs over zones of different sizes, and some through an outage of a zone. It prints
// what it saw.
func TestCompareZones(t *testing.T) {
	steps := []int{300, 200, 60, 12, 40, 7}
	head := []string{"", "300"}
	for _, replicas := range steps[1:] {
		head = append(head, fmt.Sprint("→", replicas))
	}
	head = append(head, "60, a node of b drained, one more in a", "→20", "evicted", "writes a pod", "webhook")
	table(t, "pods in zones a/b/c with 2, 3 and 5 nodes", head, keepers, func(k keeper) string { return k.name }, func(t *testing.T, k keeper) []string {
		return walk(t, k, steps)
	})

	head = []string{"", "before", "30 run again after", "then"}
	table(t, "30 pods; zone c is cordoned, and its pods are deleted", head, outages, func(o outage) string { return o.name }, outlast)
}

// table measures all contenders at once, and prints a row for each.
func table[C any](t *testing.T, title string, head []string, all []C, name func(C) string, measure func(*testing.T, C) []string) {
	t.Helper()
	rows := make([]string, len(all))
	t.Run(title, func(t *testing.T) {
		for i, c := range all {
			t.Run(name(c), func(t *testing.T) {
				t.Parallel()
				rows[i] = fmt.Sprintf("| %s | %s |", name(c), strings.Join(measure(t, c), " | "))
			})
		}
	})
	rows = slices.DeleteFunc(rows, func(row string) bool { return row == "" }) // it failed, or -run leaves it out
	t.Logf("%s:\n| %s |\n%s|\n%s", title, strings.Join(head, " | "), strings.Repeat("| --- ", len(head)), strings.Join(rows, "\n"))
}

func walk(t *testing.T, k keeper, steps []int) (cells []string) {
	z := newZoned(t, 2, 3, 5)
	d := z.deployment(t, k.keep)
	rest := func(replicas int) string {
		t.Helper()
		z.Ready(t, d.Name, replicas)
		first := z.counts(t)
		if k.settle == nil {
			return first
		}
		k.settle(t, z)
		z.Ready(t, d.Name, replicas)
		if last := z.counts(t); last != first {
			return first + ", then " + last
		}
		return first
	}
	to := func(replicas int) {
		z.Scale(t, d, replicas)
		cells = append(cells, rest(replicas))
	}
	for _, replicas := range steps {
		to(replicas)
	}

	// The second walk has pods of its own.
	z.Scale(t, d, 0)
	z.Ready(t, d.Name, 0)
	z.Scale(t, d, 60)
	rest(60)
	drained := z.in("b")[:1]
	cordon(t, z.Tenant, drained, true)
	z.addNode(t, "a")
	for _, p := range podsOf(t, z.Tenant) {
		if p.Spec.NodeName == drained[0].Name {
			suite.Must(t, z.SubResource("eviction").Create(t.Context(), &p, &policyv1.Eviction{}))
		}
	}
	cells = append(cells, rest(60))
	to(20)

	evicted, wrote := audited(t, z.Namespace)
	if k.evicted != nil {
		evicted += k.evicted(t)
	}
	return append(cells, strconv.Itoa(evicted), fmt.Sprintf("%.2f", float64(wrote+z.wrote)/float64(len(z.seen))), cmp.Or(k.webhook, "no"))
}

// outage is a way to place pods that meets an outage of a zone.
type outage struct {
	name string
	keep func(*testing.T, *zoned, *appsv1.Deployment)
}

var outages = []outage{
	{"Stowage across, without spill", across(nil)},
	{"Stowage across, `spill: {after: 10s}`", across(&versprei.Spill{After: "10s"})},
	{"topology spread, ScheduleAnyway, and ScaleDownPolicy", withPolicy(corev1.ScheduleAnyway)},
	{"topology spread, DoNotSchedule, and ScaleDownPolicy", withPolicy(corev1.DoNotSchedule)},
}

func outlast(t *testing.T, o outage) []string {
	z := newZoned(t, 1, 1, 1)
	d := z.deployment(t, o.keep)
	z.Scale(t, d, 30)
	z.Ready(t, d.Name, 30)
	before := z.counts(t)

	cordon(t, z.Tenant, z.in("c"), true)
	began := time.Now()
	for _, p := range podsOf(t, z.Tenant) {
		if z.zones[p.Spec.NodeName] == "c" {
			suite.Must(t, client.IgnoreNotFound(z.Delete(t.Context(), &p)))
		}
	}
	// A minute is six times as long as pods wait here until other zones take them; who waits for longer, waits.
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		pods := podsOf(t, z.Tenant)
		return len(pods) == 30 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !podstatus.Ready(&p) }), nil
	})
	after := "wait"
	if err == nil {
		after = fmt.Sprintf("%.1f s", time.Since(began).Seconds())
	}
	return []string{before, after, z.counts(t)}
}
