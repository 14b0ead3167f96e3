package admit

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// counting is a memory of seats that counts how it is used.
type counting struct {
	*ledger.Memory
	claims, peeks int
	err           error
	unshared      bool
	unverified    bool
	givenBack     []string
}

func (c *counting) GiveBack(owner ledger.Owner, id string) {
	c.givenBack = append(c.givenBack, id)
	c.Memory.GiveBack(owner, id)
}

func (c *counting) Claim(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (ledger.Result, error) {
	c.claims++
	if c.err != nil {
		return ledger.Result{Unverified: c.unverified}, c.err
	}
	res, err := c.Memory.Claim(ctx, owner, s, writeCost)
	res.Written, res.Unverified = !c.unshared, c.unverified
	return res, err
}

func (c *counting) Peek(owner ledger.Owner, s *sequence.Strategy) (ledger.Seat, error) {
	c.peeks++
	return c.Memory.Peek(owner, s)
}

var key = make(ledger.Key, ledger.KeySize)

func newFeature(reader world.Snapshot) (*Feature, *counting) {
	seats := &counting{Memory: ledger.NewMemory()}
	return &Feature{Policies: policy.NewFinder(reader, policy.Settings{}), Seats: seats, Key: key}, seats
}

func pod(kind, strategy string) *podpatch.Pod {
	p := &podpatch.Pod{Metadata: podpatch.Metadata{
		Name: "web-0", Annotations: map[string]string{},
		OwnerReferences: []podpatch.Owner{{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "uid", Controller: true}},
	}, Spec: podpatch.Spec{Containers: []podpatch.Container{{Name: "c"}}}}
	if strategy != "" {
		p.Metadata.Annotations[stowage.SpreadStrategyAliasAnnotation] = strategy
	}
	return p
}

func decide(t *testing.T, f *Feature, p *podpatch.Pod, dryRun bool) feature.Decision {
	t.Helper()
	before := p.Clone()
	d, err := f.Decide(t.Context(), feature.Request{Namespace: "ns", Pod: p, DryRun: dryRun})
	if err != nil {
		t.Fatal(err)
	}
	if len(podpatch.Diff(before, p)) > 0 {
		t.Error("the pod itself was changed")
	}
	return d
}

const halves = "p=a,weight=1:p=b,weight=1"

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		pod     *podpatch.Pod
		edit    func(*podpatch.Pod)
		seats   func(*counting)
		dryRun  bool
		pool    string // "" is none
		warning string
		event   stowage.EventReason
		claims  int
		changed bool
	}{
		"a pod of nobody":        {pod: &podpatch.Pod{}},
		"a DaemonSet's pod":      {pod: pod("DaemonSet", halves)},
		"no strategy":            {pod: pod("ReplicaSet", "")},
		"an owner that can't be": {pod: pod("ReplicaSet", halves), edit: func(p *podpatch.Pod) { p.Metadata.OwnerReferences[0].UID = "a/b" }},
		"a strategy":             {pod: pod("ReplicaSet", halves), pool: "1", claims: 1, changed: true},
		"a dry run":              {pod: pod("ReplicaSet", halves), dryRun: true, pool: "1", changed: true},
		"a StatefulSet's":        {pod: pod("StatefulSet", halves), pool: "1", changed: true},
		"an invalid strategy":    {pod: pod("ReplicaSet", "p"), warning: "is invalid", event: stowage.EventInvalidStrategy},
		"a node of its own":      {pod: pod("ReplicaSet", halves), edit: func(p *podpatch.Pod) { p.Spec.NodeSelector = map[string]string{"p": "a"} }},
		"a node of its own, and a setting that is misspelt": {pod: pod("ReplicaSet", halves), edit: func(p *podpatch.Pod) {
			p.Spec.NodeSelector = map[string]string{"p": "a"}
			p.Metadata.Annotations[stowage.RebalanceAnnotation] = "evict"
		}, warning: "must be"},
		"a seat that was copied": {pod: pod("ReplicaSet", halves), edit: func(p *podpatch.Pod) {
			p.Metadata.Labels = map[string]string{stowage.PoolLabel: "0", stowage.SeatLabel: "9"}
		}, pool: "1", claims: 1, changed: true},
		"an API that is too slow": {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.unshared = true }, pool: "1", claims: 1, changed: true, warning: "too slow", event: stowage.EventSeatNotShared},
		"pools that are full":     {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.err = sequence.ErrFull }, claims: 1, changed: true, warning: "without a pool", event: stowage.EventPoolsFull},
	} {
		t.Run(name, func(t *testing.T) {
			f, seats := newFeature(manifests.New(world.Objects{}))
			if tc.edit != nil {
				tc.edit(tc.pod)
			}
			if tc.seats != nil {
				tc.seats(seats)
			}
			d := decide(t, f, tc.pod, tc.dryRun)
			pool := ""
			if d.Pool != nil {
				pool = d.Pool.Name
			}
			if changed := d.Pod != nil && len(podpatch.Diff(tc.pod, d.Pod)) > 0; pool != tc.pool || changed != tc.changed || seats.claims != tc.claims {
				t.Errorf("pool %q, changed %t, %d claims", pool, changed, seats.claims)
			}
			if (len(d.Warnings) > 0) != (tc.warning != "") || tc.warning != "" && !strings.Contains(d.Warnings[0], tc.warning) {
				t.Errorf("warnings %q", d.Warnings)
			}
			if (len(d.Events) > 0) != (tc.event != "") || tc.event != "" && d.Events[0].Reason != tc.event {
				t.Errorf("events %+v", d.Events)
			}
			if d.Pod == nil {
				return
			}
			again := decide(t, f, d.Pod, tc.dryRun)
			if again.Pod != nil && len(podpatch.Diff(d.Pod, again.Pod)) > 0 {
				t.Errorf("a second pass changes %+v", podpatch.Diff(d.Pod, again.Pod))
			}
		})
	}
}

// A pod that can wait at the gate gets no seat that is a guess, and its claim is given back. Of one that cannot, nothing changes.
func TestWait(t *testing.T) {
	for name, tc := range map[string]struct {
		pod         *podpatch.Pod
		seats       func(*counting)
		dryRun      bool
		wait        bool
		undecidable bool
		seat        bool
		givenBack   int
		ungated     bool // it gets a seat without the gate
		frozen      bool // the process was
	}{
		"a written claim":          {pod: pod("ReplicaSet", halves), seat: true, ungated: true},
		"one that is not shared":   {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.unshared = true }, wait: true, givenBack: 1, ungated: true},
		"one that is not verified": {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.unverified = true }, wait: true, givenBack: 1, ungated: true},
		"full pools, not verified": {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.err, c.unverified = sequence.ErrFull, true }, wait: true, givenBack: 1},
		"full pools":               {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.err = sequence.ErrFull }},
		"an invalid strategy":      {pod: pod("ReplicaSet", "p"), wait: true, undecidable: true},
		"no strategy":              {pod: pod("ReplicaSet", "")},
		"perhaps no strategy":      {pod: pod("ReplicaSet", ""), frozen: true, wait: true},
		"a strategy, for all that": {pod: pod("ReplicaSet", halves), frozen: true, seat: true, ungated: true},
		"a pod with an ordinal":    {pod: pod("StatefulSet", halves), seats: func(c *counting) { c.unshared = true }, seat: true, ungated: true},
		"a dry run of a slow API":  {pod: pod("ReplicaSet", halves), seats: func(c *counting) { c.unshared = true }, dryRun: true, seat: true, ungated: true},
	} {
		for _, gated := range []bool{true, false} {
			f, seats := newFeature(manifests.New(world.Objects{}))
			f.Unsettled = func() bool { return tc.frozen }
			if tc.seats != nil {
				tc.seats(seats)
			}
			p := tc.pod.Clone()
			if gated {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
			}
			d := decide(t, f, p, tc.dryRun)
			wait, seat, back := tc.wait, tc.seat, tc.givenBack
			if !gated {
				wait, seat, back = false, tc.ungated, 0
			}
			if (d.Wait != nil) != wait || wait && errors.Is(d.Wait, feature.ErrUndecidable) != tc.undecidable {
				t.Errorf("%s, gated %t: it waits for %v", name, gated, d.Wait)
			}
			if has := d.Pod != nil && d.Pod.Metadata.Labels[stowage.SeatLabel] != ""; has != seat || (d.Pool != nil) != seat {
				t.Errorf("%s, gated %t: the labels are %v", name, gated, d.Pod)
			}
			if len(seats.givenBack) != back {
				t.Errorf("%s, gated %t: given back %q", name, gated, seats.givenBack)
			}
		}
	}
}

// gone is a world in which an owner may be read, and is not there.
type gone struct{ *manifests.Snapshot }

func (gone) MayRead(string, world.Ref) bool { return true }

// A pod whose owner is gone waits a minute; without the gate it is not Stowage's.
func TestOwnerGone(t *testing.T) {
	f, _ := newFeature(gone{manifests.New(world.Objects{})})
	p := pod("ReplicaSet", halves)
	if d := decide(t, f, p, false); d.Pod != nil || d.Wait != nil {
		t.Errorf("without the gate: %+v", d)
	}
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
	f.Unsettled = func() bool { return true }
	if d := decide(t, f, p, false); d.Wait == nil || errors.Is(d.Wait, feature.ErrUndecidable) {
		t.Errorf("after a freeze, it waits for %v", d.Wait)
	}
	f.Unsettled = nil
	if d := decide(t, f, p, false); !errors.Is(d.Wait, feature.ErrUndecidable) || !errors.Is(d.Wait, policy.ErrOwnerGone) {
		t.Errorf("with the gate: %+v", d)
	}
}

func TestErrorsAreReturned(t *testing.T) {
	f, seats := newFeature(manifests.New(world.Objects{}))
	seats.err = errors.New("no answer")
	if _, err := f.Decide(t.Context(), feature.Request{Namespace: "ns", Pod: pod("ReplicaSet", halves)}); err == nil {
		t.Error("an error is lost")
	}
}

func TestPodDistributor(t *testing.T) {
	static := manifests.New(world.Objects{PodDistributors: []versprei.PodDistributor{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"},
		Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"},
			Distribution: []versprei.Pool{
				{Name: "spot", NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 1, Tolerations: []versprei.Toleration{{Key: "spot", Operator: "Exists"}}},
			},
		},
	}}})
	f, _ := newFeature(static)
	d := decide(t, f, pod("ReplicaSet", ""), false)
	if d.Pool == nil || d.Pool.Name != "spot" || len(d.Pod.Spec.Tolerations) != 1 || d.Pod.Metadata.Labels[stowage.MutatedByKey] != stowage.MutatedByValue ||
		d.Pod.Metadata.Annotations[stowage.MutatedByKey] != stowage.MutatedByValue {
		t.Errorf("%+v", d.Pod)
	}
}

// A claim that is genuine is kept, whatever changed around it. One that is not goes; the node selector
// beside it then is the user's, as far as anybody knows, so the pod gets no other seat.
func TestSecondPass(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*podpatch.Pod)
		kept bool
		pool bool // whether it has a pool after all
	}{
		"as it was":                         {func(*podpatch.Pod) {}, true, true},
		"a sidecar was injected":            {func(p *podpatch.Pod) { p.Spec.Containers = append(p.Spec.Containers, podpatch.Container{Name: "s"}) }, true, true},
		"another claim":                     {func(p *podpatch.Pod) { p.SetAnnotation(stowage.ClaimAnnotation, "cforged.xxx") }, false, false},
		"another seat":                      {func(p *podpatch.Pod) { p.SetLabel(stowage.SeatLabel, "7") }, false, false},
		"a pool that does not exist":        {func(p *podpatch.Pod) { p.SetLabel(stowage.PoolLabel, "9") }, false, false},
		"another owner":                     {func(p *podpatch.Pod) { p.Metadata.OwnerReferences[0].UID = "other" }, false, false},
		"another webhook chose other nodes": {func(p *podpatch.Pod) { p.SetNodeSelector("p", "elsewhere") }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, seats := newFeature(manifests.New(world.Objects{}))
			first := decide(t, f, pod("ReplicaSet", halves), false).Pod
			claim := first.Metadata.Annotations[stowage.ClaimAnnotation]
			second := first.Clone()
			second.Metadata.OwnerReferences = append([]podpatch.Owner{}, first.Metadata.OwnerReferences...)
			tc.edit(second)
			d := decide(t, f, second, false)
			got := second
			if d.Pod != nil {
				got = d.Pod
			}
			if kept := got.Metadata.Annotations[stowage.ClaimAnnotation] == claim; kept != tc.kept || kept && seats.claims != 1 {
				t.Errorf("the claim is kept: %t, %d claims", kept, seats.claims)
			}
			if (d.Pool != nil) != tc.pool {
				t.Errorf("the pool is %v", d.Pool)
			}
			if _, labelled := got.Metadata.Labels[stowage.PoolLabel]; labelled != tc.pool {
				t.Error("the labels do not agree with that")
			}
		})
	}
}

// A seat changes constraints of a pod that is being created. One that exists and waits at the gate gets no seat instead: its constraints
// cannot change, and with a pin it might wait for ever.
func TestConstraintsOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		policy   corev1.NodeInclusionPolicy
		least    *int32
		exists   bool
		seat     bool
		warnings int
	}{
		"it is created":                {least: new(int32(2)), seat: true},
		"it exists":                    {least: new(int32(2)), exists: true},
		"it exists, and asks for more": {least: new(int32(3)), exists: true, seat: true, warnings: 1},
		"it exists, and asks for none": {exists: true, seat: true},
		"it counts the nodes of all":   {policy: corev1.NodeInclusionPolicyIgnore, least: new(int32(2)), seat: true, warnings: 1},
		"and exists":                   {policy: corev1.NodeInclusionPolicyIgnore, least: new(int32(2)), exists: true, seat: true, warnings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newFeature(manifests.New(world.Objects{}))
			p := pod("ReplicaSet", halves)
			p.Spec.TopologySpreadConstraints = []podpatch.SpreadConstraint{{TopologyKey: "p", WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: tc.least, NodeAffinityPolicy: tc.policy}}
			d, err := f.Decide(t.Context(), feature.Request{Namespace: "ns", Pod: p, Exists: tc.exists})
			if err != nil {
				t.Fatal(err)
			}
			if (d.Pool != nil) != tc.seat || len(d.Warnings) != tc.warnings {
				t.Errorf("a pool: %v, warnings %q", d.Pool, d.Warnings)
			}
			if took := d.Pod != nil && tc.least != nil && d.Pod.Spec.TopologySpreadConstraints[0].MinDomains == nil; took != (name == "it is created") {
				t.Errorf("it took minDomains: %t", took)
			}
		})
	}
}

func TestSecondPassOfOtherKinds(t *testing.T) {
	f, _ := newFeature(manifests.New(world.Objects{}))
	// A StatefulSet's pod that was restarted from a copy of another's.
	own := decide(t, f, pod("StatefulSet", halves), false).Pod
	copied := own.Clone()
	copied.Metadata.Name = "web-1"
	d := decide(t, f, copied, false)
	if rank, _ := placement.OwnRank(copied, 0); rank != 2 || d.Pool.Name != "0" {
		t.Errorf("ordinal 1 has rank %d and goes to pool %s", rank, d.Pool.Name)
	}
	// A dry run's seat is worth nothing in a real request.
	dry := decide(t, f, pod("ReplicaSet", halves), true).Pod
	if real := decide(t, f, dry, false).Pod; real.Metadata.Annotations[stowage.ClaimAnnotation] == dry.Metadata.Annotations[stowage.ClaimAnnotation] {
		t.Error("the seat of a dry run was kept")
	}
	// An adopted pod's seat is not for a new pod.
	adopted := pod("ReplicaSet", halves)
	seat := ledger.Seat{Pool: "0", Ordinal: 1}
	adopted.SetLabel(stowage.PoolLabel, seat.Pool)
	adopted.SetLabel(stowage.SeatLabel, "1")
	adopted.SetAnnotation(stowage.ClaimAnnotation, key.Sign(ledger.OriginAdopted, "", ledger.Holder{Namespace: "ns", Owner: "uid"}, seat))
	if got := decide(t, f, adopted, false).Pod.Metadata.Annotations[stowage.ClaimAnnotation]; got == adopted.Metadata.Annotations[stowage.ClaimAnnotation] {
		t.Error("the seat of an adopted pod was kept")
	}
}

// While no pool has room, a pod gets the next seat of the whole strategy, and waits there.
func TestNoPoolHasRoom(t *testing.T) {
	room := func(value string) stowage.PoolRoom {
		return stowage.PoolRoom{NodeLabel: map[string]string{"p": value}, Phase: stowage.PoolExhausted, Epoch: 1, Max: 1}
	}
	f, _ := newFeature(manifests.New(world.Objects{
		Workloads: []*world.Workload{{
			Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "uid"}, Namespace: "ns",
			Annotations: map[string]string{stowage.SpillAnnotation: "1m"},
		}},
		PoolStates: []stowage.PoolState{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "uid"}, Pools: []stowage.PoolRoom{room("a"), room("b")}}},
	}))
	var got []string
	for range 5 {
		d := decide(t, f, pod("ReplicaSet", halves), false)
		if d.Pool == nil || len(d.Warnings)+len(d.Events) > 0 || d.Pod.Spec.NodeSelector["p"] == "" {
			t.Fatalf("pod %d has no pool: %q", len(got)+1, d.Warnings)
		}
		m := d.Pod.Metadata
		got = append(got, m.Labels[stowage.PoolLabel]+"/"+m.Labels[stowage.SeatLabel]+" "+m.Annotations[corev1.PodDeletionCost])
	}
	if diff := cmp.Diff([]string{"1/1 9999999", "0/1 9999998", "1/2 9999997", "0/2 9999996", "1/3 9999995"}, got); diff != "" {
		t.Errorf("seats and costs (-want +got):\n%s", diff)
	}
}

// A pod that came when every pool had its maximum stays so in a second pass, and its claim is worth something for its owner alone.
func TestEveryPoolIsFull(t *testing.T) {
	f, seats := newFeature(manifests.New(world.Objects{}))
	seats.err = sequence.ErrFull
	first := decide(t, f, pod("ReplicaSet", halves), false).Pod
	if !strings.HasPrefix(first.Metadata.Annotations[stowage.ClaimAnnotation], "f") {
		t.Errorf("the claim is %q", first.Metadata.Annotations[stowage.ClaimAnnotation])
	}
	seats.err = nil // a pod has gone since
	if d := decide(t, f, first, false); d.Pool != nil || len(podpatch.Diff(first, d.Pod)) > 0 || len(d.Warnings) > 0 {
		t.Errorf("a second pass gives %+v", d)
	}
	other := first.Clone()
	other.Metadata.OwnerReferences = []podpatch.Owner{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "other", Controller: true}}
	if d := decide(t, f, other, false); d.Pool == nil {
		t.Error("the claim of another owner's pod is worth something")
	}
	dry := pod("ReplicaSet", halves)
	dry.SetAnnotation(stowage.ClaimAnnotation, key.Sign(ledger.OriginDryRun, "", ledger.Holder{Namespace: "ns", Owner: "uid"}, ledger.Seat{}))
	if d := decide(t, f, dry, false); d.Pool == nil {
		t.Error("the claim of a dry run is worth something")
	}
}

// A policy that changes between two calls for one pod leaves the pod as the first call decided. The next pod follows the change.
func TestPolicyChangesBetweenTwoPasses(t *testing.T) {
	of := func(uid types.UID, generation int64, spot string) world.Snapshot {
		p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: uid, Generation: generation}}
		p.Spec.Mode = stowage.PolicyEnforce
		p.Spec.Kinds = []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}}
		p.Spec.Pools = []stowage.PolicyPool{{
			Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": versprei.LabelValue(spot)}, Weight: 1,
			Tolerations: []versprei.Toleration{{Key: spot, Operator: "Exists"}},
		}}
		var o world.Objects
		for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
			o.Workloads = append(o.Workloads, &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "uid"}, Namespace: "ns", Labelled: true})
		}
		o.Policies.Cluster = append(o.Policies.Cluster, p)
		return manifests.New(o)
	}
	for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
		f, seats := newFeature(of("p", 1, "a"))
		first := decide(t, f, pod(kind, ""), false)
		if first.Pod == nil || first.Pod.Spec.NodeSelector["type"] != "a" {
			t.Fatalf("%s: the first pass gives %+v", kind, first)
		}
		for name, now := range map[string]world.Snapshot{"an edit": of("p", 2, "a"), "another pool": of("p", 2, "b"), "another policy": of("q", 1, "a"), "no policy": manifests.New(world.Objects{})} {
			changed := &Feature{Policies: policy.NewFinder(now, policy.Settings{}), Seats: seats, Key: key}
			again := decide(t, changed, first.Pod, false)
			if again.Pod != nil && len(podpatch.Diff(first.Pod, again.Pod)) > 0 {
				t.Errorf("%s, %s: the second pass changes %+v", kind, name, podpatch.Diff(first.Pod, again.Pod))
			}
		}
		if stale := first.Pod.Clone(); kind == "ReplicaSet" { // a claim that nobody waits for, as in a copy of the pod
			stale.Metadata.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, "used", ledger.Holder{Namespace: "ns", Owner: "uid"}, ledger.Seat{Pool: "spot", Ordinal: 1})
			next := &Feature{Policies: policy.NewFinder(of("p", 2, "b"), policy.Settings{}), Seats: seats, Key: key}
			if d := decide(t, next, stale, false); d.Pod == nil || d.Pod.Metadata.Annotations[stowage.ClaimAnnotation] == stale.Metadata.Annotations[stowage.ClaimAnnotation] {
				t.Errorf("a stale claim stays: %+v", d)
			}
		}
	}
}

// Whoever creates pods reads warnings, and events of the namespace. Neither names a ClusterSpreadPolicy, nor the PriorityClass that it gives, nor what is
// wrong with it: only who may read the policy is told that.
func TestTenantsReadNoClusterPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*stowage.ClusterSpreadPolicySpec, *podpatch.Pod)
		want string
	}{
		"no PriorityClass": {func(s *stowage.ClusterSpreadPolicySpec, _ *podpatch.Pod) {
			s.Pools[0].PriorityClassName = "secret-class"
		},
			"a ClusterSpreadPolicy: pool spot has a priorityClassName, which pods do not get: there is no such PriorityClass"},
		"full pools": {func(s *stowage.ClusterSpreadPolicySpec, _ *podpatch.Pod) { s.Pools[0].Weight, s.Pools[0].Base = 0, 1 },
			"a ClusterSpreadPolicy: every pool has as many pods as it may have, so a pod was admitted without a pool"},
		"an invalid policy": {func(s *stowage.ClusterSpreadPolicySpec, _ *podpatch.Pod) { s.Pools[0].NodeSelector["secret key"] = "" },
			"a ClusterSpreadPolicy is invalid, so its pods are admitted as they are: its status says why"},
		"a setting of the pod": {func(_ *stowage.ClusterSpreadPolicySpec, p *podpatch.Pod) {
			p.SetAnnotation(stowage.SpillAnnotation, "2m")
		},
			"stowage.dev/spill has no effect, because a ClusterSpreadPolicy divides the pods of this workload"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "secret-policy", UID: "p", Generation: 1}}
			p.Spec.Mode = stowage.PolicyEnforce
			p.Spec.Kinds = []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}}
			p.Spec.Pools = []stowage.PolicyPool{{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 1}}
			web := pod("ReplicaSet", "")
			tc.edit(&p.Spec, web)
			o := world.Objects{PriorityClasses: []string{"another"}, Policies: world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{p}}}
			o.Workloads = []*world.Workload{{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "uid"}, Namespace: "ns", Labelled: true}}
			f, _ := newFeature(manifests.New(o))
			var texts []string
			for range 2 { // the second pod finds the base taken
				d := decide(t, f, web, false)
				texts = append(texts, d.Warnings...)
				for _, e := range d.Events {
					texts = append(texts, e.Note)
				}
			}
			if all := strings.Join(texts, "\n"); !strings.Contains(all, tc.want) || strings.Contains(all, "secret") {
				t.Errorf("the texts are %q, want %q, and no secret", texts, tc.want)
			}
		})
	}
}
