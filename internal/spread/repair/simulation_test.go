package repair

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

var histories = flag.Int("histories", 40, "random histories in TestSimulation")

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug          bug = ""
	anyVersion     bug = "a pod is evicted though it has changed since it was read"
	staleLook      bug = "a close look reads what the watch has shown"
	alwaysReady    bug = "pods that are not ready count as ready"
	forgottenRetry bug = "a workload is not tried again after an error"
	forgottenPast  bug = "what was evicted is forgotten at once"
	lostEvents     bug = "some events of the watch of pods never come"
)

// cluster is an API server with its watches, the controller of ReplicaSets, a scheduler, the webhook, and the process that leads. One
// goroutine plays all of it, except that the leader sends several patches at once. What becomes of a request depends on its round and its
// object, and not on the order of the requests. So a seed tells the whole history.
type cluster struct {
	ctx     context.Context
	rng     *rand.Rand
	seed    uint64
	bug     bug
	date    *clocktesting.FakeClock // of the API server
	webhook *admit.Feature
	scheme  *runtime.Scheme

	mu      sync.Mutex // for the patches of one round
	objects map[string]client.Object
	watches [2][]event // what the watch of pods, and that of all else, has not shown yet
	moved   time.Time  // when an object changed last
	serial  int
	round   int
	dying   bool // the process ends in this round, after some write
	dead    bool

	bypass, late, failing, deadly, meddling int // how often, of 100
	stalled, quota                          bool

	leader   *process // nil until the next one leads
	takeover time.Time
	set      map[types.UID]time.Time // when the settings of a ReplicaSet changed last
	edited   map[types.UID]bool      // pods whose seat somebody edited
	evicted  map[types.UID]bool      // pods
	awaited  map[types.UID]string    // the pod whose successor a ReplicaSet has not made yet
	seated   int                     // pods to which the webhook gave a seat
	unproven map[types.UID]int       // how many those were when a pod of a ReplicaSet was evicted last
	allowed  map[types.UID]int       // how many pods of a ReplicaSet may be evicted still; nil is any number
	wrote    time.Time               // when the controller wrote last
	read     time.Time               // when it read last from the API server
	log      []string
	wrong    []string
}

type event struct {
	key string
	obj client.Object // as it is, or as it was if it is gone
	is  bool
}

func kindOf(o runtime.Object) string {
	return cmp.Or(o.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(o).Elem().Name())
}

func keyOf(o client.Object) string { return kindOf(o) + "/" + o.GetName() }

func (c *cluster) chance(of int) bool { return c.rng.IntN(100) < of }

func pick[T any](c *cluster, of ...T) T { return of[c.rng.IntN(len(of))] }

// roll returns a number that depends on the round and on what it is for.
func (c *cluster) roll(what ...any) int {
	h := fnv.New64a()
	fmt.Fprint(h, c.seed, " ", c.round, " ", what)
	return int(h.Sum64() >> 1)
}

func (c *cluster) note(format string, args ...any) {
	c.log = append(c.log, c.date.Now().Sub(start).String()+" "+fmt.Sprintf(format, args...))
}

func (c *cluster) fail(format string, args ...any) {
	c.note(format, args...)
	c.wrong = append(c.wrong, c.log[len(c.log)-1])
}

// put stores an object.
func (c *cluster) put(o client.Object) {
	version, _ := strconv.Atoi(o.GetResourceVersion())
	o.SetResourceVersion(strconv.Itoa(version + 1))
	c.objects[keyOf(o)] = o
	c.change(o, true)
}

func (c *cluster) remove(o client.Object) {
	delete(c.objects, keyOf(o))
	c.change(o, false)
}

func (c *cluster) change(o client.Object, is bool) {
	c.moved = c.date.Now()
	w := &c.watches[1]
	if kindOf(o) == "Pod" {
		w = &c.watches[0]
	}
	*w = append(*w, event{keyOf(o), o, is})
}

func edit[T client.Object](c *cluster, o T, do func(T)) {
	next := o.DeepCopyObject().(T)
	do(next)
	c.put(next)
}

// all returns the objects of a kind, by name.
func all[T client.Object](c *cluster, where ...func(T) bool) (out []T) {
	for _, key := range slices.Sorted(maps.Keys(c.objects)) {
		if o, ok := c.objects[key].(T); ok && !slices.ContainsFunc(where, func(is func(T) bool) bool { return !is(o) }) {
			out = append(out, o)
		}
	}
	return out
}

// podsOf returns the active pods of a ReplicaSet.
func (c *cluster) podsOf(rs *appsv1.ReplicaSet) []*corev1.Pod {
	return all(c, podstatus.Active, func(p *corev1.Pod) bool { return metav1.GetControllerOfNoCopy(p).UID == rs.UID })
}

func (c *cluster) ownerOf(pod *corev1.Pod) *appsv1.ReplicaSet {
	return c.objects["ReplicaSet/"+metav1.GetControllerOfNoCopy(pod).Name].(*appsv1.ReplicaSet)
}

// seatOf returns the seat of a pod, and false if it has none.
func seatOf(pod *corev1.Pod) (ledger.Carried, bool) {
	return ledger.SeatOf(key, pod.Namespace, metav1.GetControllerOfNoCopy(pod).UID, pod.Labels, pod.Annotations)
}

// view is a client. What it does not implement is not used.
type view struct {
	client.Client
	*cluster
	of       map[string]client.Object
	fallible bool
}

var errNoAnswer = errors.New("no answer")

// lost notes a read, and reports whether it fails.
func (v view) lost(what ...any) bool {
	if v.fallible {
		v.read = v.date.Now()
	}
	return v.fallible && (v.dead || v.roll(what...)%100 < v.failing)
}

// from returns what is read: what there is, or what the watch has shown.
func (v view) from() map[string]client.Object {
	if v.fallible && v.bug == staleLook {
		return v.leader.seen
	}
	return v.of
}

// Get implements client.Reader.
func (v view) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost("get", name) {
		return errNoAnswer
	}
	o, ok := v.from()[kindOf(into)+"/"+name.Name]
	if !ok {
		return apierrors.NewNotFound(corev1.Resource(kindOf(into)), name.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
	return nil
}

// List implements client.Reader.
func (v view) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	kind, o := strings.TrimSuffix(kindOf(into), "List"), (&client.ListOptions{}).ApplyOptions(opts)
	if v.lost("list", kind) {
		return errNoAnswer
	}
	var found []runtime.Object
	from := v.from()
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if !strings.HasPrefix(key, kind+"/") || o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(from[key].GetLabels())) {
			continue
		}
		obj := from[key].DeepCopyObject().(client.Object)
		pod, _ := obj.(*corev1.Pod)
		if o.FieldSelector != nil {
			if node, ok := o.FieldSelector.RequiresExactMatch("spec.nodeName"); ok && pod.Spec.NodeName != node {
				continue
			}
		}
		if pod != nil && v.bug == alwaysReady {
			setReady(pod, true)
		}
		found = append(found, obj)
	}
	return meta.SetList(into, found)
}

// fate decides what becomes of a write. The process may end with it.
func (v view) fate(key string) (arrives, answered bool) {
	roll := v.roll("write", key)
	v.wrote = v.date.Now()
	if v.dying && roll%2 == 0 {
		v.dead = true
		return roll/2%2 == 0, false
	}
	if roll/4%100 < v.failing {
		return roll/400%2 == 0, false
	}
	return true, true
}

// meddle has somebody change a pod just before a request arrives.
func (v view) meddle(key string) {
	roll := v.roll("meddle", key)
	pod, ok := v.objects[key].(*corev1.Pod)
	if !ok || roll%100 >= v.meddling {
		return
	}
	edit(v.cluster, pod, func(p *corev1.Pod) {
		if setReady(p, false); roll/100%2 == 0 {
			p.Annotations["karpenter.sh/do-not-disrupt"] = "true"
		}
	})
}

// Patch implements client.Writer.
func (v view) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if kindOf(obj) != "Pod" && v.dead { // patches of pods are sent together
		return errNoAnswer
	}
	v.meddle(keyOf(obj))
	arrives, answered := v.fate(keyOf(obj))
	if !arrives {
		return errNoAnswer
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	if err = v.apply(keyOf(obj), data); err == nil && !answered {
		return errNoAnswer
	}
	return err
}

// apply changes an object as the API server does.
func (v view) apply(key string, patch []byte) error {
	was := v.objects[key]
	if was == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), key)
	}
	var of struct {
		Metadata struct{ ResourceVersion string }
	}
	_ = json.Unmarshal(patch, &of)
	if version := of.Metadata.ResourceVersion; version != "" && version != was.GetResourceVersion() {
		return apierrors.NewConflict(corev1.Resource("pods"), key, errors.New("it has changed"))
	}
	before, _ := json.Marshal(was)
	after, err := strategicpatch.StrategicMergePatch(before, patch, was)
	if err != nil {
		return err
	}
	is := reflect.New(reflect.TypeOf(was).Elem()).Interface().(client.Object)
	if err := json.Unmarshal(after, is); err != nil {
		return err
	}
	if pod, ok := is.(*corev1.Pod); ok {
		v.note("patch %s: %s, cost %s", key, seatText(pod), pod.Annotations[corev1.PodDeletionCost])
		old, had := seatOf(was.(*corev1.Pod))
		now, has := seatOf(pod)
		switch {
		case v.says(pod, stowage.RepairAnnotation, "Off"):
			v.fail("%s is written though its workload is to be left alone", key)
		case of.Metadata.ResourceVersion == "":
			v.fail("a write of %s holds for any version", key)
		case !has:
			v.fail("%s is written, and has no seat", key)
		case had && old.Seat == now.Seat && ledger.Position(old.ID) == ledger.Position(now.ID) && !v.edited[pod.UID] &&
			was.GetAnnotations()[corev1.PodDeletionCost] == pod.Annotations[corev1.PodDeletionCost]:
			v.fail("%s gets the seat that it has", key)
		}
	}
	v.put(is)
	return nil
}

func seatText(pod *corev1.Pod) string {
	return pod.Labels[stowage.PoolLabel] + "/" + pod.Labels[stowage.SeatLabel] + " " + pod.Labels[stowage.DomainLabel]
}

// SubResource implements client.Client.
func (v view) SubResource(string) client.SubResourceClient { return subresource{v: v} }

type subresource struct {
	client.SubResourceClient
	v view
}

// Get implements client.SubResourceReader, for scales.
func (r subresource) Get(_ context.Context, obj, into client.Object, _ ...client.SubResourceGetOption) error {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	if r.v.lost("scale", obj.GetName()) {
		return errNoAnswer
	}
	rs := r.v.from()["ReplicaSet/"+obj.GetName()].(*appsv1.ReplicaSet)
	scale := into.(*unstructured.Unstructured)
	scale.SetUID(rs.UID)
	scale.Object["spec"] = map[string]any{"replicas": int64(*rs.Spec.Replicas)}
	scale.Object["status"] = map[string]any{"replicas": int64(rs.Status.Replicas), "selector": metav1.FormatLabelSelector(rs.Spec.Selector)}
	return nil
}

// Create implements client.SubResourceWriter, for evictions.
func (r subresource) Create(_ context.Context, obj, eviction client.Object, _ ...client.SubResourceCreateOption) error {
	v, name := r.v, keyOf(obj)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dead {
		return errNoAnswer
	}
	v.meddle(name)
	arrives, answered := v.fate(name)
	if !arrives {
		return errNoAnswer
	}
	pod, ok := v.objects[name].(*corev1.Pod)
	only := eviction.(*policyv1.Eviction).DeleteOptions.Preconditions
	switch {
	case !ok:
		return apierrors.NewNotFound(corev1.Resource("pods"), name)
	case *only.UID != pod.UID, v.bug != anyVersion && *only.ResourceVersion != pod.ResourceVersion:
		return apierrors.NewConflict(corev1.Resource("pods"), name, errors.New("it has changed"))
	}
	v.judge(pod)
	rs := v.ownerOf(pod)
	v.evicted[pod.UID], v.awaited[rs.UID] = true, pod.Name
	if answered {
		v.unproven[rs.UID] = v.seated
	}
	v.end(pod)
	if !answered {
		return errNoAnswer
	}
	return nil
}

// judge notes what is wrong with the eviction of a pod.
func (v view) judge(pod *corev1.Pod) {
	rs := v.ownerOf(pod)
	v.note("evict %s of %s", pod.Name, rs.Name)
	seat, has := seatOf(pod)
	early := podstatus.CreatedBefore(pod.CreationTimestamp.Time, v.set[rs.UID]) // it came a moment before its settings
	given := has && seat.Origin.Admitted() && !v.edited[pod.UID] && !early      // a seat by the webhook
	proven, known := v.unproven[rs.UID]
	if v.allowed != nil {
		if v.allowed[rs.UID]--; v.allowed[rs.UID] < 0 {
			v.fail("%s is evicted, which is one pod of %s too many", pod.Name, rs.Name)
		}
	}
	switch {
	case podstatus.Protected(pod) != "":
		v.fail("%s is evicted though it is protected", pod.Name)
	case v.evicted[pod.UID]:
		v.fail("%s is evicted twice", pod.Name)
	case v.awaited[rs.UID] != "":
		v.fail("%s is evicted before %s has a successor", pod.Name, v.awaited[rs.UID])
	case known && proven == v.seated:
		v.fail("%s is evicted though no pod came through the webhook since the last one was", pod.Name)
	case given && slices.ContainsFunc(v.podsOf(rs), func(p *corev1.Pod) bool { return p != pod && !podstatus.Ready(p) }):
		v.fail("%s is evicted though another pod is not ready", pod.Name)
	case v.says(pod, stowage.RepairAnnotation, "Off"):
		v.fail("%s is evicted though its workload is to be left alone", pod.Name)
	case v.says(pod, stowage.RebalanceAnnotation, "Never") && !early && (v.says(pod, stowage.RepairAnnotation, "Adopt") || given):
		v.fail("%s is evicted though nobody asked for that", pod.Name)
	}
}

// says reports whether a setting of a pod's workload has a value, both by what the leader has seen and by what is so.
func (v view) says(pod *corev1.Pod, setting, value string) bool {
	rs := v.ownerOf(pod)
	seen, ok := v.leader.seen[keyOf(rs)]
	return ok && rs.Annotations[setting] == value && seen.GetAnnotations()[setting] == value
}

// end has a pod deleted.
func (c *cluster) end(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		c.remove(pod)
		return
	}
	edit(c, pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: c.date.Now()} })
}

func setReady(p *corev1.Pod, is bool) {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[is]
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
}

// queue is that of the controller, on the clock of the simulation.
type queue struct {
	workqueue.TypedRateLimitingInterface[ledger.Owner]
	clock    *clocktesting.FakeClock
	due      map[ledger.Owner]time.Time
	failures map[ledger.Owner]int
}

// Add implements workqueue.TypedInterface.
func (q *queue) Add(o ledger.Owner) { q.AddAfter(o, 0) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (q *queue) AddAfter(o ledger.Owner, wait time.Duration) {
	at := q.clock.Now().Add(wait)
	if was, ok := q.due[o]; !ok || at.Before(was) {
		q.due[o] = at
	}
}

// NumRequeues implements workqueue.TypedRateLimitingInterface.
func (q *queue) NumRequeues(o ledger.Owner) int { return q.failures[o] }

// process is a replica of Stowage that leads.
type process struct {
	*run
	clock *clocktesting.FakeClock // may differ from the API server's
	seen  map[string]client.Object
	queue *queue
	sets  *informertest.FakeInformers
}

// lead starts a process that leads and knows what there is now.
func (c *cluster) lead() {
	p := &process{seen: maps.Clone(c.objects), sets: &informertest.FakeInformers{Scheme: c.scheme}}
	p.clock = clocktesting.NewFakeClock(c.date.Now().Add(time.Duration(c.rng.IntN(240)-120) * time.Second))
	cached, uncached := view{cluster: c, of: p.seen}, view{cluster: c, of: c.objects, fallible: true}
	set := metrics.NewSet(prometheus.NewRegistry())
	reader := worldcache.New(cached, uncached, p.clock, worldcache.ForAdmission())
	service := seats.New(seats.Options{API: noLedgers{}, Key: key, Writer: "w", Clock: p.clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)})
	controller := &Controller{
		Cached: cached, Uncached: uncached, Informers: p.sets, World: reader, Seats: service, Scope: scope.New(reader, "stowage-system"),
		Policies:      owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, uncached, p.clock),
		Registrations: &selection.Reader{Reader: uncached, Name: "stowage"}, Backoffs: types.NamespacedName{Namespace: "stowage-system", Name: "stowage-repair"},
		Clock: p.clock, Time: c.date, Timing: DefaultTiming(), Log: logr.Discard(), Metrics: NewMetrics(set), Writes: fair.NewLimiter[string](1e6, 1e6),
		Events: events.Recorder{EventRecorder: &clientevents.FakeRecorder{}}, Evictor: testkit.Evictor(uncached, p.clock, set),
		Room: poolroom.New(cached, uncached, p.clock, c.date), Yielding: &listeners.Listeners[ledger.Owner]{},
	}
	service.Changes.Add(func(change seats.Change) { controller.Room.PodLeft(change.Left) })

	// The term is over before it begins, so that nothing runs in it by itself.
	over, cancel := context.WithCancel(c.ctx)
	cancel()
	term, end := leader.NewTerm(over, p.clock, logr.Discard())
	if err := controller.Register(term); err != nil {
		panic(err)
	}
	p.run = controller.term.Load()
	end()
	controller.term.Store(p.run)
	service.Changes.Add(p.changed)
	p.queue = &queue{clock: p.clock, due: map[ledger.Owner]time.Time{}, failures: map[ledger.Owner]int{}}
	p.work = leader.Queue[ledger.Owner]{TypedRateLimitingInterface: p.queue}
	c.leader, c.watches, c.dead, c.dying, c.unproven = p, [2][]event{}, false, false, map[types.UID]int{}
	for _, node := range all[*corev1.Node](c) {
		p.Room.NodeChanged(nil, node)
	}
	c.relist()
	c.note("a new leader")
}

// relist has the watch of pods begin anew.
func (c *cluster) relist() {
	var seated []any
	for _, pod := range all[*corev1.Pod](c) {
		if pod.Labels[stowage.SeatLabel] != "" {
			seated = append(seated, pod)
		}
	}
	_ = c.leader.Seats.Pods().Replace(seated, "1")
}

// show has the watches show some events, each of them in its order. Some events are left out where a later one tells the same, and some
// come twice.
func (c *cluster) show(most int) {
	for i := range c.watches {
		for range min(len(c.watches[i]), c.rng.IntN(most+1)) {
			e := c.watches[i][0]
			c.watches[i] = c.watches[i][1:]
			later := slices.ContainsFunc(c.watches[i], func(o event) bool { return o.key == e.key })
			if c.leader == nil || later && c.chance(20) || c.bug == lostEvents && i == 0 && c.chance(15) {
				continue
			}
			for range 1 + c.rng.IntN(10)/9 {
				c.leader.see(c.ctx, e)
			}
		}
	}
}

func (p *process) see(ctx context.Context, e event) {
	was := p.seen[e.key]
	if delete(p.seen, e.key); e.is {
		p.seen[e.key] = e.obj
	}
	switch is := e.obj.(type) {
	case *corev1.Pod:
		if e.is && is.Labels[stowage.SeatLabel] != "" {
			_ = p.Seats.Pods().Update(is)
		} else {
			_ = p.Seats.Pods().Delete(is)
		}
	case *appsv1.ReplicaSet:
		if informer, err := p.sets.FakeInformerFor(ctx, is); err == nil {
			informer.Update(was, is)
		}
	case *corev1.Node:
		p.Room.NodeChanged(was.(*corev1.Node), is)
	}
}

// control has the leader do what is due.
func (c *cluster) control() {
	p := c.leader
	if p == nil {
		if !c.date.Now().Before(c.takeover) {
			c.lead()
		}
		return
	}
	now := p.clock.Now()
	for _, do := range []func(context.Context){p.resync, p.lookAtChanges, p.lookAtPolicies, p.adopt} {
		do(c.ctx)
	}
	for _, o := range slices.SortedFunc(maps.Keys(p.queue.due), func(a, b ledger.Owner) int { return strings.Compare(a.Name, b.Name) }) {
		if p.queue.due[o].After(now) {
			continue
		}
		delete(p.queue.due, o)
		c.round++
		c.dying = c.roll("dying")%100 < c.deadly
		before := len(c.watches[0])
		result, err := p.reconcile(c.ctx, o)
		slices.SortStableFunc(c.watches[0][before:], func(a, b event) int { return strings.Compare(a.key, b.key) })
		if c.bug == forgottenPast {
			clear(p.history)
		}
		switch {
		case c.dead || c.dying:
			c.note("the leader ends")
			c.leader, c.takeover = nil, c.date.Now().Add(time.Duration(c.rng.IntN(15))*time.Second)
			return
		case err != nil:
			p.queue.failures[o]++
			if c.bug != forgottenRetry {
				p.queue.AddAfter(o, min(time.Second<<min(p.queue.failures[o]-1, 20), 5*time.Minute))
			}
			continue
		case result.RequeueAfter > 0:
			p.queue.AddAfter(o, result.RequeueAfter)
		}
		delete(p.queue.failures, o)
	}
}

// ideal gives the seats that a ledger gives whose watch is up to date.
type ideal struct {
	admit.Seats // what else there is, is not used
	*cluster
}

// Claim implements admit.Seats.
func (i ideal) Claim(_ context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (ledger.Result, error) {
	if i.chance(i.late) {
		return ledger.Unshared(s, writeCost)
	}
	timing := ledger.DefaultTiming()
	book, now := ledger.NewBook(&timing, &ledger.Shared{}, "w", ledger.NewID), time.Duration(0)
	for _, pod := range i.podsOf(i.objects["ReplicaSet/"+owner.Name].(*appsv1.ReplicaSet)) {
		if c, ok := seatOf(pod); ok {
			book.PodSeen(now, string(pod.UID), ledger.Pod{Seat: c.Seat, ID: c.ID, Active: true, Version: 1})
		}
	}
	book.Applied(1)
	book.Enqueue(now, &ledger.Request{Strategy: s, WriteCost: writeCost, Deadline: 4 * time.Second})
	for ; ; now += 10 * time.Millisecond {
		for _, a := range book.Step(now) {
			switch {
			case a.Answer != nil:
				return a.Answer.Result, a.Answer.Result.Err
			case a.ReadReplicas:
				book.ReplicasRead(now, -1)
			case a.ReadLedger:
				book.LedgerRead(now, &ledger.Object{})
			case a.Write != nil:
				book.WriteDone(now, ledger.WriteOK, &ledger.Object{Version: 2, Writer: "w", Claims: a.Write.Claims})
			}
		}
	}
}

// create makes a pod of a ReplicaSet, and has the webhook decide about it if that is reached.
func (c *cluster) create(rs *appsv1.ReplicaSet) {
	c.serial++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprintf("pod-%04d", c.serial), UID: types.UID(fmt.Sprint("pod-", c.serial)), Labels: maps.Clone(rs.Labels),
		CreationTimestamp: metav1.NewTime(c.date.Now().Truncate(time.Second)), Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID, Controller: new(true)}},
	}}
	if !c.chance(c.bypass) {
		d, err := c.webhook.Decide(c.ctx, feature.Request{Namespace: "ns", Pod: podpatch.FromPod(pod)})
		if err != nil || d.Pod == nil {
			panic(fmt.Sprint(d, err))
		}
		pod.Labels, pod.Annotations, pod.Spec.NodeSelector = d.Pod.Metadata.Labels, d.Pod.Metadata.Annotations, d.Pod.Spec.NodeSelector
		c.seated++
	}
	c.note("create %s of %s: %s", pod.Name, rs.Name, seatText(pod))
	delete(c.awaited, rs.UID)
	c.put(pod)
}

func costOf(pod *corev1.Pod) int {
	cost, _ := strconv.Atoi(pod.Annotations[corev1.PodDeletionCost])
	return cost
}

// work has the controller of ReplicaSets, the scheduler and the kubelets do some of what is to be done.
func (c *cluster) work() {
	for _, rs := range all[*appsv1.ReplicaSet](c) {
		pods := c.podsOf(rs)
		more := int(*rs.Spec.Replicas) - len(pods)
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(costOf(a), costOf(b)) })
		for _, pod := range pods[:max(0, -more)] {
			c.end(pod)
		}
		if more <= 0 {
			delete(c.awaited, rs.UID)
		}
		for range max(0, more) {
			if !c.quota && c.chance(70) {
				c.create(rs)
			}
		}
		if n := int32(len(c.podsOf(rs))); rs.Status.Replicas != n && c.chance(70) {
			edit(c, rs, func(rs *appsv1.ReplicaSet) { rs.Status.Replicas = n })
		}
	}
	for _, pod := range all[*corev1.Pod](c) {
		switch {
		case !c.chance(30):
		case pod.DeletionTimestamp != nil:
			c.remove(pod)
		case pod.Spec.NodeName == "":
			nodes := all(c, func(n *corev1.Node) bool {
				return labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(n.Labels))
			})
			if len(nodes) > 0 && c.roll("late", pod.Name)%100 >= c.late {
				edit(c, pod, func(p *corev1.Pod) { p.Spec.NodeName = pick(c, nodes...).Name })
			}
		case !podstatus.Ready(pod):
			edit(c, pod, func(p *corev1.Pod) { setReady(p, true) })
		}
	}
}

var strategies = []string{
	strategy, "p=a,weight=3:p=b,weight=1", "p=a,base=2,weight=0:p=b,weight=1", "p=a,weight=0:p=b,weight=1", "p=a,weight=1:p=b,weight=2:p=c,weight=1",
}

// user does something that people, or what they run, do.
func (c *cluster) user() {
	rs := c.objects["ReplicaSet/"+pick(c, "web", "api")].(*appsv1.ReplicaSet)
	set := func(setting string, values ...string) {
		value := pick(c, values...)
		c.note("%s of %s becomes %s", setting, rs.Name, value)
		edit(c, rs, func(rs *appsv1.ReplicaSet) { rs.Annotations[setting] = value })
		c.set[rs.UID] = c.date.Now()
	}
	var pod, other *corev1.Pod
	if pods := all(c, podstatus.Active); len(pods) > 0 {
		pod, other = pick(c, pods...), pick(c, pods...)
	}
	switch action := c.rng.IntN(100); {
	case action < 20:
		n := c.rng.Int32N(8)
		c.note("scale %s to %d", rs.Name, n)
		edit(c, rs, func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = &n })
	case action < 28:
		set(stowage.SpreadStrategyAliasAnnotation, strategies...)
	case action < 34:
		set(stowage.RebalanceAnnotation, "Never", "Evict", "Evict")
	case action < 38:
		set(stowage.RepairAnnotation, "Off", "Adopt", "Recreate", "Recreate")
	case action < 45:
		c.bypass = pick(c, 0, 0, 30, 100)
	case action < 50:
		c.stalled = !c.stalled
	case action < 53:
		c.quota = !c.quota
	case action < 60 && c.leader != nil:
		c.watches[0] = nil
		c.relist()
	case pod == nil:
	case action < 75:
		c.note("delete %s", pod.Name)
		c.end(pod)
	case action < 82:
		c.note("protect %s, or not any more", pod.Name)
		edit(c, pod, func(p *corev1.Pod) {
			p.Annotations["karpenter.sh/do-not-disrupt"] = strconv.FormatBool(p.Annotations["karpenter.sh/do-not-disrupt"] != "true")
		})
	case action < 88:
		edit(c, pod, func(p *corev1.Pod) { setReady(p, false) })
	default:
		c.tamper(pod, other)
	}
}

// tamper has somebody edit the seat of a pod: put that of another one in its place, remove labels of it, or change or remove its deletion cost.
func (c *cluster) tamper(pod, other *corev1.Pod) {
	how := c.rng.IntN(4)
	c.note("tamper with %s: %d, %s", pod.Name, how, other.Name)
	c.edited[pod.UID] = c.edited[pod.UID] || how < 3 // a cost that is removed comes back
	edit(c, pod, func(p *corev1.Pod) {
		switch how {
		case 0:
			for _, label := range []string{stowage.PoolLabel, stowage.SeatLabel, stowage.DomainLabel} {
				if delete(p.Labels, label); other.Labels[label] != "" {
					p.Labels[label] = other.Labels[label]
				}
			}
			p.Annotations[stowage.ClaimAnnotation] = other.Annotations[stowage.ClaimAnnotation]
			c.edited[other.UID] = true
		case 1:
			delete(p.Labels, pick(c, stowage.PoolLabel, stowage.SeatLabel))
		case 2:
			p.Annotations[corev1.PodDeletionCost] = "7"
		default:
			delete(p.Annotations, corev1.PodDeletionCost)
		}
	})
}

// step lets some time pass.
func (c *cluster) step(d time.Duration, most int) {
	c.date.Step(d)
	if c.leader != nil {
		c.leader.clock.Step(d)
	}
	c.round++
	if c.date.Since(c.moved) < time.Minute {
		c.work()
	}
	if !c.stalled {
		c.show(most)
	}
	c.control()
}

// quietFor is for how long nothing is written at the end. It is longer than any wait of the controller.
const quietFor = 45 * time.Minute

// play plays one history, and returns what is wrong with it.
func play(t *testing.T, seed uint64, b bug) (wrong, log []string) {
	c := &cluster{
		ctx: logr.NewContext(t.Context(), logr.Discard()), rng: rand.New(rand.NewPCG(seed, 41)), seed: seed, bug: b,
		date: clocktesting.NewFakeClock(start), takeover: start, objects: map[string]client.Object{},
		set: map[types.UID]time.Time{}, edited: map[types.UID]bool{}, evicted: map[types.UID]bool{}, awaited: map[types.UID]string{},
	}
	var err error
	if c.scheme, err = api.NewScheme(); err != nil {
		t.Fatal(err)
	}
	for _, o := range workload(0)[1:3] { // the namespace and the registration
		c.put(o)
	}
	c.objects["MutatingWebhookConfiguration/stowage"].(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks[0].MatchConditions = nil
	c.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-repair"}})
	for _, name := range []string{"a-1", "a-2", "b-1", "b-2", "c-1", "c-2", "none-1"} {
		pool, zone, _ := strings.Cut(name, "-")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"p": pool, "zone": zone}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		c.put(node)
	}
	reader := worldcache.New(view{cluster: c, of: c.objects}, view{cluster: c, of: c.objects}, c.date, worldcache.ForAdmission())
	c.webhook = &admit.Feature{Policies: policy.NewFinder(reader, policy.Settings{}), Seats: ideal{cluster: c}, Key: key, Audits: admit.NewAudits(c.date)}
	for _, name := range []string{"web", "api", "pulse"} {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(start), Labels: map[string]string{"app": name},
			Annotations: map[string]string{
				stowage.SpreadStrategyAliasAnnotation: pick(c, strategies...), stowage.RepairAnnotation: "Recreate", stowage.RebalanceAnnotation: pick(c, "Never", "Evict", "Evict"),
			},
		}}
		if c.chance(30) {
			rs.Annotations[stowage.AcrossAnnotation] = "zone: 1, 2"
		}
		rs.Spec.Replicas, rs.Spec.Selector, rs.Spec.Template.Labels = new(c.rng.Int32N(8)), &metav1.LabelSelector{MatchLabels: rs.Labels}, rs.Labels
		c.put(rs)
	}

	// 1. Much happens, and requests fail.
	c.failing, c.deadly, c.meddling, c.late = pick(c, 0, 2, 10), pick(c, 0, 2, 15), pick(c, 0, 10, 40), pick(c, 0, 5, 30)
	busy, lag := pick(c, 3, 10, 40), pick(c, 1, 3, 20)
	c.bypass = pick(c, 0, 30, 100)
	for range 200 + c.rng.IntN(400) {
		if c.chance(busy) {
			c.user()
		}
		c.step(500*time.Millisecond, lag)
	}

	// 2. Nobody does anything any more. Until the next process leads, all pods come, get a node and become ready. The webhook seats one pod,
	// which proves that it is reached. Requests still fail, and processes end.
	c.note("rest")
	c.late, c.stalled, c.quota, c.moved = 0, false, false, c.date.Now()
	c.leader, c.takeover = nil, c.date.Now().Add(90*time.Second)
	for range 85 {
		c.step(time.Second, lag)
	}
	c.allowed = map[types.UID]int{}
	for _, rs := range all[*appsv1.ReplicaSet](c) {
		edit(c, rs, func(rs *appsv1.ReplicaSet) {
			rs.Annotations[stowage.SpreadStrategyAliasAnnotation] = pick(c, strategies...)
		})
		c.allowed[rs.UID] = c.needed(c.objects[keyOf(rs)].(*appsv1.ReplicaSet))
	}
	c.bypass = 0
	c.allowed["pulse"]++ // its targets change with the pod more
	edit(c, c.objects["ReplicaSet/pulse"].(*appsv1.ReplicaSet), func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas++ })
	for range 600 {
		if pods := all(c, podstatus.Active); len(pods) > 0 && c.chance(c.meddling) {
			edit(c, pick(c, pods...), func(p *corev1.Pod) { setReady(p, false) })
		}
		c.step(time.Second, lag)
	}

	// 3. Nothing fails any more.
	c.failing, c.deadly, c.meddling = 0, 0, 0
	c.wrote = c.date.Now()
	for rested := c.date.Now(); c.date.Since(c.wrote) < quietFor; c.step(time.Second, 100) {
		if c.date.Since(rested) > 12*time.Hour {
			c.fail("there is no end to the writes")
			break
		}
	}

	// 4. Everything has its place.
	exact := true
	for _, rs := range all[*appsv1.ReplicaSet](c) {
		exact = c.check(rs) && exact
	}
	if exact && c.date.Since(c.read) < quietFor/2 {
		c.fail("the API server is asked though all is well")
	}
	return c.wrong, c.log
}

// spot is where a pod is.
type spot struct {
	pool    int  // -1 is none
	seated  bool // it has a seat there
	ordinal int64
	domain  string
}

// places returns the strategy of a ReplicaSet, and where its pods are.
func (c *cluster) places(rs *appsv1.ReplicaSet) (*sequence.Strategy, map[*corev1.Pod]spot) {
	s, err := sequence.Parse(rs.Annotations[stowage.SpreadStrategyAliasAnnotation])
	if err != nil {
		panic(err)
	}
	out, claims := map[*corev1.Pod]spot{}, map[string]bool{}
	for _, pod := range c.podsOf(rs) {
		at := spot{pool: s.PoolOfNode(c.objects["Node/"+pod.Spec.NodeName].GetLabels())}
		seat, ok := seatOf(pod)
		if id := ledger.BaseID(seat.ID); ok && !claims[id] { // otherwise it is a copy of an older pod's
			claims[id] = id != ""
			for i := range s.Len() {
				if s.PoolKey(i) == seat.Pool {
					at = spot{i, true, seat.Ordinal, seat.Domain}
				}
			}
		}
		out[pod] = at
	}
	return s, out
}

// needed returns how many evictions bring the pods of a ReplicaSet to where they belong, at most.
func (c *cluster) needed(rs *appsv1.ReplicaSet) (n int) {
	s, places := c.places(rs)
	if len(places) != int(*rs.Spec.Replicas) {
		panic("there is a pod too many, or too few")
	}
	counts := make([]int64, s.Len())
	for pod, at := range places {
		if c.edited[pod.UID] || at.pool < 0 || rs.Annotations[stowage.AcrossAnnotation] != "" {
			n++
		}
		if at.pool >= 0 {
			counts[at.pool]++
		}
	}
	for pool, count := range counts {
		n += int(max(0, count-s.Target(pool, int64(len(places)))))
	}
	return n
}

// check notes what is wrong with a ReplicaSet at rest, and reports whether it has each pod in its place.
func (c *cluster) check(rs *appsv1.ReplicaSet) (exact bool) {
	s, places := c.places(rs)
	if len(places) != int(*rs.Spec.Replicas) || rs.Status.Replicas != *rs.Spec.Replicas {
		panic("there is a pod too many, or too few")
	}
	repair, evicts := rs.Annotations[stowage.RepairAnnotation], rs.Annotations[stowage.RebalanceAnnotation] == "Evict"
	if repair == "Off" {
		return false
	}
	exact = true
	of, held := make([][]*corev1.Pod, s.Len()), false
	for _, pod := range c.podsOf(rs) {
		at, protected := places[pod], podstatus.Protected(pod) != ""
		_, former := seatOf(pod)
		held = held || protected
		if at.seated {
			of[at.pool] = append(of[at.pool], pod)
			continue
		}
		exact = false
		if at.pool >= 0 || !protected && (former && evicts || !former && repair == "Recreate") {
			c.fail("%s of %s has no seat on %s", pod.Name, rs.Name, pod.Spec.NodeName)
		}
	}
	balanced := exact // domains are looked at only then
	for pool, pods := range of {
		balanced = balanced && int64(len(pods)) == s.Target(pool, int64(len(places)))
	}
	for pool, pods := range of {
		slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(places[a].ordinal, places[b].ordinal) })
		domains := map[string]int{}
		for i, pod := range pods {
			ordinal := int64(i + 1)
			if at := places[pod]; at.domain != "" {
				domains[at.domain]++
				if i > 0 && at.ordinal == places[pods[i-1]].ordinal {
					c.fail("%s of %s has the seat of %s", pod.Name, rs.Name, pods[i-1].Name)
				}
			} else if at.ordinal != ordinal {
				c.fail("%s of %s has seat %d/%d, want %d", pod.Name, rs.Name, pool, at.ordinal, ordinal)
			}
			rank := s.RankOrNone(sequence.Seat{Pool: pool, Ordinal: ordinal})
			cost := sequence.DeletionCost(rank)
			if got := pod.Annotations[corev1.PodDeletionCost]; got != cost && !c.edited[pod.UID] && (got != "" || rank != sequence.NoRank) {
				c.fail("%s of %s has the deletion cost %s, want %s", pod.Name, rs.Name, got, cost)
			}
		}
		n, target := int64(len(pods)), s.Target(pool, int64(len(places)))
		even := rs.Annotations[stowage.AcrossAnnotation] == "" || max(domains["1"]-domains["2"], domains["2"]-domains["1"]) <= 1
		exact = exact && n == target && even && !held
		if evicts && !held && (n > target || balanced && !even) {
			c.fail("pool %d of %s has %d pods %v, want %d", pool, rs.Name, n, domains, target)
		}
	}
	return exact
}

// Whatever fails, and whoever leads, at rest each pod has its place, and nothing is written any more.
func TestSimulation(t *testing.T) {
	testkit.PlayHistories(t, *histories, func(seed uint64) []string {
		wrong, log := play(t, seed, noBug)
		if len(wrong) == 0 {
			return nil
		}
		return append(wrong, log...)
	})
}

// The simulation finds each of these mistakes.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	testkit.FindBugs(t, 60, map[bug]string{
		anyVersion: "though it is protected", staleLook: "is evicted", alwaysReady: "is not ready", forgottenRetry: "has no seat",
		forgottenPast: "no pod came through the webhook", lostEvents: "though all is well",
	}, func(t *testing.T, seed uint64, b bug) []string {
		wrong, _ := play(t, seed, b)
		return wrong
	})
}
