package ledger

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/stowage-dev/stowage/internal/spread"
)

// Seat is a place of one pod in a workload. Pools have names here, because a strategy
// may be edited while pods hold seats.
type Seat struct {
	Pool    string
	Ordinal int64 // from 1
}

// Claim is a seat given to a pod that was not seen yet.
type Claim struct {
	Seat
	// ID is what the pod carries; no two claims have the same.
	ID string
	// Settled is a resource version at which the claim's pod was there, or 0. Who has
	// applied that version to its store knows the pod better than the claim does.
	Settled uint64
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
	Live    bool   // not ending and not ended
	Version uint64 // resource version
}

// Timing is the waits of a book. The zero value is of no use; see [DefaultTiming].
type Timing struct {
	// Expiry is when a claim without a pod ends, after it was first seen. The API
	// server cuts a create off at 34 s, and etcd may commit it some 7 s later.
	Expiry time.Duration
	// Quiet is how long no request must have come before a write in a burst, and
	// Window the longest that the first of them waits for others.
	Quiet, Window time.Duration
	// Turn is how long a replica lets each of the others that write go first.
	Turn time.Duration
	// ReplicasFresh is how long a count that was read holds.
	ReplicasFresh time.Duration
	// MinPatience and MaxPatience bound how long a request waits for a watch that
	// shows too many pods, and how old a claim must be to be presumed dead. Within
	// them it is several times what claims took to settle lately.
	MinPatience, MaxPatience time.Duration
	// Reserve is the time before its deadline from which a request waits for nothing
	// but the API.
	Reserve time.Duration
	// Retry is the wait before a failed request to the API is tried again.
	Retry time.Duration
}

// DefaultTiming returns the waits that [Ledger] uses.
func DefaultTiming() Timing {
	return Timing{
		Expiry: time.Minute,
		Quiet:  4 * time.Millisecond, Window: 40 * time.Millisecond, Turn: 15 * time.Millisecond,
		ReplicasFresh: 50 * time.Millisecond,
		MinPatience:   250 * time.Millisecond, MaxPatience: 2 * time.Second,
		Reserve: 500 * time.Millisecond,
		Retry:   50 * time.Millisecond,
	}
}

// settleFactor is how many times the usual time to settle is "several".
const settleFactor = 5

// SettleTime is how long claims of this replica took lately until their pods were
// seen: a maximum that fades. Books of one replica share it.
type SettleTime struct{ max atomic.Int64 }

func (s *SettleTime) observe(d time.Duration) {
	old := s.max.Load()
	s.max.CompareAndSwap(old, max(int64(d), old-old/32)) // one that is lost is no matter
}

// patience is how long to wait for what usually comes.
func (t *Timing) patience(s *SettleTime) time.Duration {
	return min(max(settleFactor*time.Duration(s.max.Load()), t.MinPatience), t.MaxPatience)
}

// Request is a pod that waits for a seat.
type Request struct {
	Strategy *spread.Strategy
	// Deadline is when an answer is due, whatever the API does.
	Deadline time.Duration
	// Result is the answer; it is set when the request comes back in an action.
	Result Result

	arrived   time.Duration
	claim     *claim        // its seat, decided but not written yet
	blockedAt time.Duration // when its decision first met too many pods; 0 if it did not
	beyond    bool          // may take a seat beyond the replica count
	hurried   bool          // ... because there was no time to find out who is gone
}

// Result is the answer to a request.
type Result struct {
	Claim
	// Written says that the claim is in the ledger. It is not where the API was too
	// slow; then the seat comes from this replica's knowledge alone.
	Written bool
	// Hurried says that the deadline cut the replica check short, as it does where the
	// API fails and nobody is to wait for it: the seat may be next to one of a pod that
	// never came to be.
	Hurried bool
	// Err is spread.ErrFull if no pool may take the pod.
	Err error
}

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
	written   bool // in the ledger, as far as we know
	local     bool // never to be written: the API refuses it
	counted   bool // takes a seat in the table now
	dead      bool // presumed dead
	waiting   bool // its request has not been answered
}

// Book is one owner's seats as one replica knows them. Its methods take the time
// since some fixed moment; they neither block nor start anything. Call Step after
// every event, and at Wake, and perform the actions that it returns.
type Book struct {
	timing *Timing
	settle *SettleTime
	writer string        // this replica's name in the ledger
	newID  func() string // returns an id that was never used

	// What pods and claims hold.
	table  map[string]*poolSeats // by pool
	total  int64
	pods   map[string]Pod // by UID
	ids    map[string]uint64
	gone   map[string]time.Duration // ids of pods that are gone, and since when
	store  uint64                   // highest pod version that this replica has applied
	claims []*claim                 // in the order they became known
	byID   map[string]*claim

	// The ledger.
	version     uint64 // 0 if there is none
	newest      uint64 // highest version that was ever seen
	known       bool   // version and claims are the API's, as far as we know
	reading     bool
	outdated    bool          // the read under way began before a write whose fate is unknown
	readAt      time.Duration // when to read, if it is not known
	writing     bool
	news        *Object // came while a write was under way
	newsDeleted bool    // it is the version of a deletion
	changedAt   time.Duration
	lastWriter  string
	writers     map[string]time.Duration // replicas that wrote, and when
	owed        bool                     // seats were given away without a write
	failures    int                      // requests for the ledger that failed in a row

	// The owner's replica count.
	replicas      int64         // -1 is unknown
	replicasSince time.Duration // when the read of it began: it is not older
	replicasAt    time.Duration // when the answer came
	replicasRead  bool          // a read was answered at all
	replicasStart time.Duration // of the read under way
	readingCount  bool

	queue []*Request
	wake  time.Duration
}

// NewBook returns the book of an owner without pods and without a ledger.
func NewBook(timing *Timing, settle *SettleTime, writer string, newID func() string) *Book {
	return &Book{
		timing: timing, settle: settle, writer: writer, newID: newID,
		table: map[string]*poolSeats{}, pods: map[string]Pod{}, ids: map[string]uint64{}, gone: map[string]time.Duration{},
		byID: map[string]*claim{}, writers: map[string]time.Duration{},
		known: true, changedAt: -time.Hour, replicas: -1, wake: never,
	}
}

// Idle reports whether the book can be forgotten: nothing in it would be missed.
func (b *Book) Idle() bool {
	return len(b.pods) == 0 && len(b.claims) == 0 && len(b.queue) == 0 && len(b.gone) == 0 &&
		!b.writing && !b.reading && !b.readingCount && b.version == 0
}

// Wake returns when Step wants to be called again, if nothing happens before.
func (b *Book) Wake() (time.Duration, bool) { return b.wake, b.wake != never }

func (b *Book) wakeAt(t time.Duration) { b.wake = min(b.wake, t) }

// PodSeen notes what the watch shows of a pod.
func (b *Book) PodSeen(now time.Duration, uid string, p Pod) {
	old, had := b.pods[uid]
	if had && old.Live {
		b.release(old.Seat)
	}
	if had && old.ID != p.ID {
		b.forget(now, old.ID)
	}
	b.pods[uid] = p
	if p.Live {
		b.take(p.Seat)
	}
	if p.ID == "" {
		return
	}
	c := b.byID[p.ID]
	if _, ok := b.ids[p.ID]; !ok {
		b.ids[p.ID] = p.Version
		if c != nil && c.own {
			b.settle.observe(now - c.firstSeen)
		}
	}
	if c != nil && c.counted {
		b.uncount(c)
	}
}

// PodGone notes that a pod does not exist any more.
func (b *Book) PodGone(now time.Duration, uid string) {
	old, had := b.pods[uid]
	if !had {
		return
	}
	if old.Live {
		b.release(old.Seat)
	}
	delete(b.pods, uid)
	b.forget(now, old.ID)
}

// forget keeps the id of a pod that is gone for as long as its claim can come back
// from a ledger that is seen late.
func (b *Book) forget(now time.Duration, id string) {
	if id != "" {
		b.gone[id] = now
	}
}

// Applied notes that every pod event up to a resource version was passed to the book. A
// pod's own version does not say that: a list is in no order.
func (b *Book) Applied(version uint64) { b.store = max(b.store, version) }

// LedgerSeen notes the ledger as a watch shows it. An absent ledger has claims of
// none, and as its version the one of its deletion.
func (b *Book) LedgerSeen(now time.Duration, o Object, deleted bool) {
	if o.Version <= b.newest && (!deleted || o.Version != b.version) {
		return
	}
	b.newest = max(b.newest, o.Version)
	if b.writing {
		b.news, b.newsDeleted = &o, deleted
		return
	}
	if deleted {
		o = Object{}
	}
	b.adopt(now, &o)
}

// LedgerGone notes that the ledger of a version does not exist any more.
func (b *Book) LedgerGone(now time.Duration, version uint64) {
	if b.version == version && !b.writing {
		b.adopt(now, &Object{})
	}
}

// LedgerRead notes the answer to ReadLedger. A nil object means that the read failed.
func (b *Book) LedgerRead(now time.Duration, o *Object) {
	b.reading = false
	if b.outdated {
		b.outdated = false
		return // it is read again
	}
	if b.known { // the watch was faster, and a write may be under way since
		return
	}
	if o == nil {
		b.retry(now)
		return
	}
	if o.Version >= b.newest || o.Version == 0 {
		b.adopt(now, o)
	}
	b.known = true
	b.undecide()
}

// retry plans to read the ledger, later after each failure.
func (b *Book) retry(now time.Duration) {
	b.known, b.readAt = false, now+b.timing.Retry<<min(b.failures, 5)
	b.failures++
}

// ReplicasRead notes the answer to ReadReplicas: the owner's replica count, or -1 if
// it has none or could not be read.
func (b *Book) ReplicasRead(now time.Duration, replicas int64) {
	b.readingCount = false
	b.replicas, b.replicasSince, b.replicasAt, b.replicasRead = replicas, b.replicasStart, now, true
}

// WriteResult is what became of a write.
type WriteResult int

// The results of a write.
const (
	WriteOK        WriteResult = iota
	WriteConflict              // somebody else has written since
	WriteUncertain             // it may have been applied or not
	WriteRefused               // it was not applied, and another would not be either
)

// WriteDone notes the answer to Write. The object is the one that the API returned.
func (b *Book) WriteDone(now time.Duration, res WriteResult, o *Object) {
	b.writing = false
	b.outdated = b.reading
	news := b.news
	b.news = nil
	late := res == WriteOK && news != nil && news.Version <= o.Version // older than our write
	if news != nil && b.newsDeleted {
		news = &Object{}
	}
	switch res {
	case WriteOK:
		b.failures = 0
		b.adopt(now, o)
		if news != nil && !late {
			b.adopt(now, news)
		}
	case WriteConflict:
		if news != nil {
			b.adopt(now, news)
			return
		}
		// The watch brings the winner's write any moment now, at no cost.
		b.undecide()
		b.known, b.readAt = false, now+b.timing.Turn
	case WriteUncertain:
		// Seats stay decided until we know whether they are in the ledger. A newer
		// version says so: ours was for the one before it.
		b.retry(now)
		if news != nil {
			b.adopt(now, news)
		}
	case WriteRefused:
		// Nobody gains by waiting.
		for _, r := range b.queue {
			if r.claim != nil {
				r.Deadline, r.claim.local = now, true
			}
		}
		for _, c := range b.claims {
			c.local = c.local || !c.written && !c.waiting
		}
		b.retry(now)
	}
}

// adopt takes over a ledger from the API.
func (b *Book) adopt(now time.Duration, o *Object) {
	b.version, b.newest, b.known = o.Version, max(b.newest, o.Version), true
	b.changedAt, b.lastWriter = now, o.Writer
	if o.Writer != "" {
		b.writers[o.Writer] = now
	}
	in := make(map[string]bool, len(o.Claims))
	for _, c := range o.Claims {
		in[c.ID] = true
		have := b.byID[c.ID]
		if have == nil {
			have = &claim{Claim: c, firstSeen: now}
			b.byID[c.ID] = have
			b.claims = append(b.claims, have)
		}
		have.written = true
		have.Settled = max(have.Settled, c.Settled)
	}
	b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool {
		if in[c.ID] || !c.written {
			return false
		}
		b.drop(c)
		return true
	})
	// A decision that was made on another version is made again.
	b.undecide()
}

// undecide takes back the seats of waiting requests that are not in the ledger. Seats
// that are given away already stay, and are owed to it.
func (b *Book) undecide() {
	b.noteOwed()
	for _, r := range b.queue {
		if r.claim != nil && !r.claim.written {
			b.drop(r.claim)
			b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool { return c == r.claim })
			r.claim = nil
		}
	}
}

// noteOwed notes whether seats were given away that the ledger should have.
func (b *Book) noteOwed() {
	b.owed = slices.ContainsFunc(b.claims, func(c *claim) bool { return !c.written && !c.waiting && !c.local })
}

func (b *Book) drop(c *claim) {
	if c.counted {
		b.uncount(c)
	}
	delete(b.byID, c.ID)
}

func (b *Book) uncount(c *claim) {
	c.counted = false
	b.release(c.Seat)
}

// Enqueue adds a pod that waits for a seat.
func (b *Book) Enqueue(now time.Duration, r *Request) {
	r.arrived = now
	if b.failures >= brokenAfter {
		// What is left is for the replica check, which needs no ledger.
		r.Deadline = min(r.Deadline, now+b.timing.MinPatience+b.timing.Reserve)
	}
	b.queue = append(b.queue, r)
}

// Step decides what to do now.
func (b *Book) Step(now time.Duration) []Action {
	var acts []Action
	b.wake = never

	// 1. Answer those whose claims are written, and those who cannot wait any more.
	acts = b.answer(now, acts)
	if b.writing || len(b.queue) == 0 && !b.owed {
		return acts
	}

	// 2. Know the ledger and the replica count, reading both at once if need be.
	if !b.known && !b.reading {
		if now < b.readAt {
			b.wakeAt(b.readAt)
		} else {
			b.reading = true
			acts = append(acts, Action{ReadLedger: true})
		}
	}
	fresh := b.replicasRead && now-b.replicasAt <= b.timing.ReplicasFresh
	if !fresh && !b.readingCount && len(b.queue) > 0 {
		b.readingCount, b.replicasStart = true, now
		acts = append(acts, Action{ReadReplicas: true})
	}
	if !b.known || !fresh && len(b.queue) > 0 {
		return acts
	}

	// 3. Wait for others to share the write, and for other replicas' turns.
	if t := b.commitAt(now); now < t {
		b.wakeAt(t)
		return acts
	}

	// 4. Decide for everyone who waits, and write.
	acts, decided := b.decide(now, acts)
	if !decided && !b.owed {
		return acts
	}
	b.writing = true
	return append(acts, Action{Write: b.compose(now)})
}

// answer takes the requests out of the queue that can be answered.
func (b *Book) answer(now time.Duration, acts []Action) []Action {
	b.queue = slices.DeleteFunc(b.queue, func(r *Request) bool {
		switch {
		case r.claim != nil && r.claim.written:
			r.claim.waiting = false
			r.Result = Result{Claim: r.claim.Claim, Written: true, Hurried: r.hurried}
		case r.Deadline <= now:
			if r.claim == nil {
				b.refresh(now)
				if err := b.seat(now, r); err != nil {
					r.Result = Result{Err: err}
					break
				}
			}
			// The claim stays: other replicas learn of it with the next write.
			r.claim.waiting = false
			b.owed = b.owed || !r.claim.local
			r.Result = Result{Claim: r.claim.Claim}
		default:
			b.wakeAt(r.Deadline)
			return false
		}
		acts = append(acts, Action{Answer: r})
		return true
	})
	return acts
}

// commitAt returns when to write. Each write that is not alone waits a moment for
// requests to join, and for those replicas whose turn comes first: a write that meets
// another one is lost. Turns save conflicts; they are not needed for being right.
func (b *Book) commitAt(now time.Duration) time.Duration {
	const active = 500 * time.Millisecond
	since := now - b.changedAt
	if since > active || len(b.queue) == 0 {
		return now
	}
	first, last := b.queue[0].arrived, b.queue[len(b.queue)-1].arrived
	at := min(last+b.timing.Quiet, first+b.timing.Window)

	// The order of turns is that of the names, after the last writer.
	ahead, others := 0, 0
	for w, t := range b.writers {
		if now-t > active {
			delete(b.writers, w)
			continue
		}
		if w == b.writer {
			continue
		}
		others++
		if between(b.lastWriter, w, b.writer) {
			ahead++
		}
	}
	if others > 0 {
		if b.lastWriter == b.writer {
			ahead = others
		}
		at = max(at, b.changedAt+time.Duration(ahead+1)*b.timing.Turn)
	}
	return at
}

// between reports whether w comes after one name and before another, going round.
func between(after, w, before string) bool {
	if after < before {
		return after < w && w < before
	}
	return after < w || w < before
}

// decide gives a seat to everyone who may have one now.
func (b *Book) decide(now time.Duration, acts []Action) ([]Action, bool) {
	b.refresh(now)
	decided := false
	b.queue = slices.DeleteFunc(b.queue, func(r *Request) bool {
		if r.claim != nil {
			decided = true
			return false
		}
		if b.replicas >= 0 && b.total+1 > b.replicas && !b.mayExceed(now, r, &acts) {
			return false
		}
		if err := b.seat(now, r); err != nil {
			r.Result = Result{Err: err}
			acts = append(acts, Action{Answer: r})
			return true
		}
		decided = true
		return false
	})
	return acts, decided
}

// mayExceed is the replica check: with one pod more there would be more than the
// owner asks for, so something that is counted is gone. It reports whether the request
// can be decided now.
func (b *Book) mayExceed(now time.Duration, r *Request, acts *[]Action) bool {
	if r.beyond {
		return true
	}
	// A count that was read before the pod was created may be older than its reason.
	if b.replicasSince < r.arrived {
		if !b.readingCount {
			b.readingCount, b.replicasStart = true, now
			*acts = append(*acts, Action{ReadReplicas: true})
		}
		return false
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
	// 2. Claims that should have settled by now are of pods that never came to be. The
	// decision is a new one: whose seat a dead claim has is of no meaning.
	young := false
	for _, c := range b.claims {
		switch {
		case !c.counted || c.waiting:
		case now-c.firstSeen >= patience:
			c.dead = true
			b.uncount(c)
		default:
			young = true
			b.wakeAt(c.firstSeen + patience)
		}
	}
	if b.total+1 <= b.replicas {
		return true
	}
	if t := min(r.blockedAt+2*patience, latest); young && now < t {
		b.wakeAt(t)
		return false
	}
	r.hurried = young && now < r.blockedAt+2*patience
	// 3. The controller is behind a scale-down, and the seat is the first to go.
	r.beyond = true
	return true
}

// seat gives a request the next seat.
func (b *Book) seat(now time.Duration, r *Request) error {
	s, err := r.Strategy.Next(held{b, r.Strategy})
	if err != nil {
		return err
	}
	c := &claim{
		Claim:     Claim{Seat: Seat{Pool: r.Strategy.Pool(s.Pool).Name, Ordinal: s.Ordinal}, ID: b.newID()},
		firstSeen: now, own: true, counted: true, waiting: true,
	}
	b.claims = append(b.claims, c)
	b.byID[c.ID] = c
	b.take(c.Seat)
	r.claim = c
	return nil
}

// Spent returns the ledger's version if nothing in it is of use to anybody any more.
func (b *Book) Spent(now time.Duration) (version uint64, ok bool) {
	if b.version == 0 || b.writing || b.owed || len(b.queue) > 0 {
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
func (b *Book) Peek(now time.Duration, s *spread.Strategy) (Seat, error) {
	b.refresh(now)
	seat, err := s.Next(held{b, s})
	if err != nil {
		return Seat{}, err
	}
	return Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}, nil
}

// Claimed reports whether an id is of a claim that counts: its pod was not seen yet, and
// may still come.
func (b *Book) Claimed(now time.Duration, id string) bool {
	b.refresh(now)
	c := b.byID[id]
	return c != nil && c.counted
}

// refresh brings the table up to date with what claims count now.
func (b *Book) refresh(now time.Duration) {
	for _, c := range b.claims {
		_, seen := b.ids[c.ID]
		counts := !seen && !c.dead && (c.Settled == 0 || b.store < c.Settled) && now-c.firstSeen < b.timing.Expiry
		switch {
		case counts && !c.counted:
			c.counted = true
			b.take(c.Seat)
		case !counts && c.counted:
			b.uncount(c)
		}
	}
	// Nobody gains by learning of a seat that was never written and is no claim any more.
	b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool {
		if c.written || c.waiting || c.counted {
			return false
		}
		b.drop(c)
		return true
	})
	b.noteOwed()
}

// compose returns the ledger that is to be written: what counts, what may still count
// elsewhere, and what this replica can say about it.
func (b *Book) compose(now time.Duration) *Object {
	counted := make(map[Seat]bool, len(b.claims))
	for _, c := range b.claims {
		if c.counted {
			counted[c.Seat] = true
		}
	}
	o := &Object{Version: b.version, Writer: b.writer, Claims: make([]Claim, 0, len(b.claims))}
	for _, c := range b.claims {
		if now-c.firstSeen >= b.timing.Expiry {
			continue
		}
		if !c.counted && counted[c.Seat] {
			continue // one claim per seat: the newer one replaces it
		}
		if version, seen := b.ids[c.ID]; seen && c.Settled == 0 {
			c.Settled = version
		}
		o.Claims = append(o.Claims, c.Claim)
	}
	return o
}

// The states of claims. They are a metric label.
const (
	stateDeciding = "deciding"
	statePending  = "pending"
	stateSettled  = "settled"
	stateDead     = "dead"
)

// tally adds the number of claims in each state.
func (b *Book) tally(states map[string]int) {
	for _, c := range b.claims {
		switch {
		case c.waiting:
			states[stateDeciding]++
		case c.counted:
			states[statePending]++
		case c.dead:
			states[stateDead]++
		default:
			states[stateSettled]++
		}
	}
}

// Forget removes what no claim that comes late can ask for any more.
func (b *Book) Forget(now time.Duration) {
	b.refresh(now)
	for id, t := range b.gone {
		if now-t > 2*b.timing.Expiry {
			delete(b.gone, id)
			delete(b.ids, id)
		}
	}
}

// held shows a book's seats to a strategy.
type held struct {
	b *Book
	s *spread.Strategy
}

func (h held) Count(pool int) int64 {
	if p := h.b.table[h.s.Pool(pool).Name]; p != nil {
		return p.count
	}
	return 0
}

func (h held) LowestFree(pool int) int64 {
	if p := h.b.table[h.s.Pool(pool).Name]; p != nil {
		return p.lowestFree()
	}
	return 1
}

func (b *Book) take(s Seat) {
	p := b.table[s.Pool]
	if p == nil {
		p = &poolSeats{}
		b.table[s.Pool] = p
	}
	p.take(s.Ordinal)
	b.total++
}

func (b *Book) release(s Seat) {
	p := b.table[s.Pool]
	p.release(s.Ordinal)
	b.total--
	if p.count == 0 {
		delete(b.table, s.Pool)
	}
}

// maxOrdinal bounds the memory of a pool's table. A seat beyond it counts, and its
// ordinal is not kept free.
const maxOrdinal = 1 << 20

// poolSeats is who holds the ordinals of a pool.
type poolSeats struct {
	count int64
	held  []uint16 // how many hold ordinal i+1
	low   int      // no index below it is free
}

func (p *poolSeats) take(ordinal int64) {
	p.count++
	if ordinal < 1 || ordinal > maxOrdinal {
		return
	}
	for int64(len(p.held)) < ordinal {
		p.held = append(p.held, 0)
	}
	p.held[ordinal-1]++
}

func (p *poolSeats) release(ordinal int64) {
	p.count--
	if ordinal < 1 || ordinal > maxOrdinal {
		return
	}
	p.held[ordinal-1]--
	if p.held[ordinal-1] == 0 {
		p.low = min(p.low, int(ordinal-1))
	}
}

func (p *poolSeats) lowestFree() int64 {
	for p.low < len(p.held) && p.held[p.low] > 0 {
		p.low++
	}
	return int64(p.low) + 1
}
