package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// budget limits how fast pods of one workload are removed: one at a time, with a cooldown between
// two, and with a wait that doubles after each removal that won nothing.
type budget struct {
	next     time.Time // before it, no pod is removed
	backoff  time.Duration
	removed  time.Time // when a pod was removed last
	settled  bool      // whether the removal's outcome was seen
	distance int64     // the plan's distance before it
	cooldown time.Duration
	// claimed are the pods that had come through the webhook by then.
	claimed map[types.UID]bool
}

// restore sets a budget to what earlier leaders have done: so many removals that won nothing, the
// last one at a time.
func (b *budget) restore(t Timing, inVain int, last time.Time) {
	for range inVain {
		b.grow(t)
	}
	if inVain > 0 {
		b.next = last.Add(b.backoff)
	}
}

func (b *budget) grow(t Timing) { b.backoff = min(max(2*b.backoff, t.Backoff), t.MaxBackoff) }

// mayRemove reports whether one more pod may be removed of a workload whose plan has this distance
// now and of which these pods came through the webhook; and otherwise when to look again. None
// follows a removal until a pod has come through the webhook since. InVain says, once after a
// removal, that it won nothing.
func (b *budget) mayRemove(now time.Time, t Timing, distance int64, claimed map[types.UID]bool) (ok bool, wait time.Duration, inVain bool) {
	inVain = b.observe(t, distance)
	if left := b.next.Sub(now); left > 0 {
		return false, left, inVain
	}
	if b.claimed != nil {
		fresh := false
		for uid := range claimed {
			fresh = fresh || !b.claimed[uid]
		}
		if !fresh {
			return false, t.Resync, inVain
		}
		b.claimed = nil
	}
	return true, 0, inVain
}

// observe notes the distance of a plan that follows a removal, the first time, and reports whether the
// removal won nothing.
func (b *budget) observe(t Timing, distance int64) (inVain bool) {
	if b.removed.IsZero() || b.settled {
		return false
	}
	b.settled = true
	wait := b.cooldown
	if inVain = distance >= b.distance; inVain {
		b.grow(t)
		wait = max(wait, b.backoff)
	} else {
		b.backoff = 0
	}
	b.next = b.removed.Add(wait)
	return inVain
}

// spend notes a removal, and how long to wait after it if it won something.
func (b *budget) spend(now time.Time, distance int64, cooldown time.Duration, claimed map[types.UID]bool) {
	b.removed, b.settled, b.distance, b.cooldown, b.claimed = now, false, distance, cooldown, claimed
}

// refuse notes that a removal was refused, and returns when to try again.
func (b *budget) refuse(now time.Time, t Timing) time.Duration {
	b.grow(t)
	b.next = now.Add(b.backoff)
	return b.backoff
}
