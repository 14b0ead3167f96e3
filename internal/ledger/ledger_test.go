package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// sharedAPI holds one ledger for several replicas, with optimistic concurrency. What the
// API server really does is tested in test/e2e; this is for the race detector.
type sharedAPI struct {
	mu       sync.Mutex
	object   Object
	watchers []*Ledger
	broken   bool
	deleted  int
}

func (a *sharedAPI) ReadLedger(context.Context, Owner) (*Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return nil, errors.New("no answer")
	}
	o := a.object
	return &o, nil
}

func (a *sharedAPI) WriteLedger(_ context.Context, owner Owner, o *Object) (*Object, WriteResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return nil, WriteUncertain, errors.New("no answer")
	}
	if o.Version != a.object.Version {
		return nil, WriteConflict, nil
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
	return &out, WriteOK, nil
}

func (a *sharedAPI) DeleteLedger(context.Context, Owner, uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleted++
	return nil
}

func (a *sharedAPI) ReadReplicas(context.Context, Owner) (int64, error) { return 200, nil }

func (a *sharedAPI) ReadScale(context.Context, Owner) (*Scale, error) { return nil, nil }

var testOwner = Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func newTestLedger(t *testing.T, api API, name string) *Ledger {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Minute) }) // what is under way ends
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{API: api, Key: make(Key, KeySize), Writer: name, Clock: clock.RealClock{}, Log: logr.Discard(), Metrics: metrics})
}

// Many pods at once on several replicas get a seat each, and the seats are the first ones
// of the sequence, while books are swept and pods are seen.
func TestLedgerConcurrentClaims(t *testing.T) { synctest.Test(t, testLedgerConcurrentClaims) }

func testLedgerConcurrentClaims(t *testing.T) {
	api := &sharedAPI{}
	replicas := []*Ledger{newTestLedger(t, api, "a"), newTestLedger(t, api, "b"), newTestLedger(t, api, "c")}
	api.watchers = replicas
	s := simulated["base 1, then 1:1"]
	var mu sync.Mutex
	seats := map[Seat]string{}
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
		pods.Go(func() {
			res, err := replicas[i%3].Claim(ctx, testOwner, s)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if other, taken := seats[res.Seat]; taken {
				t.Errorf("seat %v was given to %s and %s", res.Seat, other, res.ID)
			}
			seats[res.Seat] = res.ID
			mu.Unlock()
			for j, l := range replicas {
				pod := testPod(fmt.Sprintf("p%d", i), l.Pods().Key, res)
				pod.ResourceVersion = fmt.Sprint(1000 + i)
				if err := l.Pods().Add(pod); err != nil {
					t.Error(j, err)
				}
			}
		})
	}
	pods.Wait()
	stop()
	sweepers.Wait()
	for rank := range 200 {
		seat, err := s.SeatAt(int64(rank + 1))
		if err != nil {
			t.Fatal(err)
		}
		if seats[Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}] == "" {
			t.Errorf("nobody has seat %v, rank %d", seat, rank+1)
		}
	}
	for _, l := range replicas {
		if n := len(l.Pods().Of(testOwner.Key())); n != 200 {
			t.Errorf("a replica knows %d pods", n)
		}
	}
}

func testPod(name string, key Key, res Result) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: testOwner.Namespace, Name: name, UID: types.UID("pod-" + name), ResourceVersion: "1",
		Labels:          map[string]string{stowage.PoolLabel: res.Pool, stowage.SeatLabel: fmt.Sprint(res.Ordinal)},
		Annotations:     map[string]string{stowage.ClaimAnnotation: key.Sign(KindClaimed, res.ID, Holder{testOwner.Namespace, string(testOwner.UID)}, res.Seat)},
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
		res, err := l.Claim(ctx, testOwner, s)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		seat, _ := s.SeatAt(int64(i + 1))
		if want := (Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}); res.Written || res.Seat != want {
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

func (a *refusingAPI) WriteLedger(context.Context, Owner, *Object) (*Object, WriteResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	return nil, WriteRefused, errors.New("forbidden")
}

func TestLedgerRefused(t *testing.T) { synctest.Test(t, testLedgerRefused) }

func testLedgerRefused(t *testing.T) {
	api := &refusingAPI{}
	l := newTestLedger(t, api, "a")
	start := time.Now()
	for range 5 {
		if res, err := l.Claim(t.Context(), testOwner, simulated["one pool"]); err != nil || res.Written {
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

func TestKey(t *testing.T) {
	key, other := NewKey(), NewKey()
	h, s := Holder{"ns", "owner"}, Seat{"spot", 7}
	text := key.Sign(KindClaimed, "id", h, s)
	if kind, id, ok := key.Verify(text, h, s); kind != KindClaimed || id != "id" || !ok {
		t.Errorf("%q is %c, %s, %t", text, kind, id, ok)
	}
	for name, ok := range map[string]bool{
		"another key":       func() bool { _, _, ok := other.Verify(text, h, s); return ok }(),
		"another namespace": func() bool { _, _, ok := key.Verify(text, Holder{"ns2", "owner"}, s); return ok }(),
		"another owner":     func() bool { _, _, ok := key.Verify(text, Holder{"ns", "owner2"}, s); return ok }(),
		"another ordinal":   func() bool { _, _, ok := key.Verify(text, h, Seat{"spot", 8}); return ok }(),
		"another pool":      func() bool { _, _, ok := key.Verify(text, h, Seat{"spo", 7}); return ok }(),
		"another kind":      func() bool { _, _, ok := key.Verify("o"+text[1:], h, s); return ok }(),
		"another id":        func() bool { _, _, ok := key.Verify(strings.Replace(text, "id", "di", 1), h, s); return ok }(),
		"parts that run into each other": func() bool {
			_, _, ok := key.Verify(key.Sign(KindClaimed, "id", Holder{"n", "sowner"}, s), h, s)
			return ok
		}(),
		"nothing": func() bool { _, _, ok := key.Verify("", h, s); return ok }(),
		"no id":   func() bool { _, _, ok := key.Verify(".", h, s); return ok }(),
	} {
		if ok {
			t.Errorf("%s verifies", name)
		}
	}
}

func TestSeatLedgerText(t *testing.T) {
	o := Object{Writer: "w", Version: 7, Claims: []Claim{{Seat: Seat{"0", 1}, ID: "abc"}, {Seat: Seat{"on-demand", 12}, ID: "x", Settled: 99}}}
	sl := toSeatLedger(testOwner, &o)
	if diff := cmp.Diff([]string{"0/1 abc", "on-demand/12 x 99"}, sl.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	owner, back := FromSeatLedger(sl)
	if diff := cmp.Diff(o, back); diff != "" || owner != testOwner {
		t.Errorf("owner %v, object (-want +got):\n%s", owner, diff)
	}
	sl.Claims = []string{"", "a", "a/b c", "/", "0/0 x", "0/1 ", "0/-1 x", "1/2 ok more"}
	if _, o := FromSeatLedger(sl); len(o.Claims) != 1 || o.Claims[0].ID != "ok" {
		t.Errorf("claims that do not parse: %v", o.Claims)
	}
}

func BenchmarkDecision(b *testing.B) {
	// One decision of a book with many pods, without the write.
	timing := DefaultTiming()
	book := NewBook(&timing, &SettleTime{}, "w", newNonce)
	s := simulated["base 1, then 1:1"]
	for i := range 10_000 {
		seat, err := s.SeatAt(int64(i + 1))
		if err != nil {
			b.Fatal(err)
		}
		book.PodSeen(0, fmt.Sprint(i), Pod{Seat: Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}, Live: true})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := book.Peek(0, s); err != nil {
			b.Fatal(err)
		}
	}
}
