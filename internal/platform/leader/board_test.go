package leader

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// renewal is a lease as a holder has renewed it.
func renewal(holder string, serial int, says string) *coordinationv1.Lease {
	at := metav1.NewMicroTime(time.Unix(int64(serial), 0))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{stowage.StandingAnnotation: says}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at},
	}
}

// A replica whose watch is 30 s behind leaves the Service only to a leader that is ready, alive and surely nearer.
func TestNearerLeader(t *testing.T) {
	cases := map[string]struct {
		leases []*coordinationv1.Lease
		wait   time.Duration
		want   bool
	}{
		"the leader is ready and nearer":          {[]*coordinationv1.Lease{renewal("b", 1, "b ready 5s"), renewal("b", 2, "b ready 5s")}, 0, true},
		"it lacks rights":                         {[]*coordinationv1.Lease{renewal("b", 1, "b ready 5s, may not read pods patch-pods"), renewal("b", 2, "b ready 5s, may not read pods patch-pods")}, 0, true},
		"it is not ready":                         {[]*coordinationv1.Lease{renewal("b", 1, "b unready 5s"), renewal("b", 2, "b unready 5s")}, 0, false},
		"it is as far behind":                     {[]*coordinationv1.Lease{renewal("b", 1, "b ready 30s"), renewal("b", 2, "b ready 30s")}, 0, false},
		"it may be as far behind by now":          {[]*coordinationv1.Lease{renewal("b", 1, "b ready 25s"), renewal("b", 2, "b ready 25s")}, 5 * time.Second, false},
		"it was seen once, so it may be gone":     {[]*coordinationv1.Lease{renewal("b", 1, "b ready 5s")}, 0, false},
		"nothing was heard of it lately":          {[]*coordinationv1.Lease{renewal("b", 1, "b ready 5s"), renewal("b", 2, "b ready 5s")}, 11 * time.Second, false},
		"this replica leads":                      {[]*coordinationv1.Lease{renewal("a", 1, "a ready 5s"), renewal("a", 2, "a ready 5s")}, 0, false},
		"nobody leads any more":                   {[]*coordinationv1.Lease{renewal("b", 1, "b ready 5s"), renewal("b", 2, "b ready 5s"), renewal("", 3, "b ready 5s")}, 0, false},
		"the leader's version writes nothing":     {[]*coordinationv1.Lease{renewal("b", 1, ""), renewal("b", 2, "")}, 0, false},
		"it keeps what the leader before it said": {[]*coordinationv1.Lease{renewal("b", 1, "c ready 5s"), renewal("b", 2, "c ready 5s")}, 0, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
			b := &Board{Clock: now}
			for _, l := range tc.leases {
				b.read(l, "a")
			}
			now.SetTime(time.Unix(0, 0).Add(tc.wait))
			if got := b.NearerLeader(30 * time.Second); got != tc.want {
				t.Errorf("there is a nearer leader: %t", got)
			}
		})
	}
}

// However far the replicas are behind, and whoever leads, not all of them leave the Service.
func TestOneReplicaStays(t *testing.T) {
	names, most := []string{"a", "b", "c"}, 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
		boards, lags, stalled := make([]*Board, len(names)), make([]time.Duration, len(names)), make([]bool, len(names))
		for i := range boards {
			boards[i] = &Board{Clock: now}
		}
		holder, lease := 0, renewal("a", 0, "")
		for step := range 300 {
			now.SetTime(time.Unix(int64(step), 0))
			for i := range names {
				if rng.IntN(20) == 0 {
					stalled[i] = !stalled[i]
				}
				if lags[i] += time.Second; !stalled[i] {
					lags[i] = 0
				}
			}
			if rng.IntN(30) == 0 {
				holder = rng.IntN(len(names))
			}
			if rng.IntN(10) > 0 {
				lease = renewal(names[holder], step, names[holder]+" "+Standing{Ready: true, Lag: lags[holder]}.String())
				boards[holder].read(lease, names[holder])
			}
			left := 0
			for i, b := range boards {
				if rng.IntN(3) == 0 {
					b.read(lease, names[i])
				}
				if lags[i] > MostLag && b.NearerLeader(lags[i]) {
					left++
				}
			}
			most = max(most, left)
			if left == len(names) {
				t.Fatalf("seed %d, step %d: all replicas leave; the lags are %s", seed, step, lags)
			}
		}
	}
	if most == 0 {
		t.Error("no replica ever leaves")
	}
}

// A leader whose watch is behind hands over to a replica whose watch is not, and then sees that it may leave.
func TestHandOver(t *testing.T) {
	client := fake.NewClientset()
	var lag atomic.Int64 // of the first replica
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(name string, own func() time.Duration) *Board {
		board := &Board{Clock: clock.RealClock{}, Blocked: func() []string { return []string{"a", "b"} }, Own: func() Standing { return Standing{Ready: true, Lag: own()} }}
		l := newLease(client, name, nil)
		l.board, l.Client = board, leases{client.CoordinationV1(), board, name}
		r := &Runner{
			Controllers: []Controller{fakeController{"c", func(*Term) error { return nil }}},
			Lock:        l, Board: board, Clock: clock.RealClock{}, Log: logr.Discard(),
		}
		running.Go(func() { _ = r.Start(ctx) })
		return board
	}
	holds := func(name string) func() bool {
		return func() bool {
			lease, err := client.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
			return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == name && lease.Annotations[stowage.BlocklistAnnotation] == "a,b"
		}
	}
	first := start("a", func() time.Duration { return time.Duration(lag.Load()) })
	eventually(t, "the first one leads", holds("a"))
	start("b", func() time.Duration { return 0 })
	lag.Store(int64(time.Minute))
	eventually(t, "the other one leads", holds("b"))
	eventually(t, "the first one may leave", func() bool { return first.NearerLeader(time.Minute) })
}
