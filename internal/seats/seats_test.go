package seats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/spread"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/ledger"
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

func parse(text string) *spread.Strategy {
	s, err := spread.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

var simulated = map[string]*spread.Strategy{
	"base 1, then 1:1": parse("p=a,base=1:p=b,weight=1:p=c,weight=1"),
	"80:20":            parse("p=a,weight=80:p=b,weight=20"),
	"one pool":         parse("p=a,weight=1"),
}

var testOwner = ledger.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func newTestLedger(t *testing.T, api API, name string) *Service {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Minute) }) // what is under way ends
	return New(Options{
		API: api, Key: make(ledger.Key, ledger.KeySize), Writer: name, Clock: clock.RealClock{}, Log: logr.Discard(),
		Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
	})
}

// Many pods at once on several replicas get a seat each, and the seats are the first ones
// of the sequence, while books are swept and pods are seen.
func TestLedgerConcurrentClaims(t *testing.T) { synctest.Test(t, testLedgerConcurrentClaims) }

func testLedgerConcurrentClaims(t *testing.T) {
	api := &sharedAPI{}
	replicas := []*Service{newTestLedger(t, api, "a"), newTestLedger(t, api, "b"), newTestLedger(t, api, "c")}
	api.watchers = replicas
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
		Annotations:     map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.KindClaimed, res.ID, ledger.Holder{Namespace: testOwner.Namespace, Owner: string(testOwner.UID)}, res.Seat)},
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
