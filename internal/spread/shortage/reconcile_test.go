package shortage

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

// These tests are about what the controller decides, and when; the objects stand in a fake store that decides nothing. What the
// scheduler and the API server make of it is tested in test/e2e.

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = make(ledger.Key, ledger.KeySize)
	web   = world.Object{Namespace: "ns", Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs"}}
)

// bench is a controller in a term, with the objects that it sees.
type bench struct {
	*run
	clock    *clocktesting.FakeClock
	recorder *clientevents.FakeRecorder
	version  int
	evicted  []string
	claims   []unstructured.Unstructured // Karpenter's NodeClaims
	hasNo    bool                        // Karpenter
	limits   []int64                     // of the lists of events
	prunes   bool                        // the API server's PoolStates know nothing of unsuitable pools
	conflict int                         // how many updates of PoolStates meet one
	created  int                         // PoolStates
	told     []string                    // the texts of events and log lines
}

// internalKey is the key of a policy's pool, with the hash of what selects its nodes.
var internalKey = regexp.MustCompile(`\w@[\w-]{8}\b`)

// namesPools checks that people read the names of pools and not their keys.
func (b *bench) namesPools(t *testing.T) {
	b.noticed()
	for _, text := range b.told {
		if internalKey.MatchString(text) {
			t.Errorf("an event or a log line has the key of a pool: %s", text)
		}
	}
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{clock: clocktesting.NewFakeClock(start), recorder: clientevents.NewFakeRecorder(1000), hasNo: true}
	c := testkit.Indexed(fake.NewClientBuilder().WithScheme(scheme)).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.PersistentVolumeClaim{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if state, ok := obj.(*stowage.PoolState); ok {
					if b.created++; b.prunes {
						state.Unsuitable = nil
					}
				}
				return c.Create(ctx, obj, opts...)
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				if b.conflict > 0 {
					b.conflict--
					return apierrors.NewConflict(stowage.GroupVersion.WithResource("poolstates").GroupResource(), obj.GetName(), nil)
				}
				return c.Update(ctx, obj, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, ok := list.(*corev1.EventList); ok {
					b.limits = append(b.limits, (&client.ListOptions{}).ApplyOptions(opts).Limit)
				}
				u, ok := list.(*unstructured.UnstructuredList)
				switch {
				case !ok:
					return c.List(ctx, list, opts...)
				case b.hasNo:
					return apierrors.NewForbidden(karpenterResource, "", nil)
				case u.GetKind() == karpenter.NodeClaims.Kind+"List":
					u.Items = b.claims
				}
				return nil
			},
			SubResourceCreate: func(ctx context.Context, c client.Client, _ string, obj client.Object, sub client.Object, _ ...client.SubResourceCreateOption) error {
				want := sub.(*policyv1.Eviction).DeleteOptions.Preconditions
				have := &corev1.Pod{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(obj), have); err != nil {
					return err
				}
				if *want.UID != have.UID || *want.ResourceVersion != have.ResourceVersion {
					return apierrors.NewConflict(podResource, have.Name, nil)
				}
				b.evicted = append(b.evicted, have.Name)
				return c.Delete(ctx, have)
			},
		}).Build()
	set := metrics.NewSet(prometheus.NewRegistry())
	reader := worldcache.New(c, c, b.clock, worldcache.ForAdmission())
	service := seats.New(seats.Options{API: noLedgers{}, Key: key, Writer: "w", Clock: b.clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)})
	b.run = &run{
		Controller: &Controller{
			Cached: c, Uncached: c, Informers: &informertest.FakeInformers{Scheme: scheme}, World: reader, Policies: owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, c, b.clock),
			Seats: service, Scope: scope.New(reader, "stowage-system"), Room: poolroom.New(c, c, b.clock, b.clock), Evictor: testkit.Evictor(c, b.clock, set), Successors: successor.New(c, reader.Workload),
			Clock: b.clock, Timing: DefaultTiming(), Log: funcr.New(func(_, text string) { b.told = append(b.told, text) }, funcr.Options{Verbosity: 1}), Events: events.Recorder{EventRecorder: b.recorder}, Metrics: NewMetrics(set),
		},
		work: testkit.Queue[world.Object](), limit: fair.NewLimiter[string](totalRate, 2*totalRate), looks: fair.NewLimiter[string](judgeRate, judgeBurst), known: map[types.UID]*memory{}, scaleUps: map[string]scaleUps{},
	}
	t.Cleanup(func() { b.namesPools(t) })
	b.Seats.Changes.Add(func(change seats.Change) { b.Room.PodLeft(change.Left) })
	for _, o := range objects {
		if node, ok := o.(*corev1.Node); ok {
			b.Room.NodeChanged(nil, node)
		}
	}
	b.see(t)
	return b
}

var (
	karpenterResource = karpenter.NodePools.GroupVersion().WithResource("nodepools").GroupResource()
	podResource       = corev1.Resource("pods")
)

// see shows the pods that there are.
func (b *bench) see(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	if err := b.Uncached.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	var seated []any
	for i := range pods.Items {
		seated = append(seated, &pods.Items[i])
	}
	b.version++
	if err := b.Seats.Pods().Replace(seated, strconv.Itoa(b.version)); err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass, with a look each second.
func (b *bench) pass(t *testing.T, seconds int) {
	t.Helper()
	for range seconds {
		b.clock.Step(time.Second)
		b.see(t)
		if _, err := b.reconcile(t.Context(), web); err != nil {
			t.Fatal(err)
		}
	}
}

// state returns what is stored of the first pool without room, as phase and maximum.
func (b *bench) state(t *testing.T) string {
	t.Helper()
	var states stowage.PoolStateList
	if err := b.Uncached.List(t.Context(), &states); err != nil {
		t.Fatal(err)
	}
	if len(states.Items) == 0 {
		return ""
	}
	var out []string
	for _, p := range states.Items[0].Pools {
		out = append(out, fmt.Sprint(p.Name, " ", p.Phase, " ", p.Max))
	}
	return strings.Join(out, ", ")
}

// noticed returns the reasons of the events so far.
func (b *bench) noticed() string {
	var out []string
	for {
		select {
		case e := <-b.recorder.Events:
			b.told = append(b.told, e)
			out = append(out, strings.Fields(e)[1])
			continue
		default:
		}
		return strings.Join(out, " ")
	}
}

type noLedgers struct{}

func (noLedgers) ReadLedger(context.Context, ledger.Owner) (*ledger.Object, error) {
	return &ledger.Object{}, nil
}
func (noLedgers) WriteLedger(_ context.Context, _ ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	return o, ledger.WriteOK, nil
}
func (noLedgers) DeleteLedger(context.Context, ledger.Owner, uint64) error  { return nil }
func (noLedgers) ReadReplicas(context.Context, ledger.Owner) (int64, error) { return -1, nil }

// node is a node of 4 CPUs of a pool.
func node(pool string) *corev1.Node {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"p": pool}},
		Status: corev1.NodeStatus{
			Allocatable: size, Capacity: size,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// shortage is a ReplicaSet of six pods, one half in each pool: those of pool b wait, all but so many. Pods of pool a run.
func shortage(running int, change ...func(*corev1.Pod)) []client.Object {
	annotations := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1", stowage.SpillAnnotation: "1m"}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs", Annotations: annotations}}
	rs.Spec.Replicas, rs.Status.Replicas = new(int32(6)), 6
	out := []client.Object{rs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, node("a"), node("b")}
	for i, pool := range []string{"0", "1", "0", "1", "0", "1"} {
		ordinal := int64(i/2 + 1)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprint("pod-", i)), CreationTimestamp: metav1.NewTime(start),
			Labels: map[string]string{stowage.PoolLabel: pool, stowage.SeatLabel: fmt.Sprint(ordinal)},
			Annotations: map[string]string{
				stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, fmt.Sprint("id-", i), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: pool, Ordinal: ordinal}),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		}}
		p.Spec.NodeSelector = map[string]string{"p": map[string]string{"0": "a", "1": "b"}[pool]}
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
		if pool == "0" || int(ordinal) <= running {
			p.Spec.NodeName = "node-" + p.Spec.NodeSelector["p"]
		} else {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			for _, f := range change {
				f(p)
			}
		}
		out = append(out, p)
	}
	return out
}

// scaleUp is an event of the cluster autoscaler about a pod, so long after the start of the test.
func scaleUp(pod, reason string, later time.Duration) client.Object {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod + strings.ToLower(reason)}, Reason: reason,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", UID: types.UID(pod)},
		LastTimestamp:  metav1.NewTime(start.Add(later)),
	}
}

// groupStatus is a status of the cluster autoscaler about a node group of pool b.
func groupStatus(scaleUp string) client.Object {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status"},
		Data: map[string]string{clusterautoscaler.StatusKey: fmt.Sprintf(
			"time: %s\nnodeGroups:\n- name: b-1\n  health: {cloudProviderTarget: 1, maxSize: 9}\n  scaleUp: {status: %s}\n", start, scaleUp)},
	}
}

// describeGroups says that the node groups whose names begin with b make nodes of pool b.
func describeGroups(b *bench) {
	b.NodeGroups = NodeGroups{
		Groups: []clusterautoscaler.NodeGroup{{Name: "b-*", Labels: map[string]string{"p": "b"}}},
		Status: client.ObjectKey{Namespace: "kube-system", Name: "cluster-autoscaler-status"},
	}
}

func TestReconcile(t *testing.T) {
	coming := unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "b-1", "labels": map[string]any{"p": "b"}},
	}}
	for name, tc := range map[string]struct {
		objects []client.Object
		change  func(*bench)
		seconds int
		state   string
		evicted []string
		events  string
	}{
		"too early": {objects: shortage(1), seconds: 59},
		"pods have waited: first the state, then the pods, the highest rank first": {
			objects: shortage(1), seconds: 62, state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"none of them runs": {objects: shortage(0), seconds: 62, state: "1 Exhausted 0", evicted: []string{"web-5", "web-3", "web-1"}, events: "PoolExhausted"},
		"a node is on its way": {
			objects: shortage(1), seconds: 200, change: func(b *bench) { b.hasNo, b.claims = false, []unstructured.Unstructured{coming} },
		},
		"for at most 15 minutes": {
			objects: shortage(1), seconds: 18 * 60, change: func(b *bench) { b.hasNo, b.claims = false, []unstructured.Unstructured{coming} },
			state: "1 Probing 2", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted PoolProbed",
		},
		"the cluster autoscaler makes nodes for two of them": {
			objects: append(shortage(0), scaleUp("pod-3", scaleUpTriggered, 0), scaleUp("pod-5", scaleUpTriggered, 0)), seconds: 200,
		},
		"and gave up on one": {
			objects: append(shortage(1), scaleUp("pod-3", scaleUpTriggered, 0), scaleUp("pod-3", scaleUpNotTriggered, time.Second)), seconds: 62,
			state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"the node groups of the pool are in back-off": {
			objects: append(shortage(1), groupStatus("Backoff")), change: describeGroups, seconds: 20,
			state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"a node group of the pool gets nodes": {objects: append(shortage(1), groupStatus("InProgress")), change: describeGroups, seconds: 120},
		"the status of the node groups is missing": {
			objects: shortage(1), change: describeGroups, seconds: 62, state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"they are nominated": {objects: shortage(1, func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-b" }), seconds: 120},
		"they are too large": {
			objects: shortage(0, func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("5")
			}), seconds: 120, events: "PodFitsNoNode",
		},
		"their device plugin starts again": { // one of them runs there, so they wait for room
			objects: shortage(1, func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["x/gpu"] = resource.MustParse("1")
			}), seconds: 62, state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"they belong to a scheduling group": {
			objects: shortage(1, func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")} }), seconds: 120, events: "PodFitsNoNode",
		},
		"they use a volume": {
			objects: shortage(1, func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
			}), seconds: 120, events: "PodFitsNoNode",
		},
		"they have an ephemeral volume": {
			objects: shortage(1, func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			}), seconds: 62, state: "1 Exhausted 1", evicted: []string{"web-5", "web-3"}, events: "PoolExhausted",
		},
		"Stowage is switched off for them": {
			objects: shortage(1, func(p *corev1.Pod) { p.Annotations[stowage.ModeKey] = string(stowage.ModeOff) }), seconds: 120,
		},
		"nobody asked for it": {
			objects: func() []client.Object {
				all := shortage(1)
				delete(all[0].GetAnnotations(), stowage.SpillAnnotation)
				return all
			}(), seconds: 120,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.objects...)
			if tc.change != nil {
				tc.change(b)
			}
			b.pass(t, tc.seconds)
			if got := b.state(t); got != tc.state {
				t.Errorf("the state is %q, not %q", got, tc.state)
			}
			if diff := cmp.Diff(tc.evicted, b.evicted); diff != "" {
				t.Errorf("evicted (-want +got):\n%s", diff)
			}
			if got := b.noticed(); got != tc.events {
				t.Errorf("events %q, not %q", got, tc.events)
			}
		})
	}
}

// The event says who takes the pods of a pool without room, or why nobody does.
func TestEventSaysWhoTakesThePods(t *testing.T) {
	for strategy, want := range map[string]string{
		"p=a,weight=1:p=b,weight=1":        "it keeps 1 pod(s), and other pools take the others",
		"p=a,base=3,weight=0:p=b,weight=1": "it keeps 1 pod(s), and no other pool takes more of the others: pool 0 has weight 0 and no overflow",
	} {
		objects := shortage(1)
		objects[0].GetAnnotations()[stowage.SpreadStrategyAliasAnnotation] = strategy
		b := newBench(t, objects...)
		b.pass(t, 62)
		select {
		case e := <-b.recorder.Events:
			if !strings.Contains(e, want) {
				t.Errorf("%s: the event is %q, want %q", strategy, e, want)
			}
		default:
			t.Errorf("%s: there is no event", strategy)
		}
	}
}

// A pod that gets its node between the look and the eviction stays.
func TestPodThatGetsItsNode(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 61) // the state is stored
	pod := &corev1.Pod{}
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web-5"}, pod); err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = "node-b"
	if err := b.Uncached.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.clock.Step(time.Second) // and the controller does not know it yet
	if _, err := b.reconcile(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"web-3"}, b.evicted); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	b.pass(t, 1)
	if got := b.state(t); got != "1 Exhausted 2" {
		t.Errorf("the state is %q; the pod that got its node raises the maximum", got)
	}
}

// While no pod gets a seat, few pods are evicted, of whatever workload: nobody may give their successors a pool. The first pod with
// a seat, of any workload, shows that somebody does.
func TestEvictionsWaitForASeat(t *testing.T) {
	b := newBench(t, shortage(0)...)
	b.Timing.Probes.First = time.Hour // no pod may stay because the pool is tried again
	for range evict.MostUnproven - 1 {
		b.unproven.Note(start.Add(time.Minute))
	}
	evicted := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, b.evicted); diff != "" {
			t.Errorf("%s after the start: evicted (-want +got):\n%s", b.clock.Since(start), diff)
		}
	}
	b.pass(t, 62)
	evicted("web-5")
	b.pass(t, 59)
	evicted("web-5")
	b.pass(t, 1)
	evicted("web-5", "web-3")
	b.pass(t, 1)
	evicted("web-5", "web-3")
	other := shortage(0)[4].(*corev1.Pod)
	other.Name, other.UID, other.OwnerReferences[0].UID = "other", "other", "other"
	other.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, "id", ledger.Holder{Namespace: "ns", Owner: "other"}, ledger.Seat{Pool: "0", Ordinal: 1})
	if err := b.Uncached.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.pass(t, 1)
	evicted("web-5", "web-3", "web-1")
}

// The state of a workload goes when nobody asks for spill any more.
func TestSpillIsWithdrawn(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 62)
	rs := &appsv1.ReplicaSet{}
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web"}, rs); err != nil {
		t.Fatal(err)
	}
	delete(rs.Annotations, stowage.SpillAnnotation)
	if err := b.Uncached.Update(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	b.pass(t, 1)
	if got := b.state(t); got != "" {
		t.Errorf("the state is %q", got)
	}
}

// The kind of the owner is not watched, and only its pod template has annotations. Its pods show them.
func TestTemplateOfAnyKind(t *testing.T) {
	objects := shortage(1)
	annotations := objects[0].GetAnnotations()
	for _, o := range objects[4:] {
		p := o.(*corev1.Pod)
		p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "v1", "ReplicationController"
		maps.Copy(p.Annotations, annotations)
	}
	objects[0] = &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}}
	b := newBench(t, objects...)
	if b.look(t.Context()); b.work.Len() != 1 {
		t.Fatalf("%d workloads are reconciled", b.work.Len())
	}
	w := web
	w.APIVersion, w.Kind = "v1", "ReplicationController"
	for range 62 {
		b.clock.Step(time.Second)
		b.see(t)
		if _, err := b.reconcile(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.state(t); got != "1 Exhausted 1" {
		t.Errorf("the state is %q", got)
	}
}

// The pods of a Job wait, unless the Job does not count evicted pods as failed.
func TestJobs(t *testing.T) {
	rules := func(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.JobSpec) {
		return func(spec *batchv1.JobSpec) { spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules} }
	}
	on := func(action batchv1.PodFailurePolicyAction, condition corev1.PodConditionType) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: condition, Status: corev1.ConditionTrue}}}
	}
	ignore, fail := batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionFailJob
	for name, tc := range map[string]struct {
		change func(*batchv1.JobSpec)
		want   int
	}{
		"no podFailurePolicy":      {change: func(*batchv1.JobSpec) {}},
		"evictions are ignored":    {change: rules(on(ignore, corev1.DisruptionTarget)), want: 1},
		"evictions fail the Job":   {change: rules(on(fail, corev1.DisruptionTarget), on(ignore, corev1.DisruptionTarget))},
		"another condition":        {change: rules(on(ignore, "Other"))},
		"a rule for exit statuses": {change: rules(batchv1.PodFailurePolicyRule{Action: fail, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{}}, on(ignore, corev1.DisruptionTarget)), want: 1},
		"a Job whose pods have one index each": {change: func(spec *batchv1.JobSpec) {
			rules(on(ignore, corev1.DisruptionTarget))(spec)
			spec.CompletionMode = new(batchv1.IndexedCompletion)
		}},
	} {
		objects := shortage(1)
		for _, o := range objects[4:] {
			p := o.(*corev1.Pod)
			p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "batch/v1", "Job"
		}
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}}
		tc.change(&job.Spec)
		objects[0] = job
		b := newBench(t, objects...)
		w := web
		w.APIVersion, w.Kind = "batch/v1", "Job"
		for range 2 { // read, and remembered
			if members, err := b.members(t.Context(), w); err != nil || len(members) != tc.want {
				t.Errorf("%s: members whose pods move: %v, %v", name, members, err)
			}
		}
	}
}

// A node that was coming and is gone says that its NodePool makes none, unless nobody has looked for a while.
func TestFailedLaunches(t *testing.T) {
	for after, want := range map[time.Duration]int{karpenterFor: 1, 10 * time.Minute: 0} {
		b := newBench(t)
		b.hasNo = false
		b.claims = []unstructured.Unstructured{{Object: map[string]any{
			"metadata": map[string]any{"name": "b-1", "labels": map[string]any{"p": "b", "karpenter.sh/nodepool": "b"}},
		}}}
		b.askKarpenter(t.Context())
		b.claims = nil
		b.clock.Step(after)
		if got := len(b.askKarpenter(t.Context()).failed); got != want {
			t.Errorf("%s later, %d NodePools have failed to make a node, want %d", after, got, want)
		}
	}
}

// Tenants decide how many events there are, and what stands in them: a bounded part is read, and not soon again.
func TestScaleUpsAreBounded(t *testing.T) {
	objects := []client.Object{scaleUp(strings.Repeat("x", 1<<20), scaleUpTriggered, 0)}
	for i := range maxScaleUps + 10 {
		objects = append(objects, scaleUp(fmt.Sprint("pod-", i), scaleUpTriggered, 0))
	}
	b := newBench(t, objects...)
	pods := b.askForScaleUps(t.Context(), "ns")
	if n := len(pods); n == 0 || n > maxScaleUps {
		t.Errorf("%d pods are remembered", n)
	}
	for uid := range pods {
		if len(uid) > maxUID {
			t.Errorf("a text of %d bytes is remembered", len(uid))
		}
	}
	lists := len(b.limits)
	for _, limit := range b.limits {
		if limit == 0 {
			t.Error("a list has no limit")
		}
	}
	b.clock.Step(2 * scaleUpsFor)
	if b.askForScaleUps(t.Context(), "ns"); len(b.limits) != lists {
		t.Error("the events are read again at once")
	}
}

// Room is counted only for pods whose size, selectors and taints alone decide. For others a try is one pod.
func TestRoomThatIsNotCounted(t *testing.T) {
	term := []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{}, TopologyKey: corev1.LabelHostname}}
	for name, tc := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string
	}{
		"nothing but size": {func(*corev1.PodSpec) {}, "1 Probing 4"},
		"host ports": {func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		}, "1 Probing 2"},
		"required anti-affinity": {func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
		}, "1 Probing 2"},
		"topology spread": {func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "p", WhenUnsatisfiable: corev1.DoNotSchedule}}
		}, "1 Probing 2"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := shortage(1)
			for _, o := range objects[4:] {
				tc.change(&o.(*corev1.Pod).Spec)
			}
			b := newBench(t, objects...)
			b.pass(t, 100)
			b.Room.PodLeft("node-a") // another pool's
			b.pass(t, 10)
			if got := b.state(t); got != "1 Exhausted 1" {
				t.Errorf("after a pod of another pool the state is %q", got)
			}
			b.Room.PodLeft("node-b")
			b.pass(t, 20)
			if got := b.state(t); got != tc.want {
				t.Errorf("the state is %q, want %q", got, tc.want)
			}
		})
	}
}

// New nodes of a pool are looked at within seconds, and those of another pool are not.
func TestNewNodes(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 65)
	b.Room.NodeChanged(nil, node("a"))
	b.pass(t, 10)
	if got := b.state(t); got != "1 Exhausted 1" {
		t.Errorf("after a change of another pool's node the state is %q", got)
	}
	b.Room.NodeChanged(nil, node("b"))
	b.pass(t, 7)
	if got := b.state(t); got != "1 Probing 4" {
		t.Errorf("the state is %q", got)
	}
}

// Room that was counted is not forgotten when the state that follows from it cannot be stored.
func TestRoomOutlivesConflicts(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 65)
	b.conflict = 2
	b.Room.NodeChanged(nil, node("b"))
	b.pass(t, 10)
	if got := b.state(t); got != "1 Probing 4" || b.conflict != 0 {
		t.Errorf("the state is %q, %d conflicts are left", got, b.conflict)
	}
}

// Room that comes after room has brought a try forward counts at the next try that is due.
func TestRoomWaitsForItsTurn(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 65)
	state := &stowage.PoolState{}
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "rs"}, state); err != nil {
		t.Fatal(err)
	}
	state.Pools[0].Early = true
	if err := b.Uncached.Update(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	b.Room.NodeChanged(nil, node("b"))
	b.pass(t, 10)
	if got := b.state(t); got != "1 Exhausted 1" {
		t.Errorf("room has brought a try forward twice: the state is %q", got)
	}
	b.pass(t, 60)
	if got := b.state(t); got != "1 Probing 4" {
		t.Errorf("the state is %q", got)
	}
}

// A pod that was read as an example is not kept once no pod waits.
func TestExamplesAreForgotten(t *testing.T) {
	b := newBench(t, shortage(1)...)
	b.pass(t, 62+int(exampleFor/time.Second))
	if n := len(b.known[web.UID].examples); n != 0 {
		t.Errorf("%d examples are kept", n)
	}
}
