package seats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// sharedAPI holds one ledger for several replicas, with optimistic concurrency. What the
// API server really does is tested in test/e2e; this is for the race detector.
type sharedAPI struct {
	mu       sync.Mutex
	object   ledger.Object
	watchers []*Service
	broken   bool
	deleted  int
}

func (a *sharedAPI) ReadLedger(context.Context, ledger.Owner) (*ledger.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return nil, errors.New("no answer")
	}
	o := a.object
	return &o, nil
}

func (a *sharedAPI) WriteLedger(_ context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return nil, ledger.WriteUncertain, errors.New("no answer")
	}
	if o.Version != a.object.Version {
		return nil, ledger.WriteConflict, nil
	}
	a.object = *o
	a.object.Version++
	out := a.object
	for _, l := range a.watchers {
		go func() {
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			l.LedgerSeen(owner, out, false)
		}()
	}
	return &out, ledger.WriteOK, nil
}

func (a *sharedAPI) DeleteLedger(context.Context, ledger.Owner, uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleted++
	return nil
}

func (a *sharedAPI) ReadReplicas(context.Context, ledger.Owner) (int64, error) { return 200, nil }

func parse(text string) *sequence.Strategy {
	s, err := sequence.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

var simulated = map[string]*sequence.Strategy{
	"base 1, then 1:1": parse("p=a,base=1:p=b,weight=1:p=c,weight=1"),
	"80:20":            parse("p=a,weight=80:p=b,weight=20"),
	"one pool":         parse("p=a,weight=1"),
}

var testOwner = ledger.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func newTestLedger(t *testing.T, api API, name string) *Service {
	t.Helper()
	// The tests run in synctest's bubbles, where time is fake: a sleep ends when nothing else can
	// run. Here what is under way ends.
	t.Cleanup(func() { time.Sleep(time.Minute) })
	return New(Options{
		API: api, Key: make(ledger.Key, ledger.KeySize), Writer: name, Clock: clock.RealClock{}, Log: logr.Discard(),
		Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
	})
}

// Many pods at once on several replicas get a seat each, and the seats are the first ones
// of the sequence, while books are swept and pods are seen.
func TestLedgerConcurrentClaims(t *testing.T) {
	for name, relay := range map[string]Relay{
		"each replica writes": nil, "replicas ask the one that writes": &relaying{}, "half of the answers are lost": &relaying{loses: 2},
		"no replica answers": &relaying{loses: 1},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testLedgerConcurrentClaims(t, relay) }) })
	}
}

func testLedgerConcurrentClaims(t *testing.T, relay Relay) {
	api := &sharedAPI{}
	replicas := []*Service{newTestLedger(t, api, "a"), newTestLedger(t, api, "b"), newTestLedger(t, api, "c")}
	api.watchers = replicas
	r, relays := relay.(*relaying)
	if relays {
		r.replicas = replicas
		for _, l := range replicas {
			l.askers.relay = r
		}
	}
	s := simulated["base 1, then 1:1"]
	var mu sync.Mutex
	seats := map[ledger.Seat]string{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	sweeping, stop := context.WithCancel(ctx)
	var sweepers sync.WaitGroup
	for _, l := range replicas {
		sweepers.Go(func() {
			for sweeping.Err() == nil {
				l.Sweep(sweeping, true)
				time.Sleep(time.Millisecond)
			}
		})
	}
	var pods sync.WaitGroup
	for i := range 200 {
		if i == 1 {
			time.Sleep(10 * time.Millisecond) // all have seen the first claim
		}
		pods.Go(func() {
			res, err := replicas[i%3].Claim(ctx, testOwner, s, true)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock() // a watch shows pods in the order of their versions
			if other, taken := seats[res.Seat]; taken {
				t.Errorf("seat %v was given to %s and %s", res.Seat, other, res.ID)
			}
			seats[res.Seat] = res.ID
			for j, l := range replicas {
				pod := testPod(fmt.Sprintf("p%d", i), l.Pods().Key, res)
				pod.ResourceVersion = fmt.Sprint(1000 + len(seats))
				if err := l.Pods().Add(pod); err != nil {
					t.Error(j, err)
				}
			}
		})
	}
	pods.Wait()
	stop()
	sweepers.Wait()
	if relays && (r.asked.Load() == 0 || r.loses == 0 && r.granted.Load() == 0) {
		t.Errorf("%d requests to other replicas, and %d seats of them", r.asked.Load(), r.granted.Load())
	}
	if relays && r.loses > 0 {
		return // the seats whose answers are lost are for nobody
	}
	for rank := range 200 {
		seat, err := s.SeatAt(int64(rank + 1))
		if err != nil {
			t.Fatal(err)
		}
		if seats[ledger.Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}] == "" {
			t.Errorf("nobody has seat %v, rank %d", seat, rank+1)
		}
	}
	for _, l := range replicas {
		if n := len(l.Pods().Of(testOwner.Key())); n != 200 {
			t.Errorf("a replica knows %d pods", n)
		}
	}
}

func testPod(name string, key ledger.Key, res ledger.Result) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: testOwner.Namespace, Name: name, UID: types.UID("pod-" + name), ResourceVersion: "1",
		Labels:          map[string]string{stowage.PoolLabel: res.Pool, stowage.SeatLabel: fmt.Sprint(res.Ordinal)},
		Annotations:     map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, res.ID, ledger.Holder{Namespace: testOwner.Namespace, Owner: string(testOwner.UID)}, res.Seat)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: testOwner.UID, Controller: new(true)}},
	}}
}

// An API that does not answer delays a pod by the webhook's budget at most, and after
// some failures by next to nothing; seats are still the right ones.
func TestLedgerWithoutAPI(t *testing.T) { synctest.Test(t, testLedgerWithoutAPI) }

func testLedgerWithoutAPI(t *testing.T) {
	api := &sharedAPI{broken: true}
	l := newTestLedger(t, api, "a")
	s := simulated["80:20"]
	for i := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		res, err := l.Claim(ctx, testOwner, s, true)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		seat, _ := s.SeatAt(int64(i + 1))
		if want := (ledger.Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}); res.Written || res.Seat != want {
			t.Errorf("claim %d is %+v, want %v", i, res, want)
		}
	}
	// When it is back, the seats that were given away are written.
	api.mu.Lock()
	api.broken = false
	api.mu.Unlock()
	deadline := time.Now().Add(10 * time.Second)
	for {
		api.mu.Lock()
		n := len(api.object.Claims)
		api.mu.Unlock()
		if n == 8 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of 8 claims were written", n)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// refusingAPI never takes a ledger, as when the namespace is being deleted.
type refusingAPI struct {
	sharedAPI
	writes int
}

func (a *refusingAPI) WriteLedger(context.Context, ledger.Owner, *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	return nil, ledger.WriteRefused, errors.New("forbidden")
}

func TestLedgerRefused(t *testing.T) { synctest.Test(t, testLedgerRefused) }

func testLedgerRefused(t *testing.T) {
	api := &refusingAPI{}
	l := newTestLedger(t, api, "a")
	start := time.Now()
	for range 5 {
		if res, err := l.Claim(t.Context(), testOwner, simulated["one pool"], true); err != nil || res.Written {
			t.Errorf("%+v, %v", res, err)
		}
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("five refused claims took %s", d)
	}
	// Seats that were given away while nothing was known are tried once; then nothing is,
	// which has no sign.
	time.Sleep(2500 * time.Millisecond)
	api.mu.Lock()
	before := api.writes
	api.mu.Unlock()
	time.Sleep(500 * time.Millisecond)
	api.mu.Lock()
	defer api.mu.Unlock()
	if api.writes != before {
		t.Errorf("%d writes were tried again", api.writes-before)
	}
}

// A dry run leaves nothing behind, whatever owners are invented for it.
func TestPeekLeavesNothing(t *testing.T) { synctest.Test(t, testPeekLeavesNothing) }

func testPeekLeavesNothing(t *testing.T) {
	l := newTestLedger(t, &sharedAPI{}, "a")
	for i := range 100 {
		owner := testOwner
		owner.UID = types.UID(fmt.Sprint("invented-", i))
		if seat, err := l.Peek(owner, simulated["80:20"]); err != nil || seat.Ordinal != 1 {
			t.Fatalf("%v, %v", seat, err)
		}
	}
	if n := len(l.books); n != 0 {
		t.Errorf("%d books were made", n)
	}
}

// Owners that may be invented cause few writes, and their seats are given without the ledger then.
func TestUnverifiedOwnersWriteLittle(t *testing.T) { synctest.Test(t, testUnverifiedOwnersWriteLittle) }

func testUnverifiedOwnersWriteLittle(t *testing.T) {
	api := &countingAPI{writes: map[string]int{}, named: map[types.UID]bool{}}
	l := newTestLedger(t, api, "a")
	claim := func(namespace, uid string, unverified bool) bool {
		t.Helper()
		owner := ledger.Owner{APIVersion: "x/v1", Kind: "Custom", Namespace: namespace, Name: "n", UID: types.UID(uid), Unverified: unverified}
		begin := time.Now()
		res, err := l.Claim(t.Context(), owner, simulated["80:20"], true)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 100*time.Millisecond || res.Ordinal != 1 {
			t.Errorf("the only pod of owner %s got seat %d after %s", uid, res.Ordinal, took)
		}
		return res.Written
	}
	claims := func(namespace, prefix string, n int, unverified bool) (written int) {
		for i := range n {
			if claim(namespace, fmt.Sprint(prefix, i), unverified) {
				written++
			}
		}
		return written
	}
	if n := claims("noisy", "noisy-", 500, true); n < 20 || n > 60 {
		t.Errorf("%d of 500 claims of invented owners were written", n)
	}
	if n := claims("quiet", "quiet-", 20, true); n < 10 {
		t.Errorf("of a quiet namespace %d of 20 claims were written", n)
	}
	if n := claims("noisy", "verified-", 50, false); n != 50 {
		t.Errorf("%d of 50 claims of owners that exist were written beside those of invented ones", n)
	}
	for i := range 1200 { // a minute, of the bubble's clock
		claim("noisy", fmt.Sprint("later-", i), true)
		time.Sleep(50 * time.Millisecond)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if n := api.writes["noisy"]; n < 200 || n > unverifiedWritesAtOnce+60*unverifiedWrites+1 {
		t.Errorf("invented owners caused %d writes in a minute", n)
	}
	want := map[types.UID]bool{}
	for i := range 50 {
		want[types.UID(fmt.Sprint("verified-", i))] = true
	}
	if diff := cmp.Diff(want, api.named); diff != "" {
		t.Errorf("the owners that ledgers name (-want +got):\n%s", diff)
	}
}

// countingAPI takes every ledger.
type countingAPI struct {
	mu     sync.Mutex
	writes map[string]int     // for owners that are not verified, by namespace
	named  map[types.UID]bool // the owners that ledgers name
}

func (a *countingAPI) ReadLedger(context.Context, ledger.Owner) (*ledger.Object, error) {
	return &ledger.Object{}, nil
}

func (a *countingAPI) WriteLedger(_ context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if owner.Unverified {
		a.writes[owner.Namespace]++
	}
	for _, r := range ledger.ToSeatLedger(owner, o).OwnerReferences {
		a.named[r.UID] = true
	}
	out := *o
	out.Version++
	return &out, ledger.WriteOK, nil
}

func (a *countingAPI) DeleteLedger(context.Context, ledger.Owner, uint64) error { return nil }

func (a *countingAPI) ReadReplicas(context.Context, ledger.Owner) (int64, error) { return 200, nil }

// What is verified about an owner is not overwritten by what is not.
func TestOwnerStaysVerified(t *testing.T) {
	e := &entry{owner: ledger.Owner{Namespace: "ns", UID: "u"}}
	invented := ledger.Owner{Kind: "Invented", Name: "x", Namespace: "ns", UID: "u", Unverified: true}
	real := ledger.Owner{Kind: "ReplicaSet", Name: "web", Namespace: "ns", UID: "u"}
	for _, step := range []struct{ owner, want ledger.Owner }{
		{ledger.Owner{Namespace: "ns", UID: "u"}, ledger.Owner{Namespace: "ns", UID: "u"}},
		{invented, invented}, {real, real}, {invented, real},
	} {
		if e.identify(step.owner); e.owner != step.want {
			t.Errorf("after %+v the owner is %+v", step.owner, e.owner)
		}
	}
}

// panickingAPI has a fault.
type panickingAPI struct{ countingAPI }

func (*panickingAPI) WriteLedger(context.Context, ledger.Owner, *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	panic("a fault")
}

// recoverPanics has recovered panics end there, as in the program and not as in tests.
func recoverPanics(t *testing.T) {
	t.Helper()
	crash := utilruntime.ReallyCrash
	utilruntime.ReallyCrash = false
	t.Cleanup(func() { utilruntime.ReallyCrash = crash })
}

// A panic in a request to the API costs the pod nothing but the ledger.
func TestPanicDoesNotBlock(t *testing.T) {
	recoverPanics(t)
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger(t, &panickingAPI{}, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		for range 3 {
			if res, err := l.Claim(ctx, testOwner, simulated["80:20"], true); err != nil || res.Written {
				t.Errorf("%+v, %v", res, err)
			}
		}
	})
}

// blockingAPI answers no write until its test ends.
type blockingAPI struct {
	countingAPI
	end <-chan struct{}
}

func (a *blockingAPI) WriteLedger(context.Context, ledger.Owner, *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	<-a.end
	return nil, ledger.WriteUncertain, errors.New("too late")
}

// A panic in a book answers the requests that wait for it, and the next request gets a new book.
func TestPanicInABook(t *testing.T) {
	recoverPanics(t)
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		api := &blockingAPI{end: end}
		l := newTestLedger(t, api, "a")
		failed := make(chan error)
		go func() {
			_, err := l.Claim(t.Context(), testOwner, simulated["80:20"], true)
			failed <- err
		}()
		synctest.Wait()
		l.with(testOwner.Key(), func(time.Duration, *entry) { panic("a fault") })
		if err := <-failed; err == nil || !strings.Contains(err.Error(), "panic") {
			t.Errorf("the request that waited got %v", err)
		}
		close(end)
		if _, err := l.Claim(t.Context(), testOwner, simulated["80:20"], true); err != nil {
			t.Errorf("the next request got %v", err)
		}
	})
}

// The book after a panic knows the pods of the owner.
func TestPodsAfterPanicInABook(t *testing.T) {
	recoverPanics(t)
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger(t, &sharedAPI{}, "a")
		for i := range 10 {
			res, err := l.Claim(t.Context(), testOwner, simulated["one pool"], true)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Pods().Add(testPod(fmt.Sprint(i), l.Pods().Key, res)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * ledger.DefaultTiming().Expiry) // of the bubble's fake time: the claims end, and only the pods are left
		l.with(testOwner.Key(), func(time.Duration, *entry) { panic("a fault") })
		if res, err := l.Claim(t.Context(), testOwner, simulated["one pool"], true); err != nil || res.Ordinal != 11 {
			t.Errorf("the next pod got seat %d, want 11 (%v)", res.Ordinal, err)
		}
	})
}

// A book does not outlive its ledger, also if no watch shows that the ledger is gone.
func TestSweepOfMissedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sharedAPI{object: ledger.Object{Version: 5, Writer: "b"}}
		l := newTestLedger(t, api, "a")
		l.LedgerSeen(testOwner, api.object, false)
		l.Sweep(t.Context(), false)
		if len(l.books) != 1 {
			t.Fatal("the book of a ledger that exists is gone")
		}
		api.object = ledger.Object{}
		l.Sweep(t.Context(), false)
		if len(l.books) != 0 {
			t.Error("the book of a ledger that is gone is still there")
		}
	})
}

// A request lives long enough to see that a replica is gone which holds seats ahead.
func TestTimesFit(t *testing.T) {
	if d := ledger.DefaultTiming(); d.MaxPatience+d.Ahead+d.Reserve > maxBudget {
		t.Errorf("%s + %s + %s are more than %s", d.MaxPatience, d.Ahead, d.Reserve, maxBudget)
	}
}

// Status alone, such as a probe that flaps, is no movement.
func TestMoved(t *testing.T) {
	base := observed.Pod{UID: "p", Seat: ledger.Seat{Pool: "0", Ordinal: 1}, ID: "c", Active: true, Ready: true, Node: "n"}
	for name, tc := range map[string]struct {
		was, is func(*observed.Pod) *observed.Pod
		want    bool
	}{
		"a new pod":          {func(*observed.Pod) *observed.Pod { return nil }, func(r *observed.Pod) *observed.Pod { return r }, true},
		"a pod that is gone": {func(r *observed.Pod) *observed.Pod { return r }, func(*observed.Pod) *observed.Pod { return nil }, true},
		"nothing":            {func(r *observed.Pod) *observed.Pod { return r }, func(r *observed.Pod) *observed.Pod { return r }, false},
		"readiness":          {func(r *observed.Pod) *observed.Pod { return r }, func(r *observed.Pod) *observed.Pod { r.Ready = false; return r }, false},
		"a node":             {func(r *observed.Pod) *observed.Pod { r.Node = ""; return r }, func(r *observed.Pod) *observed.Pod { return r }, true},
		"it ends":            {func(r *observed.Pod) *observed.Pod { return r }, func(r *observed.Pod) *observed.Pod { r.Active = false; return r }, true},
		"another seat":       {func(r *observed.Pod) *observed.Pod { return r }, func(r *observed.Pod) *observed.Pod { r.Ordinal = 2; return r }, true},
	} {
		was, is := base, base
		if got := moved(tc.was(&was), tc.is(&is)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The dump has what support asks for, and no claim's id.
func TestDump(t *testing.T) { synctest.Test(t, testDump) }

func testDump(t *testing.T) {
	l := newTestLedger(t, &sharedAPI{}, "replica-a")
	res, err := l.Claim(t.Context(), testOwner, simulated["80:20"], true)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequest("GET", "/debug/seats", nil))
	for _, part := range []string{`"writer": "replica-a"`, `"name": "web"`, `"pending": 1`, `"0": 1`, `"ledgerVersion": 1`} {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s is missing in\n%s", part, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), res.ID) {
		t.Error("the dump has a claim's id")
	}
}

// Pods that their controller is sure to remove now hold no seat.
func TestHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas    int64
		first       string // cost of the three pods of pool 0
		second      string // and of pool 1
		unscheduled bool   // one of pool 0
		want        int64  // of pool 1
	}{
		"none is to go":                         {6, "9", "1", false, 3},
		"two are to go, of this pool":           {4, "9", "1", false, 1},
		"more than it has":                      {1, "9", "1", false, 0},
		"it may be those of the other pool":     {4, "1", "1", false, 3},
		"it is one of the other pool":           {5, "5", "9", false, 3},
		"one without a node goes before":        {4, "9", "1", true, 2},
		"how many there are to be is not known": {-1, "9", "1", false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newTestLedger(t, &sharedAPI{}, "a")
				for i := range 6 {
					pool, cost := i%2, []string{tc.first, tc.second}[i%2]
					p := testPod(fmt.Sprint(i), l.Pods().Key, ledger.Result{Claim: ledger.Claim{Seat: ledger.Seat{Pool: fmt.Sprint(pool), Ordinal: int64(i/2 + 1)}, ID: fmt.Sprint("id-", i)}})
					p.Annotations[corev1.PodDeletionCost] = cost
					if !tc.unscheduled || i > 0 {
						p.Spec.NodeName = "n"
						p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
					}
					if err := l.Pods().Add(p); err != nil {
						t.Fatal(err)
					}
				}
				owner := &world.Workload{Ref: world.Ref{UID: testOwner.UID}, Namespace: testOwner.Namespace, Replicas: tc.replicas}
				if got := l.Held(owner, "1"); got != tc.want {
					t.Errorf("%d seats are held, want %d", got, tc.want)
				}
			})
		})
	}
}

// A pod that is given to another owner counts for that one alone.
func TestPodChangesOwner(t *testing.T) { synctest.Test(t, testPodChangesOwner) }

func testPodChangesOwner(t *testing.T) {
	l := newTestLedger(t, &sharedAPI{}, "a")
	res := ledger.Result{Claim: ledger.Claim{Seat: ledger.Seat{Pool: "0", Ordinal: 1}, ID: "id"}}
	pod := testPod("p", l.Pods().Key, res)
	if err := l.Pods().Add(pod); err != nil {
		t.Fatal(err)
	}
	other := testOwner
	other.Name, other.UID = "other", "other-uid"
	given := pod.DeepCopy()
	given.ResourceVersion = "2"
	given.OwnerReferences[0].Name, given.OwnerReferences[0].UID = other.Name, other.UID
	given.Annotations[stowage.ClaimAnnotation] = l.Pods().Key.Sign(ledger.OriginClaimed, res.ID, ledger.Holder{Namespace: other.Namespace, Owner: string(other.UID)}, res.Seat)
	if err := l.Pods().Update(given); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		owner ledger.Owner
		want  int
	}{{testOwner, 0}, {other, 1}} {
		held := l.Held(&world.Workload{Ref: Ref(tc.owner), Namespace: tc.owner.Namespace, Replicas: -1}, "0")
		if pods := len(l.Pods().Of(tc.owner.Key())); pods != tc.want || held != int64(tc.want) {
			t.Errorf("owner %s has %d pods and %d seats, want %d", tc.owner.Name, pods, held, tc.want)
		}
	}
	if err := l.Pods().Delete(given); err != nil || len(l.Pods().Owners()) != 0 {
		t.Errorf("after the pod's end: owners %v, %v", l.Pods().Owners(), err)
	}
}

// The lag is how long ago a SeatLedger told of a pod that the watch does not show, whether the ledger was watched or read.
func TestLag(t *testing.T) { synctest.Test(t, testLag) }

func testLag(t *testing.T) {
	api := &sharedAPI{object: ledger.Object{Version: 1000, Writer: "b", Claims: []ledger.Claim{{Seat: ledger.Seat{Pool: "0", Ordinal: 1}, ID: "b1", Settled: 999}}}}
	l := newTestLedger(t, api, "a")
	if got := l.Lag(); got != 0 {
		t.Errorf("before anything is known, the lag is %s", got)
	}
	l.LedgerSeen(testOwner, api.object, false)
	time.Sleep(20 * time.Second)
	if got := l.Lag(); got != 20*time.Second {
		t.Errorf("the lag is %s, want 20s", got)
	}
	if err := l.Pods().Bookmark("999"); err != nil {
		t.Fatal(err)
	}
	if got := l.Lag(); got != 0 {
		t.Errorf("once the watch is there, the lag is %s", got)
	}
}

// A process that leads again knows what there is then, and nothing of what there was: neither pods nor ledgers that are gone
// meanwhile, nor how far its watch was.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger(t, &sharedAPI{}, "a")
		key := l.Pods().Key
		pod := func(name string, ordinal int64) any {
			return testPod(name, key, ledger.Result{Claim: ledger.Claim{Seat: ledger.Seat{Pool: "0", Ordinal: ordinal}, ID: "id" + name}})
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(l.Pods().Replace([]any{pod("gone", 1), pod("stays", 2)}, "100"))
		l.LedgerSeen(testOwner, ledger.Object{Version: 1000, Writer: "b", Claims: []ledger.Claim{{Seat: ledger.Seat{Pool: "0", Ordinal: 3}, ID: "b1", Settled: 999}}}, false)
		if got := l.Held(&world.Workload{Ref: Ref(testOwner), Namespace: testOwner.Namespace, Replicas: -1}, "0"); got != 3 {
			t.Fatalf("the book holds %d seats, want 3", got)
		}
		time.Sleep(time.Second) // of the bubble's fake time: the watch is behind
		if l.Lag() != time.Second {
			t.Fatalf("the lag is %s", l.Lag())
		}
		l.reset()
		if l.Pods().HasSynced() || l.Pods().Version() != 0 || len(l.Pods().Owners()) != 0 || len(l.Dump()) != 0 || l.Lag() != 0 {
			t.Errorf("after the reset: synced %t, version %d, owners %v, books %v, lag %s", l.Pods().HasSynced(), l.Pods().Version(), l.Pods().Owners(), l.Dump(), l.Lag())
		}
		must(l.Pods().Replace([]any{pod("stays", 2)}, "2000"))
		if got := l.Held(&world.Workload{Ref: Ref(testOwner), Namespace: testOwner.Namespace, Replicas: -1}, "0"); got != 1 {
			t.Errorf("with one pod left, the book holds %d seats, want 1", got)
		}
	})
}

// Owners that may be invented make few books. Each pod gets a seat, and another namespace is served.
func TestUnverifiedOwnersMakeFewBooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger(t, &countingAPI{writes: map[string]int{}, named: map[types.UID]bool{}}, "a")
		claim := func(namespace string, i int) ledger.Result {
			res, err := l.Claim(t.Context(), ledger.Owner{APIVersion: "x/v1", Kind: "Custom", Namespace: namespace, Name: "n", UID: types.UID(fmt.Sprint(namespace, "-", i)), Unverified: true}, simulated["80:20"], true)
			if err != nil || res.Ordinal != 1 || res.ID == "" {
				t.Fatalf("%+v, %v", res, err)
			}
			return res
		}
		for i := range 2000 {
			claim("noisy", i)
		}
		if n := len(l.books); n > 300 {
			t.Errorf("2000 owners made %d books", n)
		}
		if !claim("quiet", 0).Written {
			t.Error("a quiet namespace has no part")
		}
	})
}

// An id that nobody knows leaves nothing behind, whatever owners are invented for it.
func TestClaimedLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger(t, &sharedAPI{}, "a")
		for i := range 100 {
			owner := testOwner
			owner.UID = types.UID(fmt.Sprint("invented-", i))
			if claimed, err := l.Claimed(t.Context(), owner, "id"); claimed || err != nil {
				t.Fatalf("%t, %v", claimed, err)
			}
		}
		if n := len(l.books); n != 0 {
			t.Errorf("%d books were made", n)
		}
	})
}

// What the reflector's first list keeps is what a record has, and little more.
func TestTransformer(t *testing.T) {
	key := ledger.NewKey()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", UID: "p", ResourceVersion: "7",
		Labels:          map[string]string{stowage.PoolLabel: "a", stowage.SeatLabel: "1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs", Controller: new(true)}},
		Annotations: map[string]string{
			"other": strings.Repeat("x", 200<<10), corev1.PodDeletionCost: "9",
			stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, ledger.WithSource("id", "a", ledger.Source{Selector: "ABCDEFGH"}), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: "a", Ordinal: 1}),
		},
	}, Status: corev1.PodStatus{NominatedNodeName: "n", Conditions: []corev1.PodCondition{
		{Type: "Other", Message: strings.Repeat("x", 200<<10)},
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: strings.Repeat("x", 200<<10)},
	}}}
	pod.Spec.NodeSelector = map[string]string{"pool": "a"}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}},
	}}}
	for i := range 100 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)},
		}})
	}
	slim, err := (&Pods{}).Transformer()(pod)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := newRecord(key, pod)
	if want.Source.Selector != "ABCDEFGH" || want.ID != "id" {
		t.Errorf("the claim is read as %+v, with the id %s", want.Source, want.ID)
	}
	got, ok := newRecord(key, slim.(*corev1.Pod))
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("the record is %t (-want +got):\n%s", ok, diff)
	}
	if data, err := json.Marshal(slim); err != nil || len(data) > 4<<10 || len(got.Claims) == 0 || got.Pins == nil {
		t.Errorf("%d bytes are kept, %d claims, pins %+v, %v", len(data), len(got.Claims), got.Pins, err)
	}
	pod.Spec.NodeSelector["pool"] = strings.Repeat("x", 200<<10)
	slim, err = (&Pods{}).Transformer()(pod)
	if data, _ := json.Marshal(slim); err != nil || len(data) > 4<<10 {
		t.Errorf("%d bytes are kept of a pod with large pins, %v", len(data), err)
	}
	pod.OwnerReferences[0].Name = strings.Repeat("x", 1<<20)
	if _, ok := newRecord(key, pod); ok {
		t.Error("an owner that cannot exist is remembered")
	}
}
