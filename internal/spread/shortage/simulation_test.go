package shortage

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

var histories = flag.Int("histories", 60, "random histories in TestSimulation")

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug         bug = ""
	unconditional bug = "a pod is evicted though it has changed since it was seen"
	unstored      bug = "pods are evicted for a state that was not stored"
	overwritten   bug = "a state is written over one that was not seen"
	untried       bug = "no pool is tried again"
	kept          bug = "the state of a workload stays for good"
	twice         bug = "an eviction is sent again while the pod ends"
	unread        bug = "the webhook does not know which pools have no room"
)

// The waits are shorter than those of [DefaultTiming], so that a history is.
var simulatedTiming = Timing{Look: 2 * time.Second, Probes: tries.Timing{First: 15 * time.Second, Last: 2 * time.Minute, Forget: 4 * time.Minute}}

// kinds are what is watched, in the order in which a process learns of them.
var kinds = []string{"Namespace", "Node", "StatefulSet", "ReplicaSet", "Pod", "PoolState"}

// objects are the objects of each kind, by name. None of them changes: a write replaces it.
type objects map[string]map[string]client.Object

// change is one of an object. Is is nil if it is gone.
type change struct{ was, is client.Object }

// simulated is an API server with a scheduler, the controllers of one workload, a webhook, and processes of Stowage that lead in turn. It
// runs in a synctest bubble. Whatever is random comes from the seed.
type simulated struct {
	bug   bug
	ctx   context.Context
	clock clock.RealClock // the bubble's

	mu      sync.Mutex
	happens *rand.Rand // what happens and when
	faults  *rand.Rand // what becomes of requests
	objects objects
	log     map[string][]change // of each kind
	version int
	serial  int

	owner       client.Object // the ReplicaSet or StatefulSet as it was created
	strategy    *sequence.Strategy
	annotations map[string]string
	pools       []string
	stateful    bool
	replicas    int64
	restarts    []string             // pods that are still to be replaced
	ends        map[string]time.Time // when a pod goes that is being deleted
	webhook     *process
	finder      *policy.Finder
	leaders     []*process
	nextTerm    time.Time // when the next process leads, if none does
	down        time.Time // until when no request arrives
	calm        bool      // nothing fails, and nobody is behind
	// Of 100 requests, writes and evictions, so many fail, end the process, and are refused.
	failing, crashing, refuse int

	evicted          map[types.UID]bool
	moved            map[string]bool // once all have seen all: the pods of a StatefulSet, by name, and by the pool and its epoch
	writes, requests int
	wrong            []string
}

func (c *simulated) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// put stores an object that nobody has changed since it was read.
func (c *simulated) put(obj client.Object) {
	c.version++
	obj.SetResourceVersion(strconv.Itoa(c.version))
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(fmt.Sprint("uid-", c.version)))
	}
	kind := kindOf(obj)
	if c.objects[kind] == nil {
		c.objects[kind] = map[string]client.Object{}
	}
	c.log[kind] = append(c.log[kind], change{c.objects[kind][obj.GetName()], obj})
	c.objects[kind][obj.GetName()] = obj
}

// drop removes an object.
func (c *simulated) drop(obj client.Object) {
	c.version++
	kind, gone := kindOf(obj), obj.DeepCopyObject().(client.Object)
	gone.SetResourceVersion(strconv.Itoa(c.version))
	delete(c.objects[kind], obj.GetName())
	c.log[kind] = append(c.log[kind], change{gone, nil})
}

// edit changes an object.
func edit[T client.Object](c *simulated, obj T, do func(T)) {
	is := obj.DeepCopyObject().(T)
	do(is)
	c.put(is)
}

// all returns the objects of a kind in the order of their names.
func all[T client.Object](from objects, kind string) (out []T) {
	for _, name := range slices.Sorted(maps.Keys(from[kind])) {
		out = append(out, from[kind][name].(T))
	}
	return out
}

func kindOf(obj runtime.Object) string {
	return strings.TrimSuffix(cmp.Or(obj.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(obj).Elem().Name()), "List")
}

// read implements the method Get of a client.
func (o objects) read(key client.ObjectKey, into client.Object) error {
	found := o[kindOf(into)][key.Name]
	if found == nil {
		return apierrors.NewNotFound(corev1.Resource(kindOf(into)), key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
	return nil
}

// list implements the method List of a client.
func (o objects) list(into client.ObjectList, opts []client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	var out []runtime.Object
	for _, obj := range all[client.Object](o, kindOf(into)) {
		of := fields.Set{}
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
			of["metadata.controller.uid"] = string(owner.UID)
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			of["spec.nodeName"] = pod.Spec.NodeName
		}
		if (options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(obj.GetLabels()))) && (options.FieldSelector == nil || options.FieldSelector.Matches(of)) {
			out = append(out, obj)
		}
	}
	return meta.SetList(into, out)
}

// process is a replica of Stowage: what it has seen of the cluster, which may be behind.
type process struct {
	*simulated
	ctx      context.Context
	kill     context.CancelFunc
	until    time.Time // another one leads already, and this one does not know it before
	seen     objects
	reached  map[string]int       // how many changes of each kind
	stalled  map[string]time.Time // until when nothing comes of a kind
	handlers map[string][]toolscache.ResourceEventHandler
}

// cached is the cache of a process, with its informers.
type cached struct {
	client.Client
	crcache.Informers
	*process
}

func (r cached) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.read(key, obj)
}

func (r cached) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*stowage.PoolStateList); ok {
		r.clock.Sleep(time.Microsecond) // a look and the reconciler that it has woken do not run side by side
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.list(list, opts)
}

func (r cached) GetInformer(_ context.Context, obj client.Object, _ ...crcache.InformerGetOption) (crcache.Informer, error) {
	return informer{process: r.process, kind: kindOf(obj)}, nil
}

type informer struct {
	crcache.Informer
	*process
	kind string
}

func (i informer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	i.handlers[i.kind] = append(i.handlers[i.kind], handler)
	there := all[client.Object](i.seen, i.kind)
	i.mu.Unlock()
	for _, obj := range there {
		handler.OnAdd(obj, true)
	}
	return nil, nil
}

// The process gets no more events when its term ends.
func (i informer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error { return nil }

// advance has a process see some changes of a kind, and returns what its handlers are to be told. It may skip versions of an object, as a
// list does, and repeat the last change.
func (p *process) advance(kind string, to int, skip, again bool) (tell []change) {
	if p.seen[kind] == nil {
		p.seen[kind] = map[string]client.Object{}
	}
	from, last := p.reached[kind], map[types.UID]int{}
	for i := from; i < to; i++ {
		last[cmp.Or(p.log[kind][i].is, p.log[kind][i].was).GetUID()] = i
	}
	for i := from; i < to; i++ {
		c := p.log[kind][i]
		name, uid := cmp.Or(c.is, c.was).GetName(), cmp.Or(c.is, c.was).GetUID()
		known := p.seen[kind][name]
		if skip && last[uid] != i || known == nil && c.is == nil {
			continue
		}
		switch {
		case c.is != nil:
			c.was, p.seen[kind][name] = known, c.is
		default:
			delete(p.seen[kind], name)
		}
		tell = append(tell, c)
	}
	p.reached[kind] = to
	if n := len(tell); again && n > 0 && tell[n-1].is != nil {
		tell = append(tell, change{tell[n-1].is, tell[n-1].is})
	}
	return tell
}

// deliver has a process see what has changed, or a part of it.
func (p *process) deliver() {
	for _, kind := range kinds {
		p.mu.Lock()
		to, from := len(p.log[kind]), p.reached[kind]
		skip, again := false, false
		if !p.calm && to > from {
			switch n := p.happens.IntN(10); {
			case n < 2 || p.clock.Now().Before(p.stalled[kind]):
				to = from
			case n < 4:
				to = from + p.happens.IntN(to-from+1)
			}
			skip, again = p.happens.IntN(5) == 0, p.happens.IntN(20) == 0
		}
		tell, handlers := p.advance(kind, to, skip, again), p.handlers[kind]
		p.mu.Unlock()
		for _, c := range tell {
			for _, handler := range handlers {
				switch {
				case c.is == nil:
					handler.OnDelete(c.was)
				case c.was == nil:
					handler.OnAdd(c.is, false)
				default:
					handler.OnUpdate(c.was, c.is)
				}
			}
			if kind == "ReplicaSet" || kind == "PoolState" {
				p.clock.Sleep(time.Microsecond) // as in List
			}
		}
	}
}

// server is the API server as a process reaches it.
type server struct {
	client.Client
	*process
}

var errNoAnswer = errors.New("no answer")

// request is on its way for a while. It reports whether it arrives, and what is answered in place of the truth. A leader may end with it.
func (s server) request(write bool) (arrives bool, err error) {
	if s.process == s.webhook {
		return true, nil
	}
	s.mu.Lock()
	way := upTo(s.faults, 20*time.Millisecond)
	s.mu.Unlock()
	s.clock.Sleep(way)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; write {
		s.writes++
	}
	crashes, fails, half := s.faults.IntN(100) < s.crashing, s.faults.IntN(100) < s.failing, s.faults.IntN(2) == 0
	switch {
	case s.ctx.Err() != nil || s.clock.Now().Before(s.down):
		return false, errNoAnswer
	case s.calm:
		return true, nil
	case write && crashes:
		s.end(s.process)
		return half, errNoAnswer
	case fails:
		return half, errNoAnswer
	}
	return true, nil
}

// end ends a leader. Another one begins some time later.
func (c *simulated) end(p *process) {
	p.kill()
	c.leaders = slices.DeleteFunc(c.leaders, func(o *process) bool { return o == p })
	c.nextTerm = c.clock.Now().Add(upTo(c.faults, 10*time.Second))
}

func (s server) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if arrives, err := s.request(false); !arrives || err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects.read(key, obj)
}

// There is no Karpenter, and the pods of a node are read in any order, so that lists do not fail.
func (s server) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := list.(runtime.Unstructured); ok {
		return apierrors.NewForbidden(karpenterResource, "", nil)
	}
	s.requests++
	return s.objects.list(list, opts)
}

// write is a write of a PoolState.
func (s server) write(do func() error) error {
	arrives, err := s.request(true)
	if !arrives {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := do(); err == nil {
		return answer
	}
	return err
}

var stateResource = stowage.GroupVersion.WithResource("poolstates").GroupResource()

func (s server) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return s.write(func() error {
		switch is := obj.DeepCopyObject().(*stowage.PoolState); {
		case s.objects["PoolState"][is.Name] != nil:
			return apierrors.NewAlreadyExists(stateResource, is.Name)
		case s.bug == unstored:
			s.seen["PoolState"][is.Name] = is
		default:
			s.put(is)
		}
		return nil
	})
}

func (s server) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return s.write(func() error {
		is := obj.DeepCopyObject().(*stowage.PoolState)
		was, _ := s.objects["PoolState"][is.Name].(*stowage.PoolState)
		switch {
		case was == nil:
			return apierrors.NewNotFound(stateResource, is.Name)
		case (was.ResourceVersion != is.ResourceVersion || was.UID != is.UID) && s.bug != overwritten:
			return apierrors.NewConflict(stateResource, is.Name, nil)
		case equality.Semantic.DeepEqual(was.Pools, is.Pools) && maps.Equal(was.Ordinals, is.Ordinals):
			s.fail("a PoolState was written that has not changed")
		}
		for _, now := range is.Pools {
			i := slices.IndexFunc(was.Pools, func(p stowage.PoolRoom) bool { return p.Name == now.Name })
			switch {
			case i < 0:
			case now.Epoch < was.Pools[i].Epoch:
				s.fail("the epoch of pool %s went back from %d to %d", now.Name, was.Pools[i].Epoch, now.Epoch)
			case now.Epoch == was.Pools[i].Epoch && now.Max < was.Pools[i].Max && now.Phase != stowage.PoolAvailable:
				s.fail("the maximum of pool %s fell from %d to %d in an epoch", now.Name, was.Pools[i].Max, now.Max)
			case s.bug == untried && now.Phase == stowage.PoolProbing:
				return nil
			}
		}
		s.put(is)
		return nil
	})
}

func (s server) Delete(_ context.Context, obj client.Object, opts ...client.DeleteOption) error {
	only := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
	return s.write(func() error {
		was := s.objects["PoolState"][obj.GetName()]
		switch {
		case was == nil:
			return apierrors.NewNotFound(stateResource, obj.GetName())
		case *only.UID != was.GetUID() || *only.ResourceVersion != was.GetResourceVersion():
			return apierrors.NewConflict(stateResource, obj.GetName(), nil)
		case s.bug != kept:
			s.drop(was)
		}
		return nil
	})
}

func (s server) SubResource(string) client.SubResourceClient { return evictions{of: s} }

type evictions struct {
	client.SubResourceClient
	of server
}

func (e evictions) Create(_ context.Context, obj client.Object, sub client.Object, _ ...client.SubResourceCreateOption) error {
	only := sub.(*policyv1.Eviction).DeleteOptions.Preconditions
	return e.of.write(func() error {
		err := e.of.evict(obj.GetName(), only)
		if err == nil && e.of.bug == twice {
			_ = e.of.evict(obj.GetName(), &metav1.Preconditions{UID: only.UID})
		}
		return err
	})
}

func (s server) evict(name string, only *metav1.Preconditions) error {
	pod, _ := s.objects["Pod"][name].(*corev1.Pod)
	switch {
	case pod == nil:
		return apierrors.NewNotFound(podResource, name)
	case *only.UID != pod.UID || only.ResourceVersion != nil && *only.ResourceVersion != pod.ResourceVersion && s.bug != unconditional:
		return apierrors.NewConflict(podResource, name, nil)
	case !s.calm && s.faults.IntN(100) < s.refuse:
		err := apierrors.NewTooManyRequests("not now", 0)
		if s.faults.IntN(2) == 0 {
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
		}
		return err
	case pod.Spec.NodeName != "":
		s.fail("pod %s was evicted, which has a node", name)
	case pod.DeletionTimestamp != nil || s.evicted[pod.UID]:
		s.fail("pod %s was evicted twice", name)
	}
	state, _ := s.seen["PoolState"]["web"].(*stowage.PoolState)
	if stored := slices.ContainsFunc(s.log["PoolState"], func(c change) bool { return state != nil && c.is == client.Object(state) }); !stored || !s.closes(state, pod) {
		s.fail("pod %s was evicted for a state that was not stored: %v", name, state)
		return nil
	}
	for _, p := range state.Pools {
		if reason := fmt.Sprint(name, p.Name, p.Epoch); s.moved != nil && s.stateful && p.Name == pod.Labels[stowage.PoolLabel] {
			if s.moved[reason] {
				s.fail("pod %s was moved from pool %s again for one reason", name, p.Name)
			}
			s.moved[reason] = true
		}
	}
	s.evicted[pod.UID] = true
	s.remove(pod)
	return nil
}

// closes reports whether a state has no room for a pod where it is.
func (c *simulated) closes(state *stowage.PoolState, pod *corev1.Pod) bool {
	if c.stateful {
		ordinal := placement.OrdinalInName(pod.Name)
		n, _ := strconv.ParseInt(ordinal, 10, 64)
		to, moves := state.Ordinals[ordinal]
		own, err := c.strategy.Nth(n + 1)
		returns := !moves && err == nil && c.strategy.Pool(own.Pool).Name != pod.Labels[stowage.PoolLabel] // its own pool is tried
		return returns || moves && to != pod.Labels[stowage.PoolLabel]
	}
	return slices.ContainsFunc(state.Pools, func(p stowage.PoolRoom) bool {
		return p.Name == pod.Labels[stowage.PoolLabel] && p.Phase != stowage.PoolAvailable
	})
}

// start starts a process. What it sees first may be of some changes ago.
func (c *simulated) start() *process {
	p := &process{simulated: c, seen: objects{}, reached: map[string]int{}, stalled: map[string]time.Time{}, handlers: map[string][]toolscache.ResourceEventHandler{}}
	p.ctx, p.kill = context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range kinds {
		to := len(c.log[kind])
		if !c.calm && to > 10 {
			to -= c.happens.IntN(4)
		}
		p.advance(kind, to, false, false)
	}
	return p
}

// begin has a process run the controller until it is killed.
func (c *simulated) begin() {
	p := c.start()
	set := metrics.NewSet(prometheus.NewRegistry())
	cache, server := cached{process: p}, server{process: p}
	snapshot := worldcache.New(cache, server, c.clock, worldcache.ForAdmission())
	_, err := snapshot.FollowPolicies(p.ctx, meta.NewDefaultRESTMapper(nil), cache)
	service := seats.New(seats.Options{API: noLedgers{}, Key: key, Writer: "w", Clock: c.clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)})
	finder := policy.NewFinder(snapshot, policy.Settings{})
	room := poolroom.New(cache, server, c.clock, c.clock)
	service.Changes.Add(func(change seats.Change) { room.PodLeft(change.Left) })
	controller := &Controller{
		Cached: cache, Uncached: server, Informers: cache, World: snapshot, Policies: owners.New(finder, service.Pods().NameOf, server, c.clock), Seats: service,
		Scope: scope.New(snapshot, "stowage-system"), Room: room, Evictor: testkit.Evictor(server, c.clock, set), Successors: successor.New(server, snapshot.Workload), Clock: c.clock, Timing: simulatedTiming,
		Log: logr.Discard(), Events: events.Recorder{EventRecorder: &clientevents.FakeRecorder{}}, Metrics: NewMetrics(set),
	}
	c.mu.Lock()
	var pods []any
	for _, pod := range all[client.Object](p.seen, "Pod") {
		pods = append(pods, pod)
	}
	p.handlers["Pod"] = []toolscache.ResourceEventHandler{toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { _ = service.Pods().Add(obj) },
		UpdateFunc: func(_, is any) { _ = service.Pods().Update(is) },
		DeleteFunc: func(obj any) { _ = service.Pods().Delete(obj) },
	}}
	c.leaders = append(c.leaders, p)
	c.mu.Unlock()
	term, wait := leader.NewTerm(p.ctx, c.clock, logr.Discard())
	if err := errors.Join(err, service.Pods().Replace(pods, "1"), room.Follow(p.ctx, cache), controller.Register(term)); err != nil {
		panic(err)
	}
	term.Start()
	go func() {
		<-p.ctx.Done()
		wait()
	}()
}

// elect has a process lead where none does.
func (c *simulated) elect() {
	c.mu.Lock()
	for _, p := range slices.Clone(c.leaders) {
		if next := c.nextTerm; !p.until.IsZero() && c.clock.Now().After(p.until) {
			c.end(p)
			c.nextTerm = next
		}
	}
	none := len(c.leaders) == 0 && c.clock.Now().After(c.nextTerm)
	c.mu.Unlock()
	if none {
		c.begin()
	}
}

// pods returns the pods of the workload that are not being deleted.
func (c *simulated) pods() []*corev1.Pod {
	return slices.DeleteFunc(all[*corev1.Pod](c.objects, "Pod"), func(p *corev1.Pod) bool {
		return metav1.GetControllerOfNoCopy(p) == nil || p.DeletionTimestamp != nil
	})
}

// remove deletes a pod. It ends some time later if it has a node, or if somebody else has to let go of it.
func (c *simulated) remove(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" && c.faults.IntN(4) > 0 {
		c.drop(pod)
		return
	}
	now := metav1.NewTime(c.clock.Now())
	c.ends[pod.Name] = now.Add(upTo(c.faults, 15*time.Second))
	edit(c, pod, func(p *corev1.Pod) { p.DeletionTimestamp = &now })
}

// held are pods, as [sequence.Strategy.Admit] counts them.
type held struct {
	*sequence.Strategy
	pods []*corev1.Pod
}

func (h held) Count(pool int) (n int64) {
	for _, p := range h.pods {
		if p.Labels[stowage.PoolLabel] == h.PoolKey(pool) {
			n++
		}
	}
	return n
}

func (h held) LowestFree(pool int) int64 {
	n := int64(1)
	for slices.ContainsFunc(h.pods, func(p *corev1.Pod) bool {
		return p.Labels[stowage.PoolLabel] == h.PoolKey(pool) && p.Labels[stowage.SeatLabel] == fmt.Sprint(n)
	}) {
		n++
	}
	return n
}

// create creates a pod with the seat that the webhook gives it. A rank is that of a pod of a StatefulSet.
func (c *simulated) create(name string, rank int64) {
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: kindOf(c.owner), Name: "web", UID: c.owner.GetUID(), Controller: new(true)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(c.clock.Now()), Annotations: maps.Clone(c.annotations), OwnerReferences: []metav1.OwnerReference{owner},
	}}
	c.mu.Unlock()
	p, err := c.finder.Find(c.ctx, policy.Pod{Namespace: "ns", Owner: world.RefOf(&owner), Annotations: pod.Annotations})
	c.mu.Lock()
	var seat sequence.Seat
	origin := ledger.OriginClaimed
	switch {
	case err != nil:
	case rank > 0:
		origin = ledger.OriginOrdinal
		seat, err = p.OfOrdinal(rank)
	default:
		seat, err = p.Admit(held{c.strategy, c.pods()})
	}
	if err != nil {
		panic(err)
	}
	given := ledger.Seat{Pool: c.strategy.PoolKey(seat.Pool), Ordinal: seat.Ordinal}
	pod.Labels = map[string]string{stowage.PoolLabel: given.Pool, stowage.SeatLabel: fmt.Sprint(given.Ordinal)}
	pod.Annotations[stowage.ClaimAnnotation] = key.Sign(origin, name, ledger.Holder{Namespace: "ns", Owner: string(owner.UID)}, given)
	pod.Spec.NodeSelector, pod.Spec.Containers = map[string]string{"p": c.pools[seat.Pool]}, requesting(1)
	c.put(pod)
}

// requesting is a container that requests so many CPUs.
func requesting(n int64) []corev1.Container {
	return []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(n, resource.DecimalSI)}}}}
}

// control is the workload's controller. It replaces pods that are to restart one after the other.
func (c *simulated) control() {
	count := int32(c.replicas)
	switch o := c.objects[kindOf(c.owner)]["web"].(type) {
	case *appsv1.ReplicaSet:
		if *o.Spec.Replicas != count {
			edit(c, o, func(o *appsv1.ReplicaSet) { o.Spec.Replicas, o.Status.Replicas = &count, count })
		}
	case *appsv1.StatefulSet:
		if *o.Spec.Replicas != count {
			edit(c, o, func(o *appsv1.StatefulSet) { o.Spec.Replicas, o.Status.Replicas = &count, count })
		}
	}
	if len(c.restarts) > 0 && len(c.ends) == 0 {
		if pod, ok := c.objects["Pod"][c.restarts[0]].(*corev1.Pod); ok && pod.DeletionTimestamp == nil {
			c.remove(pod)
		}
		c.restarts = c.restarts[1:]
	}
	pods := c.pods()
	if !c.stateful {
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(len(a.Spec.NodeName), len(b.Spec.NodeName)) })
		for ; int64(len(pods)) > c.replicas; pods = pods[1:] { // those without a node first
			c.remove(pods[0])
		}
		for n := int64(len(pods)); n < c.replicas; n++ {
			c.serial++
			c.create(fmt.Sprintf("web-%05d", c.serial), 0)
		}
		return
	}
	for _, p := range pods {
		if n, _ := strconv.ParseInt(strings.TrimPrefix(p.Name, "web-"), 10, 64); n >= c.replicas {
			c.remove(p)
		}
	}
	for n := range c.replicas {
		if name := fmt.Sprint("web-", n); c.objects["Pod"][name] == nil {
			c.create(name, n+1)
		}
	}
}

// restart has all pods replaced.
func (c *simulated) restart() {
	c.restarts = nil
	for _, p := range c.pods() {
		c.restarts = append(c.restarts, p.Name)
	}
}

const nodeCPUs = 8

// free returns how many more pods each node has room for.
func (c *simulated) free() map[string]int64 {
	out := map[string]int64{}
	for name := range c.objects["Node"] {
		out[name] = nodeCPUs
	}
	for _, obj := range c.objects["Pod"] {
		p := obj.(*corev1.Pod)
		out[p.Spec.NodeName] -= p.Spec.Containers[0].Resources.Requests.Cpu().Value()
	}
	return out
}

// schedule is the scheduler and the kubelets.
func (c *simulated) schedule() {
	for _, name := range slices.Sorted(maps.Keys(c.ends)) {
		if c.clock.Now().After(c.ends[name]) {
			delete(c.ends, name)
			if c.objects["Pod"][name] != nil {
				c.drop(c.objects["Pod"][name])
			}
		}
	}
	free := c.free()
	for _, p := range c.pods() {
		if p.Spec.NodeName != "" || !c.calm && c.happens.IntN(3) == 0 {
			continue
		}
		to := ""
		for _, node := range all[*corev1.Node](c.objects, "Node") {
			if to == "" && free[node.Name] > 0 && labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
				to = node.Name
			}
		}
		if _, waits := podstatus.Unschedulable(p); to == "" && waits {
			continue
		}
		free[to]--
		edit(c, p, func(p *corev1.Pod) {
			p.Spec.NodeName = to
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			if to != "" {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
		})
	}
}

// fill has pods of others take all of a node but the room for so many pods.
func (c *simulated) fill(node string, leave int64) {
	filler := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: "filler-" + node}}
	if was := c.objects["Pod"][filler.Name]; was != nil {
		c.drop(was)
	}
	if n := c.free()[node] - leave; n > 0 {
		filler.Spec.NodeName, filler.Spec.Containers = node, requesting(n)
		c.put(filler)
	}
}

// lose removes a node with its pods.
func (c *simulated) lose(node string) {
	for _, p := range all[*corev1.Pod](c.objects, "Pod") {
		if p.Spec.NodeName == node {
			delete(c.ends, p.Name)
			c.drop(p)
		}
	}
	c.drop(c.objects["Node"][node])
}

// recover gives a pool its nodes and their room back.
func (c *simulated) recover(pool string) {
	for i := range 2 {
		n := node(pool)
		n.Name = fmt.Sprintf("node-%s-%d", pool, i)
		n.Status.Allocatable[corev1.ResourceCPU], n.Status.Allocatable[corev1.ResourcePods] = *resource.NewQuantity(nodeCPUs, resource.DecimalSI), resource.MustParse("50")
		if c.objects["Node"][n.Name] == nil {
			c.put(n)
		}
		c.fill(n.Name, nodeCPUs)
	}
}

// happen has something happen.
func (c *simulated) happen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, pool := c.clock.Now(), c.pools[c.happens.IntN(len(c.pools))]
	nodes := slices.DeleteFunc(all[*corev1.Node](c.objects, "Node"), func(n *corev1.Node) bool { return n.Labels["p"] != pool })
	pods := c.pods()
	process := c.webhook
	if n := len(c.leaders); n > 0 && c.happens.IntN(3) > 0 {
		process = c.leaders[c.happens.IntN(n)]
	}
	switch k := c.happens.IntN(24); {
	case k < 3:
		c.replicas = int64(1 + c.happens.IntN(12))
	case k < 8:
		for _, n := range nodes {
			c.fill(n.Name, c.happens.Int64N(3))
		}
	case k < 11:
		c.recover(pool)
	case k < 12 && len(nodes) > 0:
		c.lose(nodes[0].Name)
	case k < 14 && len(pods) > 0:
		c.remove(pods[c.happens.IntN(len(pods))])
	case k < 15 && len(pods) > 0: // somebody else writes
		edit(c, pods[c.happens.IntN(len(pods))], func(p *corev1.Pod) { p.Annotations["edited"] = fmt.Sprint(c.version) })
	case k < 16:
		c.restart()
	case k < 17:
		c.down = now.Add(upTo(c.happens, 15*time.Second))
	case k < 19:
		process.stalled[[]string{"PoolState", kinds[c.happens.IntN(len(kinds))]}[c.happens.IntN(2)]] = now.Add(upTo(c.happens, 20*time.Second))
	case k < 21: // pods get nodes that somebody does not see
		process.stalled["Pod"] = now.Add(upTo(c.happens, 40*time.Second))
		c.recover(pool)
	case k < 22 && process != c.webhook:
		c.end(process)
	case k < 23 && process != c.webhook && process.until.IsZero(): // another one leads, and it does not know yet
		process.until = now.Add(upTo(c.happens, 6*time.Second))
		c.mu.Unlock()
		c.begin()
		c.mu.Lock()
	case k < 24:
		if state := c.objects["PoolState"]["web"]; state != nil && c.happens.IntN(3) == 0 {
			c.drop(state) // by a user
		}
	}
}

// pass lets time pass.
func (c *simulated) pass(d time.Duration) {
	for end := c.clock.Now().Add(d); c.clock.Now().Before(end); {
		c.mu.Lock()
		step := time.Second/2 + upTo(c.happens, time.Second)
		c.mu.Unlock()
		c.clock.Sleep(step) // no two things are at one instant
		c.mu.Lock()
		c.control()
		c.schedule()
		seeing := append([]*process{c.webhook}, c.leaders...)
		c.mu.Unlock()
		for _, p := range seeing {
			p.deliver()
		}
		c.elect()
	}
}

// unknown is a cluster without PoolStates.
type unknown struct{ world.Snapshot }

func (unknown) PoolState(context.Context, string, types.UID) (*stowage.PoolState, error) {
	return nil, nil
}

// play plays one history: something happens all the time, then nothing does, and then all pools have room again.
func play(t *testing.T, seed uint64, b bug) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
		c := &simulated{
			bug: b, ctx: ctx, happens: rand.New(rand.NewPCG(seed, 1)), faults: rand.New(rand.NewPCG(seed, 2)), objects: objects{}, log: map[string][]change{},
			ends: map[string]time.Time{}, evicted: map[types.UID]bool{},
		}
		c.set()
		c.begin()
		c.pass(20 * time.Second)
		for range 30 {
			c.happen()
			c.pass(upTo(c.happens, []time.Duration{5 * time.Second, 40 * time.Second}[c.happens.IntN(2)]))
		}

		// 1. Nothing happens any more.
		c.mu.Lock()
		c.calm = true
		c.mu.Unlock()
		c.pass(20 * time.Second)
		c.mu.Lock()
		c.moved = map[string]bool{}
		c.mu.Unlock()
		c.pass(12 * time.Minute)
		c.rest("at rest")
		c.quiet(6 * time.Minute)

		// 2. All pools have room again.
		c.mu.Lock()
		for _, pool := range c.pools {
			c.recover(pool)
		}
		c.mu.Unlock()
		c.pass(12 * time.Minute)
		c.rest("after the shortage")
		if len(c.objects["PoolState"]) > 0 {
			c.fail("the PoolState is still there: %+v", c.objects["PoolState"]["web"].(*stowage.PoolState).Pools)
		}
		c.restart()
		c.pass(3 * time.Minute)
		c.balanced()
		c.quiet(15 * time.Minute)
		if c.requests > 0 {
			c.fail("%d requests are sent though nothing is recorded and no pod waits", c.requests)
		}
		wrong = c.wrong
		cancel()
		c.clock.Sleep(10 * time.Minute)
	})
	return wrong
}

// set makes the cluster as a history begins.
func (c *simulated) set() {
	text := []string{"p=a,weight=1:p=b,weight=1", "p=a,weight=20:p=b,weight=80", "p=a,base=2,weight=1:p=b,weight=3:p=c,weight=1"}[c.happens.IntN(3)]
	c.pools, c.annotations = []string{"a", "b", "c"}[:strings.Count(text, ":")+1], map[string]string{stowage.SpreadStrategyAliasAnnotation: text, stowage.SpillAnnotation: "10s"}
	var err error
	if c.strategy, err = sequence.Parse(text); err != nil {
		panic(err)
	}
	c.stateful, c.replicas = c.happens.IntN(4) == 0, int64(1+c.happens.IntN(12))
	c.failing, c.crashing, c.refuse = []int{0, 3, 15}[c.happens.IntN(3)], []int{0, 5, 25}[c.happens.IntN(3)], []int{0, 20}[c.happens.IntN(2)]
	c.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	for _, pool := range c.pools {
		c.recover(pool)
	}
	m := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web", Annotations: c.annotations}
	c.owner = &appsv1.ReplicaSet{ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0))}}
	if c.stateful {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"}}
		set.Spec.Replicas, set.Spec.Template.Annotations = new(int32(0)), c.annotations
		c.owner = set
	}
	c.put(c.owner)
	c.webhook = c.start()
	var snapshot world.Snapshot = worldcache.New(cached{process: c.webhook}, server{process: c.webhook}, c.clock, worldcache.ForAdmission())
	if c.bug == unread {
		snapshot = unknown{snapshot}
	}
	c.finder = policy.NewFinder(snapshot, policy.Settings{})
}

// rest checks that no pod waits that another pool has room for. All pools of a strategy here take any number of pods.
func (c *simulated) rest(when string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.free()
	for _, p := range c.pods() {
		for _, node := range all[*corev1.Node](c.objects, "Node") {
			if p.Spec.NodeName == "" && free[node.Name] > 0 {
				c.fail("%s pod %s of pool %s waits though %s has room", when, p.Name, p.Labels[stowage.PoolLabel], node.Name)
			}
		}
	}
}

// balanced checks that the counts are those of the strategy.
func (c *simulated) balanced() {
	pods := held{c.strategy, c.pods()}
	for i, pool := range c.pools {
		if got, want := pods.Count(i), c.strategy.Target(i, c.replicas); got != want {
			c.fail("after a restart %d of %d pods are in pool %s, and not %d", got, c.replicas, pool, want)
		}
	}
}

// quiet checks that nothing is written for a while, but for the tries of pools for which pods wait, or that are still without room.
func (c *simulated) quiet(d time.Duration) {
	c.mu.Lock()
	c.writes, c.requests = 0, 0
	most := 0
	if len(c.objects["PoolState"]) > 0 {
		most = 6 * len(c.pools) * int(1+d/simulatedTiming.Probes.Last)
	}
	c.mu.Unlock()
	c.pass(d)
	if c.writes > most {
		c.fail("%d writes in %s in which nothing happened", c.writes, d)
	}
}

// Whenever leaders end, whatever fails and however late everything is seen, pods that wait go to pools with room, and all is as before
// once every pool has room.
func TestSimulation(t *testing.T) {
	testkit.PlayHistories(t, *histories, func(seed uint64) []string { return play(t, seed, noBug) })
}

// The simulation finds each of these mistakes.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	testkit.FindBugs(t, 60, map[bug]string{
		unconditional: "which has a node", unstored: "not stored", overwritten: "epoch", untried: "waits though", kept: "still there", twice: "twice", unread: "waits though",
	}, play)
}
