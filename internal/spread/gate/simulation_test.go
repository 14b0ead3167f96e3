package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/cache"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

var histories = flag.Int("histories", 60, "random histories in TestSimulation")

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug          bug = ""
	seatedTwice    bug = "a pod is seated though it has changed since it was read"
	unwrittenClaim bug = "the gate is removed without a written claim"
	leftBehind     bug = "a pod whose patch met a conflict is forgotten"
	foreignGate    bug = "a foreign gate is removed"
	sentLate       bug = "a patch is sent after its claim was presumed dead"
)

// cluster is an API server, its watches, a scheduler, and processes of Stowage. It runs in a synctest bubble.
type cluster struct {
	rng *rand.Rand
	bug bug
	ctx context.Context

	mu      sync.Mutex
	version uint64
	serial  int
	pods    map[string]*corev1.Pod
	owners  []*world.Workload
	ledgers map[ledger.OwnerKey]ledger.Object
	written map[string]time.Time // when claims came into a ledger first, by id
	watches []*watch
	failing int  // requests that fail, of 100; half of the writes are applied
	over    bool // all that is left is to come to an end
	wrong   []string
	kept    Verdicts
}

// watch delivers events in their order, each after some time.
type watch struct {
	events chan func()
	pods   func(pod *corev1.Pod, gone bool) // nil if it is of ledgers
	ledger func(owner ledger.OwnerKey, o ledger.Object)
}

func (c *cluster) draw(most time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(most) + 1))
}

func (c *cluster) number(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *cluster) chance(of int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(100) < of
}

func (c *cluster) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// follow adds a watch, which begins after what there is: the pods, by their names.
func (c *cluster) follow(ctx context.Context, w *watch) (list []*corev1.Pod, version string) {
	w.events = make(chan func(), 1<<16)
	c.mu.Lock()
	c.watches = append(c.watches, w)
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		list = append(list, c.pods[name].DeepCopy())
	}
	version = fmt.Sprint(c.version)
	c.mu.Unlock()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case do := <-w.events:
				time.Sleep(c.draw(4 * time.Millisecond))
				do()
			}
		}
	}()
	return list, version
}

func (c *cluster) tell(w *watch, pod *corev1.Pod, gone bool) {
	if w.pods != nil {
		w.events <- func() { w.pods(pod, gone) }
	}
}

// publish tells the watches of a pod. The caller holds the lock.
func (c *cluster) publish(pod *corev1.Pod, gone bool) {
	c.version++
	pod.ResourceVersion = fmt.Sprint(c.version)
	for _, w := range c.watches {
		c.tell(w, pod.DeepCopy(), gone)
	}
	if !gone && len(pod.Spec.SchedulingGates) == 0 && pod.Spec.NodeName == "" {
		name := pod.Name
		time.AfterFunc(20*time.Millisecond, func() { // the scheduler
			c.mu.Lock()
			defer c.mu.Unlock()
			if p := c.pods[name]; p != nil && p.Spec.NodeName == "" {
				p.Spec.NodeName = "node"
				c.publish(p, false)
			}
		})
	}
}

// create stores a pod.
func (c *cluster) create(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	pod.Name, pod.UID = fmt.Sprintf("pod-%04d", c.serial), types.UID(fmt.Sprintf("uid-%d", c.serial))
	pod.CreationTimestamp = metav1.NewTime(time.Now())
	c.pods[pod.Name] = pod
	c.publish(pod, false)
}

// template is the pod that an owner creates. Some of them wait for somebody else, too.
func (c *cluster) template(owner *world.Workload) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: owner.Namespace, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: strategies[owner.Name]}, Labels: map[string]string{"app": owner.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: new(true)}},
	}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
	if c.chance(10) {
		pod.Spec.SchedulingGates = slices.Insert(pod.Spec.SchedulingGates, c.number(2), corev1.PodSchedulingGate{Name: foreign})
	}
	return pod
}

const foreign = "kueue.x-k8s.io/admission"

var strategies = map[string]string{"a": "p=a,weight=80:p=b,weight=20", "b": "p=a,base=1:p=b,weight=1:p=c,weight=1", "c": "p=a,weight=1"}

// process is one replica of Stowage: its seats, and whether it lives.
type process struct {
	*cluster
	name    string
	ctx     context.Context
	kill    context.CancelFunc
	seats   *seats.Service
	feature *admit.Feature
	paused  bool // it is stopped for a while after some of the claims that it holds
}

var key = make(ledger.Key, ledger.KeySize)

func (c *cluster) start(name string) *process {
	p := &process{cluster: c, name: name}
	p.ctx, p.kill = context.WithCancel(c.ctx)
	p.seats = seats.New(seats.Options{API: p, Key: key, Writer: name, Clock: clock.RealClock{}, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry()))})
	p.feature = &admit.Feature{Policies: policy.NewFinder(manifests.New(world.Objects{
		Workloads: c.owners, Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}},
	}), policy.Settings{}), Seats: p.seats, Key: key, Audits: admit.NewAudits(clock.RealClock{})}
	pods := p.seats.Pods()
	list, version := c.follow(p.ctx, &watch{
		pods: func(pod *corev1.Pod, gone bool) {
			switch {
			case gone:
				_ = pods.Delete(pod)
			case pod.Labels[stowage.SeatLabel] != "":
				_ = pods.Update(pod)
			}
		},
		ledger: func(key ledger.OwnerKey, o ledger.Object) { p.seats.LedgerSeen(p.owner(key), o, false) },
	})
	var seated []any
	for _, pod := range list {
		if pod.Labels[stowage.SeatLabel] != "" {
			seated = append(seated, pod)
		}
	}
	_ = pods.Replace(seated, version)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, o := range c.ledgers {
		p.seats.LedgerSeen(p.owner(key), o, false)
	}
	return p
}

func (c *cluster) owner(key ledger.OwnerKey) ledger.Owner {
	for _, o := range c.owners {
		if o.UID == key.UID {
			return seats.OwnerOf(o)
		}
	}
	return ledger.Owner{}
}

// lead has a process run the controller.
func (p *process) lead() {
	set := metrics.NewSet(prometheus.NewRegistry())
	controller := &Controller{
		API: p, Feature: p.feature, Seats: &simulatedSeats{p.seats, p}, Scope: scope.New(p.feature.Policies.World, "stowage-system"),
		Synced: func() bool { return true }, Clock: clock.RealClock{}, Log: logr.Discard(),
		Events: events.Recorder{EventRecorder: &clientevents.FakeRecorder{}}, Metrics: NewMetrics(set, clock.RealClock{}),
	}
	term, wait := leader.NewTerm(p.ctx, clock.RealClock{}, logr.Discard())
	if err := controller.Register(term); err != nil {
		panic(err)
	}
	term.Start()
	go func() {
		<-p.ctx.Done()
		wait()
	}()
}

// simulatedSeats are the seats of a process that leads.
type simulatedSeats struct {
	*seats.Service
	*process
}

// Pods implements [Seats].
func (s *simulatedSeats) Pods() *seats.Pods { return s.Service.Pods() }

// Hold implements [Seats].
func (s *simulatedSeats) Hold(ctx context.Context, owner ledger.Owner, strategy *sequence.Strategy, cost, within bool) func() (ledger.Result, time.Time, error) {
	answer := s.Service.Hold(ctx, owner, strategy, cost, within)
	return func() (ledger.Result, time.Time, error) {
		if s.bug == unwrittenClaim {
			res, err := ledger.Unshared(strategy, cost)
			res.Written = true
			return res, time.Now().Add(time.Second), err
		}
		res, until, err := answer()
		if s.paused && s.chance(3) {
			time.Sleep(s.draw(6 * time.Second))
		}
		if s.bug == sentLate {
			until = until.Add(time.Hour)
		}
		return res, until, err
	}
}

var errNoAnswer = errors.New("no answer")

// request is on its way for a while. It reports whether it arrives, and whether its answer does.
func (p *process) request(ctx context.Context) (arrives, answered bool) {
	time.Sleep(p.draw(8 * time.Millisecond))
	p.mu.Lock()
	over, of := p.over, p.failing
	p.mu.Unlock()
	if over {
		return true, true
	}
	failing := p.chance(of)
	return ctx.Err() == nil && p.ctx.Err() == nil && (!failing || p.chance(50)), !failing
}

// Registration implements [API].
func (p *process) Registration(context.Context) (*selection.Registration, error) {
	return everything(), nil
}

// Watch implements [API].
func (p *process) Watch(ctx context.Context, store cache.ReflectorStore) {
	see := func(pod *corev1.Pod, gone bool) {
		if gone || pod.Spec.NodeName != "" {
			_ = store.Delete(pod)
			return
		}
		_ = store.Update(pod)
	}
	var listing sync.Mutex // events come after the list, and all from one goroutine at a time, as those of a reflector
	listing.Lock()
	list, _ := p.follow(ctx, &watch{pods: func(pod *corev1.Pod, gone bool) {
		listing.Lock()
		defer listing.Unlock()
		see(pod, gone)
	}})
	for _, pod := range list {
		see(pod, false)
	}
	listing.Unlock()
	<-ctx.Done()
}

var podResource = schema.GroupResource{Resource: "pods"}

// Get implements [API].
func (p *process) Get(ctx context.Context, _, name string) (*corev1.Pod, error) {
	if arrives, answered := p.request(ctx); !arrives || !answered {
		return nil, errNoAnswer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.pods[name]
	if pod == nil {
		return nil, apierrors.NewNotFound(podResource, name)
	}
	return pod.DeepCopy(), nil
}

// Patch implements [API].
func (p *process) Patch(ctx context.Context, _, name string, patch []byte) error {
	switch p.bug {
	case seatedTwice:
		var of map[string]map[string]any
		_ = json.Unmarshal(patch, &of)
		delete(of["metadata"], "resourceVersion")
		patch, _ = json.Marshal(of)
	case foreignGate:
		patch = bytes.Replace(patch, []byte(`"schedulingGates":[{"$patch":"delete","name":"`+stowage.SeatGate+`"}]`), []byte(`"schedulingGates":null`), 1)
	}
	p.sent(patch)
	conflicts := 3
	if p.bug == leftBehind || p.bug == seatedTwice { // which only conflicts show
		conflicts = 40
	}
	if p.chance(conflicts) { // somebody writes a label meanwhile
		p.mu.Lock()
		if pod := p.pods[name]; pod != nil {
			pod.Labels["edited"] = fmt.Sprint(p.version)
			p.publish(pod, false)
		}
		p.mu.Unlock()
	}
	arrives, answered := p.request(ctx)
	if !arrives {
		return errNoAnswer
	}
	err := p.apply(name, patch)
	if !answered {
		return errNoAnswer
	}
	if p.bug == leftBehind && apierrors.IsConflict(err) {
		return apierrors.NewNotFound(podResource, name)
	}
	return err
}

// sent checks that a patch may still be sent.
func (c *cluster) sent(patch []byte) {
	var of struct {
		Metadata struct{ Annotations map[string]*string }
	}
	_ = json.Unmarshal(patch, &of)
	claim := of.Metadata.Annotations[stowage.ClaimAnnotation]
	if claim == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	timing, written := ledger.DefaultTiming(), c.written[ledger.UnverifiedID(*claim)]
	if late := time.Since(written) - timing.Ahead - timing.MinPatience; !written.IsZero() && late > 0 {
		c.fail("a patch was sent %s after others may presume its claim dead", late)
	}
}

// apply changes a pod as the API server does.
func (c *cluster) apply(name string, patch []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.pods[name]
	if was == nil {
		return apierrors.NewNotFound(podResource, name)
	}
	var of struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	_ = json.Unmarshal(patch, &of)
	if of.Metadata.UID != string(was.UID) || of.Metadata.ResourceVersion != "" && of.Metadata.ResourceVersion != was.ResourceVersion {
		return apierrors.NewConflict(podResource, name, errors.New("it has changed"))
	}
	before, _ := json.Marshal(was)
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(after, pod); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	others := func(p *corev1.Pod) string {
		return strings.ReplaceAll(fmt.Sprint(p.Spec.SchedulingGates), "{"+stowage.SeatGate+"}", "")
	}
	if strings.TrimSpace(strings.Trim(others(pod), "[]")) != strings.TrimSpace(strings.Trim(others(was), "[]")) {
		c.fail("the gates of %s were %v and are %v", name, was.Spec.SchedulingGates, pod.Spec.SchedulingGates)
	}
	if was.Labels[stowage.SeatLabel] != "" && was.Annotations[stowage.ClaimAnnotation] != pod.Annotations[stowage.ClaimAnnotation] {
		c.fail("pod %s was seated twice", name)
	}
	if !gated(was) && pod.Spec.NodeSelector["p"] != was.Spec.NodeSelector["p"] {
		return apierrors.NewForbidden(podResource, name, errors.New("the pod is not gated"))
	}
	owner := metav1.GetControllerOf(pod)
	carried, genuine := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations)
	if !genuine || c.written[carried.ID].IsZero() {
		c.fail("pod %s lost its gate without a written claim", name)
	}
	c.pods[name] = pod
	c.publish(pod, false)
	return nil
}

// ReadLedger implements seats.API.
func (p *process) ReadLedger(ctx context.Context, owner ledger.Owner) (*ledger.Object, error) {
	if arrives, answered := p.request(ctx); !arrives || !answered {
		return nil, errNoAnswer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.ledgers[owner.Key()]
	return &o, nil
}

// WriteLedger implements seats.API.
func (p *process) WriteLedger(ctx context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	arrives, answered := p.request(ctx)
	if !arrives {
		return nil, ledger.WriteUncertain, errNoAnswer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledgers[owner.Key()].Version != o.Version {
		return nil, ledger.WriteConflict, nil
	}
	p.version++
	out := ledger.Object{Version: p.version, Writer: o.Writer, Claims: slices.Clone(o.Claims)}
	p.ledgers[owner.Key()] = out
	for _, claim := range out.Claims {
		if p.written[claim.ID].IsZero() {
			p.written[claim.ID] = time.Now()
		}
	}
	for _, w := range p.watches {
		if w.ledger != nil {
			w.events <- func() { w.ledger(owner.Key(), out) }
		}
	}
	if !answered {
		return nil, ledger.WriteUncertain, errNoAnswer
	}
	return &out, ledger.WriteOK, nil
}

// DeleteLedger implements seats.API.
func (p *process) DeleteLedger(context.Context, ledger.Owner, uint64) error { return errNoAnswer }

// ReadReplicas implements seats.API.
func (p *process) ReadReplicas(ctx context.Context, owner ledger.Owner) (int64, error) {
	if arrives, answered := p.request(ctx); !arrives || !answered {
		return 0, errNoAnswer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.owners {
		if o.UID == owner.UID {
			return o.Replicas, nil
		}
	}
	return -1, nil
}

// admit creates a pod through a process, as the webhook does.
func (p *process) admit(owner *world.Workload) {
	pod := p.template(owner)
	view := podpatch.FromPod(pod)
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	d, err := p.feature.Decide(ctx, feature.Request{Namespace: pod.Namespace, Pod: view})
	if err == nil && d.Wait == nil && d.Pod != nil {
		pod.Labels, pod.Annotations, pod.Spec.NodeSelector = d.Pod.Metadata.Labels, d.Pod.Metadata.Annotations, d.Pod.Spec.NodeSelector
		pod.Spec.SchedulingGates = slices.DeleteFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == stowage.SeatGate })
	}
	time.Sleep(p.draw(5 * time.Millisecond))
	p.create(pod)
}

// pick returns a pod at the gate, or nil.
func (c *cluster) pick() *corev1.Pod {
	var waiting []string
	for name, p := range c.pods {
		if gated(p) {
			waiting = append(waiting, name)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	slices.Sort(waiting)
	return c.pods[waiting[c.rng.IntN(len(waiting))]]
}

// play plays one history: pods come while nobody answers, then processes come back, fail, and lead in turn.
func play(t *testing.T, seed uint64, b bug) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &cluster{rng: rand.New(rand.NewPCG(seed, 37)), bug: b, ctx: ctx, pods: map[string]*corev1.Pod{}, ledgers: map[ledger.OwnerKey]ledger.Object{}, written: map[string]time.Time{}}
		for name := range strategies {
			c.owners = append(c.owners, &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID("owner-" + name)}, Namespace: "ns", Replicas: 0, Current: -1})
		}
		slices.SortFunc(c.owners, func(x, y *world.Workload) int { return strings.Compare(x.Name, y.Name) })

		// 1. Some pods were there before, and some come while nobody answers.
		before := c.start("before")
		for _, o := range c.owners {
			n, more := int64(c.number(10)), 1+int64(c.number(25))
			for range n {
				c.resize(o, 1)
				before.admit(o)
			}
			c.resize(o, more)
			for range more {
				c.create(c.template(o))
			}
		}
		before.kill()
		time.Sleep(time.Second)

		// 2. The processes are back. One leads, and more pods come.
		failing := []int{0, 0, 5, 20}[c.number(4)]
		c.mu.Lock()
		c.failing = failing
		c.mu.Unlock()
		first, second := c.start("first"), c.start("second")
		first.paused = c.number(4) == 0
		first.lead()
		var coming sync.WaitGroup
		for _, o := range c.owners {
			more := c.number(9)
			c.resize(o, int64(more))
			for i := range more {
				p := []*process{first, second}[i%2]
				time.Sleep(c.draw(20 * time.Millisecond))
				coming.Go(func() { p.admit(o) })
			}
		}
		for range c.number(13) { // others write, and remove pods that wait
			time.Sleep(c.draw(60 * time.Millisecond))
			c.mu.Lock()
			if pod := c.pick(); pod != nil {
				if c.rng.IntN(3) > 0 {
					pod.Labels["edited"] = fmt.Sprint(c.version)
					c.publish(pod, false)
				} else {
					delete(c.pods, pod.Name)
					c.publish(pod, true)
					owner := c.ownerOf(pod)
					coming.Go(func() { second.admit(owner) })
				}
			}
			c.mu.Unlock()
		}

		// 3. Another one leads as well, and the first one may be gone.
		if c.chance(60) {
			time.Sleep(c.draw(2 * time.Second))
			second.lead()
			if c.chance(60) {
				first.kill()
			}
		}
		coming.Wait()
		time.Sleep(2 * time.Second)
		c.mu.Lock()
		c.failing = 0
		c.mu.Unlock()
		time.Sleep(3 * time.Minute)

		// 4. Everything has its place.
		c.mu.Lock()
		c.check()
		wrong, c.over = c.wrong, true
		c.mu.Unlock()
		cancel()
		time.Sleep(10 * time.Minute)
	})
	return wrong
}

func (c *cluster) resize(o *world.Workload, by int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.Replicas += by
}

func (c *cluster) ownerOf(pod *corev1.Pod) *world.Workload {
	uid := metav1.GetControllerOf(pod).UID
	return c.owners[slices.IndexFunc(c.owners, func(o *world.Workload) bool { return o.UID == uid })]
}

// check notes what is wrong at rest.
func (c *cluster) check() {
	for _, o := range c.owners {
		s, err := sequence.Parse(strategies[o.Name])
		if err != nil {
			panic(err)
		}
		taken, counts, n := map[string]string{}, map[string]int64{}, int64(0)
		for _, pod := range c.pods {
			if metav1.GetControllerOf(pod).UID != o.UID {
				continue
			}
			n++
			if gated(pod) {
				c.fail("pod %s waits at rest", pod.Name)
			}
			seat := pod.Labels[stowage.PoolLabel] + "/" + pod.Labels[stowage.SeatLabel]
			if taken[seat] != "" {
				c.fail("pods %s and %s of %s both have seat %s", pod.Name, taken[seat], o.Name, seat)
			}
			taken[seat] = pod.Name
			counts[pod.Labels[stowage.PoolLabel]]++
		}
		if n != o.Replicas {
			panic(fmt.Sprintf("%s has %d pods and wants %d", o.Name, n, o.Replicas))
		}
		for i := range s.Len() {
			if got, want := counts[s.Pool(i).Name], s.Target(i, n); got != want {
				c.fail("%s has %d of %d pods in pool %s, and not %d", o.Name, got, n, s.Pool(i).Name, want)
			}
		}
	}
}

// Whatever fails, and whoever leads, each pod that waited gets one seat, and the counts are exact.
func TestSimulation(t *testing.T) {
	testkit.PlayHistories(t, *histories, func(seed uint64) []string { return play(t, seed, noBug) })
}

// The simulation finds each of these mistakes.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	testkit.FindBugs(t, 60, map[bug]string{
		seatedTwice: "seated twice", unwrittenClaim: "without a written claim", leftBehind: "waits at rest", foreignGate: "the gates of", sentLate: "presume its claim dead",
	}, play)
}

// Verdicts implements [API].
func (p *process) Verdicts(ctx context.Context) (Verdicts, error) {
	if _, answered := p.request(ctx); !answered {
		return nil, errNoAnswer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.kept), nil
}

// KeepVerdicts implements [API].
func (p *process) KeepVerdicts(ctx context.Context, v Verdicts) error {
	arrives, answered := p.request(ctx)
	if arrives {
		p.mu.Lock()
		p.kept = v
		p.mu.Unlock()
	}
	if !answered {
		return errNoAnswer
	}
	return nil
}

// A pod that exists gets no seat beyond those that its owner asks for while a watch may be behind. Later it is one more pod.
func TestPodBeyondTheReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &cluster{rng: rand.New(rand.NewPCG(1, 37)), ctx: ctx, pods: map[string]*corev1.Pod{}, ledgers: map[ledger.OwnerKey]ledger.Object{}, written: map[string]time.Time{}}
		owner := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "a", UID: "owner-a"}, Namespace: "ns", Replicas: 1, Current: -1}
		c.owners = []*world.Workload{owner}
		p := c.start("first")
		p.lead()
		p.admit(owner)
		time.Sleep(time.Second)
		pod := c.template(owner)
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
		c.create(pod)
		expect := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			c.mu.Lock()
			defer c.mu.Unlock()
			is := c.pods[pod.Name]
			if waits, has := gated(is), is.Labels[stowage.SeatLabel] != ""; waits != want || has == want {
				t.Errorf("it waits: %t, want %t; its labels are %v", waits, want, is.Labels)
			}
		}
		expect(14*time.Second, true)
		expect(time.Minute, false)
		c.mu.Lock()
		if len(c.wrong) > 0 {
			t.Error(strings.Join(c.wrong, "\n"))
		}
		c.over = true
		c.mu.Unlock()
		cancel()
		time.Sleep(10 * time.Minute)
	})
}
