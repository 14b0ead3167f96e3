package repair

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// history is what was seen of a workload and done to it, to know when to do less. The lock of
// the run guards it.
type history struct {
	// looked is what the cache showed when a close look found nothing to do, and
	// lookedAt when that was.
	looked   string
	lookedAt time.Time
	// looking is what a close look begins with. It is full if that look found no room for a pod that was to move.
	looking, full *sight

	budget budget
	// replacing says that a pod was evicted because it came before its policy, and that there may
	// be others.
	replacing bool
	unreached unreached
	large     bool // it was said that a pod has no room for a seat
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

// sight is what there was when a workload was looked at.
type sight struct {
	shown string // by the cache
	pools []poolroom.Mark
	wait  time.Duration // how long it holds
}

// begin notes what there is before a close look.
func (r *run) begin(owner ledger.OwnerKey, p *policy.Policy, shown string) {
	s := &sight{shown: shown}
	for i := range p.Strategy.Len() {
		s.pools = append(s.pools, r.Room.Mark(p.Strategy.Pool(i).Labels))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.historyOf(owner).looking = s
}

// foundNoRoom notes that a close look found a pod that was to move, and no room for it. It is looked for again when something
// changes, or else less and less often.
func (r *run) foundNoRoom(owner ledger.OwnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner)
	if h.looking == nil {
		return
	}
	h.looking.wait = poolroom.FirstWait
	if h.full != nil && h.full.shown == h.looking.shown {
		h.looking.wait = min(poolroom.LongWait, 2*h.full.wait)
	}
	h.full = h.looking
}

// foundRoom notes that there is room for a pod that is to move.
func (r *run) foundRoom(owner ledger.OwnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.historyOf(owner).full = nil
}

// noRoom reports whether a close look would find what the last one found: a pod that is to move, and no room for it. While the
// limit of looks allows no other one, the last one holds.
func (r *run) noRoom(owner ledger.OwnerKey, shown string) bool {
	r.mu.Lock()
	var last *sight
	if h := r.history[owner]; h != nil {
		last = h.full
	}
	r.mu.Unlock()
	if last == nil || last.shown != shown {
		return false
	}
	changed := slices.ContainsFunc(last.pools, r.Room.Changed)
	if !changed && r.Clock.Since(last.pools[0].At) < last.wait || !r.Room.MayLook(owner.Namespace) {
		return true
	}
	if changed {
		r.foundRoom(owner) // the waits begin anew
	}
	return false
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
	r.seatWrites.ForgetOld(r.Clock.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	for owner, h := range r.history {
		if !there[owner] && r.Clock.Since(h.budget.removed) > 2*r.Timing.MaxBackoff {
			delete(r.history, owner)
			r.movements.forget(owner)
		}
	}
	for owner, o := range r.reported {
		if !there[owner] {
			r.Metrics.gone(o)
			delete(r.reported, owner)
		}
	}
}

// mayRemove reports whether the budget allows to remove one more pod of a workload, and otherwise
// when to look again: see [budget.mayRemove].
func (r *run) mayRemove(ctx context.Context, owner ledger.Owner, s observation) (bool, time.Duration, error) {
	if err := r.inherit(ctx); err != nil {
		return false, 0, err
	}
	r.mu.Lock()
	b := &r.historyOf(owner.Key()).budget
	ok, wait, inVain := b.mayRemove(r.Clock.Now(), r.Timing, s)
	next, until := b.backoff, b.next
	r.mu.Unlock()
	if inVain {
		r.keep(ctx, owner.Key(), next, until)
		r.warn(owner, stowage.EventRepairInVain, "evicting a pod has won nothing: %d pod(s) are still in no pool, or in one with too many; the next eviction is after %s at the earliest", s.distance, next)
	}
	return ok, wait, nil
}

func (r *run) replacing(owner ledger.OwnerKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner]
	return h != nil && h.replacing
}

func (r *run) setReplacing(owner ledger.OwnerKey, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil || is {
		r.historyOf(owner).replacing = is
	}
}

// balanced notes that nothing is wrong with a workload any more. What was removed of it last has won something, if
// the successor has a node.
func (r *run) balanced(owner ledger.OwnerKey, records []seats.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil {
		if !slices.ContainsFunc(records, func(r seats.Record) bool { return r.Node == "" }) {
			h.budget.observe(r.Timing, observation{claimed: claimedRecords(records)})
		}
		h.replacing = false
	}
}

// claimedRecords are the pods to which the webhook gave a seat, and whether they have a node.
func claimedRecords(records []seats.Record) map[types.UID]bool {
	out := map[types.UID]bool{}
	for i := range records {
		if records[i].Origin.Admitted() {
			out[records[i].UID] = records[i].Node != ""
		}
	}
	return out
}

// removed notes a removal.
func (r *run) removed(owner ledger.OwnerKey, cooldown time.Duration, proven bool, s observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.historyOf(owner).budget.spend(r.Clock.Now(), cooldown, proven, s)
}

// refused notes that a removal was refused, and returns when to try again.
func (r *run) refused(owner ledger.OwnerKey) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.historyOf(owner).budget.refuse(r.Clock.Now(), r.Timing)
}

// noteLarge says, once in a term, that a pod of a workload has no room for a seat among its annotations.
func (r *run) noteLarge(owner ledger.Owner, pod string) {
	r.mu.Lock()
	h := r.historyOf(owner.Key())
	noted := h.large
	h.large = true
	r.mu.Unlock()
	if !noted {
		r.warn(owner, stowage.EventFailedOpen, "pod %s gets no seat: its annotations have almost the 256 KiB that the API server accepts", pod)
	}
}
