package supply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const failAfter = 5 * time.Minute

// bench is a controller in its term, with an API server that holds some objects.
type bench struct {
	*run
	t        *testing.T
	client   client.Client
	clock    *clocktesting.FakeClock
	recorder *clientevents.FakeRecorder
	reads    int   // of pods
	refuses  error // evictions
	logs     []string
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, clock: clocktesting.NewFakeClock(start), recorder: clientevents.NewFakeRecorder(100)}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&stowage.VMCatalog{}).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, is := obj.(*corev1.Pod); is {
				b.reads++
			}
			return c.Get(ctx, key, obj, opts...)
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, obj, in client.Object, opts ...client.SubResourceCreateOption) error {
			if b.refuses != nil {
				return b.refuses
			}
			return c.SubResource(sub).Create(ctx, obj, in, opts...)
		},
	}).Build()
	set, successors := metrics.NewSet(prometheus.NewRegistry()), successor.New(b.client, testkit.NoOwners)
	namespaces := manifests.New(world.Objects{Namespaces: []corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, {ObjectMeta: metav1.ObjectMeta{Name: "off", Annotations: map[string]string{stowage.ModeKey: string(stowage.ModeOff)}}},
	}})
	b.run = &run{
		Controller: &Controller{
			Config: peerpod.DefaultConfig(), Cached: b.client, Uncached: b.client, Scope: scope.New(namespaces, "stowage-system"), Evictor: evict.New(b.client, evict.Rules{Lost: successors.Lost, Paused: func(context.Context, string) bool { return false }}, b.clock, 1, set),
			Successors: successors, Clock: b.clock, Time: b.clock, Timing: DefaultTiming(), Events: events.Recorder{EventRecorder: b.recorder}, Metrics: NewMetrics(set),
			Log: funcr.New(func(_, args string) { b.logs = append(b.logs, args) }, funcr.Options{}),
		},
		limit: fair.NewLimiter[string](evictRate, evictRate), written: map[string]time.Time{},
	}
	return b
}

// events returns what was published.
func (b *bench) events() (all []string) {
	for {
		select {
		case e := <-b.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// names are the pods that are there.
func (b *bench) names() (names []string) {
	var list corev1.PodList
	if err := b.client.List(b.t.Context(), &list); err != nil {
		b.t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// twoTypes is a catalog of a cheap and a dear type. Each may be closed.
func twoTypes(closed ...stowage.ClosedVMType) *stowage.VMCatalog {
	return &stowage.VMCatalog{
		ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c", Generation: 1},
		Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String(), Types: []stowage.VMType{
			{Name: "cheap", VCPUs: 2, Memory: resource.MustParse("4Gi"), PricePerHour: "0.1"}, {Name: "dear", VCPUs: 4, Memory: resource.MustParse("8Gi"), PricePerHour: "0.2"},
		}},
		Status: stowage.VMCatalogStatus{Closed: closed},
	}
}

func closedIn(namespace, zone string) stowage.ClosedVMType {
	return stowage.ClosedVMType{Type: "cheap", Namespace: namespace, Zone: zone, Phase: stowage.VMTypeClosed, Since: metav1.NewTime(start.Add(-time.Minute)), Why: "because"}
}

func node(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return n
}

// waits returns a pod of namespace "ns" with the type cheap, which has waited for its VM on node "x" for just too long.
func waits(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("u-" + name), CreationTimestamp: metav1.NewTime(start.Add(-failAfter)), Labels: map[string]string{stowage.PeerPodLabel: "true"},
			Annotations:     map[string]string{stowage.MachineTypeAnnotation: "cheap", stowage.OriginalResourcesAnnotation: `{"machine":"cheap","containers":{"c":{"limits":{"cpu":"1"}}}}`},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "x", RuntimeClassName: new(stowage.DefaultRuntimeClass), Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(-failAfter))},
		}},
	}
}

// withVM gives a pod its VM.
func withVM(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start)})
}

// A pod is evicted if its type is closed in the zone of its node, and if the pod is still as it was seen.
func TestMove(t *testing.T) {
	seen := func(change func(*corev1.Pod)) func(a, b *corev1.Pod) {
		return func(seen, now *corev1.Pod) { change(seen); change(now) }
	}
	since := func(change func(*corev1.Pod)) func(a, b *corev1.Pod) {
		return func(_, now *corev1.Pod) { change(now) }
	}
	inX := []stowage.ClosedVMType{closedIn("ns", "x")}
	for name, tc := range map[string]struct {
		closed []stowage.ClosedVMType
		change func(seen, now *corev1.Pod)
		stays  bool
	}{
		"its zone is closed":             {inX, nil, false},
		"another zone is closed":         {[]stowage.ClosedVMType{closedIn("ns", "y")}, nil, true},
		"nodes without zones are closed": {[]stowage.ClosedVMType{closedIn("ns", "")}, nil, true},
		"it is on a node without a zone": {[]stowage.ClosedVMType{closedIn("ns", "")}, seen(func(p *corev1.Pod) { p.Spec.NodeName = "none" }), false},
		"its node is not known":          {[]stowage.ClosedVMType{closedIn("ns", ""), closedIn("ns", "x")}, seen(func(p *corev1.Pod) { p.Spec.NodeName = "gone" }), true},
		"it has no node":                 {[]stowage.ClosedVMType{closedIn("ns", ""), closedIn("ns", "x")}, seen(func(p *corev1.Pod) { p.Spec.NodeName = "" }), true},
		"another namespace is closed":    {[]stowage.ClosedVMType{closedIn("off", "x")}, nil, true},
		"nothing is closed":              {nil, nil, true},
		"its namespace is off":           {[]stowage.ClosedVMType{closedIn("off", "x")}, seen(func(p *corev1.Pod) { p.Namespace = "off" }), true},
		"it has its VM":                  {inX, seen(withVM), true},
		"its VM was made since":          {inX, since(withVM), true},
		"it has ended":                   {inX, seen(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"it has ended since":             {inX, since(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"it is deleted":                  {inX, seen(func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = new(metav1.NewTime(start)), []string{"x/y"} }), true},
		"another pod has its name":       {inX, since(func(p *corev1.Pod) { p.UID = "other" }), true},
		"another pod had its name":       {inX, func(seen, _ *corev1.Pod) { seen.UID = "other" }, true},
		"it has not waited long enough": {inX, seen(func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(time.Second - failAfter))
		}), true},
		"somebody else chose its type": {inX, seen(func(p *corev1.Pod) {
			p.Annotations[stowage.OriginalResourcesAnnotation] = `{"containers":{"c":{"limits":{"cpu":"1"}}}}`
		}), true},
		"nobody creates another": {inX, seen(func(p *corev1.Pod) { p.OwnerReferences = nil }), true},
		"no other type fits": {inX, seen(func(p *corev1.Pod) {
			p.Annotations[stowage.OriginalResourcesAnnotation] = `{"machine":"cheap","containers":{"c":{"limits":{"cpu":"9"}}}}`
		}), true},
		"its successor gets the same again": {inX, seen(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "y"} }), true},
	} {
		t.Run(name, func(t *testing.T) {
			seen, now := waits("p"), waits("p")
			if tc.change != nil {
				tc.change(seen, now)
			}
			b := newBench(t, node("x", "x"), node("none", ""), now)
			b.move(t.Context(), catalog.Compile(twoTypes(tc.closed...)), []*Peer{PeerOf(&b.Config, seen)})
			told := b.events()
			if stays := len(b.names()) == 1 && now.DeletionTimestamp == nil && len(told) == 0 || now.DeletionTimestamp != nil && len(told) == 0; stays != tc.stays {
				t.Errorf("it stays: %t; events: %v", stays, told)
			}
			if want := "no VM of type cheap was made within 5m0s, so the pod was evicted; its successor gets type dear"; !tc.stays && !strings.Contains(strings.Join(told, "\n"), want) {
				t.Errorf("events are %v, want %q", told, want)
			}
		})
	}
}

// What is seen of a pod is enough to leave the pod alone, without a request. A Job is read once.
func TestPodsThatStayCostNoRequests(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job"}}
	early, bare, ofJob, moves := waits("early"), waits("bare"), waits("of-job"), waits("moves")
	early.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start)
	bare.OwnerReferences = nil
	ofJob.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job", Controller: new(true)}}
	b := newBench(t, node("x", "x"), job, early, bare, ofJob, moves)
	var peers []*Peer
	for _, p := range []*corev1.Pod{early, bare, ofJob, moves} {
		peers = append(peers, PeerOf(&b.Config, p))
	}
	c := catalog.Compile(twoTypes(closedIn("ns", "x")))
	b.move(t.Context(), c, peers)
	if diff := cmp.Diff([]string{"bare", "early", "of-job"}, b.names()); diff != "" {
		t.Errorf("pods that are left (-want +got):\n%s", diff)
	}
	if b.reads != 4 { // the evictor reads a pod, too
		t.Errorf("pods were read %d times", b.reads)
	}
	b.move(t.Context(), c, peers[:3])
	if b.reads != 4 {
		t.Errorf("at the second look, pods were read %d times", b.reads-4)
	}
	if logs := strings.Join(b.logs, "\n"); len(b.logs) != 1 || !strings.Contains(logs, "a pod was evicted, because its VM was not made") {
		t.Errorf("the log is %s", logs)
	}
}

// Pods that were not evicted do not count as evicted, so that others still are.
func TestEvictionsThatFail(t *testing.T) {
	for name, tc := range map[string]struct {
		refuses error
		change  func(*corev1.Pod) bool // false if the pod is gone
		logs    int
	}{
		"the pods are gone":       {nil, func(*corev1.Pod) bool { return false }, 0},
		"their VMs were made":     {nil, func(p *corev1.Pod) bool { withVM(p); return true }, 0},
		"the API does not answer": {errors.New("no answer"), func(*corev1.Pod) bool { return true }, evict.MostUnproven},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("x", "x"), waits("moves"))
			b.refuses = tc.refuses
			var peers []*Peer
			for i := range evict.MostUnproven {
				p := waits(fmt.Sprintf("p%02d", i))
				if peers = append(peers, PeerOf(&b.Config, p)); tc.change(p) {
					if err := b.client.Create(t.Context(), p); err != nil {
						t.Fatal(err)
					}
				}
			}
			c := catalog.Compile(twoTypes(closedIn("ns", "x")))
			b.move(t.Context(), c, peers)
			if logs := strings.Join(b.logs, "\n"); len(b.logs) != tc.logs || strings.Count(logs, "a pod whose VM was not made was not evicted; this is tried again") != tc.logs {
				t.Errorf("the log is %s", logs)
			}
			b.refuses = nil
			b.clock.Step(time.Second)
			b.move(t.Context(), c, []*Peer{PeerOf(&b.Config, waits("moves"))})
			if slices.Contains(b.names(), "moves") {
				t.Error("another pod is not evicted any more")
			}
		})
	}
}

// While nothing proves that pods pass the webhook, few pods are evicted. One that was created since is a proof.
func TestMovesWithoutProof(t *testing.T) {
	objects, peers := []client.Object{node("x", "x")}, []*Peer{}
	config := peerpod.DefaultConfig()
	for i := range evict.MostUnproven + 5 {
		p := waits(fmt.Sprintf("p%02d", i))
		objects, peers = append(objects, p), append(peers, PeerOf(&config, p))
	}
	b := newBench(t, objects...)
	c := catalog.Compile(twoTypes(closedIn("ns", "x")))
	left := func(want int) {
		t.Helper()
		b.clock.Step(time.Second) // so that the rate of evictions is not what limits them
		b.move(t.Context(), c, peers)
		there := b.names()
		peers = slices.DeleteFunc(peers, func(p *Peer) bool { return p.Ours && !slices.Contains(there, p.Name) })
		if len(there) != want {
			t.Errorf("%d pods are left, want %d", len(there), want)
		}
	}
	left(5)
	left(5)
	theirs := peer("ns", "theirs", "cheap", 1)
	theirs.Ours, theirs.CreationTimestamp = false, metav1.NewTime(start)
	peers = append(peers, theirs) // proves nothing
	left(5)
	b.clock.Step(evict.TryUnproven - 4*time.Second)
	left(5)
	left(4)
	successor := peer("ns", "successor", "dear", 1)
	successor.CreationTimestamp = metav1.NewTime(start)
	peers = append(peers, successor)
	left(0)
}

// What is seen of the pods of a catalog are those with a type that Stowage chose and a node whose zone is known. A pod that ended without a VM shows
// nothing.
func TestView(t *testing.T) {
	pod := func(name string, change func(*Peer)) *Peer {
		p := peer("ns", name, "cheap", 1)
		p.Node, p.Began = "x", start
		change(p)
		return p
	}
	b := newBench(t, node("x", "zone"), node("none", ""))
	view := b.view(t.Context(), catalog.Compile(twoTypes()), []*Peer{
		pod("waits", func(*Peer) {}),
		pod("runs", func(p *Peer) { p.Made = start.Add(time.Second) }),
		pod("ended", func(p *Peer) { p.Active = false }),
		pod("ran", func(p *Peer) { p.Active, p.Made = false, start.Add(2*time.Second) }),
		pod("without a zone", func(p *Peer) { p.Node = "none" }),
		pod("on an unknown node", func(p *Peer) { p.Node = "gone" }),
		pod("without a node", func(p *Peer) { p.Node = "" }),
		pod("with its own type", func(p *Peer) { p.Ours = false }),
		pod("with a type of no catalog", func(p *Peer) { p.Type = "gone" }),
	})
	in, without := catalog.Key{Type: "cheap", Namespace: "ns", Zone: "zone"}, catalog.Key{Type: "cheap", Namespace: "ns"}
	if diff := cmp.Diff(catalog.View{Now: start, Pods: []catalog.Pod{
		{Key: in, Began: start}, {Key: in, Began: start, Made: start.Add(time.Second)}, {Key: in, Began: start, Made: start.Add(2 * time.Second)}, {Key: without, Began: start},
	}}, view); diff != "" {
		t.Errorf("seen are (-want +got):\n%s", diff)
	}
}

// The status has what is closed, and events say what closed and what opened. A status that differs in numbers alone is written seldom.
func TestUpdate(t *testing.T) {
	old := stowage.ClosedVMType{Type: "cheap", Phase: stowage.VMTypeClosed, Since: metav1.NewTime(start), Why: "of an earlier version, for all namespaces"}
	b := newBench(t, twoTypes(old), node("x", "x"))
	stored := func() *stowage.VMCatalog {
		t.Helper()
		o := &stowage.VMCatalog{}
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: "c"}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	update := func(peers ...*Peer) (settled bool) {
		t.Helper()
		c := catalog.Compile(stored())
		all := []*catalog.Catalog{c}
		settled, err := b.update(t.Context(), all, c, peers, Count(c, peers))
		if err != nil {
			t.Fatal(err)
		}
		return settled
	}
	expect := func(what string, vms int64, phases string, told ...string) {
		t.Helper()
		o := stored()
		var got []string
		for _, closed := range o.Status.Closed {
			got = append(got, fmt.Sprintf("%s %s@%s %s", closed.Type, closed.Namespace, closed.Zone, closed.Phase))
		}
		if text := strings.Join(got, ", "); text != phases || o.Status.VMs != vms {
			t.Errorf("%s: closed are %q, and there are %d VMs", what, text, o.Status.VMs)
		}
		if diff := cmp.Diff(told, b.events(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", what, diff)
		}
	}
	on := func(began, made time.Time, name string) *Peer {
		p := peer("ns", "p", name, 1)
		p.Node, p.Began, p.Made = "x", began, made
		return p
	}
	if update() {
		t.Error("it is settled before it was written")
	}
	expect("at first", 0, "")
	if !update() {
		t.Error("it is not settled without pods")
	}
	// 1. Numbers are written every ten seconds.
	waiting := on(start.Add(-failAfter+20*time.Second), time.Time{}, "cheap")
	b.clock.Step(b.Timing.Write - time.Second)
	if update(waiting) {
		t.Error("it is settled though the numbers were not written")
	}
	expect("too soon", 0, "")
	b.clock.Step(time.Second)
	update(waiting)
	expect("after ten seconds", 1, "")
	if update(waiting) {
		t.Error("it is settled while a pod waits")
	}
	// 2. What closes is written at once.
	b.clock.Step(b.Timing.Write)
	update(waiting)
	expect("when it has waited for too long", 1, "cheap ns@x Closed", "Warning VMTypeClosed no VM of type cheap can be made for pods of namespace ns in zone x: 1 pod(s) have waited for a VM for 5m0s; "+
		"such pods get the next cheapest type, and the type is not tried again before 2026-01-02T03:05:25Z")
	if o := stored(); o.Status.ClosedTypes != "cheap" || o.Status.ObservedGeneration != 1 {
		t.Errorf("the status is %+v", o.Status)
	}
	// 3. When a pod last waited is written about once a minute.
	waitedAt := func() time.Duration { return stored().Status.Closed[0].Waited.Sub(start) }
	was := waitedAt()
	b.clock.Step(time.Minute - time.Second)
	if update(waiting) || waitedAt() != was {
		t.Errorf("it waited %s after the start", waitedAt())
	}
	b.clock.Step(time.Second)
	if update(waiting); waitedAt() != was+time.Minute {
		t.Errorf("it waited %s after the start", waitedAt())
	}
	expect("after a minute", 1, "cheap ns@x Closed")
	// 4. A VM of another type was made, so it is tried; and one of the type opens it.
	made := on(start, b.clock.Now(), "dear")
	update(waiting, made)
	expect("when another type was made", 2, "cheap ns@x Trying", "Normal VMTypeTried the next pod tries type cheap again for pods of namespace ns in zone x")
	b.clock.Step(b.Timing.Write)
	if update(on(start, b.clock.Now(), "cheap"), made) {
		t.Error("it is settled though it was written just now")
	}
	expect("when a VM was made", 2, "", "Normal VMTypeOpen type cheap is open again for pods of namespace ns in zone x")
	// 5. A later generation is written at once, and an object that the watch does not have yet is left alone.
	o := stored()
	o.Generation = 2
	if err := b.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	late := catalog.Compile(o)
	late.Version = "before"
	if settled, err := b.update(t.Context(), []*catalog.Catalog{late}, late, nil, Count(late, nil)); settled || err != nil || stored().Status.ObservedGeneration != 1 {
		t.Errorf("of an older version it is settled: %t, error %v", settled, err)
	}
	update()
	if o = stored(); o.Status.ObservedGeneration != 2 {
		t.Errorf("the status is %+v", o.Status)
	}
}
