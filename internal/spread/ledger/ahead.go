package ledger

import (
	"math"
	"slices"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// In a burst, a pod would wait for the write that has its claim. So with the claims of the requests that wait, a
// write has some more claims, marked as ahead. The requests that come next get those seats without waiting. For
// everybody else they are claims like others, within the first seats that the owner asks for, so the argument of the
// package holds.
//
// A claim ahead is used only by the replica that wrote it, and only within [Timing.Ahead] of sending the write. Others presume
// it dead that much later. It is not used any more once the owner asks for fewer pods or a request has another strategy. What
// is not used is given back: the next write leaves it out. There is one as soon as requests pause and the seat may keep
// others waiting.

// active is how long a request or a change of the ledger counts as one of lately.
const active = 500 * time.Millisecond

// ahead is what makes a claim of this replica usable by a later request. A claim that is not ahead has none.
type ahead struct {
	strategy  *sequence.Strategy
	writeCost bool
	replicas  int64         // what the owner asked for when the seat was claimed
	sent      time.Duration // when the write was sent
}

// usable reports whether a request may get the seat of a claim ahead: it is in the ledger, and was not given back.
func (c *claim) usable() bool { return c.ahead != nil && c.place == written }

// useAhead gives the seats that were claimed ahead to the requests that wait, and ends those that are not to be used.
func (b *Book) useAhead(now time.Duration) {
	paused := now >= b.giveBackAt()
	b.gaveBack = b.gaveBack || paused
	b.endAhead(func(a *ahead) bool {
		return paused || b.replicas < a.replicas || now >= a.sent+b.timing.Ahead
	})
	if len(b.spare) > 0 && b.replicasHold(now) {
		b.giveAhead(now)
	}
}

// wakeAhead has the book step again when the seats ahead that are left are to be given back.
func (b *Book) wakeAhead() {
	if i := slices.IndexFunc(b.spare, (*claim).usable); i >= 0 {
		b.wakeAt(b.spare[i].ahead.sent + b.timing.Ahead)
		b.wakeAt(b.giveBackAt())
	}
}

// giveBackAt returns when the seats ahead are given back, because requests pause. They are kept while nobody has
// claimed as many others: then they keep nobody waiting.
func (b *Book) giveBackAt() time.Duration {
	if len(b.queue) > 0 || len(b.spare) == 0 || b.most(b.latest.Strategy)-b.total >= b.spares() {
		return never
	}
	last := b.most(b.latest.Strategy) <= b.total // the end of a burst: no batch follows, and pods may wait at another replica
	switch {
	case last && b.seatedBy.share() < 1:
		return b.requestAt + b.timing.Pause
	case last && b.requestAt-b.relayedAt < lately: // they ask, so few wait
		return min(b.pausedAt(), b.requestAt+active)
	}
	return b.pausedAt()
}

// pausedAt returns from when on requests pause. Controllers create a batch of pods after the batch before it, so a gap in which
// that batch is created is no pause.
func (b *Book) pausedAt() time.Duration {
	return b.requestAt + max(b.timing.Pause, min(2*time.Duration(b.settle.max.Load()), b.timing.Ahead))
}

// giveAhead gives seats ahead to the requests that wait.
func (b *Book) giveAhead(now time.Duration) {
	for _, r := range b.queue {
		if r.claim != nil {
			continue
		}
		c := b.aheadFor(r)
		if c == nil {
			continue
		}
		if r.usedElsewhere() {
			c.until = c.ahead.sent + b.timing.Ahead
		}
		c.ahead, c.Ahead, c.waiting, c.firstSeen = nil, r.usedElsewhere(), true, now
		r.claim, r.ahead = c, true
	}
}

// aheadFor returns a seat ahead that a request may have, or nil. It ends those of another strategy.
func (b *Book) aheadFor(r *Request) *claim {
	for _, c := range b.spare {
		switch {
		case !c.usable():
		case !c.ahead.strategy.Same(r.Strategy) || c.ahead.writeCost != r.WriteCost:
			b.void(c)
		case !r.Relayed || b.usableUntil(c, r.Deadline):
			return c
		}
	}
	return nil
}

// usableUntil reports whether a seat ahead may be used until some time.
func (b *Book) usableUntil(c *claim, t time.Duration) bool {
	return c.usable() && t <= c.ahead.sent+b.timing.Ahead
}

// renew ends the seats ahead that cannot be used until some time. The write that is due claims such seats again, for those who ask.
func (b *Book) renew(t time.Duration) {
	b.endAhead(func(a *ahead) bool { return t > a.sent+b.timing.Ahead })
}

// endAhead ends those claims ahead in the ledger that are not to be used any more.
func (b *Book) endAhead(ends func(*ahead) bool) {
	b.spare = slices.DeleteFunc(b.spare, func(c *claim) bool {
		if c.usable() && ends(c.ahead) {
			b.void(c)
		}
		return c.ahead == nil
	})
}

// heldAhead returns how many counted seats others hold ahead, and when the first of them is presumed dead.
func (b *Book) heldAhead(now, patience time.Duration) (n int64, until time.Duration) {
	until = never
	for _, c := range b.claims {
		if end := c.firstSeen + b.deadAfter(c, patience); c.counted && c.Ahead && !c.own && now < end {
			n++
			until = min(until, end)
		}
	}
	return n, until
}

// void ends a claim that no pod ever had, and none will. The next write leaves it out.
func (b *Book) void(c *claim) {
	c.ahead, c.end, b.unwritten = nil, void, true
	if c.counted {
		b.uncount(c)
	}
}

// steady is how many requests in the time [active] make a burst. That many missing pods make one, too, see [Book.fills].
const steady = 6

// growth is how many times as many requests may come in the next time [active]. The controllers of Kubernetes create
// pods in batches, each twice as large as the one before (slowStartBatch in pkg/controller/replicaset).
const growth = 4

// recent returns how many requests came in the time [active].
func (b *Book) recent(now time.Duration) int64 {
	old := 0
	for old < len(b.arrivals) && now-b.arrivals[old] > active {
		old++
	}
	b.arrivals = b.arrivals[old:]
	return int64(len(b.arrivals))
}

// spares returns how many seats ahead can be given now.
func (b *Book) spares() int64 { return int64(b.Spares(0)) }

// claimable returns how many seats may be claimed ahead now. It is what the next batch may need, see [growth], and no more than what will
// likely come to this replica. If a replica has too many of the last seats, pods wait at another one until they are given back.
func (b *Book) claimable(now time.Duration) int64 {
	if len(b.queue) == 0 && (b.gaveBack || now >= b.pausedAt()) {
		return 0
	}
	free, spares := b.most(b.latest.Strategy)-b.total, b.spares()
	if free <= 0 || b.replicas < 0 || b.latest.Refer && b.writesElsewhere(now) {
		return 0
	}
	return max(0, min(growth*b.recent(now)-spares, free, b.seatedBy.due(free+spares+b.aheadElsewhere())-spares))
}

// aheadElsewhere estimates how many seats others have ahead and not used. The ledger still marks some that others have used, because their
// pods are not in the watch yet. How many those are, the pods of this replica tell that are not in the watch either: others have had as
// many as their share says.
func (b *Book) aheadElsewhere() int64 {
	var ahead, claimed, own int64
	for _, c := range b.claims {
		switch {
		case !c.counted:
		case c.own && c.ahead == nil:
			own++
		case !c.own && c.Ahead:
			ahead++
		case !c.own:
			claimed++
		}
	}
	share := b.seatedBy.share()
	used := int64(float64(own)*(1-share)/share) - claimed
	return max(0, ahead-max(0, used))
}

// shares is how many of the pods that the watch has shown lately this replica has seated, and how many others have.
type shares struct{ own, others float64 }

// remembered is after how many pods half of a [shares] is forgotten. The API server may call other replicas than before.
const remembered = 512

// count counts one more pod.
func (s *shares) count(own bool) {
	if own {
		s.own++
	} else {
		s.others++
	}
	if s.own+s.others >= remembered {
		s.own, s.others = s.own/2, s.others/2
	}
}

// share returns the part of the pods that this replica was asked for lately. It is 1 while nothing is known.
func (s *shares) share() float64 { return (s.own + 1) / (s.own + s.others + 1) }

// due returns how many of some pods to come a replica is asked for, in all likelihood: the mean of the binomial distribution, less two of
// its standard deviations.
func (s *shares) due(pods int64) int64 {
	share := s.share()
	mean := float64(pods) * share
	return int64(mean - 2*math.Sqrt(mean*(1-share)))
}

// runsShort reports whether the seats ahead will not last until a further write, so that one is due before a request waits.
func (b *Book) runsShort(now time.Duration) bool {
	recent := b.recent(now)
	return recent >= steady && b.spares() < recent && b.claimable(now) >= max(steady, recent/4)
}

// claimAhead claims seats for requests to come, beside those of a write. It reports whether it did. A lone pod, the first
// one of a burst, and a rollout by ones cost one write each and no more.
func (b *Book) claimAhead(now time.Duration) bool {
	sharing := 0
	for _, r := range b.queue {
		if r.claim != nil {
			sharing++
		}
	}
	begins := sharing > 1 && now-b.changedAt <= active || sharing == 1 && b.fills(now)
	if !begins && b.recent(now) < steady {
		return false
	}
	claimed := false
	for range b.claimable(now) {
		c, err := b.claim(now, b.latest.Strategy, b.latest.WriteCost)
		if err != nil {
			return claimed
		}
		claimed = true
		c.Ahead = true
		b.spare = append(b.spare, c)
		c.ahead = &ahead{strategy: b.latest.Strategy, writeCost: b.latest.WriteCost, replicas: b.replicas, sent: now}
	}
	return claimed
}

// voidUnwritten ends the seats ahead of a write whose result is not known yet. If they come into the ledger, the next
// write leaves them out.
func (b *Book) voidUnwritten() {
	for _, c := range b.spare {
		if c.ahead != nil && c.place != written {
			b.void(c)
		}
	}
}

// dropAhead takes back seats ahead that are not in the ledger.
func (b *Book) dropAhead() {
	b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool {
		if c.ahead == nil || c.place == written {
			return false
		}
		b.drop(c)
		return true
	})
}

// deadAfter is how old a claim must be to be presumed dead. One that was ahead may have been used late, and one that is held may be
// used yet.
func (b *Book) deadAfter(c *claim, patience time.Duration) time.Duration {
	patience = max(patience, b.timing.Late)
	if c.wasAhead && !c.own || c.until != 0 {
		return patience + b.timing.Ahead
	}
	return patience
}
