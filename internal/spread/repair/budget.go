package repair

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// budget limits how fast pods of one workload are removed: one at a time, with a cooldown between two. The wait
// doubles after each removal that won nothing.
type budget struct {
	next     time.Time // before it, no pod is removed
	backoff  time.Duration
	removed  time.Time // when a pod was removed last
	date     time.Time // the same by the API server's clock
	settled  bool      // whether the removal's outcome was seen
	distance int64     // the plan's distance before it
	cooldown time.Duration
	// proven says that a node had room for the successor of the removed pod.
	proven bool
	// claimed are the pods to which the webhook had given a seat by then.
	claimed map[types.UID]bool
	// waits says that no later pod has come through the webhook yet.
	waits bool
}

// observation is what is known of a workload when one more pod is to be removed.
type observation struct {
	date     time.Time // by the API server's clock
	distance int64     // of the plan
	// claimed are the pods to which the webhook gave a seat, and whether they have a node.
	claimed map[types.UID]bool
	// reached is when the webhook last gave a seat to a pod of any workload.
	reached time.Time
}

// restore sets a budget to what an earlier leader has stored. The clocks of two leaders may differ.
func (b *budget) restore(t Timing, wait time.Duration, until, now time.Time) {
	b.backoff, b.next = min(max(0, wait), t.MaxBackoff), until
	if latest := now.Add(max(b.backoff, t.Cooldown)); until.After(latest) {
		b.next = latest
	}
}

func (b *budget) grow(t Timing) { b.backoff = min(max(2*b.backoff, t.Backoff), t.MaxBackoff) }

// mayRemove reports whether one more pod of a workload may be removed, and otherwise when to look again. None
// follows a removal until the webhook has given a seat to a later pod, of this workload or of another. InVain
// says, once after a removal, that it won nothing.
func (b *budget) mayRemove(now time.Time, t Timing, s observation) (ok bool, wait time.Duration, inVain bool) {
	inVain = b.observe(t, s)
	if left := b.next.Sub(now); left > 0 {
		return false, left, inVain
	}
	if b.waits {
		if came, _ := b.later(s); !came {
			return false, t.Resync, inVain
		}
		b.waits = false
	}
	return true, 0, inVain
}

// later reports whether the webhook has given a seat to a pod since the removal. It also reports whether such a pod
// of the workload has a node.
func (b *budget) later(s observation) (came, runs bool) {
	came = s.reached.After(b.date)
	for uid, hasNode := range s.claimed {
		if _, before := b.claimed[uid]; !before {
			came, runs = true, runs || hasNode
		}
	}
	return came, runs
}

// observe notes the plan that follows a removal, the first time, and reports whether the removal won nothing. A pod
// that left a node for a pool whose room was not proven has won nothing until its successor has a node.
func (b *budget) observe(t Timing, s observation) (inVain bool) {
	if b.removed.IsZero() || b.settled {
		return false
	}
	b.settled = true
	_, runs := b.later(s)
	wait := b.cooldown
	if inVain = s.distance >= b.distance || !b.proven && !runs; inVain {
		b.grow(t)
		wait = max(wait, b.backoff)
	} else {
		b.backoff = 0
	}
	b.next = b.removed.Add(wait)
	return inVain
}

// spend notes a removal, how long to wait after it if it won something, and whether a node had room for the
// successor.
func (b *budget) spend(now time.Time, cooldown time.Duration, proven bool, s observation) {
	b.removed, b.date, b.settled, b.distance, b.cooldown, b.proven, b.claimed, b.waits = now, s.date, false, s.distance, cooldown, proven, s.claimed, true
}

// refuse notes that a removal was refused, and returns when to try again.
func (b *budget) refuse(now time.Time, t Timing) time.Duration {
	b.grow(t)
	b.next = now.Add(b.backoff)
	return b.backoff
}
