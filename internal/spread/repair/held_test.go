package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// withClaim has a pod use a claim.
func withClaim(pod *corev1.Pod, claim string) *corev1.Pod {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: claim, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
	})
	return pod
}

func protected(pod *corev1.Pod, annotation, value string) *corev1.Pod {
	pod.Annotations[annotation] = value
	return pod
}

// claim is a claim, with its volume unless that is "".
func claim(name, volume string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Spec.VolumeName, c.Spec.AccessModes = volume, []corev1.PersistentVolumeAccessMode{mode}
	return c
}

// volume is one that nodes of some pools reach, or all nodes if there are none.
func volume(name string, pools ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(pools) > 0 {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: pools}},
		}}}}
	}
	return v
}

// A pod that its volume or an annotation holds stays where it runs, and another one goes in its place. Who holds a pod is said.
func TestHeld(t *testing.T) {
	const karpenter, autoscaler = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"
	const once, many = corev1.ReadWriteOnce, corev1.ReadWriteMany
	x, y := func() *corev1.Pod { return seated("x", "1", 1) }, func() *corev1.Pod { return seated("y", "1", 2) }
	for name, tc := range map[string]struct {
		defaults  bool // nothing is asked for
		pods      []*corev1.Pod
		volumes   []client.Object
		forbidden string
		gone      string
		why       string // part of the text that names the pods
	}{
		"nothing holds them":      {pods: []*corev1.Pod{x(), y()}, gone: "y"},
		"both are protected":      {pods: []*corev1.Pod{protected(x(), karpenter, "true"), protected(y(), autoscaler, "false")}, why: "2 pod(s) that should be elsewhere stay where they run, such as x: the annotation " + karpenter + " protects it"},
		"one is protected":        {pods: []*corev1.Pod{x(), protected(y(), karpenter, "true")}, gone: "x", why: "1 pod(s) that should be elsewhere stay where they run, such as y: "},
		"others may evict them":   {pods: []*corev1.Pod{x(), protected(y(), autoscaler, "true")}, gone: "y"},
		"its volume is elsewhere": {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v", "b", "none")}, gone: "x", why: "y: no node of pool 0 reaches its volume"},
		"both have such volumes": {
			pods: []*corev1.Pod{withClaim(x(), "c"), withClaim(y(), "d")}, volumes: []client.Object{claim("c", "v", once), claim("d", "w", once), volume("v", "b"), volume("w", "b")},
			why: "2 pod(s)",
		},
		"its volume can be there":       {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v", "b", "a")}, gone: "y"},
		"its volume can be anywhere":    {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v")}, gone: "y"},
		"one of its two volumes":        {pods: []*corev1.Pod{x(), withClaim(withClaim(y(), "c"), "d")}, volumes: []client.Object{claim("c", "v", once), volume("v", "a", "b"), claim("d", "w", once), volume("w", "b")}, gone: "x", why: "y: no node of pool 0 reaches its volume"},
		"its claim is not bound":        {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "", once)}, gone: "y"},
		"its claim is gone":             {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, gone: "x", why: "y: its claim c is gone"},
		"the volume is gone":            {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once)}, gone: "x", why: "y: the volume of its claim c is gone"},
		"one node has all their data":   {pods: []*corev1.Pod{withClaim(x(), "c"), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v")}, why: "2 pod(s) that should be elsewhere stay where they run, such as x: other pods use the volume of its claim c"},
		"another workload has its data": {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v"), withClaim(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "backup", UID: "backup"}}, "c")}, gone: "x", why: "y: other pods use the volume of its claim c"},
		"they share it":                 {pods: []*corev1.Pod{withClaim(x(), "c"), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", many), volume("v")}, gone: "y"},
		"volumes may not be listed":     {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once)}, forbidden: "*v1.PersistentVolumeList", gone: "x", why: "y: Stowage may not list PersistentVolumes"},
		"claims may not be listed":      {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, forbidden: "*v1.PersistentVolumeClaimList", gone: "x", why: "y: Stowage may not list its claims"},
		"it runs outside of the pools": {
			defaults: true, pods: []*corev1.Pod{x(), withClaim(pod("y", "node-none", "", 0, 0), "c")}, volumes: []client.Object{claim("c", "v", once), volume("v", "none")},
			why: "y: no node of pool 0 reaches its volume",
		},
		"it does so, and is protected":       {defaults: true, pods: []*corev1.Pod{x(), protected(pod("y", "node-none", "", 0, 0), karpenter, "true")}, why: "such as y"},
		"it waits for a node":                {defaults: true, pods: []*corev1.Pod{x(), protected(pod("y", "", "", 0, 0), karpenter, "true")}, gone: "y"},
		"nobody asked for an eviction":       {defaults: true, pods: []*corev1.Pod{protected(x(), karpenter, "true"), protected(y(), karpenter, "true")}},
		"an ephemeral volume goes with it":   {pods: []*corev1.Pod{x(), func() *corev1.Pod { p := y(); p.Spec.Volumes = []corev1.Volume{{Name: "e"}}; return p }()}, gone: "y"},
		"its claim is about to be deleted":   {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{deleted(claim("c", "v", once)), volume("v")}, gone: "x", why: "y: its claim c is gone, or is being deleted"},
		"a term for certain nodes by a name": {pods: []*corev1.Pod{x(), withClaim(y(), "c")}, volumes: []client.Object{claim("c", "v", once), ofNode(volume("v", "a"))}, gone: "x", why: "y: where the volume of its claim c can be is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			settings := []string{stowage.RebalanceAnnotation + "=Evict"}
			if tc.defaults {
				settings = nil
			}
			objects := append(workload(2, settings...), tc.volumes...)
			for _, p := range tc.pods {
				objects = append(objects, p)
			}
			b := newBench(t, objects...)
			b.forbidden = tc.forbidden
			b.clock.Step(time.Minute)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			after := b.seatsNow(t)
			for _, p := range tc.pods {
				if _, there := after[p.Name]; there == (p.Name == tc.gone) {
					t.Errorf("pod %s is there: %t", p.Name, there)
				}
			}
			if got := b.Held(owner.Key()); (got == "") != (tc.why == "") || !strings.Contains(got, tc.why) {
				t.Errorf("it says %q, want %q", got, tc.why)
			}
			if got := strings.Contains(b.noticed(), string(stowage.EventPodHeld)); got != (tc.why != "") {
				t.Errorf("an event says so: %t", got)
			}
			if tc.gone != "" || len(tc.volumes) == 0 {
				return
			}
			// What was found holds for a while, and it is said once.
			lists := b.volumes.Load()
			b.clock.Step(time.Minute)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if got := b.volumes.Load(); got != lists {
				t.Errorf("%d lists of claims and volumes, and then %d", lists, got)
			}
			if b.Held(owner.Key()) == "" || b.noticed() != "" {
				t.Error("it is not said any more, or again in an event")
			}
			// An edit of the strategy may be what lets them go.
			b.clock.Step(heldFor)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if got := b.volumes.Load(); got == lists {
				t.Error("volumes are never looked at again")
			}
		})
	}
}

func deleted(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: start}, []string{"kubernetes.io/pvc-protection"}
	return c
}

func ofNode(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	term := &v.Spec.NodeAffinity.Required.NodeSelectorTerms[0]
	term.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-a"}}}
	return v
}

// Pods of one workload that are held cost a few tries, and no more.
func TestManyHeldPods(t *testing.T) {
	const pods = 40
	objects := append(workload(pods, stowage.RebalanceAnnotation+"=Evict"), volume("v", "b"), claim("c", "v", corev1.ReadWriteMany))
	for i := range pods {
		p := withClaim(seated(strings.Repeat("x", i+1), "1", int64(i+1)), "c")
		objects = append(objects, p)
	}
	b := newBench(t, objects...)
	b.clock.Step(time.Minute)
	if res, err := b.reconcile(t.Context(), owner); err != nil || res.RequeueAfter == 0 {
		t.Fatal(res, err)
	}
	if n := b.volumes.Load(); n != 2*mostTries {
		t.Errorf("%d lists of claims and volumes, want two for each of %d tries", n, mostTries)
	}
}

// The clock that wrote the dates of a workload, its pods and its strategy judges their ages. The leader's own clock does not.
func TestAgesByTheAPIServersClock(t *testing.T) {
	for name, tc := range map[string]struct {
		behind time.Duration // the leader's clock
		age    time.Duration // of the workload
		gone   bool
	}{
		"the leader's clock is right":                          {0, time.Minute, false},
		"it is behind":                                         {2 * time.Minute, time.Minute, false},
		"it is ahead, and the workload is young":               {-2 * time.Minute, 15 * time.Second, true},
		"it is behind, and the workload is young all the same": {2 * time.Minute, 15 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := workload(2)
			rs := objects[0].(*appsv1.ReplicaSet)
			rs.Annotations, rs.Spec.Template.Annotations = nil, nil
			rs.CreationTimestamp = metav1.NewTime(start.Add(-tc.age))
			d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d", CreationTimestamp: metav1.NewTime(start.Add(-tc.age + 10*time.Second))}}
			d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1"}
			for _, pool := range []string{"a", "b"} {
				d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{Name: pool, NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
			}
			objects = append(objects, d)
			for i, name := range []string{"x", "y"} {
				p := pod(name, "node-b", "b", int64(i+1), ledger.OriginAdopted)
				p.CreationTimestamp = rs.CreationTimestamp
				objects = append(objects, p)
			}
			b := newBench(t, objects...)
			b.Time = clocktesting.NewFakeClock(start)
			b.since = start.Add(-time.Hour)
			b.clock.SetTime(start.Add(-tc.behind))
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if gone := len(b.seatsNow(t)) < 2; gone != tc.gone {
				t.Errorf("a pod was evicted: %t", gone)
			}
		})
	}
}

// volumeCache is a watch of volumes that has synced.
type volumeCache struct {
	*informertest.FakeInformers
	stored client.Client
}

func (v volumeCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return v.stored.List(ctx, list, opts...)
}

// A pod whose volume is outside of the pools needs no seat if it runs there, and would get none again if it waits. The status tells of both.
func TestVolumeElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		reached []string
		node    string
		mode    stowage.Repair
		kept    bool
	}{
		"no pool":               {[]string{"none"}, "node-none", stowage.RepairAdopt, true},
		"a pool":                {[]string{"none", "a"}, "node-none", stowage.RepairAdopt, false},
		"no pool, and it waits": {[]string{"none"}, "", stowage.RepairRecreate, true},
	} {
		v := volume("v", tc.reached...)
		v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "ns", Name: "c"}, corev1.VolumeBound
		objects := append(workload(2), v, claim("c", "v", corev1.ReadWriteOnce), seated("x", "1", 1), withClaim(pod("y", tc.node, "", 0, 0), "c"))
		objects[0].(*appsv1.ReplicaSet).Annotations[stowage.RepairAnnotation] = string(tc.mode)
		b := newBench(t, objects...)
		b.World.FollowVolumes(volumeCache{b.Informers.(*informertest.FakeInformers), b.Uncached})
		b.clock.Step(time.Minute)
		if _, err := b.reconcile(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		if got := b.Elsewhere(owner.Key()); got.Any() != tc.kept || tc.kept && got.Others != 1 {
			t.Errorf("%s: elsewhere are %v", name, got)
		}
		if got := b.Held(owner.Key()); strings.Contains(got, "y: no pool has a node that reaches its volume") != tc.kept {
			t.Errorf("%s: it says %q", name, got)
		}
		if len(b.seatsNow(t)) != 2 {
			t.Errorf("%s: a pod is gone", name)
		}
	}
}

// The successor of a pod with a volume goes where the webhook gives it a seat: to a pool that its volume reaches. It stays if nothing is gained.
func TestRedirect(t *testing.T) {
	const third = "p=a,weight=1:p=b,weight=1:p=c,weight=1"
	for name, tc := range map[string]struct {
		reached []string
		seats   []string // the pools of the pods; the last one has the volume
		full    string   // a node that takes nothing
		why     string   // it stays, or ""
	}{
		"the pool that is next":                       {reached: []string{"b", "c"}, seats: []string{"1", "1", "1"}},
		"the other one":                               {reached: []string{"b", "a"}, seats: []string{"1", "1", "1"}},
		"the other one takes no pod":                  {reached: []string{"b", "a"}, seats: []string{"1", "1", "1"}, full: "node-a", why: "its volume reaches pool 0, which takes no pod now"},
		"the other one has what it should have":       {reached: []string{"b", "a"}, seats: []string{"0", "1", "1"}, why: "no node of pool 2 reaches its volume"},
		"only where it is":                            {reached: []string{"b"}, seats: []string{"1", "1", "1"}, why: "no node of pool 2 reaches its volume"},
		"nowhere":                                     {reached: []string{"x"}, seats: []string{"1", "1", "1"}, why: "no node of pool 2 reaches its volume"},
		"it is next, but for its volume's pools":      {reached: []string{"b", "c"}, seats: []string{"0", "1", "1", "1", "1", "2"}},
		"the pools of its volume have as many as due": {reached: []string{"b", "a"}, seats: []string{"0", "1", "1", "1"}, why: "no node of pool 2 reaches its volume"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(workload(int32(len(tc.seats)), stowage.RebalanceAnnotation+"=Evict", stowage.SpreadStrategyAliasAnnotation+"="+third), volume("v", tc.reached...), claim("c", "v", corev1.ReadWriteOnce))
			node := objects[3].(*corev1.Node).DeepCopy()
			node.Name, node.Labels = "node-c", map[string]string{"p": "c"}
			objects = append(objects, node)
			for _, o := range objects {
				if n, ok := o.(*corev1.Node); ok && n.Name == tc.full {
					n.Spec.Unschedulable = true
				}
			}
			given, last := map[string]int64{}, ""
			for i, pool := range tc.seats {
				given[pool]++
				p := pod(string(rune('a'+i)), "node-"+map[string]string{"0": "a", "1": "b", "2": "c"}[pool], pool, given[pool], ledger.OriginClaimed)
				p.Annotations[stowage.SpreadStrategyAliasAnnotation] = third
				if pool == "1" {
					last = p.Name
				}
				objects = append(objects, p)
			}
			for _, o := range objects {
				if p, ok := o.(*corev1.Pod); ok && p.Name == last {
					withClaim(p, "c")
				} else if ok && p.Labels[stowage.PoolLabel] == "1" { // only that one may go
					protected(p, "karpenter.sh/do-not-disrupt", "true")
				}
			}
			b := newBench(t, objects...)
			b.clock.Step(time.Minute)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if _, there := b.seatsNow(t)[last]; there != (tc.why != "") {
				t.Errorf("pod %s is there: %t", last, there)
			}
			said := false
			b.mu.Lock()
			for _, pod := range b.history[owner.Key()].held {
				said = said || pod.name == last && strings.Contains(pod.why, tc.why)
			}
			b.mu.Unlock()
			if said != (tc.why != "") {
				t.Errorf("it says %q", b.Held(owner.Key()))
			}
		})
	}
}

// A pod without a seat whose volume reaches only a pool that takes none is held, and another one goes in its place.
func TestRedirectToAFullPool(t *testing.T) {
	objects := append(workload(4), volume("v", "b"), claim("c", "v", corev1.ReadWriteMany))
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok && n.Name == "node-b" {
			n.Spec.Unschedulable = true
		}
	}
	x, young := seated("x", "1", 1), withClaim(pod("young", "node-none", "", 0, 0), "c")
	x.CreationTimestamp = metav1.NewTime(x.CreationTimestamp.Add(time.Minute))
	young.CreationTimestamp = metav1.NewTime(young.CreationTimestamp.Add(time.Second))
	b := newBench(t, append(objects, x, seated("w", "1", 2), pod("other", "node-none", "", 0, 0), young)...)
	b.clock.Step(11 * time.Minute)
	if _, err := b.reconcile(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	after := b.seatsNow(t)
	if _, there := after["other"]; there || len(after) != 3 {
		t.Errorf("the pods are %v; the one without a volume is to be recreated", after)
	}
	if n := b.volumes.Load(); n != 2 {
		t.Errorf("%d lists of claims and volumes", n)
	}
	if got := b.Held(owner.Key()); !strings.Contains(got, "young: its volume reaches pool 1, which takes no pod now") {
		t.Errorf("it says %q", got)
	}
}

// inZones are a workload of one pool over the zones x, y and z, a volume that some of them reach, and pods in zones, which all use it.
func inZones(t *testing.T, reached []string, counts map[string]int) (objects []client.Object, p *policy.Policy) {
	t.Helper()
	settings := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1", stowage.AcrossAnnotation: "zone: x, y, z", stowage.RebalanceAnnotation: "Evict"}
	all := 0
	for _, n := range counts {
		all += n
	}
	var list []string
	for k, v := range settings {
		list = append(list, k+"="+v)
	}
	objects = workload(int32(all), list...)[:3]
	for _, zone := range []string{"x", "y", "z"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{"p": "a", "zone": zone}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	v := volume("v", "a")
	term := &v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	term.Key, term.Values = "zone", reached
	objects = append(objects, v, claim("c", "v", corev1.ReadWriteMany))
	probe := newBench(t, objects...)
	w, err := probe.World.Workload(t.Context(), "ns", seats.Ref(owner))
	if err == nil {
		p, err = probe.Policies.FindFor(t.Context(), "ns", seats.Ref(owner), w)
	}
	if err != nil || p == nil || p.Domains() == nil {
		t.Fatal(p, err)
	}
	for in, zone := range []string{"x", "y", "z"} {
		for k := range counts[zone] {
			seat := ledger.Seat{Pool: p.PoolKey(0), Ordinal: p.Domains().Nth(0, in, int64(k+1)), Domain: zone}
			q := withClaim(pod(fmt.Sprint(zone, k), "node-"+zone, "", 0, 0), "c")
			q.Labels[stowage.PoolLabel], q.Labels[stowage.SeatLabel], q.Labels[stowage.DomainLabel] = seat.Pool, fmt.Sprint(seat.Ordinal), zone
			q.Annotations = maps.Clone(settings)
			q.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, q.Name, ledger.Holder{Namespace: "ns", Owner: "rs"}, seat)
			objects = append(objects, q)
		}
	}
	return objects, p
}

// A pod leaves its domain only if the one in which its volume lets its successor be lacks pods.
func TestRedirectToADomain(t *testing.T) {
	for name, tc := range map[string]struct {
		reached []string
		counts  map[string]int
		gone    int
	}{
		"the one that lacks":        {[]string{"x", "y"}, map[string]int{"x": 5, "y": 0, "z": 4}, 1},
		"another one lacks":         {[]string{"x", "z"}, map[string]int{"x": 5, "y": 0, "z": 4}, 0},
		"only where it is":          {[]string{"x"}, map[string]int{"x": 5, "y": 2, "z": 2}, 0},
		"all domains as they ought": {[]string{"x", "y", "z"}, map[string]int{"x": 3, "y": 3, "z": 3}, 0},
	} {
		objects, _ := inZones(t, tc.reached, tc.counts)
		b := newBench(t, objects...)
		pods := len(b.seatsNow(t))
		for range 20 {
			b.clock.Step(time.Minute)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			b.see(t)
		}
		if gone := pods - len(b.seatsNow(t)); gone != tc.gone {
			t.Errorf("%s: %d pods are evicted, want %d", name, gone, tc.gone)
		}
	}
}

// Pods that stand as the order of the UID had their domains stay, and the repair of others knows of it.
func TestFormerOrderStays(t *testing.T) {
	_, p := inZones(t, []string{"x"}, nil)
	former := p.Former()
	n := int64(1)
	for ; slices.Equal(former.Division(0, n), p.Domains().Division(0, n)); n++ {
	}
	counts := map[string]int{}
	for in, pods := range former.Division(0, n) {
		counts[p.DomainName(in)] = int(pods)
	}
	objects, _ := inZones(t, []string{"x", "y", "z"}, counts)
	b := newBench(t, objects...)
	for range 5 {
		b.clock.Step(time.Minute)
		if _, err := b.reconcile(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		b.see(t)
	}
	if left := len(b.seatsNow(t)); left != int(n) {
		t.Errorf("of %d pods by the former order, %d are left", n, left)
	}
}

// Of pods with an ordinal of their own, those stay without a seat whose volumes no pool reaches. One that runs in its pool is adopted, whatever is
// known of its volume, and one that its volume holds in another pool is adopted there.
func TestOrdinalsElsewhere(t *testing.T) {
	w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "u"}, Namespace: "ns"}
	p, err := policy.NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}}), policy.Settings{}).Find(t.Context(), policy.Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{
		stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	own, err := p.OfOrdinal(1)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b"}
	for name, tc := range map[string]struct {
		volume *corev1.PersistentVolume
		view   planner.Pod
		want   bool
	}{
		"in the other pool, and reaches that alone": {volume("v", names[1-own.Pool]), planner.Pod{OwnRank: 1, NodePool: 1 - own.Pool, Ours: true}, false},
		"in the other pool, and reaches its own":    {volume("v", "a", "b"), planner.Pod{OwnRank: 1, NodePool: 1 - own.Pool, Ours: true}, false},
		"in its own pool":                           {ofNode(volume("v", "a")), planner.Pod{OwnRank: 1, NodePool: own.Pool, Ours: true}, false},
		"in no pool":                                {volume("v", "none"), planner.Pod{OwnRank: 1, NodePool: planner.OtherNode, Ours: true}, true},
		"it is not ours":                            {volume("v", "none"), planner.Pod{OwnRank: 1, NodePool: planner.OtherNode}, false},
		"without an ordinal, in a pool":             {volume("v", "none"), planner.Pod{NodePool: 0, Ours: true}, false},
		"without an ordinal, in none":               {volume("v", "none"), planner.Pod{NodePool: planner.OtherNode, Ours: true}, true},
		"and of another one's template":             {volume("v", "none"), planner.Pod{NodePool: planner.OtherNode}, false},
	} {
		tc.volume.Spec.ClaimRef, tc.volume.Status.Phase = &corev1.ObjectReference{Namespace: "ns", Name: "c"}, corev1.VolumeBound
		b := newBench(t, append(workload(1), tc.volume, claim("c", "v", corev1.ReadWriteOnce))...)
		b.World.FollowVolumes(volumeCache{b.Informers.(*informertest.FakeInformers), b.Uncached})
		tc.view.Volume, tc.view.Running, tc.view.Seat = true, true, sequence.Seat{Pool: -1}
		look := b.newVolumeLook(t.Context(), p)
		if err := look.look(t.Context(), withClaim(pod("y-0", "node-a", "", 0, 0), "c"), &tc.view); err != nil {
			t.Fatal(err)
		}
		held := name == "in the other pool, and reaches that alone"
		if tc.view.VolumeElsewhere != tc.want || len(look.held) > 0 != held {
			t.Errorf("%s: elsewhere %t (%s), and held %v", name, tc.view.VolumeElsewhere, tc.view.Held, look.held)
		}
	}
}

// What was found of a workload is forgotten once nobody looks at it.
func TestHeldIsForgotten(t *testing.T) {
	v := volume("v", "none")
	v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "ns", Name: "c"}, corev1.VolumeBound
	y := withClaim(pod("y", "node-none", "", 0, 0), "c")
	b := newBench(t, append(workload(2), v, claim("c", "v", corev1.ReadWriteOnce), seated("x", "1", 1), y)...)
	b.World.FollowVolumes(volumeCache{b.Informers.(*informertest.FakeInformers), b.Uncached})
	look := func() {
		t.Helper()
		b.clock.Step(time.Hour)
		b.see(t)
		if _, err := b.reconcile(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	look()
	if e := b.Elsewhere(owner.Key()); !e.Any() || b.Held(owner.Key()) == "" {
		t.Fatal("nothing was found")
	}
	rs := &appsv1.ReplicaSet{}
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web-1"}, rs); err != nil {
		t.Fatal(err)
	}
	rs.Annotations[stowage.RepairAnnotation] = string(stowage.RepairOff)
	if err := b.Uncached.Update(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	look()
	if e := b.Elsewhere(owner.Key()); e.Any() || b.Held(owner.Key()) != "" {
		t.Errorf("with repair off, %v and %q are known", e, b.Held(owner.Key()))
	}
}

// A seat that is written anew keeps the hash of the node selector that its pod got.
func TestSeatPatchKeepsTheSelector(t *testing.T) {
	b := newBench(t, workload(1)...)
	w, err := b.World.Workload(t.Context(), "ns", seats.Ref(owner))
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Policies.FindFor(t.Context(), "ns", seats.Ref(owner), w)
	if err != nil {
		t.Fatal(err)
	}
	x := seated("x", "1", 4)
	holder := ledger.Holder{Namespace: "ns", Owner: "rs"}
	x.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, ledger.WithSource("x", "1", ledger.Source{Selector: "ABCDEFGH"}), holder, ledger.Seat{Pool: "1", Ordinal: 4})
	patch, err := seatPatch(key, owner, p, x, planner.Move{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 1}, true)
	if err != nil {
		t.Fatal(err)
	}
	var after corev1.Pod
	if err := json.Unmarshal(patch, &after); err != nil {
		t.Fatal(err)
	}
	if _, id, ok := key.Verify(after.Annotations[stowage.ClaimAnnotation], holder, ledger.Seat{Pool: "1", Ordinal: 1}); !ok || !strings.HasSuffix(id, "ABCDEFGH") {
		t.Errorf("the patch is %s", patch)
	}
}
