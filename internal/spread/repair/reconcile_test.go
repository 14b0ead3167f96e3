package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/status"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

// These tests are about what the controller decides, and when; the objects stand in a fake store
// that decides nothing. What the API server makes of its requests is tested in test/controllers.

const strategy = "p=a,weight=1:p=b,weight=1"

var (
	key   = make(ledger.Key, ledger.KeySize)
	owner = ledger.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web-1", UID: "rs"}
)

// bench is a controller in a term, with the objects that it sees.
type bench struct {
	*run
	statuses *status.Run
	clock    *clocktesting.FakeClock
	recorder *clientevents.FakeRecorder
	lists    atomic.Int64 // of pods
	patches  atomic.Int64
	// unlimited counts the lists of a workload's pods without a limit.
	unlimited atomic.Int64
	objects   []client.Object
	// volumes counts the lists of claims and PersistentVolumes. Lists of the kind that is forbidden fail.
	volumes   atomic.Int64
	forbidden string
	refuse    error // evictions, if it is set
	// refuseUpdates refuses to update pods, if it is set.
	refuseUpdates func(pod string) error
	registry      *prometheus.Registry
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{clock: clocktesting.NewFakeClock(start), recorder: clientevents.NewFakeRecorder(1000), objects: objects}
	c := testkit.Indexed(fake.NewClientBuilder().WithScheme(scheme)).WithObjects(objects...).WithStatusSubresource(&versprei.PodDistributor{}, &stowage.PoolState{}).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.PersistentVolumeClaim{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		WithIndex(&corev1.PersistentVolume{}, "spec.claimRef", func(o client.Object) []string {
			if ref := o.(*corev1.PersistentVolume).Spec.ClaimRef; ref != nil {
				return []string{ref.Namespace + "/" + ref.Name}
			}
			return nil
		}).
		WithIndex(&corev1.PersistentVolume{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				switch list.(type) {
				case *corev1.PersistentVolumeClaimList, *corev1.PersistentVolumeList:
					b.volumes.Add(1)
				}
				if fmt.Sprintf("%T", list) == b.forbidden {
					return apierrors.NewForbidden(corev1.Resource("volumes"), "", errors.New("no right"))
				}
				if _, ok := list.(*corev1.PodList); ok {
					b.lists.Add(1)
					if o := (&client.ListOptions{}).ApplyOptions(opts); o.LabelSelector != nil && o.Limit == 0 {
						b.unlimited.Add(1)
					}
				}
				return c.List(ctx, list, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				b.patches.Add(1)
				if _, is := obj.(*corev1.Pod); is && b.refuseUpdates != nil {
					if err := b.refuseUpdates(obj.GetName()); err != nil {
						return err
					}
				}
				return c.Patch(ctx, obj, patch, opts...)
			},
			SubResourceGet: testkit.ReplicaSetScale,
			SubResourceCreate: func(ctx context.Context, c client.Client, name string, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
				if b.refuse != nil && name == "eviction" {
					return b.refuse
				}
				return c.SubResource(name).Create(ctx, obj, sub, opts...)
			},
		}).Build()
	b.registry = prometheus.NewRegistry()
	set := metrics.NewSet(b.registry)
	reader := worldcache.New(c, c, b.clock, worldcache.ForAdmission())
	service := seats.New(seats.Options{API: noLedgers{}, Key: key, Writer: "w", Clock: b.clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)})
	timing := DefaultTiming()
	b.run = &run{
		Controller: &Controller{
			Cached: c, Uncached: c, Informers: &informertest.FakeInformers{Scheme: scheme}, World: reader, Policies: owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, c, b.clock), Seats: service, Scope: scope.New(reader, "stowage-system"),
			Registrations: &selection.Reader{Reader: c, Name: "stowage"}, Backoffs: types.NamespacedName{Namespace: "stowage-system", Name: "stowage-repair"}, Replica: "replica", Clock: b.clock, Time: b.clock, Timing: timing, Log: logr.Discard(), Events: events.Recorder{EventRecorder: b.recorder},
			Metrics: NewMetrics(set), Writes: fair.NewLimiter[string](1e6, 1e6), Evictor: testkit.Evictor(c, b.clock, set), Room: poolroom.New(c, c, b.clock, b.clock), Yielding: &listeners.Listeners[ledger.Owner]{},
		},
		work:            testkit.Queue[ledger.Owner](),
		hindranceWrites: fair.NewLimiter[string](HindranceRate, HindranceRate),
		since:           start, history: map[ledger.OwnerKey]*history{}, movements: newMovements(), reported: map[ledger.OwnerKey]distance{}, counted: map[ledger.OwnerKey]map[poolName]poolCount{}, sums: map[poolName]poolCount{}, policies: map[world.Object]change{},
	}
	b.term.Store(b.run)
	statuses := &status.Controller{
		Scope:  scope.New(reader, "stowage-system"),
		Cached: c, Uncached: c, World: reader, Seats: service, Find: b.Policies, Progress: b.Controller, Writes: fair.NewLimiter[string](1e6, 1e6), Clock: b.clock, Time: b.clock, Log: logr.Discard(),
		Timing: status.Timing{Every: time.Second, All: timing.Resync, Rate: ResyncRate, Quiet: timing.Quiet},
	}
	b.statuses = statuses.NewRun()
	b.statuses.Queue = testkit.Queue[types.NamespacedName]()
	b.Seats.Changes.Add(func(change seats.Change) { b.Room.PodLeft(change.Left) })
	for _, o := range objects {
		if node, ok := o.(*corev1.Node); ok {
			b.Room.NodeChanged(nil, node)
		}
	}
	b.see(t)
	return b
}

// see shows the pods that there are to the ledger.
func (b *bench) see(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	if err := b.Uncached.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	b.lists.Store(0)
	var seated []any
	for i := range pods.Items {
		if pods.Items[i].Labels[stowage.SeatLabel] != "" {
			seated = append(seated, &pods.Items[i])
		}
	}
	if err := b.Seats.Pods().Replace(seated, "1"); err != nil {
		t.Fatal(err)
	}
}

// noLedgers is an API without ledgers.
type noLedgers struct{}

func (noLedgers) ReadLedger(context.Context, ledger.Owner) (*ledger.Object, error) {
	return &ledger.Object{}, nil
}
func (noLedgers) WriteLedger(_ context.Context, _ ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	return o, ledger.WriteOK, nil
}
func (noLedgers) DeleteLedger(context.Context, ledger.Owner, uint64) error  { return nil }
func (noLedgers) ReadReplicas(context.Context, ledger.Owner) (int64, error) { return -1, nil }

// workload returns a ReplicaSet with a strategy, nodes of both pools, the namespace and the
// webhook's registration.
func workload(replicas int32, annotations ...string) []client.Object {
	all := map[string]string{stowage.SpreadStrategyAliasAnnotation: strategy}
	for _, a := range annotations {
		k, v, _ := strings.Cut(a, "=")
		all[k] = v
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "rs", Annotations: all}}
	rs.Spec.Replicas, rs.Status.Replicas = &replicas, replicas
	rs.Spec.Template.Annotations = all
	out := []client.Object{
		rs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "w", MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "not-left-out", Expression: `!("left-out" in object.metadata.labels)`}},
		}}},
	}
	for _, pool := range []string{"a", "b", "none"} {
		out = append(out, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"p": pool}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	return out
}

// pod returns a pod of the workload on a node, with a seat unless the pool is "".
func pod(name, node, pool string, ordinal int64, origin ledger.Origin) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)),
			Annotations:     map[string]string{stowage.SpreadStrategyAliasAnnotation: strategy},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs", Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if pool != "" {
		p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel] = pool, fmt.Sprint(ordinal)
		if at, err := strconv.ParseInt(pool, 10, 64); err == nil && origin != ledger.OriginOrdinal {
			p.Annotations[corev1.PodDeletionCost] = sequence.DeletionCost(2*ordinal - at) // the pools have equal weights, and the last comes first
		}
		p.Annotations[stowage.ClaimAnnotation] = key.Sign(origin, name, ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: pool, Ordinal: ordinal})
	}
	return p
}

func seated(name, pool string, ordinal int64) *corev1.Pod {
	return pod(name, "node-"+map[string]string{"0": "a", "1": "b"}[pool], pool, ordinal, ledger.OriginClaimed)
}

// noticed returns the reasons of the events so far.
func (b *bench) noticed() string {
	var out []string
	for {
		select {
		case e := <-b.recorder.Events:
			out = append(out, strings.Fields(e)[1])
			continue
		default:
		}
		return strings.Join(out, " ")
	}
}

// seatsNow returns the pods' seats.
func (b *bench) seatsNow(t *testing.T) map[string]string {
	t.Helper()
	var pods corev1.PodList
	if err := b.Uncached.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for i := range pods.Items {
		out[pods.Items[i].Name] = pods.Items[i].Labels[stowage.PoolLabel] + "/" + pods.Items[i].Labels[stowage.SeatLabel]
	}
	return out
}

func TestReconcile(t *testing.T) {
	mode := func(m stowage.Mode) func([]client.Object) {
		return func(o []client.Object) { o[1].SetLabels(map[string]string{stowage.ModeKey: string(m)}) }
	}
	find := func(o []client.Object, name string) client.Object {
		return o[slices.IndexFunc(o, func(o client.Object) bool { return o.GetName() == name })]
	}
	full := func(node string) func([]client.Object) { // but for one pod, which another workload has there
		return func(o []client.Object) {
			find(o, node).(*corev1.Node).Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
		}
	}
	for name, tc := range map[string]struct {
		replicas int32
		settings []string
		edit     func([]client.Object)
		pods     []*corev1.Pod
		lists    int64             // close looks
		want     map[string]string // seats that differ from what they were
		gone     string            // the pod that was removed
		events   string
		distance float64
	}{
		"all is well": {replicas: 2, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "0", 1)}},
		"a pod without a seat in a pool": {replicas: 2, pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)},
			lists: 1, want: map[string]string{"y": "0/1"}, events: "PodsAdopted"},
		"a pod whose labels and claim are gone, beside one of its template": {replicas: 2, pods: func() []*corev1.Pod {
			y := pod("y", "node-a", "", 0, 0)
			y.Spec.NodeSelector = map[string]string{"p": "a"}
			return []*corev1.Pod{seated("x", "1", 1), y}
		}(), lists: 1, want: map[string]string{"y": "0/1"}, events: "PodsAdopted"},
		"a pod whose labels and claim are gone, with its deletion cost": {replicas: 1, pods: func() []*corev1.Pod {
			y := pod("y", "node-b", "", 0, 0)
			y.Spec.NodeSelector, y.Annotations[corev1.PodDeletionCost] = map[string]string{"p": "b"}, "9999999"
			return []*corev1.Pod{y}
		}(), lists: 1, want: map[string]string{"y": "1/1"}, events: "PodsAdopted"},
		"a pod that chooses its nodes itself": {replicas: 1, pods: func() []*corev1.Pod {
			y := pod("y", "node-b", "", 0, 0)
			y.Spec.NodeSelector, y.Annotations[corev1.PodDeletionCost] = map[string]string{"p": "b"}, "100"
			return []*corev1.Pod{y}
		}(), lists: 1},
		"a pod of another template that chooses its nodes": {replicas: 2, pods: func() []*corev1.Pod {
			y := pod("y", "node-a", "", 0, 0)
			y.Spec.NodeSelector, y.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = map[string]string{"p": "a"}, "another"
			return []*corev1.Pod{seated("x", "1", 1), y}
		}(), lists: 1},
		"a pod into which somebody copied the seat of another one": {replicas: 2, pods: func() []*corev1.Pod {
			x, y := seated("x", "1", 1), pod("y", "node-a", "", 0, 0)
			y.Labels, y.Annotations = x.Labels, x.Annotations
			y.CreationTimestamp = metav1.NewTime(x.CreationTimestamp.Add(time.Second))
			return []*corev1.Pod{y, x}
		}(), lists: 1, want: map[string]string{"y": "0/1"}, events: "PodsAdopted", distance: 1},
		"but that is to be left alone": {replicas: 2, settings: []string{stowage.RepairAnnotation + "=Off"}, pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)}, distance: 1},
		"or the namespace is":          {replicas: 2, edit: mode(stowage.ModeOff), pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)}, lists: 1},
		"or there is no registration":  {replicas: 2, edit: func(o []client.Object) { o[2].SetName("another") }, pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)}, lists: 1},
		"a pod that a match condition leaves out": {replicas: 2, pods: func() []*corev1.Pod {
			out := pod("y", "node-a", "", 0, 0)
			out.Labels["left-out"] = "yes"
			return []*corev1.Pod{seated("x", "1", 1), out}
		}(), lists: 1},
		"a pod whose template names its node": {replicas: 2, edit: func(o []client.Object) { o[0].(*appsv1.ReplicaSet).Spec.Template.Spec.NodeName = "node-a" },
			pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)}, lists: 1},
		"a pod without room for a seat among its annotations": {replicas: 2, pods: func() []*corev1.Pod {
			large := pod("y", "node-a", "", 0, 0)
			large.Annotations["large"] = strings.Repeat("x", 256<<10-200)
			return []*corev1.Pod{seated("x", "1", 1), large}
		}(), lists: 1, events: "FailedOpen"},
		"ordinals with a gap": {replicas: 3, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 3), seated("z", "0", 1)},
			lists: 1, want: map[string]string{"y": "1/2"}},
		"a pod outside of the pools": {replicas: 2, pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-none", "", 0, 0)},
			lists: 3, gone: "y", events: "PodRecreated", distance: 1},
		"but no node has room for its successor": {replicas: 2, edit: full("node-a"), pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-none", "", 0, 0)},
			lists: 2, distance: 1},
		"too many in a pool, of a scheduling group": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, pods: func() []*corev1.Pod {
			x, y := seated("x", "1", 1), seated("y", "1", 2)
			x.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
			y.Spec.SchedulingGroup = x.Spec.SchedulingGroup
			return []*corev1.Pod{x, y}
		}(), lists: 1, events: "PodHeld", distance: 1},
		"but nobody can tell whether pods with a host port fit": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, pods: withHostPort(seated("x", "1", 1), seated("y", "1", 2)), lists: 1, distance: 1},
		"but for these, too, Karpenter makes nodes": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, edit: func(o []client.Object) {
			find(o, "node-a").SetLabels(map[string]string{"p": "a", "karpenter.sh/nodepool": "a"})
		}, pods: withHostPort(seated("x", "1", 1), seated("y", "1", 2)), lists: 1, gone: "y", events: "PodEvicted", distance: 1},
		"too many in a pool": {replicas: 2, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, lists: 1, distance: 1},
		"and they may be evicted": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)},
			lists: 3, gone: "y", events: "PodEvicted", distance: 1},
		"but nobody knows whether the webhook is asked": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, edit: func(o []client.Object) {
			o[2].(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks[0].MatchConditions[0].Expression = `authorizer.group("").resource("pods").check("x").allowed()`
		}, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, lists: 1, distance: 1, events: "PodHeld"},
		"a pod of a former pool, which still selects that": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, pods: func() []*corev1.Pod {
			former := pod("y", "node-none", "former", 1, ledger.OriginClaimed)
			former.Spec.NodeSelector = map[string]string{"gpu": "true"}
			return []*corev1.Pod{former, seated("x", "1", 1)}
		}(), lists: 3, gone: "y", events: "PodEvicted", distance: 1},
		"but the other pool's node is full": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, edit: full("node-a"),
			pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, lists: 2, distance: 1},
		"but Karpenter makes others": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, edit: func(o []client.Object) {
			full("node-a")(o)
			find(o, "node-a").SetLabels(map[string]string{"p": "a", "karpenter.sh/nodepool": "a"})
		},
			pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, lists: 2, gone: "y", events: "PodEvicted", distance: 1},
		"but the other pool's node has a taint": {replicas: 2, settings: []string{stowage.RebalanceAnnotation + "=Evict"}, edit: func(o []client.Object) {
			find(o, "node-a").(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
		}, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, lists: 1, distance: 1},
		"a workload that scales": {replicas: 2, edit: func(o []client.Object) { o[0].(*appsv1.ReplicaSet).Status.Replicas = 1 }, pods: []*corev1.Pod{seated("x", "1", 1)}},
		"no strategy any more": {replicas: 1, edit: func(o []client.Object) {
			rs := o[0].(*appsv1.ReplicaSet)
			rs.Annotations, rs.Spec.Template.Annotations = nil, nil
		}, pods: []*corev1.Pod{seated("x", "1", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := workload(tc.replicas, tc.settings...)
			if tc.edit != nil {
				tc.edit(objects)
			}
			for _, p := range tc.pods {
				objects = append(objects, p)
			}
			other := pod("other", "node-a", "", 0, 0)
			other.Labels, other.OwnerReferences = nil, nil
			b := newBench(t, append(objects, other)...)
			before := b.seatsNow(t)
			b.lists.Store(0)
			if res, err := b.reconcile(t.Context(), owner); err != nil || res.RequeueAfter != b.Timing.Quiet {
				t.Fatalf("in the first moments of a term nothing is done: %v, %v", res, err)
			}
			b.clock.Step(b.Timing.Quiet)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if b.lists.Load() != tc.lists {
				t.Errorf("%d lists of pods, want %d", b.lists.Load(), tc.lists)
			}
			after := b.seatsNow(t)
			for name, was := range before {
				want := was
				if w, ok := tc.want[name]; ok {
					want = w
				}
				if now, there := after[name]; there && now != want || there == (name == tc.gone) {
					t.Errorf("pod %s has %q, there %t; want %q", name, now, there, want)
				}
			}
			if got := b.noticed(); got != tc.events {
				t.Errorf("events %q, want %q", got, tc.events)
			}
			if got := testkit.Sample(t, b.Metrics.distance, map[string]string{"namespace": "ns", "kind": "ReplicaSet", "name": "web-1"}); got != tc.distance {
				t.Errorf("the distance is %v, want %v", got, tc.distance)
			}
		})
	}
}

// Many pods are adopted from one list, each with one patch.
func TestAdoptionOfManyListsOnce(t *testing.T) {
	const n = 300
	objects := workload(n)
	for i := range n {
		objects = append(objects, pod(fmt.Sprintf("p%04d", i), []string{"node-a", "node-b"}[i%2], "", 0, 0))
	}
	b := newBench(t, objects...)
	b.clock.Step(b.Timing.Quiet)
	if _, err := b.reconcile(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	if b.lists.Load() != 1 || b.patches.Load() != n {
		t.Errorf("%d pods took %d lists and %d patches", n, b.lists.Load(), b.patches.Load())
	}
	taken := map[string]bool{}
	for name, seat := range b.seatsNow(t) {
		if seat == "/" || taken[seat] {
			t.Fatalf("pod %s has seat %s", name, seat)
		}
		taken[seat] = true
	}
	if got := b.noticed(); got != "PodsAdopted" {
		t.Errorf("events %q", got)
	}
}

// Another writer that keeps undoing what Stowage writes is met less and less often, with one event.
func TestContested(t *testing.T) {
	for name, undo := range map[string]struct{ field, key string }{
		"the labels": {"labels", stowage.SeatLabel}, "the deletion cost": {"annotations", corev1.PodDeletionCost},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(workload(2), seated("x", "1", 1), seated("y", "0", 1))...)
			written, contested := 0, 0
			for range 120 {
				patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{undo.field: map[string]any{undo.key: nil}}})
				if err := b.Uncached.Patch(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "y"}}, client.RawPatch(types.MergePatchType, patch)); err != nil {
					t.Fatal(err)
				}
				b.see(t)
				b.clock.Step(5 * time.Second)
				b.patches.Store(0)
				if _, err := b.reconcile(t.Context(), owner); err != nil {
					t.Fatal(err)
				}
				written += int(b.patches.Load())
				contested += strings.Count(b.noticed(), string(stowage.EventLabelsContested))
			}
			if written < 4 || written > 20 || contested != 1 {
				t.Errorf("%d writes and %d events in ten minutes", written, contested)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	distributor := func(edit func(*versprei.PodDistributor)) *versprei.PodDistributor {
		d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d", Generation: 2, CreationTimestamp: metav1.NewTime(start)}}
		d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1"}
		for _, pool := range []string{"a", "b"} {
			d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
		}
		if edit != nil {
			edit(d)
		}
		return d
	}
	for name, tc := range map[string]struct {
		edit    func(*versprei.PodDistributor)
		mode    string // of the pods
		objects []client.Object
		pods    []*corev1.Pod
		want    map[string]stowage.ConditionReason
		current string
	}{
		"balanced":           {pods: []*corev1.Pod{seated("x", "0", 1), seated("y", "1", 1)}, want: map[string]stowage.ConditionReason{versprei.ConditionTargetFound: stowage.ReasonFound, versprei.ConditionBalanced: stowage.ReasonBalanced}, current: "1/1"},
		"too many in one":    {pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2)}, want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonOverTarget}, current: "0/2"},
		"one without a seat": {pods: []*corev1.Pod{seated("x", "0", 1), pod("y", "node-b", "", 0, 0)}, want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonWithoutSeat}, current: "1/0"},
		"some wait for a node": {pods: []*corev1.Pod{seated("x", "0", 1), pod("y", "", "1", 1, ledger.OriginClaimed)},
			want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonPodsPending}, current: "1/1"},
		"some have waited for a moment": {pods: func() []*corev1.Pod {
			y := pod("y", "", "1", 1, ledger.OriginClaimed)
			y.CreationTimestamp = metav1.NewTime(start)
			return []*corev1.Pod{seated("x", "0", 1), y}
		}(), want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonProgressing}, current: "1/1"},
		"a pool was edited away": {pods: []*corev1.Pod{seated("x", "0", 1), pod("y", "node-none", "former", 1, ledger.OriginClaimed)},
			want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonWithoutSeat}, current: "1/0/1"},
		"a policy's pool had the name of one that there is": {pods: func() []*corev1.Pod {
			former := pod("y", "node-b", "", 0, 0)
			at, of := ledger.PolicyPool("0", nodeset.Set{Labels: map[string]string{"p": "b"}}), ledger.Source{UID: "policy", Generation: 1}
			claimed := ledger.WithSource("y", at, of)
			former.Labels[stowage.PoolLabel], former.Labels[stowage.SeatLabel] = ledger.PoolName(at), "1"
			former.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, claimed, ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: at, Ordinal: 1})
			return []*corev1.Pod{seated("x", "0", 1), former}
		}(), want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonWithoutSeat}, current: "1/0/1"},
		"on a node of another pool": {pods: []*corev1.Pod{seated("x", "0", 1), pod("y", "node-a", "1", 1, ledger.OriginClaimed)},
			want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonOutsidePool}, current: "1/0"},
		"left alone": {mode: "Audit", pods: []*corev1.Pod{pod("x", "node-a", "", 0, 0), pod("y", "node-b", "", 0, 0)},
			want: map[string]stowage.ConditionReason{versprei.ConditionBalanced: stowage.ReasonLeftAlone}, current: "0/0"},
		"a target that is not there": {edit: func(d *versprei.PodDistributor) { d.Spec.Target.Name = "none" }, want: map[string]stowage.ConditionReason{versprei.ConditionTargetFound: stowage.ReasonNotFound, versprei.ConditionBalanced: stowage.ReasonNoTarget}},
		"an older one": {objects: []client.Object{distributor(func(d *versprei.PodDistributor) {
			d.Name, d.UID, d.CreationTimestamp = "older", "older", metav1.NewTime(start.Add(-time.Hour))
		})}, want: map[string]stowage.ConditionReason{versprei.ConditionTargetFound: stowage.ReasonSuperseded}},
		"an invalid one": {edit: func(d *versprei.PodDistributor) { d.Spec.Distribution = nil }, want: map[string]stowage.ConditionReason{versprei.ConditionTargetFound: stowage.ReasonInvalid}},
	} {
		t.Run(name, func(t *testing.T) {
			mode := "Enforce"
			if tc.mode != "" {
				mode = tc.mode
			}
			objects := append(workload(2, stowage.ModeKey+"="+mode), tc.objects...)
			d := distributor(tc.edit)
			objects = append(objects, d)
			for _, p := range tc.pods {
				objects = append(objects, p)
			}
			b := newBench(t, objects...)
			b.clock.Step(b.Timing.Quiet)
			b.statuses.Look(t.Context())
			if n := b.statuses.Queue.Len(); n != 1+len(tc.objects) {
				t.Errorf("%d are to be looked at", n)
			}
			var got versprei.PodDistributor
			versions := map[string]bool{}
			for range 2 { // the second time nothing is written
				if _, err := b.statuses.Reconcile(t.Context(), client.ObjectKeyFromObject(d)); err != nil {
					t.Fatal(err)
				}
				if err := b.Uncached.Get(t.Context(), client.ObjectKeyFromObject(d), &got); err != nil {
					t.Fatal(err)
				}
				versions[got.ResourceVersion] = true
			}
			if len(versions) != 1 {
				t.Errorf("the status is written twice: versions %v", versions)
			}
			names := map[string]bool{}
			for _, pool := range got.Status.Pools {
				if names[pool.Name] {
					t.Errorf("two pools have the name %s, which the API server refuses", pool.Name)
				}
				names[pool.Name] = true
			}
			have := map[string]string{}
			for _, c := range got.Status.Conditions {
				have[c.Type] = c.Reason
			}
			for kind, want := range tc.want {
				if have[kind] != string(want) {
					t.Errorf("condition %s has the reason %s, want %s", kind, have[kind], want)
				}
			}
			if got.Status.Current != tc.current || got.Status.ObservedGeneration != 2 {
				t.Errorf("current %q, generation %d", got.Status.Current, got.Status.ObservedGeneration)
			}
		})
	}
}

// Workloads are looked at when they come to rest, and now and then all of them.
func TestWhatIsLookedAt(t *testing.T) {
	objects := append(workload(2), seated("x", "1", 1), seated("y", "0", 1))
	b := newBench(t, objects...)
	b.changed(seats.Change{Owner: owner.Key()})
	b.lookAtChanges(t.Context())
	if b.work.Len() != 0 {
		t.Error("a status alone is movement")
	}
	b.changed(seats.Change{Owner: owner.Key(), Moved: true})
	if !b.moving(owner.Key()) {
		t.Error("it does not move")
	}
	b.clock.Step(b.Timing.Quiet)
	b.lookAtChanges(t.Context())
	if b.work.Len() != 1 {
		t.Error("it is not looked at when it has come to rest")
	}
	b.clock.Step(time.Duration(rand.IntN(3)) * time.Second)
	b.resync(t.Context())
	if b.work.Len() != 1 {
		t.Errorf("%d workloads wait", b.work.Len())
	}
}

// Workloads that do not change are looked at every 30 s. More than 750 of them take longer, so that they cost no more.
func TestResyncRate(t *testing.T) {
	b := newBench(t)
	looked := func(after time.Duration) int {
		b.clock.Step(after)
		b.resync(t.Context())
		n := b.work.Len()
		for range n {
			o, _ := b.work.Get()
			b.work.Done(o)
		}
		return n
	}
	show := func(workloads int) {
		t.Helper()
		var all []any
		for i := range workloads {
			p, uid := seated(fmt.Sprint("pod-", i), "0", 1), fmt.Sprint("rs-", i)
			p.OwnerReferences[0].UID = types.UID(uid)
			p.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, p.Name, ledger.Holder{Namespace: "ns", Owner: uid}, ledger.Seat{Pool: "0", Ordinal: 1})
			all = append(all, p)
		}
		if err := b.Seats.Pods().Replace(all, "1000"); err != nil {
			t.Fatal(err)
		}
	}
	show(700)
	if first, next := looked(0), looked(b.Timing.Resync); first != 700 || next != 700 {
		t.Errorf("of 700 workloads, %d and %d were looked at", first, next)
	}
	show(1500)
	if first, next, last := looked(b.Timing.Resync), looked(b.Timing.Resync), looked(b.Timing.Resync); first != 1500 || next != 0 || last != 1500 {
		t.Errorf("of 1,500 workloads, %d, %d and %d were looked at", first, next, last)
	}
}

// A term runs all of it.
func TestRegister(t *testing.T) {
	objects := append(workload(2), seated("x", "1", 1), pod("y", "node-a", "", 0, 0),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "seats"}, Data: map[string][]byte{"key": key}})
	b := newBench(t, objects...)
	ctx, cancel := context.WithCancel(t.Context())
	term, ended := leader.NewTerm(ctx, b.clock, logr.Discard())
	if err := b.Register(term); err != nil {
		t.Fatal(err)
	}
	term.Start()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		b.clock.Step(time.Second)
		return b.seatsNow(t)["y"] == "0/1", nil
	})
	if err != nil {
		t.Fatalf("the pod is not adopted: %v", err)
	}
	cancel()
	ended()
	// The term is over: nobody listens any more.
	b.Yielding.Tell(owner)
	b.Seats.Changes.Tell(seats.Change{Owner: owner.Key(), Moved: true})
}

// A workload with many pods to adopt gives the worker back when its namespace has used its part of the writes, and another
// namespace still has its own.
func TestAdoptionComesInParts(t *testing.T) {
	const pods = 10
	objects := workload(pods)
	for i := range pods {
		objects = append(objects, pod(fmt.Sprint("pod-", i), "node-a", "", 0, 0))
	}
	b := newBench(t, objects...)
	b.Writes = fair.NewLimiter[string](1, 8) // 4 for a namespace, and 4 for the next one
	b.clock.SetTime(start.Add(time.Minute))
	result, err := b.reconcile(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.patches.Load(); got != 4 {
		t.Errorf("%d pods were adopted at once, want 4", got)
	}
	if result.RequeueAfter <= 0 {
		t.Error("the others are forgotten")
	}
	if !b.Writes.Allow("elsewhere", b.clock.Now()) {
		t.Error("nothing is left for another namespace")
	}
}

// The condition Balanced says why the counts are others, or may be soon.
func TestBalancedSays(t *testing.T) {
	costly := seated("y", "1", 1)
	costly.Annotations[corev1.PodDeletionCost] = "7"
	for name, tc := range map[string]struct {
		edit   func(*appsv1.ReplicaSet)
		y      *corev1.Pod
		reason stowage.ConditionReason
		text   string
	}{
		"a quota allows no more pods": {edit: func(rs *appsv1.ReplicaSet) {
			rs.Spec.Replicas = new(int32(5))
			rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: q"}}
		}, y: seated("y", "1", 1), reason: "PodsRefused", text: "2 of 5 pods exist, because the API server refuses to create more: exceeded quota: q"},
		"another writer's deletion cost": {edit: func(*appsv1.ReplicaSet) {}, y: costly, reason: stowage.ReasonBalanced, text: "pod(s) have no pod-deletion-cost, or one that is not from Stowage"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := workload(2)
			tc.edit(objects[0].(*appsv1.ReplicaSet))
			balanced := statusOf(t, objects, seated("x", "0", 1), tc.y)
			if balanced.Reason != string(tc.reason) || !strings.Contains(balanced.Message, tc.text) {
				t.Errorf("the condition is %+v", balanced)
			}
		})
	}
}

// A workload that never gets as many pods as it asks for is put in order with those that it has, after some minutes, and none goes.
func TestCountThatIsNeverReached(t *testing.T) {
	objects := append(workload(6, stowage.RebalanceAnnotation+"=Evict"),
		seated("x", "1", 1), seated("y", "1", 3), pod("z", "node-a", "", 0, 0), pod("outside", "node-none", "", 0, 0))
	objects[0].(*appsv1.ReplicaSet).Status.Replicas = 4
	b := newBench(t, objects...)
	look := func(d time.Duration) {
		for range int(d / b.Timing.Resync) {
			b.clock.Step(b.Timing.Resync)
			b.see(t)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := b.seatsNow(t)
	look(unreachedFor)
	if diff := cmp.Diff(before, b.seatsNow(t)); diff != "" {
		t.Errorf("seats change too early (-before +after):\n%s", diff)
	}
	look(2 * time.Minute)
	if diff := cmp.Diff(map[string]string{"x": "1/1", "y": "1/2", "z": "0/1", "outside": "/"}, b.seatsNow(t)); diff != "" {
		t.Errorf("seats (-want +got):\n%s", diff)
	}
}

// statusOf returns the condition Balanced of a PodDistributor for a workload, after the waits.
func statusOf(t *testing.T, objects []client.Object, pods ...*corev1.Pod) metav1.Condition {
	t.Helper()
	d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1"}
	for _, pool := range []string{"a", "b"} {
		d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
	}
	objects = append(objects, d)
	for _, p := range pods {
		objects = append(objects, p)
	}
	b := newBench(t, objects...)
	for _, step := range []time.Duration{b.Timing.Quiet, 5 * time.Minute} {
		b.clock.Step(step)
		if _, err := b.statuses.Reconcile(t.Context(), client.ObjectKeyFromObject(d)); err != nil {
			t.Fatal(err)
		}
	}
	var got versprei.PodDistributor
	if err := b.Uncached.Get(t.Context(), client.ObjectKeyFromObject(d), &got); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got.Status.Conditions, func(c metav1.Condition) bool { return c.Type == versprei.ConditionBalanced })
	if i < 0 {
		t.Fatalf("there is no such condition: %+v", got.Status.Conditions)
	}
	return got.Status.Conditions[i]
}

// A pod that came when every pool had its maximum stays where it runs, though there is a seat now, unless eviction was asked for.
func TestFullPodStays(t *testing.T) {
	for rebalance, gone := range map[versprei.Rebalance]bool{versprei.RebalanceNever: false, versprei.RebalanceEvict: true} {
		t.Run(string(rebalance), func(t *testing.T) {
			d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d", CreationTimestamp: metav1.NewTime(start.Add(-2 * time.Hour))}}
			d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1"}
			d.Spec.Rebalance = rebalance
			for _, pool := range []string{"a", "b"} {
				d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1, MaxReplicas: new(intstr.FromInt32(1))})
			}
			full := pod("y", "node-none", "", 0, 0)
			full.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginFull, "", ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{})
			b := newBench(t, append(workload(2), seated("x", "0", 1), full, d)...)
			b.clock.Step(b.Timing.Quiet)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if _, there := b.seatsNow(t)["y"]; there == gone {
				t.Errorf("the pod is there: %t", there)
			}
		})
	}
}

func withHostPort(pods ...*corev1.Pod) []*corev1.Pod {
	for _, p := range pods {
		p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}}}
	}
	return pods
}

// Tenants decide how many pods a workload has, and how large they are: a look reads pages and keeps little of each pod.
func TestLookKeepsLittle(t *testing.T) {
	objects := workload(2)
	for _, p := range []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0)} {
		p.Annotations["other"] = strings.Repeat("x", 200<<10)
		objects = append(objects, p)
	}
	b := newBench(t, objects...)
	w, err := b.World.Workload(t.Context(), "ns", seats.Ref(owner))
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Policies.FindFor(t.Context(), "ns", seats.Ref(owner), w)
	if err != nil {
		t.Fatal(err)
	}
	state, pods, _, err := b.look(t.Context(), &turn{owner: owner, policy: p})
	if err != nil || state == nil || len(pods) != 2 || !state.Available[0] {
		t.Fatalf("%+v, %d pods, %v", state, len(pods), err)
	}
	data, err := json.Marshal(pods)
	if err != nil || len(data) > 4<<10 || b.unlimited.Load() != 0 {
		t.Errorf("%d bytes are kept of two pods, %d lists had no limit, %v", len(data), b.unlimited.Load(), err)
	}
}

// A new leader knows how long to wait after removals that won nothing, from an object that no tenant can write.
func TestBudgetsOutliveALeader(t *testing.T) {
	objects := func(cm *corev1.ConfigMap) []client.Object {
		return append(workload(2), seated("x", "1", 1), pod("y", "node-none", "", 0, 0), cm, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}, Reason: string(stowage.EventRepairInVain), InvolvedObject: corev1.ObjectReference{UID: "rs"},
			EventTime: metav1.NewMicroTime(start), Series: &corev1.EventSeries{Count: 1000, LastObservedTime: metav1.NewMicroTime(start)},
		})
	}
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-repair"}}
	first := newBench(t, objects(kept.DeepCopy())...)
	for range 4 {
		first.removed(owner.Key(), first.Timing.Cooldown, true, observation{distance: 1})
		if _, _, err := first.mayRemove(t.Context(), owner, observation{distance: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Uncached.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); err != nil {
		t.Fatal(err)
	}
	kept.ResourceVersion = ""
	b := newBench(t, objects(kept)...)
	b.clock.Step(b.Timing.Quiet)
	res, err := b.reconcile(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	if want := 8*b.Timing.Backoff - b.Timing.Quiet; res.RequeueAfter != want || len(b.seatsNow(t)) != 2 {
		t.Errorf("the next leader looks again after %s, want %s", res.RequeueAfter, want)
	}
	b.clock.Step(res.RequeueAfter)
	if _, err := b.reconcile(t.Context(), owner); err != nil || len(b.seatsNow(t)) != 1 {
		t.Errorf("after that the pod is not evicted: %v", err)
	}
}

// A workload whose pool has no room for the pod that is to move is looked at less and less often, and at once when a pod leaves
// that pool.
func TestNoRoom(t *testing.T) {
	objects := workload(2, stowage.RebalanceAnnotation+"=Evict")
	for _, o := range objects {
		if o.GetName() == "node-a" {
			o.(*corev1.Node).Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
		}
	}
	stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "stranger"}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	b := newBench(t, append(objects, seated("x", "1", 1), seated("y", "1", 2), stranger)...)
	resyncs := func(n int) (looks int64) {
		t.Helper()
		before := b.lists.Load()
		for range n {
			b.clock.Step(b.Timing.Resync)
			if _, err := b.reconcile(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
		}
		return b.lists.Load() - before
	}
	// Each look is two lists: of the workload's pods, and of the node's.
	if n := resyncs(1); n != 2 {
		t.Fatalf("the first look is %d lists", n)
	}
	if n := resyncs(2 * 60); n > 2*10 { // an hour
		t.Errorf("%d lists in an hour without room", n)
	}
	b.Room.PodLeft("node-b")
	if n := resyncs(1); n < 1 {
		t.Error("it is not looked at after a pod has left")
	}
	if err := b.Uncached.Delete(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	b.Room.PodLeft("node-a")
	resyncs(1)
	if got := b.noticed(); got != "PodEvicted" {
		t.Errorf("when there is room the events are %q", got)
	}
}
