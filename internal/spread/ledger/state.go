package ledger

import (
	"maps"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Idle reports whether the book can be forgotten: nothing in it would be missed.
func (b *Book) Idle() bool {
	return b.version == 0 && len(b.pods)+len(b.claims)+len(b.queue)+len(b.gone) == 0 && !b.asking()
}

// asking reports whether a request of the book to the API server is under way.
func (b *Book) asking() bool { return b.writing || b.reading || b.readingCount }

// Spent returns the ledger's version if nothing in it is of use to anybody any more.
func (b *Book) Spent(now time.Duration) (version uint64, ok bool) {
	if b.version == 0 || b.writing || b.unwritten || len(b.queue) > 0 {
		return 0, false
	}
	for _, c := range b.claims {
		if now-c.firstSeen < b.timing.Expiry {
			return 0, false
		}
	}
	return b.version, true
}

// Peek returns the seat that a pod would get now, for a dry run.
func (b *Book) Peek(now time.Duration, s *sequence.Strategy) (Seat, error) {
	b.refresh(now)
	seat, err := s.Admit(held{b, s})
	if err != nil {
		return Seat{}, err
	}
	return Seat{Pool: s.PoolKey(seat.Pool), Ordinal: seat.Ordinal}, nil
}

// Unshared returns the first seat of a strategy as a claim that is in no ledger and that no book remembers. See Request.WriteCost.
func Unshared(s *sequence.Strategy, writeCost bool) (Result, error) {
	timing := DefaultTiming()
	c, err := NewBook(&timing, &Shared{}, "", NewID).claim(0, s, writeCost)
	if err != nil {
		return Result{Err: err}, err
	}
	return Result{Claim: c.Claim}, nil
}

// Claimed reports whether an id is of a claim that counts: its pod was not seen yet, and
// may still come.
func (b *Book) Claimed(now time.Duration, id string) bool {
	b.refresh(now)
	c := b.byID[id]
	return c != nil && c.counted
}

// Knows reports whether this book has seen a claim or its pod.
func (b *Book) Knows(id string) bool {
	_, seen := b.ids[id]
	return seen || b.byID[id] != nil
}

// Unwritten is the number of claims that the next write adds to the ledger.
func (b *Book) Unwritten() int {
	n := 0
	for _, c := range b.claims {
		if c.place == unwritten {
			n++
		}
	}
	return n
}

// The states of claims. They are a metric label.
const (
	StateDeciding = "deciding" // its request waits for the answer
	StatePending  = "pending"  // its pod was not seen yet
	StateSettled  = "settled"  // its pod was seen
	StateDead     = "dead"     // its pod is presumed never to come
)

// States are the states of claims.
var States = []string{StateDeciding, StatePending, StateSettled, StateDead}

// Tally adds the number of claims in each state.
func (b *Book) Tally(states map[string]int) {
	for _, c := range b.claims {
		switch {
		case c.waiting:
			states[StateDeciding]++
		case c.counted:
			states[StatePending]++
		case c.end != open:
			states[StateDead]++
		default:
			states[StateSettled]++
		}
	}
}

// Forget removes what no claim that comes late can ask for any more.
func (b *Book) Forget(now time.Duration) {
	b.refresh(now)
	b.recent(now)
	maps.DeleteFunc(b.granted, func(_ string, since time.Duration) bool { return now-since > b.timing.Expiry })
	for id, t := range b.gone {
		if now-t > 2*b.timing.Expiry && b.byID[id] == nil {
			delete(b.gone, id)
			delete(b.ids, id)
		}
	}
}

// Summary is what a book knows, for support.
type Summary struct {
	// Pods are those with a seat, and Pools how many seats of each pool are held or claimed.
	Pods  int              `json:"pods"`
	Pools map[string]int64 `json:"pools"`
	// Claims are by state: see [States].
	Claims map[string]int `json:"claims,omitempty"`
	// Waiting are the requests without an answer.
	Waiting int `json:"waiting,omitempty"`
	// Replicas is the owner's replica count as it was read last, or -1.
	Replicas int64 `json:"replicas"`
	// LedgerVersion is the resource version of the SeatLedger, or 0 if there is none. Failures is how many requests
	// for it have failed in a row.
	LedgerVersion uint64 `json:"ledgerVersion,omitempty"`
	Failures      int    `json:"failures,omitempty"`
}

// Summary sums up the book.
func (b *Book) Summary() Summary {
	s := Summary{Pods: len(b.pods), Pools: map[string]int64{}, Claims: map[string]int{}, Waiting: len(b.queue), Replicas: b.replicas, LedgerVersion: b.version, Failures: b.failures}
	for name, pool := range b.table {
		s.Pools[name] = pool.count
	}
	b.Tally(s.Claims)
	return s
}
