package repair

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
)

// history is what was seen of a workload and done to it, to know when to do less. The lock of
// the run guards it.
type history struct {
	// looked is what the cache showed when a close look found nothing to do, and
	// lookedAt when that was.
	looked   string
	lookedAt time.Time
	// checked is what the present close look began with. noRoom is what the last one began with that found no room for a pod
	// that was to move.
	checked, noRoom *roomCheck

	budget budget
	// replacing says that a pod was evicted because it came before its policy, and that there may be others. ReplacingReady says that they may be
	// ready.
	replacing, replacingReady bool
	unreached                 unreached
	large                     bool // it was said that a pod has no room for a seat
	// held are the pods that stay where they are though they should not, as the last close look found. Volumes are what was found of
	// pods' volumes lately.
	held      map[types.UID]heldPod
	heldSince time.Time // when there were none last
	// owner is that of the hindrances. Closely says that its pods were read, and what kept them from moving was found.
	owner   ledger.Owner
	closely bool
	// hindrance is what keeps pods from being evicted, and pinned what keeps pods from getting a seat. Unwritten is that the API server refuses to
	// update pods. Each may be nil.
	hindrance, pinned, unwritten *stowage.Hindrance
	// elsewhere are the pods whose volumes are elsewhere, as the last close look found.
	elsewhere layout.Elsewhere
	volumes   map[types.UID]volumeHold
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

// roomCheck is what there was as a close look began.
type roomCheck struct {
	shown string // by the cache
	pools []poolroom.Checkpoint
	wait  time.Duration // how long it holds
}

// beginCheck notes what there is before a close look.
func (r *run) beginCheck(owner ledger.OwnerKey, p *policy.Policy, shown string) {
	c := &roomCheck{shown: shown}
	for i := range p.Len() {
		c.pools = append(c.pools, r.Room.Checkpoint(p.Nodes(i, -1)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.historyOf(owner).checked = c
}

// foundNoRoom notes that a close look found a pod that was to move, and no room for it. It is looked for again when something
// changes, or else less and less often.
func (r *run) foundNoRoom(owner ledger.OwnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner)
	if h.checked == nil {
		return
	}
	h.checked.wait = poolroom.MinWait
	if h.noRoom != nil && h.noRoom.shown == h.checked.shown {
		h.checked.wait = min(poolroom.MaxWait, 2*h.noRoom.wait)
	}
	h.noRoom = h.checked
}

// foundRoom notes that there is room for a pod that is to move.
func (r *run) foundRoom(owner ledger.OwnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.historyOf(owner).noRoom = nil
}

// lacksRoom reports whether a close look would find what the last one found: a pod that is to move, and no room for it. While the
// limit of looks allows no other one, the last one holds.
func (r *run) lacksRoom(owner ledger.OwnerKey, shown string) bool {
	r.mu.Lock()
	var last *roomCheck
	if h := r.history[owner]; h != nil {
		last = h.noRoom
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
	r.refusals.ForgetOld(r.Clock.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	for owner, h := range r.history {
		if !there[owner] && r.Clock.Since(h.budget.removed) > 2*r.Timing.MaxBackoff {
			delete(r.history, owner)
			r.movements.forget(owner)
		}
	}
	for owner := range r.counted {
		if !there[owner] {
			r.replaceCounts(owner, nil)
		}
	}
	for owner, was := range r.reported {
		if !there[owner] {
			r.setDistance(owner, distance{of: was.of})
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

func (r *run) replacingReady(owner ledger.OwnerKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner]
	return h != nil && h.replacingReady
}

func (r *run) setReplacing(owner ledger.OwnerKey, is, ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil || is {
		h = r.historyOf(owner)
		h.replacing, h.replacingReady = is, ready
	}
}

// balanced notes that nothing is wrong with a workload any more. What was removed of it last has won something, if
// the successor has a node.
func (r *run) balanced(owner ledger.OwnerKey, records []observed.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil {
		if !slices.ContainsFunc(records, func(r observed.Pod) bool { return r.Node == "" }) {
			h.budget.observe(r.Timing, observation{claimed: claimedRecords(records)})
		}
		h.replacing, h.replacingReady = false, false
		h.nothingHinders()
	}
}

// claimedRecords are the pods to which the webhook gave a seat, and whether they have a node.
func claimedRecords(records []observed.Pod) map[types.UID]bool {
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
