package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/ledger"
)

// history is what was seen of a workload and done to it, to know when to do less. The
// controller's lock guards it.
type history struct {
	// looked is what the cache showed when a close look found nothing to do, and
	// lookedAt when that was.
	looked   string
	lookedAt time.Time

	next     time.Time // before it, no pod is removed
	backoff  time.Duration
	removed  time.Time // when a pod was removed last
	settled  bool      // whether the removal's outcome was seen
	distance int64     // the plan's distance before it
	// claimed are the pods that had come through the webhook by then.
	claimed map[types.UID]bool
}

// lookAgain is how many resyncs a close look that found nothing to do holds for, where
// the cache shows the same.
const lookAgain = 10

// skip reports whether a close look would find what the last one found: nothing to do.
func (r *run) skip(owner ledger.OwnerKey, shown string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner]
	return h != nil && h.looked == shown && r.Clock.Since(h.lookedAt) < lookAgain*r.Timing.Resync
}

// foundNothing notes that a close look found nothing to do.
func (r *run) foundNothing(owner ledger.OwnerKey, shown string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner)
	h.looked, h.lookedAt = shown, r.Clock.Now()
}

func (r *run) historyOf(owner ledger.OwnerKey) *history {
	h := r.history[owner]
	if h == nil {
		h = &history{}
		r.history[owner] = h
	}
	return h
}

// forget drops what is known of workloads that have no pods any more.
func (r *run) forget(there map[ledger.OwnerKey]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, h := range r.history {
		if !there[uid] && r.Clock.Since(h.removed) > 2*r.Timing.MaxBackoff {
			delete(r.history, uid)
		}
	}
	for uid, o := range r.reported {
		if !there[uid] {
			r.Metrics.gone(o)
			delete(r.reported, uid)
		}
	}
}

// mayRemove reports whether the budget allows to remove one more pod of a workload, whose
// plan has this distance now and of which these pods came through the webhook; and
// otherwise when to look again. A removal that won nothing doubles the wait, and none
// follows until a pod has come through the webhook since.
func (r *run) mayRemove(owner ledger.OwnerKey, distance int64, claimed map[types.UID]bool) (bool, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, now := r.historyOf(owner), r.Clock.Now()
	if !h.removed.IsZero() && !h.settled {
		h.settled = true
		wait := r.Timing.Cooldown
		if distance >= h.distance {
			h.backoff = min(max(2*h.backoff, r.Timing.Backoff), r.Timing.MaxBackoff)
			wait = max(wait, h.backoff)
		} else {
			h.backoff = 0
		}
		h.next = h.removed.Add(wait)
	}
	if left := h.next.Sub(now); left > 0 {
		return false, left
	}
	if h.claimed != nil {
		fresh := false
		for uid := range claimed {
			fresh = fresh || !h.claimed[uid]
		}
		if !fresh {
			return false, r.Timing.Resync
		}
		h.claimed = nil
	}
	return true, 0
}

// removed notes a removal.
func (r *run) removed(owner ledger.OwnerKey, distance int64, claimed map[types.UID]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner)
	h.removed, h.settled, h.distance, h.claimed = r.Clock.Now(), false, distance, claimed
}

// refused notes that a removal was refused, and returns when to try again.
func (r *run) refused(owner ledger.OwnerKey) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner)
	h.backoff = min(max(2*h.backoff, r.Timing.Backoff), r.Timing.MaxBackoff)
	h.next = r.Clock.Now().Add(h.backoff)
	return h.backoff
}
