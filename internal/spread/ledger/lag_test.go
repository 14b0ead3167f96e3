package ledger

import (
	"testing"
	"time"
)

// noted is the ledger after another replica has seen the pods of all claims.
func (b *burst) noted() Object {
	b.version++
	o := Object{Version: b.version, Writer: "other"}
	for i, c := range b.claims {
		o.Claims = append(o.Claims, Claim{Seat: c.Seat, ID: c.ID, Settled: 1000 + uint64(i)})
	}
	return o
}

// seatAt is the seat of a rank.
func (b *burst) seatAt(rank int64) Seat {
	seat, _ := b.strategy.SeatAt(rank)
	return Seat{Pool: b.strategy.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}
}

// A replica whose watch shows no pod for longer than a claim lasts gives no seat twice, whatever became of the ledger.
func TestWatchThatLags(t *testing.T) {
	ten, more := int64(10), int64(11)
	cases := map[string]func(b *burst){
		"nobody has noted the pods":          func(*burst) {},
		"another replica has noted the pods": func(b *burst) { b.LedgerSeen(b.now, b.noted(), false) },
		"the notes have left the ledger": func(b *burst) {
			b.LedgerSeen(b.now, b.noted(), false)
			b.version++
			b.LedgerSeen(b.now, Object{Version: b.version, Writer: "other"}, false)
		},
		"the claims have left the ledger without a note": func(b *burst) {
			b.version++
			b.LedgerSeen(b.now, Object{Version: b.version, Writer: "other"}, false)
		},
		"the ledger is gone": func(b *burst) {
			b.version++
			b.LedgerSeen(b.now, Object{Version: b.version}, true)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := beforeBurst()
			b.request(10)
			if answers := b.run(&ten, time.Second); len(answers) != 10 {
				t.Fatalf("%d answers, want 10", len(answers))
			}
			b.now += 2 * b.timing.Expiry
			change(b)
			b.request(1)
			answers := b.run(&more, 4*time.Second)
			if len(answers) != 1 || answers[0].Result.Seat != b.seatAt(11) || answers[0].Result.Unverified {
				t.Errorf("the answers are %+v, want the seat %v", answers, b.seatAt(11))
			}
		})
	}
}

// Claims of pods that were denied end once the watch has shown what was written a minute after them, or much later.
func TestClaimsEndByTheWatch(t *testing.T) {
	ten, more := int64(10), int64(20)
	b := beforeBurst()
	b.request(10)
	b.run(&ten, time.Second)
	b.now += b.timing.Expiry + time.Second
	b.request(1)
	b.run(&more, time.Second)
	if b.refresh(b.now); b.total != 11 {
		t.Errorf("%d seats are held before the watch has shown anything, want 11", b.total)
	}
	b.Applied(b.version)
	if b.refresh(b.now); b.total != 1 {
		t.Errorf("%d seats are held once the watch has shown the last write, want 1", b.total)
	}
	b.now += mostExpiries * b.timing.Expiry
	if b.refresh(b.now); b.total != 0 {
		t.Errorf("%d seats are held in the end", b.total)
	}
}

// A pod that another replica has seen is not presumed dead. What a watch that lags does not show makes a seat unverified.
func TestNotedClaimsAreNotDead(t *testing.T) {
	ten := int64(10)
	b := beforeBurst()
	b.request(10)
	b.run(&ten, time.Second)
	b.LedgerSeen(b.now, b.noted(), false)
	b.now += 5 * time.Second
	b.request(1)
	answers := b.run(&ten, 4*time.Second)
	if len(answers) != 1 || answers[0].Result.Seat != b.seatAt(11) || !answers[0].Result.Unverified {
		t.Errorf("the answers are %+v, want the seat %v, unverified", answers, b.seatAt(11))
	}
}

// A refusal for want of room holds back the requests for all owners of a replica, and none of them is uncertain.
func TestNoRoomInTheAPIServer(t *testing.T) {
	ten := int64(10)
	b, other := beforeBurst(), beforeBurst()
	other.load = b.load
	b.request(1)
	b.Step(b.now)
	b.ReplicasRead(b.now, ten)
	if acts := b.Step(b.now); len(acts) != 1 || acts[0].Write == nil {
		t.Fatalf("the actions are %+v, want one write", acts)
	}
	b.load.Refused(b.now, b.timing.Busy)
	b.WriteDone(b.now, WriteBusy, nil)
	other.request(1)
	for _, one := range []*burst{b, other} {
		if acts := one.Step(one.now); len(acts) != 0 {
			t.Errorf("there are requests at once: %+v", acts)
		}
		if at, ok := one.Wake(); !ok || at < one.now+one.timing.Busy || at > one.now+2*one.timing.Busy {
			t.Errorf("the next request is after %s", at-one.now)
		}
		answers := one.run(&ten, 4*time.Second)
		if len(answers) != 1 || !answers[0].Result.Written || answers[0].Result.Seat != one.seatAt(1) {
			t.Errorf("the answers are %+v, want the first seat, written", answers)
		}
	}
	b.load.Served()
	for range fullAfter {
		b.load.Refused(b.now, b.timing.Busy)
		b.now += time.Minute
	}
	b.request(1)
	start := b.now
	if answers := b.run(nil, 4*time.Second); len(answers) != 1 || b.now-start > b.timing.MinPatience+b.timing.Reserve {
		t.Errorf("after %s the answers are %+v", b.now-start, answers)
	}
}

// A lag is as old as the first note that the watch has not reached.
func TestLag(t *testing.T) {
	var w Watch
	w.Reached(5)
	for at, version := range []uint64{4, 10, 9, 20} {
		w.note(time.Duration(at)*time.Second, version)
	}
	for _, step := range []struct {
		reached uint64
		want    time.Duration
	}{{5, 9 * time.Second}, {9, 9 * time.Second}, {10, 7 * time.Second}, {20, 0}, {30, 0}} {
		w.Reached(step.reached)
		if got := w.Lag(10 * time.Second); got != step.want {
			t.Errorf("with the watch at %d the lag is %s, want %s", step.reached, got, step.want)
		}
	}
}
