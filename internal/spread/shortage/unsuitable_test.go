package shortage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

// withPolicies is a cluster with policies, which no informer shows here.
type withPolicies struct {
	world.Snapshot
	cluster *world.Policies
}

func (w withPolicies) Policies(_ context.Context, namespace string) (*world.Policies, error) {
	if namespace != "" {
		return nil, nil
	}
	return w.cluster, nil
}

// ofPolicy is a ReplicaSet of six pods under a policy with the pools a and b. One half has a seat in each: those of pool a run, and those of
// pool b wait. Where every node is tainted, all wait.
func ofPolicy(t *testing.T, change ...func(*corev1.Node)) (*bench, *stowage.ClusterSpreadPolicy) {
	t.Helper()
	return ofPolicyWith(t, shortage(0), change...)
}

func ofPolicyWith(t *testing.T, objects []client.Object, change ...func(*corev1.Node)) (*bench, *stowage.ClusterSpreadPolicy) {
	t.Helper()
	p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p", Generation: 1}}
	p.Spec.Mode = stowage.PolicyEnforce
	for _, pool := range []string{"a", "b"} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: pool, NodeSelector: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
	}
	runs := false
	for _, o := range objects {
		o.SetAnnotations(nil)
		switch o := o.(type) {
		case *corev1.Node:
			for _, f := range change {
				f(o)
			}
			runs = runs || len(o.Spec.Taints) == 0
		case *corev1.Pod:
			name := o.Spec.NodeSelector["p"]
			key, ordinal := ledger.PolicyPool(name, nodeset.Set{Labels: map[string]string{"p": name}}), o.Labels[stowage.SeatLabel]
			seat := ledger.Seat{Pool: key}
			_, _ = fmt.Sscan(ordinal, &seat.Ordinal)
			o.Labels[stowage.PoolLabel] = name
			o.Annotations = map[string]string{stowage.ClaimAnnotation: signed(o.Name, seat)}
			if !runs {
				o.Spec.NodeName = ""
				o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			}
		}
	}
	b := newBench(t, objects...)
	snapshot := withPolicies{Snapshot: b.World, cluster: &world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{p}}}
	b.Policies = owners.New(policy.NewFinder(snapshot, policy.Settings{}), b.Seats.Pods().NameOf, b.Uncached, b.clock)
	return b, p
}

func signed(id string, seat ledger.Seat) string {
	return key.Sign(ledger.OriginClaimed, ledger.WithSource(id, seat.Pool, ledger.Source{UID: "p", Generation: 1}), ledger.Holder{Namespace: "ns", Owner: "rs"}, seat)
}

func tainted(n *corev1.Node) {
	if n.Labels["p"] == "b" {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}
}

// unsuitable returns the pools that are stored as unsuitable.
func (b *bench) unsuitablePools(t *testing.T) (out string) {
	t.Helper()
	var states stowage.PoolStateList
	if err := b.Uncached.List(t.Context(), &states); err != nil {
		t.Fatal(err)
	}
	for _, s := range states.Items {
		for _, u := range s.Unsuitable {
			out += u.Name + ": " + u.Why
		}
	}
	return out
}

// Pods that wait in a pool whose nodes could not take them move after a while, whatever the other pools have. The record goes once a node
// could take them.
func TestUnsuitablePool(t *testing.T) {
	b, _ := ofPolicy(t, tainted)
	b.pass(t, 14)
	if got := b.unsuitablePools(t); got != "" || len(b.evicted) != 0 {
		t.Fatalf("after 14 s: %q, and %v are gone", got, b.evicted)
	}
	b.pass(t, 4)
	if got := b.unsuitablePools(t); got != "b: the pods do not tolerate the taint gpu:NoSchedule" || len(b.evicted) != 3 {
		t.Fatalf("after 18 s: %q, and %v are gone", got, b.evicted)
	}
	if got := b.noticed(); got != "PoolUnsuitable" {
		t.Errorf("the events are %q", got)
	}
	b.untaint(t)
	b.pass(t, 7)
	if got := b.unsuitablePools(t); got != "" {
		t.Errorf("once a node takes such pods: %q", got)
	}
	if got := b.noticed(); got != "PoolSuitable" {
		t.Errorf("the events are %q", got)
	}
}

// What events and the log say of a policy's pools has their names. The keys of their seats have a hash, which tells people nothing.
func TestEventsNamePools(t *testing.T) {
	spills := func(t *testing.T, change ...func(*corev1.Pod)) *bench {
		b, p := ofPolicyWith(t, shortage(0, change...))
		p.Spec.Pools[1].Spill = &versprei.Spill{After: "1m"}
		b.pass(t, 130)
		b.noticed()
		return b
	}
	grouped := func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")} }
	for name, tc := range map[string]struct {
		make func(*testing.T) *bench
		want []string // parts of one text each
	}{
		"pods that no other pool takes":  {func(t *testing.T) *bench { return spills(t, grouped) }, []string{"PodFitsNoNode pod web-1 waits for pool b, "}},
		"pods that another pool takes":   {func(t *testing.T) *bench { return spills(t) }, []string{"PoolExhausted pool b has no room", `"msg"="pod evicted, so that another pool takes its successor"`}},
		"a pool whose nodes are tainted": {func(t *testing.T) *bench { b, _ := ofPolicy(t, tainted); b.pass(t, 20); return b }, []string{"PoolUnsuitable no pod can run in pool b: ", `"msg"="pod evicted, so that another pool takes its successor"`}},
	} {
		t.Run(name, func(t *testing.T) {
			b := tc.make(t)
			b.noticed()
			for _, want := range tc.want {
				at := slices.IndexFunc(b.told, func(text string) bool { return strings.Contains(text, want) })
				if at < 0 {
					t.Errorf("nothing says %q, but %q", want, b.told)
				} else if logged := strings.HasPrefix(want, `"msg"`); logged && !strings.Contains(b.told[at], `"pool"="b"`) {
					t.Errorf("the log says %s", b.told[at])
				}
			}
		})
	}
}

// A pool with a node for the pods is not unsuitable, however long pods wait there for room.
func TestPoolWithoutRoomIsSuitable(t *testing.T) {
	b, _ := ofPolicy(t)
	b.pass(t, 200)
	if got := b.unsuitablePools(t); got != "" || len(b.evicted) != 0 {
		t.Errorf("%q, and %v are gone", got, b.evicted)
	}
}

// An edit of the policy is looked at, and not what was found before it. Here it gives the toleration.
func TestEditOfAPolicyWithAnUnsuitablePool(t *testing.T) {
	b, p := ofPolicy(t, tainted)
	b.pass(t, 18)
	edited := p.DeepCopy()
	edited.Generation = 2
	edited.Spec.Pools[1].Tolerations = []versprei.Toleration{{Key: "gpu", Operator: "Exists"}}
	snapshot := withPolicies{Snapshot: b.World, cluster: &world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{edited}}}
	b.Policies = owners.New(policy.NewFinder(snapshot, policy.Settings{}), b.Seats.Pods().NameOf, b.Uncached, b.clock)
	b.pass(t, 2)
	if got := b.unsuitablePools(t); got != "" {
		t.Errorf("after the edit: %q", got)
	}
}

// A pool in which no pod can run is not asked about the room in other pools: where none suits, all pods go, and get no seat.
func TestNoPoolSuits(t *testing.T) {
	b, _ := ofPolicy(t, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	b.pass(t, 20)
	if len(b.evicted) != 6 {
		t.Errorf("%v of six pods are gone", b.evicted)
	}
	if found, err := b.Policies.FindFor(t.Context(), "ns", web.Ref, nil); err != nil || found != nil {
		t.Errorf("the policy divides the pods: %v, %v", found, err)
	}
	b.pass(t, 20)
	if got := b.unsuitablePools(t); got == "" {
		t.Error("the record is gone, and the next pods are tried again")
	}
}

// An API server with the kind of an older version does not store the answer. It is not asked to again for some minutes.
func TestUnsuitablePoolIsNotStored(t *testing.T) {
	b, _ := ofPolicy(t, tainted)
	b.prunes = true
	b.pass(t, 100)
	if b.created != 1 || len(b.evicted) != 0 || b.noticed() != "" {
		t.Errorf("%d PoolStates were written, and %v are gone", b.created, b.evicted)
	}
}

// untaint takes the taints from the node of pool b.
func (b *bench) untaint(t *testing.T) {
	t.Helper()
	b.editNode(t, func(n *corev1.Node) { n.Spec.Taints = nil })
}

// editNode changes the node of pool b.
func (b *bench) editNode(t *testing.T, change func(*corev1.Node)) {
	t.Helper()
	node := &corev1.Node{}
	if err := b.Uncached.Get(t.Context(), types.NamespacedName{Name: "node-b"}, node); err != nil {
		t.Fatal(err)
	}
	was := node.DeepCopy()
	change(node)
	for _, update := range []func(context.Context, client.Object) error{
		func(ctx context.Context, o client.Object) error {
			return b.Uncached.Update(ctx, o.DeepCopyObject().(client.Object))
		},
		func(ctx context.Context, o client.Object) error { return b.Uncached.Status().Update(ctx, o) },
	} {
		node.ResourceVersion = ""
		if err := update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Step(time.Second)
	b.Room.NodeChanged(was, node)
}

// stored returns what is stored of the workload, or an empty state.
func (b *bench) stored(t *testing.T) stowage.PoolState {
	t.Helper()
	var states stowage.PoolStateList
	if err := b.Uncached.List(t.Context(), &states); err != nil {
		t.Fatal(err)
	}
	return append(states.Items, stowage.PoolState{})[0]
}

// What the nodes of a pool lack in which a pod of the workload has had a node is maintenance, or a device plugin that starts again. The record of
// that stays when that pod goes, and goes with the cause.
func TestMaintenance(t *testing.T) {
	inB := func(change func(*corev1.Node)) func(*corev1.Node) {
		return func(n *corev1.Node) {
			if n.Labels["p"] == "b" {
				change(n)
			}
		}
	}
	wants := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}}
		}
	}
	asks := func(name corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1") }
	}
	for name, tc := range map[string]struct {
		pods         func(*corev1.Pod)
		breaks, ends func(*corev1.Node)
	}{
		"a taint":                {func(*corev1.Pod) {}, tainted, func(n *corev1.Node) { n.Spec.Taints = nil }},
		"a device plugin is off": {asks("x/gpu"), inB(func(*corev1.Node) {}), func(n *corev1.Node) { n.Status.Allocatable["x/gpu"] = resource.MustParse("4") }},
		"VMs are not offered":    {asks("kata.peerpods.io/vm"), inB(func(*corev1.Node) {}), func(n *corev1.Node) { n.Status.Allocatable["kata.peerpods.io/vm"] = resource.MustParse("4") }},
		"a feature is not found": {wants("feature", "x"), inB(func(*corev1.Node) {}), func(n *corev1.Node) { n.Labels["feature"] = "x" }},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := ofPolicyWith(t, shortage(1, tc.pods), tc.breaks)
			b.pass(t, 20)
			if is := b.stored(t); len(is.Proven) != 1 || is.Proven[0].NodeLabel["p"] != "b" || is.Proven[0].Owner != "rs" || is.Unsuitable != nil {
				t.Fatalf("the state is %+v", is)
			}
			running := &corev1.Pod{}
			if err := b.Uncached.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web-1"}, running); err != nil {
				t.Fatal(err)
			}
			if err := b.Uncached.Delete(t.Context(), running); err != nil {
				t.Fatal(err)
			}
			b.known = map[types.UID]*memory{} // of a new leader, which saw no pod run there
			b.pass(t, 700)
			if is := b.stored(t); len(is.Proven) != 1 || is.Unsuitable != nil || len(b.evicted) != 0 {
				t.Fatalf("later the state is %+v, and %v are gone", is, b.evicted)
			}
			b.editNode(t, tc.ends)
			b.pass(t, int(rejudge/time.Second)+10) // a change of sizes alone is not waited for
			if is := b.stored(t); len(is.Proven) != 0 {
				t.Errorf("when that has ended, the state is %+v", is)
			}
		})
	}
}

// Pods of an older revision are evidence about the labels and sizes of a pool if they ask for as much as the newest revision's. Otherwise they are
// evidence about its taints.
func TestEvidenceOfRevisions(t *testing.T) {
	for name, tc := range map[string]struct {
		had, stored types.UID // of the pods that had nodes, and of the record; "" is none
		runs        string    // what the pod of the older revision asks for that runs there, or ""
		want        nodefit.Evidence
	}{
		"none":                                    {want: nodefit.NoEvidence},
		"the newest had nodes":                    {had: "rs", want: nodefit.RanAlike},
		"an older one had":                        {had: "old", want: nodefit.Ran},
		"the newest is recorded":                  {stored: "rs", want: nodefit.RanAlike},
		"an older one is recorded":                {stored: "old", want: nodefit.Ran},
		"an older one runs, and asks for as much": {had: "old", runs: "1", want: nodefit.RanAlike},
		"an older one runs, and asks for less":    {had: "old", runs: "500m", want: nodefit.Ran},
	} {
		t.Run(name, func(t *testing.T) {
			b, v := newBench(t), waitsInB(t, time.Hour)
			at := sequence.Cell{Pool: 1}
			old := &member{Owner: observed.Owner{Workload: &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "old", UID: "old"}, Namespace: "ns"}}}
			v.members = append(v.members, old)
			asked := testkit.Pod("asks").Namespace("ns").Container("c", "cpu=1", "").Obj()
			if tc.had != "" {
				seat := ledger.Seat{Pool: v.policy.PoolKey(1), Ordinal: 1}
				pod := testkit.Pod("ran").Namespace("ns").Container("c", "cpu="+cmp.Or(tc.runs, "1"), "").Obj()
				pod.UID, pod.Spec.NodeName = "ran", "node-b"
				pod.Labels = map[string]string{stowage.PoolLabel: seat.Pool, stowage.SeatLabel: "1"}
				pod.Annotations = map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, "ran", ledger.Holder{Namespace: "ns", Owner: string(tc.had)}, seat)}
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: tc.had, Controller: new(true)}}
				if err := b.Seats.Pods().Replace([]any{pod}, "1"); err != nil {
					t.Fatal(err)
				}
				if tc.runs != "" {
					if err := b.Uncached.Create(t.Context(), pod); err != nil {
						t.Fatal(err)
					}
					old.Pods, old.spillPods = []observed.Pod{{Namespace: "ns", Name: "ran"}}, []spill.Pod{{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Node: true}}
				}
			}
			var stored *stowage.ProvenPool
			if tc.stored != "" {
				stored = &stowage.ProvenPool{Owner: tc.stored}
			}
			got := b.evidence(v, at, "rs", stored)
			if alike, err := b.runsAlike(t.Context(), v, at, question(v, at, asked, nodefit.Volumes{}).Pod); err != nil {
				t.Fatal(err)
			} else if alike {
				got = nodefit.RanAlike
			}
			if got != tc.want {
				t.Errorf("the evidence is %d, want %d", got, tc.want)
			}
		})
	}
}

// Pods that wait for long, and that nobody knows to fit, may run outside of their pools. They are recreated, once.
func TestSoftRevision(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"a device":          func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} },
		"another scheduler": func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" },
	} {
		t.Run(name, func(t *testing.T) {
			objects := shortage(0)
			for _, o := range objects {
				if p, ok := o.(*corev1.Pod); ok {
					change(p)
				}
			}
			b, p := ofPolicyWith(t, objects)
			known(t, b)
			p.Spec.Repair = stowage.RepairOff
			b.pass(t, 599)
			if is := b.stored(t); is.Soft != nil || len(b.evicted) != 0 {
				t.Fatalf("before ten minutes the state is %+v, and %v are gone", is, b.evicted)
			}
			b.pass(t, 3)
			if is := b.stored(t); is.Soft == nil || is.Soft.Owner != "rs" || is.Soft.Why == "" || is.Unsuitable != nil {
				t.Fatalf("after ten minutes the state is %+v", is)
			}
			found, err := b.Policies.FindFor(t.Context(), "ns", web.Ref, nil)
			if err != nil || !found.Preferred || found.Soft() == nil {
				t.Fatalf("the pods prefer their pools: %+v, %v", found, err)
			}
			b.pass(t, 15)
			if len(b.evicted) != 3 {
				t.Errorf("%v are gone", b.evicted)
			}
			if got := b.noticed(); !strings.Contains(got, "PoolsPreferred") {
				t.Errorf("the events are %q", got)
			}
			b.pass(t, 700)
			if is := b.stored(t); is.Soft == nil {
				t.Error("the record is gone, and the next pods are tried again")
			}
		})
	}
}

// The author of annotations has said where the pods go. They wait, also with spill, and an event says why.
func TestAuthorContradictsHimself(t *testing.T) {
	for _, spills := range []bool{false, true} {
		objects := shortage(0)
		for _, o := range objects {
			if !spills {
				delete(o.GetAnnotations(), stowage.SpillAnnotation)
			}
			if n, ok := o.(*corev1.Node); ok {
				tainted(n)
			}
		}
		b := newBench(t, objects...)
		b.pass(t, 1300)
		if is := b.stored(t); is.Pools != nil || is.Unsuitable != nil || is.Soft != nil || len(b.evicted) != 0 {
			t.Errorf("with spill %t, the state is %+v, and %v are gone", spills, is, b.evicted)
		}
		if got := b.noticed(); got != "PodFitsNoNode" {
			t.Errorf("with spill %t, the events are %q", spills, got)
		}
	}
}

// A constraint that asks for more domains than a pool has is nothing that an author could know. The pool gets no pods, or, where all
// are like that, pods only prefer their pools.
func TestTooFewDomains(t *testing.T) {
	three := func(p *corev1.Pod) {
		n := int32(3)
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: &n, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}
	zones := func(objects []client.Object, more ...string) []client.Object {
		for _, zone := range more {
			other := node("a")
			other.Name, other.Labels["zone"] = "node-a-"+zone, zone
			objects = append(objects, other)
		}
		for _, o := range objects {
			if delete(o.GetAnnotations(), stowage.SpillAnnotation); o.GetName() == "node-a" || o.GetName() == "node-b" {
				o.GetLabels()["zone"] = "1"
			}
		}
		return objects
	}
	b := newBench(t, zones(shortage(0, three), "2", "3")...)
	b.pass(t, 20)
	if is := b.stored(t); len(is.Unsuitable) != 1 || is.Unsuitable[0].Filter != "PodTopologySpread" || is.Soft != nil || len(b.evicted) != 3 {
		t.Errorf("one pool has too few: the state is %+v, and %v are gone", is, b.evicted)
	}
	objects := zones(shortage(0, three))
	for i, o := range objects {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" { // all of them wait
			three(p)
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			objects[i] = p
		}
	}
	b = newBench(t, objects...)
	known(t, b)
	b.pass(t, 40)
	if is := b.stored(t); is.Unsuitable != nil || is.Soft == nil || len(b.evicted) != 6 {
		t.Errorf("all pools have too few: the state is %+v, and %v are gone", is, b.evicted)
	}
}

// Where one pool has too few domains, and the author has sent the pods of the other one into a taint, they only prefer their pools.
func TestTooFewDomainsBesideATaint(t *testing.T) {
	objects := shortage(0, func(p *corev1.Pod) {
		n := int32(2)
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: &n, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	})
	for _, o := range objects {
		delete(o.GetAnnotations(), stowage.SpillAnnotation)
		switch o := o.(type) {
		case *corev1.Node:
			o.Labels["zone"] = "1"
			if o.Labels["p"] == "a" {
				o.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			}
		case *corev1.Pod:
			o.Spec.NodeName = "" // no pod has run anywhere
			o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		}
	}
	b := newBench(t, objects...)
	known(t, b)
	b.pass(t, 40)
	if is := b.stored(t); is.Unsuitable != nil || is.Soft == nil || len(b.evicted) != 6 {
		t.Errorf("the state is %+v, and %v are gone", is, b.evicted)
	}
}

// Pods that nobody can judge, and that move, are nowhere once each pool was tried in vain for long.
func TestInVain(t *testing.T) {
	closed := func(tries int) spill.Pool { return spill.Pool{Phase: spill.Exhausted, Tries: tries} }
	for name, tc := range map[string]struct {
		pools []spill.Pool
		want  bool
	}{
		"one is available":             {[]spill.Pool{closed(vainTries), {Phase: spill.Available}}, false},
		"one was tried less often":     {[]spill.Pool{closed(vainTries), closed(vainTries - 1)}, false},
		"all were tried often":         {[]spill.Pool{closed(vainTries), closed(vainTries + 1)}, true},
		"one is unsuitable altogether": {[]spill.Pool{closed(vainTries), {Phase: spill.Unsuitable}}, true},
	} {
		if got := inVain(tc.pools); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
