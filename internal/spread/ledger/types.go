package ledger

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Seat is a place of one pod in a workload. Pools have names here, because a strategy
// may be edited while pods hold seats.
type Seat struct {
	Pool    string // its [sequence.Pool.Key]
	Ordinal int64  // from 1
	// Domain is the domain of the pool, such as a zone, or empty. A book knows none: the domain follows from pool and ordinal.
	Domain string
}

// Cell is a domain of a pool.
type Cell struct{ Pool, Domain string }

// Claim is a seat given to a pod that was not seen yet.
type Claim struct {
	Seat
	// ID is what the pod carries; no two claims have the same.
	ID string
	// Settled is a resource version at which the claim's pod was there, or 0. Who has
	// applied that version to its store knows the pod better than the claim does.
	Settled uint64
	// Ahead says that no pod has the claim yet: the replica that wrote it keeps it for one to come.
	Ahead bool
}

// Object is a ledger as the API has it.
type Object struct {
	Version uint64 // its resource version; 0 if there is none
	Writer  string // the replica that wrote last
	Claims  []Claim
}

// Pod is what a book knows of a pod.
type Pod struct {
	Seat
	ID      string // its claim; empty if it never needed one
	Active  bool   // not ending and not ended
	Version uint64 // resource version
}

// Timing is the waits of a book. The zero value is of no use; see [DefaultTiming].
type Timing struct {
	// Expiry is how long after it was first seen a claim without a pod may end. The API server cuts a create off at
	// 34 s, and etcd may commit it some 7 s later.
	Expiry time.Duration
	// Quiet is how long no request must have come before a write in a burst. Window is the longest that the first of
	// them waits for others.
	Quiet, Window time.Duration
	// Conflict is how long after a conflict the watch may take to bring the other write, before the ledger is read.
	Conflict time.Duration
	// Ahead is how long after sending a write a replica may use the seats that it claimed ahead. Pause is how long
	// after its last request it gives them back.
	Ahead, Pause time.Duration
	// ReplicasFresh is how long a count that was read holds, while no pod of the owner ends. In a burst it holds as long as a seat ahead.
	ReplicasFresh time.Duration
	// MinPatience and MaxPatience bound how long a request waits for a watch that shows too many pods. They also
	// bound how old a claim must be to be presumed dead. Within them it is several times what claims took to settle
	// lately. MaxPatience, Ahead and Reserve fit the time of a request, so that it sees claims ahead of a replica that
	// is gone presumed dead.
	MinPatience, MaxPatience time.Duration
	// Late is how late an answer to the API server may be used at most, as far as that is not known of a claim: no claim is presumed dead sooner.
	Late time.Duration
	// Reserve is the time before its deadline from which a request waits for nothing
	// but the API.
	Reserve time.Duration
	// Retry is the wait before a failed request to the API is tried again. Busy is the wait after one that the API server
	// had no room for.
	Retry, Busy time.Duration
	// Jitter, if set, returns a number from 0 to 1. It keeps those that failed together from trying again together.
	Jitter func() float64
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{
		Expiry: time.Minute,
		Quiet:  4 * time.Millisecond, Window: 40 * time.Millisecond, Conflict: 15 * time.Millisecond,
		Ahead: 1500 * time.Millisecond, Pause: 90 * time.Millisecond,
		ReplicasFresh: 50 * time.Millisecond,
		MinPatience:   250 * time.Millisecond, MaxPatience: 1500 * time.Millisecond,
		Late:    time.Second,
		Reserve: 500 * time.Millisecond,
		Retry:   50 * time.Millisecond, Busy: 500 * time.Millisecond,
	}
}

// later returns when to try again what has failed: after half of a wait to all of it.
func (t *Timing) later(now, wait time.Duration) time.Duration {
	if t.Jitter != nil {
		wait -= time.Duration(t.Jitter() * float64(wait/2))
	}
	return now + wait
}

// settleFactor is how many times the usual time to settle is "several".
const settleFactor = 5

// SettleTime is how long claims of this replica took lately until their pods were
// seen: a maximum that fades. Books of one replica share it.
type SettleTime struct{ max atomic.Int64 }

// observe notes a time, which is bounded: one pod that is created slowly must not make all others wait for long.
func (s *SettleTime) observe(d, most time.Duration) {
	d = min(d, most)
	old := s.max.Load()
	s.max.CompareAndSwap(old, max(int64(d), old-old/32)) // one that is lost is no matter
}

// patience is how long to wait for what usually comes.
func (t *Timing) patience(s *SettleTime) time.Duration {
	return min(max(settleFactor*time.Duration(s.max.Load()), t.MinPatience), t.MaxPatience)
}

// Request is a pod that waits for a seat.
type Request struct {
	Strategy *sequence.Strategy
	// WriteCost says that Stowage writes the pod's deletion cost. The claim's id then has the seat's rank.
	WriteCost bool
	// Held says that the pod exists and waits for its seat, which a patch writes into it. Its claim is marked as ahead, so
	// that other replicas presume it dead that much later. If it leaves the ledger, they know that it was given back.
	Held bool
	// Within says that the pod gets no seat beyond the pods that its owner asks for, but [ErrBeyond]. Two replicas that lead for a moment
	// ask for the same pods.
	Within bool
	// Relayed says that another replica asks, and claims a seat itself if it is told none. So it gets no seat that is a guess or beyond
	// what the owner asks for, but [ErrBeyond] or [ErrLate]. Its answer is used later than one of our own, so its claim is marked as one of a pod
	// that is held.
	Relayed bool
	// Refer says that the pod's replica asks another one that writes the ledger, see [Book.Writer]. As soon as the book learns of one, the
	// request is answered with [ErrElsewhere].
	Refer bool
	// Deadline is when an answer is due, whatever the API does.
	Deadline time.Duration
	// Result is the answer; it is set when the request comes back in an action.
	Result Result

	arrived    time.Duration
	claim      *claim        // its seat, decided but not written yet
	blockedAt  time.Duration // when its decision first met too many pods; 0 if it did not
	beyond     bool          // may take a seat beyond the replica count
	unverified bool          // ... because there was no time to find out who is gone
	ahead      bool          // has a seat that was claimed before
}

// usedElsewhere reports whether the seat is for the gate's leader or another replica, which may use it for as long as [Timing.Ahead] says.
func (r *Request) usedElsewhere() bool { return r.Held || r.Relayed }

// Result is the answer to a request.
type Result struct {
	Claim
	// Written says that the claim is in the ledger. It is not where the API was too
	// slow; then the seat comes from this replica's knowledge alone.
	Written bool
	// Unverified is whether the deadline cut the replica check short, as it does where the API fails and nobody is to
	// wait for it. The seat may be next to one of a pod that was never created, and with Err a seat may be free.
	Unverified bool
	// Until is the last moment at which a held claim may be used. Other replicas may presume it dead some time later, see
	// [Timing.MinPatience]. It is 0 of other claims.
	Until time.Duration
	// Prepared says that the seat was claimed before the request came.
	Prepared bool
	// Err is sequence.ErrFull if no pool may take the pod, ErrBeyond, ErrLate or ErrElsewhere.
	Err error
}

// ErrBeyond means that the owner of a pod asks for no more pods than have seats, as far as is known.
var ErrBeyond = errors.New("its owner asks for no more pods than have seats")

// ErrElsewhere means that another replica is to be asked.
var ErrElsewhere = errors.New("another replica writes the ledger")

// ErrLate means that no seat was decided in time.
var ErrLate = errors.New("the API was too slow")

// brokenAfter is how many requests for a ledger must have failed in a row before pods
// do not wait for it any more.
const brokenAfter = 4

// Action is something to do for a book. Exactly one field is set.
type Action struct {
	Write        *Object // replace the ledger, if its version still is this one
	ReadLedger   bool
	ReadReplicas bool
	Answer       *Request
}

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// claim is a claim as a book keeps it.
type claim struct {
	Claim
	firstSeen time.Duration
	own       bool // made by this book
	place     place
	end       end
	counted   bool // takes a seat in the table now
	waiting   bool // its request has not been answered

	ahead    *ahead        // set while a request to come may have it
	wasAhead bool          // it was claimed ahead
	until    time.Duration // of a held one of this book: see [Result]; 0 of others
}

// unused reports whether a claim was given away, and nobody has seen its pod or ended it.
func (c *claim) unused() bool { return !c.waiting && c.Settled == 0 && c.end == open }

// place is where a claim is, as far as the book knows.
type place int

const (
	unwritten place = iota // the next write adds it
	written                // in the ledger
	apart                  // not to be written: the API refuses it, or it has left the ledger
)

// end is whether the pod of a claim may still come.
type end int

const (
	open end = iota // it may come
	dead            // it is presumed never to come
	void            // no pod had the claim, and none will
)

// WriteResult is what became of a write.
type WriteResult int

// The results of a write.
const (
	WriteOK        WriteResult = iota
	WriteConflict              // another client has written since
	WriteUncertain             // it may have been applied or not
	WriteRefused               // it was not applied, and another would not be either
	WriteBusy                  // it was not applied: the API server has no room for it now
)
