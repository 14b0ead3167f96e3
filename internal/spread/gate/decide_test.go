package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// These tests are about what becomes of one pod, and when. What becomes of many of them, with several replicas and an API server that
// fails, is the simulation's.

const halves = "p=a,weight=1:p=b,weight=1"

// bench is a controller in a term, with an API server and seats that answer as a test says.
type bench struct {
	*run
	clock    *clocktesting.FakeClock
	recorder *clientevents.FakeRecorder
	api      *played
	seats    *playedSeats
}

// played is an API server with one pod.
type played struct {
	pod          *corev1.Pod                   // nil if it is gone
	stored       func(name string) *corev1.Pod // in place of one pod
	failing      error                         // of reads
	unregistered bool                          // the webhook
	refuse       func(seat bool) error
	mu           sync.Mutex
	reads        int
	patches      []string
	kept         Verdicts
	keeps, looks int   // writes and reads of what is kept
	keeping      error // fails both
}

var _ API = &played{}

// Registration implements [API].
func (p *played) Registration(context.Context) (*selection.Registration, error) {
	if p.unregistered {
		return &selection.Registration{}, nil
	}
	return everything(), nil
}

// everything is a registration that selects all pods.
func everything() *selection.Registration {
	return selection.Compile(&admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "pods"}}})
}

// Get implements [API].
func (p *played) Get(_ context.Context, _, name string) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	if p.stored != nil {
		return p.stored(name), nil
	}
	if p.failing != nil {
		return nil, p.failing
	}
	if p.pod == nil {
		return nil, apierrors.NewNotFound(podResource, name)
	}
	return p.pod.DeepCopy(), nil
}

// Patch implements [API].
func (p *played) Patch(_ context.Context, _, _ string, patch []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patches = append(p.patches, string(patch))
	if p.refuse == nil {
		return nil
	}
	return p.refuse(strings.Contains(string(patch), stowage.ClaimAnnotation))
}

// Verdicts implements [API].
func (p *played) Verdicts(context.Context) (Verdicts, error) {
	p.looks++
	return maps.Clone(p.kept), p.keeping
}

// KeepVerdicts implements [API].
func (p *played) KeepVerdicts(_ context.Context, v Verdicts) error {
	if p.keeps++; p.keeping == nil {
		p.kept = v
	}
	return p.keeping
}

// Watch implements [API]. The test puts pods into the queue itself.
func (p *played) Watch(context.Context, cache.ReflectorStore) {}

// playedSeats gives seats without a ledger, unless a test says otherwise.
type playedSeats struct {
	*seats.Service
	clock  clock.PassiveClock
	mu     sync.Mutex
	answer func() error // instead of a seat
	within []bool       // what each claim asked for
	given  int
	back   map[string]bool // claims that were given back, by id
}

var _ Seats = &playedSeats{}

// Hold implements [Seats].
func (s *playedSeats) Hold(_ context.Context, _ ledger.Owner, strategy *sequence.Strategy, cost, within bool) func() (ledger.Result, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.within = append(s.within, within)
	return func() (ledger.Result, time.Time, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answer != nil {
			if err := s.answer(); err != nil {
				return ledger.Result{}, time.Time{}, err
			}
		}
		res, err := ledger.Unshared(strategy, cost)
		res.Written = true
		s.given++
		return res, s.clock.Now().Add(time.Second), err
	}
}

// GiveBack implements [Seats].
func (s *playedSeats) GiveBack(_ ledger.Owner, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back[id] = true
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

// newBench is a controller that has not seen a pod yet. The pods of the ReplicaSet web are in its care.
func newBench() *bench {
	b := &bench{clock: clocktesting.NewFakeClock(start), recorder: clientevents.NewFakeRecorder(1000), api: &played{}}
	set := metrics.NewSet(prometheus.NewRegistry())
	b.seats = &playedSeats{
		Service: seats.New(seats.Options{API: noLedgers{}, Key: key, Writer: "w", Clock: b.clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)}),
		clock:   b.clock, back: map[string]bool{},
	}
	f := &admit.Feature{Policies: policy.NewFinder(manifests.New(world.Objects{
		Workloads:  []*world.Workload{{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs"}, Namespace: "ns", Replicas: 1, Current: -1}},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}},
	}), policy.Settings{}), Seats: b.seats, Key: key, Audits: admit.NewAudits(clock.RealClock{})}
	b.run = &run{
		Controller: &Controller{
			API: b.api, Feature: f, Seats: b.seats, Scope: scope.New(f.Policies.World, "stowage-system"), Synced: func() bool { return true },
			Clock: b.clock, Log: logr.Discard(), Events: events.Recorder{EventRecorder: b.recorder}, Metrics: NewMetrics(set, b.clock),
		},
	}
	b.leads()
	return b
}

// leads begins a term.
func (b *bench) leads() {
	b.waiting, b.logs, b.events = newQueue(), fair.NewLimiter[string](1, 20), fair.NewLimiter[string](5, 50)
	b.reads, b.verdicts, b.began = fair.NewLimiter[string](readRate, readBurst), newVerdicts(), b.clock.Now()
}

// gatedPod is a pod of the ReplicaSet web that waits at the gate.
func gatedPod(name, strategy string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "7", CreationTimestamp: metav1.NewTime(start),
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
	}}
	if strategy != "" {
		pod.Annotations[stowage.SpreadStrategyAliasAnnotation] = strategy
	}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
	return pod
}

// seatedPod is a pod at the gate that carries a seat.
func seatedPod(name string, owner types.UID, origin ledger.Origin, seat ledger.Seat) *corev1.Pod {
	pod := gatedPod(name, halves)
	pod.OwnerReferences[0].UID = owner
	pod.Labels[stowage.PoolLabel], pod.Labels[stowage.SeatLabel] = seat.Pool, fmt.Sprint(seat.Ordinal)
	pod.Annotations[stowage.ClaimAnnotation] = key.Sign(origin, "id-"+name, ledger.Holder{Namespace: "ns", Owner: string(owner)}, seat)
	return pod
}

// comes has a pod wait at the gate.
func (b *bench) comes(pod *corev1.Pod) *waiting {
	b.api.pod = pod
	b.waiting.put(waiting{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, owner: metav1.GetControllerOfNoCopy(pod).UID, created: pod.CreationTimestamp.Unix()}, pod)
	return b.waiting.pods[pod.UID]
}

// seen shows the pods that carry a seat.
func (b *bench) seen(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	var list []any
	for _, p := range pods {
		list = append(list, p)
	}
	if err := b.Seats.Pods().Replace(list, "7"); err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass. The owner has its turn at its begin and after each second, if it is due.
func (b *bench) pass(t *testing.T, seconds int) {
	t.Helper()
	for i := range seconds + 1 {
		if i > 0 {
			b.clock.Step(time.Second)
		}
		for {
			batch, _ := b.waiting.take("ns", b.clock.Now())
			if len(batch) == 0 {
				break
			}
			b.turn(t.Context(), batch)
		}
		b.inherit(t.Context())
		b.keep(t.Context())
	}
}

// became says what became of the only pod: it waits, or was let go with a seat, with nothing to decide, or without a seat.
func (b *bench) became() string {
	if n, _ := b.waiting.state(); n > 0 {
		return "waits"
	}
	for _, result := range []string{openedSeated, openedNothing, openedUnseated} {
		if testutil.ToFloat64(b.Metrics.opened.WithLabelValues(result)) > 0 {
			return result
		}
	}
	return "gone"
}

// noticed returns the events so far.
func (b *bench) noticed() (out []string) {
	for {
		select {
		case e := <-b.recorder.Events:
			out = append(out, e)
			continue
		default:
		}
		return out
	}
}

// ungated is the patch that takes the gate from a pod, and does nothing else.
func ungated(pod *corev1.Pod) string {
	return fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"uid":%q},"spec":{"schedulingGates":[{"$patch":"delete","name":%q}]}}`, pod.ResourceVersion, pod.UID, stowage.SeatGate)
}

// A pod keeps a seat that the webhook gave it, unless another pod has it.
func TestHasSeat(t *testing.T) {
	seat, other := ledger.Seat{Pool: "0", Ordinal: 1}, ledger.Seat{Pool: "1", Ordinal: 1}
	own := seatedPod("web-0", "rs", ledger.OriginClaimed, seat)
	forged := seatedPod("web-0", "rs", ledger.OriginClaimed, seat)
	forged.Labels[stowage.SeatLabel] = "2"
	ended := seatedPod("web-1", "rs", ledger.OriginClaimed, seat)
	ended.Status.Phase = corev1.PodFailed
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		there []*corev1.Pod // pods that carry a seat
		want  bool
	}{
		"it carries none":                          {pod: gatedPod("web-0", halves)},
		"a claimed one":                            {pod: own, want: true},
		"one that was not shared":                  {pod: seatedPod("web-0", "rs", ledger.OriginUnshared, seat), want: true},
		"the one of its ordinal":                   {pod: seatedPod("web-0", "rs", ledger.OriginOrdinal, seat), want: true},
		"one of a dry run":                         {pod: seatedPod("web-0", "rs", ledger.OriginDryRun, seat)},
		"one of an adopted pod":                    {pod: seatedPod("web-0", "rs", ledger.OriginAdopted, seat)},
		"one that nobody gave it":                  {pod: forged},
		"the watch shows the pod itself":           {pod: own, there: []*corev1.Pod{own}, want: true},
		"another pod has it":                       {pod: own, there: []*corev1.Pod{own, seatedPod("web-1", "rs", ledger.OriginClaimed, seat)}},
		"a pod that has ended had it":              {pod: own, there: []*corev1.Pod{own, ended}, want: true},
		"another pod has another one":              {pod: own, there: []*corev1.Pod{own, seatedPod("web-1", "rs", ledger.OriginClaimed, other)}, want: true},
		"a pod of another owner has one like that": {pod: own, there: []*corev1.Pod{own, seatedPod("db-0", "db", ledger.OriginClaimed, seat)}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench()
			b.seen(t, tc.there...)
			if got := b.hasSeat(tc.pod); got != tc.want {
				t.Errorf("it has a seat: %t, want %t", got, tc.want)
			}
		})
	}
}

// Where there is nothing to decide, the pod loses the gate and nothing else, and nobody asks for a seat.
func TestNothingToDecide(t *testing.T) {
	seat := ledger.Seat{Pool: "0", Ordinal: 1}
	off := gatedPod("web-0", halves)
	off.Annotations[stowage.ModeKey] = string(stowage.ModeOff)
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		change func(*testing.T, *bench)
		seated bool
	}{
		"a strategy":                         {pod: gatedPod("web-0", halves), seated: true},
		"no strategy":                        {pod: gatedPod("web-0", "")},
		"Stowage is switched off for it":     {pod: off},
		"it is not sent to the webhook":      {pod: gatedPod("web-0", halves), change: func(_ *testing.T, b *bench) { b.api.unregistered = true }},
		"another webhook put the gate back":  {pod: seatedPod("web-0", "rs", ledger.OriginClaimed, seat)},
		"and meanwhile another pod has that": {pod: seatedPod("web-0", "rs", ledger.OriginClaimed, seat), change: func(t *testing.T, b *bench) { b.seen(t, seatedPod("web-1", "rs", ledger.OriginClaimed, seat)) }, seated: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench()
			if tc.change != nil {
				tc.change(t, b)
			}
			b.comes(tc.pod)
			b.pass(t, 0)
			want, claims := openedNothing, 0
			if tc.seated {
				want, claims = openedSeated, 1
			}
			if got := b.became(); got != want || len(b.seats.within) != claims || len(b.api.patches) != 1 {
				t.Fatalf("it became %s with %d claims and %d patches, want %s with %d", got, len(b.seats.within), len(b.api.patches), want, claims)
			}
			if diff := cmp.Diff(ungated(tc.pod), b.api.patches[0]); !tc.seated && diff != "" {
				t.Errorf("the patch (-want +got):\n%s", diff)
			}
			if tc.seated && !strings.Contains(b.api.patches[0], stowage.ClaimAnnotation) {
				t.Errorf("the patch has no seat: %s", b.api.patches[0])
			}
		})
	}
}

// A pod gets no seat beyond those that its owner asks for, until it has waited for one for a while. Any other answer ends that wait.
func TestNoSeatBeyond(t *testing.T) {
	type try struct {
		after  time.Duration
		answer error
		within bool
	}
	none := errors.New("no answer")
	for name, tries := range map[string][]try{
		"its owner asks for it": {{0, nil, true}, {20 * time.Second, nil, true}},
		"its owner does not ask for it": {
			{0, ledger.ErrBeyond, true}, {14 * time.Second, ledger.ErrBeyond, true}, {beyondFor - 1, ledger.ErrBeyond, true},
			{beyondFor, ledger.ErrBeyond, false}, {20 * time.Second, nil, false}, {21 * time.Second, nil, true},
		},
		"its owner asked for it meanwhile": {{0, ledger.ErrBeyond, true}, {10 * time.Second, nil, true}, {15 * time.Second, ledger.ErrBeyond, true}, {29 * time.Second, ledger.ErrBeyond, true}, {30 * time.Second, nil, false}},
		"nobody answered meanwhile":        {{0, ledger.ErrBeyond, true}, {10 * time.Second, none, true}, {15 * time.Second, ledger.ErrBeyond, true}, {29 * time.Second, ledger.ErrBeyond, true}, {30 * time.Second, nil, false}},
	} {
		t.Run(name, func(t *testing.T) {
			strategy, err := sequence.Parse(halves)
			if err != nil {
				t.Fatal(err)
			}
			b, w, owner := newBench(), &waiting{}, ledger.Owner{Namespace: "ns", Name: "web", UID: "rs"}
			for _, one := range tries {
				b.clock.SetTime(start.Add(one.after))
				b.seats.answer = func() error { return one.answer }
				d := &decision{waiting: w, asked: make(chan struct{})} // one of each try
				_, err := (&holding{b.seats, d, b.clock}).Claim(t.Context(), owner, strategy, true)
				if got := b.seats.within[len(b.seats.within)-1]; got != one.within || !errors.Is(err, one.answer) {
					t.Errorf("after %s: asked for a seat within the count: %t, want %t (%v)", one.after, got, one.within, err)
				}
				if has := d.id != "" && d.claimed == owner && d.until.After(b.clock.Now()); has != (one.answer == nil) {
					t.Errorf("after %s: the claim is %q of %v", one.after, d.id, d.claimed)
				}
				select {
				case <-d.asked:
				default:
					t.Errorf("after %s: the next pod may not ask", one.after)
				}
			}
		})
	}
}

// A pod that is kept is not read again. Any other one is, and may have changed or be gone.
func TestRead(t *testing.T) {
	change := func(f func(*corev1.Pod)) *corev1.Pod {
		pod := gatedPod("web-0", halves)
		f(pod)
		return pod
	}
	for name, tc := range map[string]struct {
		kept    bool
		there   *corev1.Pod
		failing error
		waits   bool
		reads   int
	}{
		"it is kept":                  {kept: true, waits: true},
		"it is not kept":              {there: gatedPod("web-0", halves), waits: true, reads: 1},
		"it is gone":                  {reads: 1},
		"another one has its name":    {there: change(func(p *corev1.Pod) { p.UID = "other" }), reads: 1},
		"it has the gate no more":     {there: change(func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }), reads: 1},
		"it is being deleted":         {there: change(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(start)) }), reads: 1},
		"the API server is not there": {failing: errNoAnswer, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench()
			w := b.comes(gatedPod("web-0", halves))
			if !tc.kept {
				b.waiting.forget(w)
			}
			b.api.pod, b.api.failing = tc.there, tc.failing
			pod, err := b.read(t.Context(), w)
			if (pod != nil) != tc.waits || !errors.Is(err, tc.failing) || b.api.reads != tc.reads {
				t.Errorf("the pod is %v (%v) after %d reads", pod, err, b.api.reads)
			}
		})
	}
}
