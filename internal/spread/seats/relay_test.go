package seats

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// relaying carries requests from one replica to another.
type relaying struct {
	replicas       []*Service
	loses          int64 // of so many answers, one is lost; 0 is none
	asked, granted atomic.Int64
}

func (r *relaying) Ask(ctx context.Context, replica string, a Ask) ([]Grant, error) {
	n := r.asked.Add(1)
	for _, l := range r.replicas {
		if l.writer != replica {
			continue
		}
		grants := l.Grant(ctx, a)
		if r.loses > 0 && n%r.loses == 0 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r.granted.Add(int64(len(grants)))
		return grants, nil
	}
	return nil, errors.New("no such replica")
}

// largeAPI has an owner that asks for many pods.
type largeAPI struct{ sharedAPI }

func (*largeAPI) ReadReplicas(context.Context, ledger.Owner) (int64, error) { return 1000, nil }

// A replica that is asked gives no seat by a strategy that it does not know, to an owner that it does not know, or beyond what the owner asks
// for, and keeps nothing of such requests.
func TestGrant(t *testing.T) { synctest.Test(t, testGrant) }

func testGrant(t *testing.T) {
	l, s := newTestLedger(t, &largeAPI{}, "a"), simulated["80:20"]
	ask := func(uid types.UID, strategy string, pods int) int {
		return len(l.Grant(t.Context(), Ask{Namespace: "ns", UID: uid, Strategy: strategy, WriteCost: true, Pods: pods}))
	}
	if n := ask("uid", s.Fingerprint().String(), 3); n != 0 || len(l.entries()) != 0 {
		t.Errorf("an unknown owner was given %d seats, and there are %d books", n, len(l.entries()))
	}
	if _, err := l.Claim(t.Context(), testOwner, s, true); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		uid      types.UID
		strategy string
		pods     int
		want     int
	}{
		"the strategy that it used last": {"uid", s.Fingerprint().String(), 3, 3},
		"another one":                    {"uid", simulated["one pool"].Fingerprint().String(), 3, 0},
		"no fingerprint":                 {"uid", "x", 3, 0},
		"another owner":                  {"other", s.Fingerprint().String(), 3, 0},
		"no pods":                        {"uid", s.Fingerprint().String(), 0, 0},
		"fewer pods than none":           {"uid", s.Fingerprint().String(), -1, 0},
	} {
		if got := ask(tc.uid, tc.strategy, tc.pods); got != tc.want {
			t.Errorf("%s: %d seats, want %d", name, got, tc.want)
		}
	}
	total := 4
	for {
		begun := time.Now()
		n := ask("uid", s.Fingerprint().String(), 100_000)
		if took := time.Since(begun); n > mostRelayed || took > relayWait {
			t.Errorf("%d seats after %s", n, took)
		}
		if total += n; n == 0 {
			break
		}
		time.Sleep(time.Second) // no seat is ahead any more
	}
	if total != 1000 {
		t.Errorf("of 1000 pods that the owner asks for, %d were given seats", total)
	}
	l.with(testOwner.Key(), func(_ time.Duration, e *entry) {
		if n := len(e.waiting); n != 0 {
			t.Errorf("%d requests are still waiting", n)
		}
	})
}

// Seats for a replica that waits no more are given back.
func TestGrantInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sharedAPI{}
		l, s := newTestLedger(t, api, "a"), simulated["80:20"]
		if _, err := l.Claim(t.Context(), testOwner, s, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if grants := l.Grant(ctx, Ask{Namespace: "ns", UID: "uid", Strategy: s.Fingerprint().String(), Pods: 5}); len(grants) != 0 {
			t.Errorf("%d seats", len(grants))
		}
		time.Sleep(time.Second)
		if o, _ := api.ReadLedger(t.Context(), testOwner); len(o.Claims) != 1 {
			t.Errorf("the ledger has %d claims", len(o.Claims))
		}
	})
}

// Without an answer, a replica claims a seat itself, in the time of a review.
func TestClaimWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sharedAPI{}
		writer, asks := newTestLedger(t, api, "a"), newTestLedger(t, api, "b")
		r := &relaying{replicas: []*Service{writer, asks}, loses: 1}
		api.watchers, asks.askers.relay = r.replicas, r
		if _, err := writer.Claim(t.Context(), testOwner, simulated["80:20"], true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the other replica sees the ledger
		begun := time.Now()
		res, err := asks.Claim(t.Context(), testOwner, simulated["80:20"], true)
		if err != nil || !res.Written || r.asked.Load() != 1 {
			t.Fatalf("%+v %v after %d requests", res, err, r.asked.Load())
		}
		if took := time.Since(begun); took < relayTimeout || took > 2*relayTimeout {
			t.Errorf("that took %s", took)
		}
		asks.with(testOwner.Key(), func(now time.Duration, e *entry) {
			if !e.book.Claimed(now, res.ID) {
				t.Error("the seat is not claimed")
			}
		})
		synctest.Wait()
		asks.askers.mu.Lock()
		defer asks.askers.mu.Unlock()
		if n := len(asks.askers.groups); n != 0 {
			t.Errorf("requests for %d owners are still under way", n)
		}
	})
}

// Two replicas begin at once. The one whose write has lost asks the other one, in place of writing again.
func TestLoserAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &largeAPI{}
		a, b := newTestLedger(t, api, "a"), newTestLedger(t, api, "b")
		r := &relaying{replicas: []*Service{a, b}}
		api.watchers, a.askers.relay, b.askers.relay = r.replicas, r, r
		var all sync.WaitGroup
		var seen sync.Map
		for i := range 20 {
			all.Go(func() {
				res, err := r.replicas[i%2].Claim(t.Context(), testOwner, simulated["80:20"], true)
				if err != nil || !res.Written {
					t.Errorf("%+v %v", res, err)
				}
				if _, twice := seen.LoadOrStore(res.Seat, true); twice {
					t.Errorf("the seat %v was given twice", res.Seat)
				}
			})
		}
		all.Wait()
		if n := r.granted.Load(); n != 10 {
			t.Errorf("%d pods got their seats of the other replica, not the 10 of the one that lost", n)
		}
	})
}

// A replica that has seats ahead asks nobody.
func TestSeatsAheadComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &largeAPI{}
		a, b := newTestLedger(t, api, "a"), newTestLedger(t, api, "b")
		r := &relaying{replicas: []*Service{a, b}}
		api.watchers, b.askers.relay = r.replicas, r
		claim := func(l *Service) {
			t.Helper()
			if res, err := l.Claim(t.Context(), testOwner, simulated["80:20"], true); err != nil || !res.Written {
				t.Fatalf("%+v %v", res, err)
			}
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { claim(b) }) // several at once, so it claims some ahead
		}
		all.Wait()
		b.with(testOwner.Key(), func(now time.Duration, e *entry) {
			if e.book.Spares(now) == 0 {
				t.Fatal("no seat is ahead")
			}
		})
		claim(b)
		if n := r.asked.Load(); n != 0 {
			t.Errorf("%d requests for pods that have seats ahead", n)
		}
	})
}

// A seat whose count could not be verified is not given away: who asks can guess as well.
func TestUnverifiedSeatsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &uncountedAPI{}
		l, s := newTestLedger(t, api, "a"), simulated["80:20"]
		if _, err := l.Claim(t.Context(), testOwner, s, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		api.fails.Store(true)
		if grants := l.Grant(t.Context(), Ask{Namespace: "ns", UID: "uid", Strategy: s.Fingerprint().String(), Pods: 3}); len(grants) != 0 {
			t.Errorf("%d seats, though nobody knows the replica count", len(grants))
		}
		api.fails.Store(false)
		time.Sleep(5 * time.Second)
		if _, err := l.Claim(t.Context(), testOwner, s, true); err != nil {
			t.Fatal(err)
		}
		if o, _ := api.ReadLedger(t.Context(), testOwner); len(o.Claims) > 2 {
			t.Errorf("the ledger has %d claims of 2 pods", len(o.Claims))
		}
	})
}

// uncountedAPI cannot tell the replica count while it fails.
type uncountedAPI struct {
	largeAPI
	fails atomic.Bool
}

func (a *uncountedAPI) ReadReplicas(ctx context.Context, of ledger.Owner) (int64, error) {
	if a.fails.Load() {
		return 0, errors.New("no answer")
	}
	return a.largeAPI.ReadReplicas(ctx, of)
}

// A replica without time to ask another one claims a seat itself, and claims seats ahead.
func TestNoTimeToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &largeAPI{}
		a, b := newTestLedger(t, api, "a"), newTestLedger(t, api, "b")
		r := &relaying{replicas: []*Service{a, b}}
		api.watchers, b.askers.relay = r.replicas, r
		if _, err := a.Claim(t.Context(), testOwner, simulated["80:20"], true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the ledger has just changed, and pods are missing
		ctx, cancel := context.WithTimeout(t.Context(), 3*relayLeast-time.Millisecond)
		defer cancel()
		if _, err := b.Claim(ctx, testOwner, simulated["80:20"], true); err != nil {
			t.Error(err)
		}
		b.with(testOwner.Key(), func(now time.Duration, e *entry) {
			if e.book.Spares(now) == 0 {
				t.Error("no seat is ahead")
			}
		})
		if n := r.asked.Load(); n != 0 {
			t.Errorf("%d requests without time for an answer", n)
		}
	})
}
