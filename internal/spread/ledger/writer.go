package ledger

import (
	"slices"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// In a burst, a replica asks the one that writes the ledger for seats. Otherwise all of them would write, and all but one would fail. A
// replica that asks keeps nothing of what it is told: to its book, the seat is another replica's claim. If no answer comes, it claims a seat
// itself. Then the other claim is like one whose pod was denied.

// lately is for how long after a write its replica is the one to ask. A controller may pause for a second between two batches of a burst.
const lately = 10 * time.Second

// Writer returns the replica to ask for a seat: the other one that has lately written the ledger. It is empty if there is none, or if this
// replica has seats ahead. All agree on who wrote last, so no two ask each other for long.
func (b *Book) Writer(now time.Duration) string {
	if !b.writesElsewhere(now) || b.spares() > 0 || b.load.full() {
		return ""
	}
	return b.wroteLast
}

// writesElsewhere reports whether another replica has lately written the ledger. Then this one claims nothing ahead.
func (b *Book) writesElsewhere(now time.Duration) bool {
	return b.wroteLast != b.writer && b.wroteLast != "" && now-b.changedAt <= lately
}

// refer answers the requests that are to be asked of another replica. A replica whose write has lost would lose again, and one that has read the
// ledger learns only now who writes. A request stays if it has waited for the replica check, or has too little time for both.
func (b *Book) refer(now time.Duration, acts []Action) []Action {
	if b.Writer(now) == "" {
		return acts
	}
	b.queue = slices.DeleteFunc(b.queue, func(r *Request) bool {
		if !r.Refer || r.claim != nil || r.blockedAt != 0 || r.Deadline-now < 2*b.timing.Reserve {
			return false
		}
		r.Result = Result{Err: ErrElsewhere}
		acts = append(acts, Action{Answer: r})
		b.arrivals = b.arrivals[:max(0, len(b.arrivals)-1)] // it is not for this replica to seat
		return true
	})
	return acts
}

// Granted notes that another replica has given a seat to a pod that this one was asked about.
func (b *Book) Granted(now time.Duration, id string) { b.granted[id] = now }

// Struggles reports whether nobody is to wait for the ledger, because requests for it fail or the API server has no room.
func (b *Book) Struggles() bool { return b.failures >= brokenAfter || b.load.full() }

// Spares returns how many seats ahead may be used until some time.
func (b *Book) Spares(until time.Duration) (n int) {
	for _, c := range b.spare {
		if b.usableUntil(c, until) {
			n++
		}
	}
	return n
}

// Seen returns the highest version at which this replica has seen a pod of the owner. The replica that it asks learns by it that its own watch
// is behind, see [Watch]: from the ledger it learns nothing if nobody else writes.
func (b *Book) Seen() uint64 { return b.newestPod }

// SeenElsewhere notes what [Book.Seen] is at another replica.
func (b *Book) SeenElsewhere(now time.Duration, version uint64) { b.watch.note(now, version) }

// Strategy returns the strategy of the request that came last if it has this fingerprint, and otherwise nil.
func (b *Book) Strategy(fingerprint string) *sequence.Strategy {
	if b.latest == nil || b.latest.Strategy.Fingerprint().String() != fingerprint {
		return nil
	}
	return b.latest.Strategy
}
