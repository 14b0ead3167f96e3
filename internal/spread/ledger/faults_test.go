package ledger

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// run performs what the book wants until nothing is left to do or a time has passed. Count is the replica count, or nil
// where it cannot be read.
func (b *burst) run(count *int64, most time.Duration) (answers []*Request) {
	for end := b.now + most; ; {
		acts := b.Step(b.now)
		for _, a := range acts {
			switch {
			case a.Answer != nil:
				answers = append(answers, a.Answer)
			case a.ReadReplicas && count == nil:
				b.ReplicasFailed(b.now)
			case a.ReadReplicas:
				b.ReplicasRead(b.now, *count)
			case a.Write != nil:
				b.version++
				o := *a.Write
				o.Version, o.Claims = b.version, slices.Clone(o.Claims)
				b.WriteDone(b.now, WriteOK, &o)
			}
		}
		if len(acts) > 0 {
			continue
		}
		at, ok := b.Wake()
		if !ok || at > end {
			return answers
		}
		b.now = max(b.now, at)
	}
}

// A count that cannot be read switches the replica check off for no request that does not say so, and delays no
// request for longer than a watch is waited for.
func TestReplicaCountNotRead(t *testing.T) {
	ten := int64(10)
	b := beforeBurst()
	b.request(10)
	if answers := b.run(&ten, time.Second); len(answers) != 10 {
		t.Fatalf("%d answers, want 10", len(answers))
	}
	b.now += time.Second

	// 1. The successor of a pod whose end the watch does not show yet.
	start := b.now
	b.request(1)
	answers := b.run(nil, 4*time.Second)
	if len(answers) != 1 || !answers[0].Result.Unverified || !answers[0].Result.Written {
		t.Fatalf("the answers are %+v, want one that is written and not verified", answers)
	}
	if waited := b.now - start; waited < b.timing.MinPatience || waited > b.timing.MaxPatience {
		t.Errorf("it waited for %s, want %s to %s", waited, b.timing.MinPatience, b.timing.MaxPatience)
	}

	// 2. Where reads keep failing, the next request does not wait.
	b.now += time.Second
	start = b.now
	b.request(1)
	if answers := b.run(nil, 4*time.Second); len(answers) != 1 || !answers[0].Result.Unverified || b.now-start > b.timing.Window {
		t.Errorf("after failures, the answers are %+v, after %s", answers, b.now-start)
	}

	// 3. A read that succeeds ends that for the request that comes next.
	more := int64(20)
	for range 2 {
		b.now += time.Second
		b.request(1)
		answers = b.run(&more, 4*time.Second)
	}
	if len(answers) != 1 || answers[0].Result.Unverified {
		t.Errorf("with a count again, the answers are %+v", answers)
	}
}

// Seats that a replica holds ahead and never uses, because it is gone, are presumed dead before a request has to take a
// seat beyond the count. Watches that lag make no difference.
func TestSeatsAheadOfReplicaThatIsGone(t *testing.T) {
	ten := int64(10)
	b := beforeBurst()
	b.settle.observe(time.Minute, b.timing.MaxPatience) // as patient as a book can be
	o := Object{Version: 1, Writer: "gone"}
	for n := range ten {
		seat, _ := b.strategy.SeatAt(n + 1)
		o.Claims = append(o.Claims, Claim{Seat: Seat{Pool: b.strategy.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}, ID: "gone" + string(rune('a'+n)), Ahead: true})
	}
	b.version = 1
	b.LedgerSeen(b.now, o, false)
	b.request(1)
	answers := b.run(&ten, 5*time.Second)
	if len(answers) != 1 {
		t.Fatalf("%d answers", len(answers))
	}
	if r := answers[0].Result; !r.Written || r.Unverified || r.Ordinal != 1 {
		t.Errorf("the seat is %+v; want the first one of its pool, written and verified", r)
	}
}

// Seats ahead whose write is under way are given back, too, if a request cannot wait for the result.
func TestSeatsAheadOfUncertainWrite(t *testing.T) {
	b := beforeBurst()
	b.request(1)
	b.do(10)
	b.request(2)
	var write *Object
	for write == nil {
		for _, a := range b.Step(b.now) {
			switch {
			case a.ReadReplicas:
				b.ReplicasRead(b.now, 10)
			case a.Write != nil:
				write = a.Write
			}
		}
		if at, ok := b.Wake(); write == nil && ok {
			b.now = at
		}
	}
	b.Enqueue(b.now, &Request{Strategy: b.strategy, Deadline: b.now + time.Millisecond})
	b.now += time.Millisecond
	b.Step(b.now)
	b.version++
	o := *write
	o.Version, o.Claims = b.version, slices.Clone(o.Claims)
	b.WriteDone(b.now, WriteOK, &o)
	if n := b.marked(); n == 0 {
		t.Fatal("the write has no seats ahead")
	}
	if _, writes := b.do(10); writes != 1 || b.marked() != 0 {
		t.Errorf("%d writes, and %d seats are still ahead", writes, b.marked())
	}
}

// A pod says which ordinal it has; the memory for its seat does not grow with that.
func TestMemoryOfFarOrdinals(t *testing.T) {
	b := beforeBurst()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for n := range 100 {
		b.PodSeen(b.now, string(rune('a'+n)), Pod{Seat: Seat{Pool: string(rune('a' + n)), Ordinal: 1 << 20}, Active: true})
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("100 pods take %d KiB", used>>10)
	}
	for n := range 100 {
		b.PodGone(b.now, string(rune('a'+n)))
	}
	if len(b.table) != 0 || b.total != 0 {
		t.Errorf("%d pools and %d seats are left", len(b.table), b.total)
	}
}

// One pod that is created slowly makes others wait for a while only.
func TestSlowCreationIsForgotten(t *testing.T) {
	timing, settle := DefaultTiming(), &SettleTime{}
	settle.observe(30*time.Second, timing.MaxPatience)
	for range 60 {
		settle.observe(20*time.Millisecond, timing.MaxPatience)
	}
	if p := timing.patience(settle); p >= timing.MaxPatience {
		t.Errorf("after 60 quick pods, requests still wait for %s", p)
	}
}

// Where the pools may have fewer pods than the owner asks for, a replaced pod gets the seat of its predecessor, though the watch is
// late. A pod beyond the maxima gets none, and the seat of a pod that was never created is taken.
func TestFullPools(t *testing.T) {
	six := int64(6)
	s, err := sequence.New([]sequence.Pool{
		{Name: "0", Labels: map[string]string{"p": "a"}, Weight: 1, Max: 2}, {Name: "1", Labels: map[string]string{"p": "b"}, Weight: 1, Max: 2},
	}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	b := beforeBurst()
	b.strategy = s
	for _, seat := range []Seat{{Pool: "0", Ordinal: 1}, {Pool: "0", Ordinal: 2}, {Pool: "1", Ordinal: 1}, {Pool: "1", Ordinal: 2}} {
		b.PodSeen(b.now, seat.Pool+string(rune('0'+seat.Ordinal)), Pod{Seat: seat, Active: true, Version: 1})
	}

	// 1. A pod is gone, and the watch shows it late.
	b.request(1)
	if answers := b.run(&six, b.timing.MinPatience/2); len(answers) > 0 {
		t.Fatalf("it does not wait for the watch: %+v", answers[0].Result)
	}
	b.PodGone(b.now, "12")
	answers := b.run(&six, time.Second)
	if len(answers) != 1 || answers[0].Result.Seat != (Seat{Pool: "1", Ordinal: 2}) || !answers[0].Result.Written {
		t.Fatalf("the answers are %+v, want the seat of the pod that is gone", answers)
	}

	// 2. That pod was never created, and its owner creates another.
	b.request(1)
	answers = b.run(&six, 4*time.Second)
	if len(answers) != 1 || answers[0].Result.Seat != (Seat{Pool: "1", Ordinal: 2}) {
		t.Fatalf("the answers are %+v, want the seat of the pod that was never created", answers)
	}
	b.PodSeen(b.now, "new", Pod{Seat: answers[0].Result.Seat, ID: answers[0].Result.ID, Active: true, Version: 2})

	// 3. Nothing is gone.
	begin := b.now
	b.request(1)
	answers = b.run(&six, 4*time.Second)
	if len(answers) != 1 || !errors.Is(answers[0].Result.Err, sequence.ErrFull) || b.now-begin > b.timing.MaxPatience {
		t.Errorf("after %s the answers are %+v, want no seat", b.now-begin, answers)
	}
}

// Ordinals far beyond the holders take no memory for those between, and are found all the same.
func TestFarOrdinals(t *testing.T) {
	p := &poolSeats{}
	p.take(1)
	p.take(72) // as far as is near
	if len(p.held) != 72 || len(p.far) != 0 {
		t.Errorf("%d are near and %d far, want 72 and none", len(p.held), len(p.far))
	}
	p.take(77) // 4 for each of 3, and 64
	p.take(90)
	p.take(90)
	if len(p.held) != 72 || p.far[77] != 1 || p.far[90] != 2 || p.count != 5 {
		t.Errorf("%d are near, and %v far", len(p.held), p.far)
	}
	p.take(72) // there is a place for it
	if p.held[71] != 2 || p.lowestFree() != 2 {
		t.Errorf("%d hold the ordinal 72, and %d is free", p.held[71], p.lowestFree())
	}
	for _, ordinal := range []int64{90, 72, 72, 77, 90} {
		p.release(ordinal)
	}
	if p.holds(72) || p.holds(77) || p.holds(90) || !p.holds(1) || len(p.far) != 0 || p.count != 1 {
		t.Errorf("after they are gone, it is %+v", p)
	}
}

// Each wait for a count that cannot be read is twice as long, up to 32 times the first one.
func TestWaitsForTheCount(t *testing.T) {
	b := beforeBurst()
	for i, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 1600} {
		if b.ReplicasFailed(b.now); b.countAt != b.now+want*time.Millisecond {
			t.Errorf("wait %d is %s, want %d ms", i+1, b.countAt-b.now, want)
		}
	}
	b.request(1)
	if acts := b.readReplicas(b.countAt-1, nil); len(acts) != 0 {
		t.Error("it is read before that")
	}
	if acts := b.readReplicas(b.countAt, nil); len(acts) != 1 {
		t.Error("it is not read then")
	}
}

// Of requests only those of lately are remembered.
func TestMemoryOfRequests(t *testing.T) {
	b := beforeBurst()
	b.request(3)
	b.now += active + 1
	if b.request(1); len(b.arrivals) != 1 {
		t.Errorf("%d are remembered, want the last one", len(b.arrivals))
	}
	b.now += active + 1
	if b.Forget(b.now); len(b.arrivals) != 0 {
		t.Errorf("%d are remembered, want none", len(b.arrivals))
	}
}
