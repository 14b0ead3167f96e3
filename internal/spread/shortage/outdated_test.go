package shortage

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// A correction reaches pods that wait: those whose selector is that of no cell any more are recreated, whatever divides them now. Others, and
// those that nobody wants to be touched, stay.
func TestOutdatedPods(t *testing.T) {
	typo := func(p *corev1.Pod) {
		if p.Spec.NodeName == "" {
			p.Spec.NodeSelector = map[string]string{"p": "typo"}
		}
	}
	annotate := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	noSpill := func(o []client.Object) {
		delete(o[0].(*appsv1.ReplicaSet).Annotations, stowage.SpillAnnotation)
	}
	for name, tc := range map[string]struct {
		change []func(*corev1.Pod)
		edit   func([]client.Object)
		gone   int
	}{
		"a typo in a pool's labels": {change: []func(*corev1.Pod){typo}, gone: 3},
		"without spill":             {change: []func(*corev1.Pod){typo}, edit: noSpill, gone: 3},
		"the strategy is gone":      {edit: func(o []client.Object) { o[0].(*appsv1.ReplicaSet).Annotations = nil }, gone: 3},
		"the strategy says to leave its pods alone": {change: []func(*corev1.Pod){typo}, edit: func(o []client.Object) {
			noSpill(o)
			o[0].(*appsv1.ReplicaSet).Annotations[stowage.RepairAnnotation] = "Off"
		}},
		"the strategy is gone, and the workload is to be left alone": {edit: func(o []client.Object) {
			o[0].(*appsv1.ReplicaSet).Annotations = map[string]string{stowage.RepairAnnotation: "Off"}
		}},
		"a pod is to be left alone": {change: []func(*corev1.Pod){typo, annotate(stowage.RepairAnnotation, "off")}},
		"the namespace is": {change: []func(*corev1.Pod){typo}, edit: func(o []client.Object) {
			o[1].SetLabels(map[string]string{stowage.ModeKey: string(stowage.ModeOff)})
		}},
		"the weights are edited": {edit: func(o []client.Object) {
			noSpill(o)
			o[0].(*appsv1.ReplicaSet).Annotations[stowage.SpreadStrategyAliasAnnotation] = "p=a,weight=9:p=b,weight=1"
		}},
		"a pod selects more than its pool": {edit: noSpill, change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeSelector["os"] = "linux" }}},
		"a node is about to have room":     {change: []func(*corev1.Pod){typo, func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-a" }}},
		"it waits at a gate of somebody":   {change: []func(*corev1.Pod){typo, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }}},
		"a gang":                           {change: []func(*corev1.Pod){typo, func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")} }}},
		"pods that were adopted have no selector of ours": {change: []func(*corev1.Pod){typo, func(p *corev1.Pod) {
			p.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginAdopted, p.Name, ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: p.Labels[stowage.PoolLabel], Ordinal: 1})
			p.Labels[stowage.SeatLabel] = "1"
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := shortage(0, tc.change...)
			if tc.edit != nil {
				tc.edit(objects)
			}
			b := newBench(t, objects...)
			known(t, b)
			b.pass(t, 9)
			if len(b.evicted) > 0 {
				t.Errorf("%v are evicted at once", b.evicted)
			}
			b.pass(t, 5)
			if len(b.evicted) != tc.gone {
				t.Errorf("%v are evicted, want %d", b.evicted, tc.gone)
			}
			if tc.gone == 0 {
				reads := len(b.evicted)
				b.pass(t, 30)
				if len(b.evicted) != reads {
					t.Errorf("%v are evicted later", b.evicted)
				}
			} else if state := b.state(t); state != "" {
				t.Errorf("they count as ones that wait for room: %s", state)
			}
		})
	}
}

// known has the bench know that there are no policies.
func known(t *testing.T, b *bench) {
	t.Helper()
	if _, err := b.World.FollowPolicies(t.Context(), meta.NewDefaultRESTMapper(nil), nil); err != nil {
		t.Fatal(err)
	}
}

// Many of them go at the rates of spill, and pods that have a node by now stay.
func TestManyOutdatedPods(t *testing.T) {
	objects := shortage(3)
	for i := range 60 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("more-", i), UID: types.UID(fmt.Sprint("more-", i)), CreationTimestamp: metav1.NewTime(start),
			Labels: map[string]string{stowage.PoolLabel: "1", stowage.SeatLabel: fmt.Sprint(i + 10)},
			Annotations: map[string]string{
				stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, fmt.Sprint("more-", i), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: "1", Ordinal: int64(i + 10)}),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		}}
		p.Spec.NodeSelector = map[string]string{"p": "typo"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		objects = append(objects, p)
	}
	objects[0].(*appsv1.ReplicaSet).Annotations = nil // their successors get no seat, so that nothing has to be proven
	b := newBench(t, objects...)
	known(t, b)
	b.pass(t, 5)
	bound := &corev1.Pod{}
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "more-59"}, bound); err != nil {
		t.Fatal(err)
	}
	bound.Spec.NodeName = "node-b"
	if err := b.Uncached.Update(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	b.pass(t, 6)
	first := len(b.evicted)
	b.pass(t, 3)
	if n := len(b.evicted) - first; n > 4*workloadRate || len(b.evicted) == 0 {
		t.Errorf("%d pods are evicted in 3 s, and %d before", n, first)
	}
	b.pass(t, 60)
	if slices.Contains(b.evicted, "more-59") {
		t.Error("a pod with a node was evicted")
	}
	if len(b.evicted) != 59 {
		t.Errorf("%d pods are evicted in the end", len(b.evicted))
	}
}

// A pod whose successor is outdated again, as that of a mutating webhook may be, is not recreated for ever: each time it takes twice as long.
func TestOutdatedSuccessors(t *testing.T) {
	objects := shortage(0, func(p *corev1.Pod) {
		if p.Spec.NodeName == "" {
			p.Spec.NodeSelector = map[string]string{"p": "typo"}
		}
	})
	delete(objects[0].(*appsv1.ReplicaSet).Annotations, stowage.SpillAnnotation)
	b := newBench(t, objects...)
	known(t, b)
	pods := map[string]*corev1.Pod{}
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok {
			pods[p.Name] = p
		}
	}
	came := 0
	for range 30 * 60 {
		was := len(b.evicted)
		b.pass(t, 1)
		for _, name := range b.evicted[was:] { // its owner makes another one, and the webhook the same mistake
			came++
			next := pods[name].DeepCopy()
			next.UID, next.ResourceVersion = types.UID(fmt.Sprint(name, "-", came)), ""
			if err := b.Uncached.Create(t.Context(), next); err != nil {
				t.Fatal(err)
			}
		}
	}
	if came < 6 || came > 40 {
		t.Errorf("%d pods are recreated in half an hour", came)
	}
}

// A claim has the hash of the selector that its pod got. So a label is missed that was removed from the pool, and so are removed domains.
func TestOutdatedByHash(t *testing.T) {
	labels := nodeset.Set{Labels: map[string]string{"p": "a"}}
	of := func(hash nodeset.Set) observed.Pod {
		r := observed.Pod{Active: true, Unschedulable: true, Origin: ledger.OriginClaimed, Pins: &nodeset.Pins{Selector: map[string]string{"p": "a", "zone": "1"}}}
		r.Pool, r.Source.Selector = "od", sequence.SelectorHash(hash)
		return r
	}
	selectors := &cellSelectors{required: true, cells: []nodeset.Set{labels}, hashes: map[string]bool{sequence.SelectorHash(labels): true}}
	now, was := of(labels), of(nodeset.Set{Labels: map[string]string{"p": "a", "zone": "1"}})
	if !selectors.have(&now) || selectors.have(&was) {
		t.Errorf("the cell has the pod of now: %t, and that of before: %t", selectors.have(&now), selectors.have(&was))
	}
	soft := &cellSelectors{cells: selectors.cells}
	other := was
	other.Pins = &nodeset.Pins{Selector: map[string]string{"os": "linux"}}
	if soft.have(&now) || !soft.have(&other) {
		t.Error("where pods only prefer their pool, one that selects it stays, or one that does not goes")
	}
	older := was
	older.Source.Selector = "" // a version before gave it its seat
	if !selectors.have(&older) {
		t.Error("a pod is deleted by its selector alone")
	}
	now.Domain = "1"
	if selectors.have(&now) {
		t.Error("a pod stays that waits in a domain, though there are none any more")
	}
	selectors.across = true
	if !selectors.have(&now) {
		t.Error("a pod of a domain goes")
	}
}

// What a policy writes into its pods: the labels of each cell, the hash of each pool's, and whether there are domains.
func TestCellSelectorsOf(t *testing.T) {
	for over, cells := range map[string]int{"": 2, "zone: x, y": 4} {
		text := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1", stowage.AcrossAnnotation: over}
		w := world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs"}
		p, err := policy.NewFinder(manifests.New(world.Objects{}), policy.Settings{}).Find(t.Context(), policy.Pod{Namespace: "ns", Owner: w, Annotations: text})
		if err != nil || p == nil {
			t.Fatal(p, err)
		}
		got := cellSelectorsOf(p)
		if len(got.cells) != cells || got.across != (over != "") || len(got.hashes) != 2 || !got.hashes[sequence.SelectorHash(nodeset.Set{Labels: map[string]string{"p": "b"}})] || !got.required {
			t.Errorf("over %q: %+v", over, got)
		}
		rec := observed.Pod{Origin: ledger.OriginClaimed, Pins: &nodeset.Pins{Selector: map[string]string{"p": "a", "zone": "x"}}}
		rec.Source.Selector = sequence.SelectorHash(nodeset.Set{Labels: map[string]string{"p": "a"}})
		if !got.have(&rec) {
			t.Errorf("over %q: a pod of a cell is outdated", over)
		}
	}
}
