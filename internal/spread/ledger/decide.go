package ledger

import (
	"slices"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// commitAt returns when to write. A write that is not alone waits a moment for requests to join.
func (b *Book) commitAt(now time.Duration) time.Duration {
	if now-b.changedAt > active || len(b.queue) == 0 {
		return now
	}
	first, last := b.queue[0].arrived, b.queue[len(b.queue)-1].arrived
	return min(last+b.timing.Quiet, first+b.timing.Window)
}

// decide gives a seat to each request that may have one now. Fresh is whether the replica count holds.
func (b *Book) decide(now time.Duration, fresh bool, acts []Action) ([]Action, bool) {
	b.refresh(now)
	decided := false
	b.queue = slices.DeleteFunc(b.queue, func(r *Request) bool {
		if r.claim != nil {
			decided = true
			return false
		}
		if r.Relayed {
			b.renew(r.Deadline)
		}
		switch {
		case !fresh:
			if !b.withoutCount(now, r) {
				return false
			}
			r.unverified = true
		case b.total+1 > b.most(r.Strategy) && !r.beyond && !b.mayExceed(now, r, &acts):
			return false
		}
		if b.isBeyond(r) {
			r.Result = Result{Err: ErrBeyond, Unverified: true}
			acts = append(acts, Action{Answer: r})
			return true
		}
		if fresh && b.replicas >= 0 && b.total >= b.replicas+mostBeyond {
			r.Result = b.withoutClaim(r)
			acts = append(acts, Action{Answer: r})
			return true
		}
		if err := b.seat(now, r); err != nil {
			r.Result = Result{Err: err, Unverified: r.unverified}
			acts = append(acts, Action{Answer: r})
			return true
		}
		decided = true
		return false
	})
	return acts, decided
}

// isBeyond reports whether a request may not have a seat beyond some count, and has reached it.
func (b *Book) isBeyond(r *Request) bool {
	switch {
	case r.Relayed:
		return b.total+1 > b.most(r.Strategy)
	case r.Within:
		return b.replicas >= 0 && b.total+1 > b.replicas
	}
	return false
}

// most returns how many pods may have a seat: no more than the owner asks for, and no more than the strategy has seats.
func (b *Book) most(s *sequence.Strategy) int64 {
	if b.replicas < 0 {
		return s.Seats()
	}
	return min(b.replicas, s.Seats())
}

// mayExceed is the replica check: with one pod more there would be more than the owner asks for, or than the pools may have. It
// reports whether the request can be decided now.
func (b *Book) mayExceed(now time.Duration, r *Request, acts *[]Action) bool {
	most, full := b.most(r.Strategy), b.maximaAlone()
	// A count that was read before the pod was created may be older than its reason.
	if !full && b.replicasSince < r.arrived {
		return b.countAgain(now, r, acts)
	}
	if r.Relayed {
		return true // the replica that asks waits for what is gone, and has the time for it
	}
	// 1. The controller has seen what is gone, so the watch will show it soon.
	if r.blockedAt == 0 {
		r.blockedAt = now
	}
	// There must be time left to write.
	patience := b.timing.patience(b.settle)
	latest := r.Deadline - b.timing.Reserve
	if t := min(r.blockedAt+patience, latest); now < t {
		b.wakeAt(t)
		return false
	}
	// Seats that others hold ahead are used or given back soon. They are no reason to presume anything dead.
	held, until := b.heldAhead(now, patience)
	byHeld := held > 0 && b.total+1-held <= most
	if byHeld && now < latest {
		b.wakeAt(min(until, latest))
		return false
	}
	// 2. Claims that should have settled by now are of pods that never came to be. The decision is a new one: the seat of a dead
	// claim does not matter.
	lags := b.watch.Lag(now) > patience
	open, wait := b.presumeDead(now, patience, full, lags)
	if b.total+1 <= most {
		return true
	}
	end := r.blockedAt + wait
	if t := min(end, latest); open && now < t {
		b.wakeAt(t)
		return false
	}
	r.unverified = open && (lags || byHeld || now < end)
	// 3. The controller is behind a scale-down, and the seat is the first to go; or no pool may take the pod.
	r.beyond = true
	return true
}

// countAgain has the replica count read for a request. It reports whether the request can be decided now, because it cannot be read.
func (b *Book) countAgain(now time.Duration, r *Request, acts *[]Action) bool {
	if b.withoutCount(now, r) {
		r.unverified = true
		return true
	}
	*acts = b.readReplicas(now, *acts)
	return false
}

// maximaAlone reports whether one pod more is within what the owner asks for, so that the pools' maxima alone are reached, and nothing need
// be gone.
func (b *Book) maximaAlone() bool { return b.replicas < 0 || b.total+1 <= b.replicas }

// presumeDead ends the claims that should have settled by now. It reports whether others are open, whose pods may still come, and how
// long a request waits for those. In full pools a slow pod would lose its seat to one that needs none, so its claim gets more time. A pod
// that another replica has seen did come to be. A watch that lags shows no pod in time, so nothing is presumed by it.
func (b *Book) presumeDead(now, patience time.Duration, full, lags bool) (open bool, wait time.Duration) {
	open, wait = lags, 2*patience
	contested := false
	for _, c := range b.claims {
		after := b.deadAfter(c, patience)
		if full && !c.Ahead {
			after = max(after, 2*b.timing.MaxPatience)
		}
		switch {
		case !c.counted:
		case c.waiting: // decided just now, for another request: its pod may not come, either
			open, contested = true, true
		case now-c.firstSeen < after:
			open, contested = true, true
			b.wakeAt(c.firstSeen + after)
			wait = max(wait, patience+after)
		case lags || c.Settled != 0:
			open = true
		default:
			c.end = dead
			b.uncount(c)
		}
	}
	// Seats beyond the count are for when all others are taken by pods. Whoever asks without a pause for pods that never come would
	// push others there. So while claims are open, requests wait longer, and have time to be answered then.
	if contested && !full {
		wait = max(wait, 2*b.timing.MaxPatience)
	}
	return open, wait
}

// mostBeyond is how many seats beyond the replica count are claimed. A controller has some 500 creates under way at most (BurstReplicas of
// the ReplicaSet controller), so more are asked for only by somebody else. Claims fill the SeatLedger, and cost each decision.
const mostBeyond = 500

// withoutClaim answers a request with the next seat, and claims nothing.
func (b *Book) withoutClaim(r *Request) Result {
	seat, err := r.Strategy.Admit(held{b, r.Strategy})
	if err != nil {
		return Result{Err: err, Unverified: true}
	}
	return Result{Claim: Claim{Seat: Seat{Pool: r.Strategy.PoolKey(seat.Pool), Ordinal: seat.Ordinal}, ID: b.newID()}, Unverified: true}
}

// seat gives a request the next seat.
func (b *Book) seat(now time.Duration, r *Request) error {
	c, err := b.claim(now, r.Strategy, r.WriteCost)
	if err != nil {
		return err
	}
	c.waiting = true
	if r.usedElsewhere() {
		c.Ahead, c.until = true, now+b.timing.Ahead
	}
	r.claim = c
	return nil
}

// claim claims the next seat of a strategy.
func (b *Book) claim(now time.Duration, s *sequence.Strategy, writeCost bool) (*claim, error) {
	seat, err := s.Admit(held{b, s})
	if err != nil {
		return nil, err
	}
	id, stands := b.newID(), seat
	stands.Ordinal = held{b, s}.freePosition(seat.Pool, seat.Ordinal)
	if rank, ok := s.Rank(stands); ok && writeCost {
		id = WithCostRank(id, rank)
	}
	if stands != seat {
		id = WithPosition(id, stands.Ordinal)
	}
	c := &claim{Claim: Claim{Seat: Seat{Pool: s.PoolKey(seat.Pool), Ordinal: seat.Ordinal}, ID: id}, firstSeen: now, own: true, counted: true}
	b.claims = append(b.claims, c)
	b.byID[c.ID] = c
	b.take(c.Seat, c.ID)
	return c, nil
}

// mostExpiries is after how many times Expiry a claim ends, whatever the watch has shown. A replica that writes nothing does not
// learn how far its watch is.
const mostExpiries = 10

// outstanding reports whether the pod of a claim may be there, or may still come, though this replica has not seen it. If
// another replica has seen the pod, that ends when the watch is past it. Otherwise it ends when the watch has shown all
// that was written until the claim was old.
func (b *Book) outstanding(now, shown time.Duration, c *claim) bool {
	_, seen := b.ids[c.ID]
	switch {
	case seen || c.end != open:
		return false
	case c.Settled != 0:
		return b.store < c.Settled
	}
	return shown < c.firstSeen+b.timing.Expiry && now < c.firstSeen+mostExpiries*b.timing.Expiry
}

// refresh brings the table up to date with what claims count now.
func (b *Book) refresh(now time.Duration) {
	shown := b.watch.shownUntil()
	for _, c := range b.claims {
		counts := b.outstanding(now, shown, c)
		switch {
		case counts && !c.counted:
			c.counted = true
			b.take(c.Seat, c.ID)
		case !counts && c.counted:
			b.uncount(c)
		}
	}
	// Nobody gains by learning of a seat that was never written and is no claim any more.
	b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool {
		if b.needs(now, c) {
			return false
		}
		b.drop(c)
		return true
	})
	b.noteUnwritten()
}

// needs reports whether a claim is still needed: it is in the ledger, counts, or a request waits for it. One that no pod will have is
// not needed once it is old, and until then it may come into the ledger.
func (b *Book) needs(now time.Duration, c *claim) bool {
	if c.end == void {
		if now-c.firstSeen >= b.timing.Expiry {
			return false
		}
		if b.writing || !b.known { // a write that is under way may have it
			return true
		}
	}
	return c.place == written || c.waiting || c.counted
}

// compose returns the ledger that is to be written: what counts, what may still count
// elsewhere, and what this replica can say about it.
func (b *Book) compose(now time.Duration) *Object {
	counted := make(map[Seat]bool, len(b.claims))
	for _, c := range b.claims {
		if c.counted && now-c.firstSeen < b.timing.Expiry {
			counted[c.Seat] = true
		}
	}
	o := &Object{Version: b.version, Writer: b.writer, Claims: make([]Claim, 0, len(b.claims))}
	for _, c := range b.claims {
		if now-c.firstSeen >= b.timing.Expiry && c.place == unwritten {
			c.place = apart // it came too late for this write, and for any other
		}
		if c.end == void || now-c.firstSeen >= b.timing.Expiry {
			continue
		}
		if !c.counted && counted[c.Seat] {
			continue // one claim per seat: the newer one replaces it
		}
		if version, seen := b.ids[c.ID]; seen && c.Settled == 0 {
			c.Settled = version
		}
		if c.Settled != 0 {
			c.Ahead = false // a pod has it
		}
		o.Claims = append(o.Claims, c.Claim)
	}
	return o
}
