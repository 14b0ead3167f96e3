package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// burst is a book in the middle of a burst: two requests shared a write, which has claimed the other seats ahead.
type burst struct {
	*Book
	now      time.Duration
	version  uint64
	strategy *sequence.Strategy
}

func newBurst(t *testing.T) *burst {
	t.Helper()
	b := beforeBurst()
	b.request(1)
	b.do(10)
	b.request(2)
	b.do(10)
	if n := b.marked(); n != 7 {
		t.Fatalf("%d seats are claimed ahead, not the other 7 of 10", n)
	}
	return b
}

// beforeBurst returns the book before its first request.
func beforeBurst() *burst {
	timing, ids := DefaultTiming(), 0
	b := &burst{now: time.Hour, strategy: simulated["80:20"]}
	b.Book = NewBook(&timing, &Shared{}, "w", func() string {
		ids++
		return fmt.Sprint(ids)
	})
	return b
}

func (b *burst) request(n int) {
	for range n {
		b.Enqueue(b.now, &Request{Strategy: b.strategy, Deadline: b.now + 4*time.Second})
	}
}

// do performs what the book wants, in an API server that answers at once and asks for so many pods. It returns the answers, and
// how often the ledger was written.
func (b *burst) do(replicas int64) (answers []*Request, writes int) {
	for range 100 {
		acts := b.Step(b.now)
		for _, a := range acts {
			switch {
			case a.Answer != nil:
				answers = append(answers, a.Answer)
			case a.ReadReplicas:
				b.ReplicasRead(b.now, replicas)
			case a.Write != nil:
				b.version++
				writes++
				o := *a.Write
				o.Version, o.Claims = b.version, slices.Clone(o.Claims)
				b.WriteDone(b.now, WriteOK, &o)
			}
		}
		if at, ok := b.Wake(); len(acts) == 0 && ok && at <= b.now+b.timing.Window {
			b.now = at
		} else if len(acts) == 0 {
			break
		}
	}
	return answers, writes
}

// marked returns how many seats the ledger has ahead.
func (b *burst) marked() (n int) {
	for _, c := range b.claims {
		if c.Ahead && c.place == written {
			n++
		}
	}
	return n
}

func TestSeatsAhead(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(b *burst)
		replicas int64
		prepared bool // the next request gets a seat ahead
	}{
		"the next request does not wait": {change: func(*burst) {}, replicas: 10, prepared: true},
		"nearly too late":                {change: func(b *burst) { b.now += b.timing.Pause - time.Millisecond }, replicas: 10, prepared: true},
		"the owner asks for fewer pods":  {change: func(b *burst) { b.ReplicasRead(b.now, 9) }, replicas: 9},
		"the count is not known":         {change: func(b *burst) { b.ReplicasRead(b.now, -1) }, replicas: -1},
		"the same strategy, made anew":   {change: func(b *burst) { b.strategy = parse("p=a,weight=80:p=b,weight=20") }, replicas: 10, prepared: true},
		"another strategy":               {change: func(b *burst) { b.strategy = simulated["50:50 (an edit)"] }, replicas: 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBurst(t)
			tc.change(b)
			b.request(1)
			answers, writes := b.do(tc.replicas)
			if len(answers) != 1 || answers[0].Result.Err != nil || !answers[0].Result.Written {
				t.Fatalf("answers %v", answers)
			}
			if got := answers[0].Result.Prepared; got != tc.prepared || got != (writes == 0) {
				t.Errorf("the request got a seat ahead: %t, after %d writes", got, writes)
			}
			b.now += b.timing.Expiry / 2
			b.do(tc.replicas)
			for _, c := range b.claims {
				if c.Ahead && c.ID != answers[0].Result.ID {
					t.Errorf("the seat %v is still claimed ahead", c.Seat)
				}
			}
		})
	}
}

// relayed adds a request of another replica.
func (b *burst) relayed() {
	b.Enqueue(b.now, &Request{Strategy: b.strategy, Relayed: true, Deadline: b.now + 600*time.Millisecond})
}

// Seats ahead may be too old for the replica that asks, which has to use them in time. The next write claims them again, so that its pod does
// not wait until they are given back.
func TestSeatAheadTooOldToRelay(t *testing.T) {
	b := newBurst(t)
	b.settle.observe(time.Second, time.Second) // pods are slow, so the seats ahead are kept
	b.now += time.Second
	b.relayed()
	answers, writes := b.do(10)
	if len(answers) != 1 || answers[0].Result.Err != nil || answers[0].Result.Prepared || writes != 1 {
		t.Errorf("after %d writes, the answer to another replica is %+v", writes, answers[0].Result)
	}
}

// A request is referred to the replica that writes, unless it has waited for the replica check, or has too little time for both.
func TestRefer(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		blocked bool
		want    error
	}{
		"it may ask":          {request: Request{Refer: true}, want: ErrElsewhere},
		"it has asked":        {request: Request{}},
		"it is held":          {request: Request{Held: true}},
		"it is of another":    {request: Request{Relayed: true}},
		"it has waited":       {request: Request{Refer: true}, blocked: true},
		"it has little time":  {request: Request{Refer: true, Deadline: 900 * time.Millisecond}},
		"it has time for two": {request: Request{Refer: true, Deadline: time.Second}, want: ErrElsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			b, r := beforeBurst(), tc.request
			r.Strategy = b.strategy
			if r.Deadline == 0 {
				r.Deadline = 4 * time.Second
			}
			r.Deadline += b.now
			b.Enqueue(b.now, &r)
			if tc.blocked {
				r.blockedAt = b.now
			}
			b.LedgerSeen(b.now, Object{Version: 1, Writer: "other"}, false)
			b.version = 1
			answers, _ := b.do(10)
			if len(answers) != 1 || !errors.Is(answers[0].Result.Err, tc.want) {
				t.Fatalf("answers %+v, want %v", answers[0].Result, tc.want)
			}
			if n := b.recent(b.now); (n == 0) != (tc.want != nil) {
				t.Errorf("%d requests count as this replica's", n)
			}
		})
	}
}

// A seat that is given to another replica, and that it does not use, is free at once everywhere.
func TestRelayedSeatIsGivenBack(t *testing.T) {
	b, other := beforeBurst(), beforeBurst()
	b.relayed()
	answers, _ := b.do(1)
	tell := func() {
		o := *b.compose(b.now)
		o.Version = b.version
		other.LedgerSeen(b.now, o, false)
		other.refresh(b.now)
	}
	if tell(); other.total != 1 {
		t.Fatalf("the other replica counts %d seats, not the one that was given", other.total)
	}
	b.GiveBack(answers[0].Result.ID)
	b.do(1)
	if tell(); other.total != 0 {
		t.Errorf("the other replica still counts %d seats", other.total)
	}
}

// A burst whose batches double finds its seats claimed: from the fourth batch on, nearly no request waits.
func TestSeatsAheadGrow(t *testing.T) {
	b := newBurst(t)
	prepared, all := 0, 0
	for batch := 4; batch <= 128; batch *= 2 {
		b.now += 20 * time.Millisecond
		b.request(batch)
		answers, _ := b.do(300)
		for _, r := range answers {
			all++
			if r.Result.Prepared {
				prepared++
			}
		}
	}
	if all != 252 || prepared < all*9/10 {
		t.Errorf("%d of %d requests got a seat ahead", prepared, all)
	}
	b.now += b.timing.Pause
	if _, writes := b.do(300); writes != 1 || b.marked() != 0 || b.total != 255 {
		t.Errorf("%d writes give back the rest; %d seats ahead and %d seats for 255 pods", writes, b.marked(), b.total)
	}
}

// Pods that come slowly cost no more writes than pods, and fewer where several come while a seat ahead may be used. Nothing is
// claimed ahead for an owner without missing pods.
func TestSlowPods(t *testing.T) {
	for name, tc := range map[string]struct {
		every    time.Duration
		replicas int64 // beyond those that have a pod
		most     int   // writes for 20 pods
	}{
		"seven a second":               {150 * time.Millisecond, 100, 10},
		"three a second":               {350 * time.Millisecond, 100, 15},
		"one a second":                 {time.Second, 100, 20},
		"one in three seconds":         {3 * time.Second, 100, 20},
		"seven a second, a rollout's":  {150 * time.Millisecond, 1, 20},
		"one in a second, a rollout's": {time.Second, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			b := beforeBurst()
			writes := 0
			for i := range int64(20) {
				b.request(1)
				for until := b.now + tc.every; b.now < until; b.now += 10 * time.Millisecond {
					_, n := b.do(i + tc.replicas)
					writes += n
				}
				if tc.replicas == 1 && b.marked() > 0 {
					t.Fatalf("%d seats are ahead after pod %d", b.marked(), i)
				}
			}
			if writes > tc.most {
				t.Errorf("%d writes for 20 pods, want at most %d", writes, tc.most)
			}
		})
	}
}

// When requests pause, one write gives back what was claimed ahead, within 100 ms.
func TestSeatsAheadAreGivenBack(t *testing.T) {
	b := newBurst(t)
	at, ok := b.Wake()
	if !ok || at-b.now > 100*time.Millisecond {
		t.Fatalf("it wakes after %s", at-b.now)
	}
	b.now = at
	if _, writes := b.do(10); writes != 1 || b.marked() != 0 || b.total != 3 {
		t.Errorf("%d writes, %d seats ahead, %d seats for 3 pods", writes, b.marked(), b.total)
	}
}

// While the owner asks for more pods than have a seat, seats ahead keep nobody waiting, and a pause does not end them.
func TestSeatsAheadAreKept(t *testing.T) {
	b := newBurst(t)
	b.ReplicasRead(b.now, 100)
	b.request(1)
	b.do(100)
	held := b.marked()
	b.now += b.timing.Pause
	if _, writes := b.do(100); writes != 0 || b.marked() != held {
		t.Fatalf("%d writes; %d seats ahead of %d", writes, b.marked(), held)
	}
	b.request(1)
	if answers, _ := b.do(100); len(answers) != 1 || !answers[0].Result.Prepared {
		t.Errorf("answers %v", answers)
	}
	b.now += b.timing.Ahead
	if b.do(100); b.marked() != 0 {
		t.Errorf("%d seats are ahead %s after they were claimed", b.marked(), b.timing.Ahead)
	}
}

// In a burst, the replica count holds for a while, unless a pod ended since it was read.
func TestReplicaCountInABurst(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b *burst)
		want   bool // the count is read before the request gets a seat ahead
	}{
		"a moment later": {change: func(b *burst) { b.now += 2 * b.timing.ReplicasFresh }},
		"too late":       {change: func(b *burst) { b.now += b.timing.Ahead }, want: true},
		"a pod ended": {change: func(b *burst) {
			b.PodSeen(b.now, "u", Pod{Seat: Seat{Pool: "80", Ordinal: 1}, ID: "1", Active: true})
			b.now += 2 * b.timing.ReplicasFresh
			b.PodGone(b.now, "u")
		}, want: true},
		"a pod ended right after it was read": {change: func(b *burst) {
			b.PodSeen(b.now, "u", Pod{Seat: Seat{Pool: "80", Ordinal: 1}, ID: "1", Active: true})
			b.now += b.timing.ReplicasFresh / 2
			b.PodGone(b.now, "u")
		}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBurst(t)
			b.request(1)
			b.do(100)
			tc.change(b)
			b.request(1)
			read := false
			for _, a := range b.Step(b.now) {
				read = read || a.ReadReplicas
				if a.Answer != nil && tc.want {
					t.Error("the request has a seat before the count is read")
				}
			}
			if read != tc.want {
				t.Errorf("the count is read: %t", read)
			}
			b.readingCount = false
			b.ReplicasRead(b.now, 100)
			b.do(100)
			if len(b.queue) > 0 {
				t.Error("the request still waits")
			}
		})
	}
}

// A count that ages in a burst is read again before a request waits for it.
func TestReplicaCountIsReadInTime(t *testing.T) {
	b := newBurst(t)
	b.request(1)
	b.do(100)
	b.now += 3*b.timing.Ahead/4 + time.Millisecond
	b.request(1)
	b.Step(b.now) // answers it
	if !b.readingCount {
		t.Error("the count is not read")
	}
}

// Several replicas together claim no more seats ahead than the owner asks for.
func TestSeatsAheadOfSeveral(t *testing.T) {
	b := newBurst(t)
	b.version++
	o := Object{Version: b.version, Writer: "other"}
	for _, c := range b.claims {
		o.Claims = append(o.Claims, c.Claim)
	}
	for i := range 150 { // another replica has claimed nearly all
		o.Claims = append(o.Claims, Claim{Seat: Seat{Pool: "0", Ordinal: int64(1000 + i)}, ID: fmt.Sprint("other-", i), Ahead: true})
	}
	b.LedgerSeen(b.now, o, false)
	for range 5 {
		b.request(10)
		b.do(200)
		if b.total > 200 {
			t.Fatalf("%d of 200 seats are claimed", b.total)
		}
	}
}

// A replica claims no more of the seats that are left than come to it, so that none of them is missing at another replica. It claims all
// where no other replica is asked.
func TestSeatsAheadAreDivided(t *testing.T) {
	for name, tc := range map[string]struct {
		shares      shares
		pods, least int64
		most        int64
	}{
		"a third of 300":   {shares{own: 100, others: 200}, 300, 80, 90},
		"a third of 20":    {shares{own: 100, others: 200}, 20, 1, 4},
		"a third of 3":     {shares{own: 100, others: 200}, 3, -10, 0},
		"all":              {shares{own: 100}, 300, 300, 300},
		"nothing is known": {shares{}, 300, 300, 300},
		"nearly nothing":   {shares{others: 400}, 300, -10, 1},
	} {
		if got := tc.shares.due(tc.pods); got < tc.least || got > tc.most {
			t.Errorf("%s: %d seats, want %d to %d", name, got, tc.least, tc.most)
		}
	}
	b := beforeBurst()
	b.seatedBy = shares{own: 100, others: 200}
	b.request(30)
	if b.do(100); b.total < 30 || b.marked() == 0 || b.marked() > 70/3 {
		t.Errorf("%d of the last 70 of %d seats are ahead, at one of three replicas", b.marked(), b.total)
	}
}

// The shares follow the API server within some hundred pods, whatever was before.
func TestSharesFade(t *testing.T) {
	var s shares
	for range 100_000 {
		s.count(false)
	}
	for range 2 * remembered {
		s.count(true)
	}
	if got := s.share(); got < 0.75 {
		t.Errorf("the share is %.2f after %d pods of this replica alone", got, 2*remembered)
	}
}

// Pods from before the start of the process do not count, because they do not show which replica the API server calls now.
func TestSharesOfANewProcess(t *testing.T) {
	b := beforeBurst()
	for i := range 500 {
		id := fmt.Sprint("old-", i)
		b.PodSeen(b.now, id, Pod{Seat: Seat{Pool: "0", Ordinal: int64(i + 1)}, ID: id, Active: true, Version: 1})
	}
	if got := b.seatedBy.share(); got != 1 {
		t.Errorf("the share is %.2f, want 1", got)
	}
}

// When all seats are claimed and other replicas are asked, too, a pause is short, however long pods took to come.
func TestLastSeatsAreGivenBackSoon(t *testing.T) {
	for name, tc := range map[string]struct {
		others float64
		soon   bool
	}{
		"others are asked, too": {others: 20, soon: true},
		"nobody else is asked":  {},
	} {
		b := newBurst(t)
		b.settle.observe(time.Second, b.timing.MaxPatience)
		b.seatedBy = shares{own: 10, others: tc.others}
		b.now += b.timing.Pause
		b.do(10)
		if soon := b.marked() == 0; soon != tc.soon {
			t.Errorf("%s: given back after %s: %t", name, b.timing.Pause, soon)
		}
	}
}

// What is given back at the end of a burst stays free, although requests came lately and another replica, which is gone, holds many seats
// ahead: others may need it.
func TestGivenBackStaysFree(t *testing.T) {
	b := beforeBurst()
	b.settle.observe(time.Second, b.timing.MaxPatience)
	b.seatedBy = shares{own: 10, others: 10}
	b.version++
	o := Object{Version: b.version, Writer: "gone"}
	for i := range int64(40) {
		seat, _ := b.strategy.SeatAt(i + 1)
		o.Claims = append(o.Claims, Claim{Seat: Seat{Pool: b.strategy.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}, ID: fmt.Sprint("gone-", i), Ahead: true})
	}
	b.LedgerSeen(b.now, o, false)
	b.request(10)
	b.do(60)
	if n := b.spares(); n < steady {
		t.Fatalf("the book has %d seats ahead", n)
	}
	b.now += b.timing.Pause
	if _, writes := b.do(60); writes != 1 || b.spares() > 0 {
		t.Errorf("the seats are given back by %d writes, and %d are claimed again", writes, b.spares())
	}
}

// The book wakes for the end of a burst, although the last request was answered by the step that finds no other.
func TestWakesToGiveBack(t *testing.T) {
	b := newBurst(t)
	b.seatedBy = shares{own: 10, others: 10}
	b.request(1)
	if acts := b.Step(b.now); len(acts) != 1 || acts[0].Answer == nil {
		t.Fatalf("the step is %+v, want one answer", acts)
	}
	if wake, ok := b.Wake(); !ok || wake > b.now+b.timing.Pause {
		t.Errorf("the book wakes after %s, want %s at most", wake-b.now, b.timing.Pause)
	}
}

// While a request waits because the owner's pods have all seats, the count holds: its answer was read after the request came.
func TestReplicaCountHoldsWhileReached(t *testing.T) {
	b := beforeBurst()
	b.request(1)
	b.do(1)
	b.now += time.Second
	b.request(1)
	reads := 0
	for until := b.now + b.timing.MinPatience - time.Millisecond; b.now < until; b.now += time.Millisecond {
		for _, a := range b.Step(b.now) {
			if a.ReadReplicas {
				reads++
				b.now += time.Millisecond
				b.ReplicasRead(b.now, 1)
			}
		}
	}
	if len(b.queue) != 1 || reads > 2 {
		t.Errorf("%d requests wait, and the count was read %d times", len(b.queue), reads)
	}
}
