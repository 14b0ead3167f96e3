package ledger

import (
	"slices"
	"time"
)

// Book is one owner's seats as one replica knows them. Its methods take the time
// since some fixed moment; they neither block nor start anything. Call Step after
// every event, and at Wake, and perform the actions that it returns.
type Book struct {
	timing *Timing
	settle *SettleTime
	watch  *Watch
	load   *Load
	writer string        // this replica's name in the ledger
	newID  func() string // returns an id that was never used

	// What pods and claims hold.
	table     map[string]*poolSeats // by pool
	total     int64
	pods      map[string]Pod // by UID
	ids       map[string]uint64
	gone      map[string]time.Duration // ids of pods that are gone, and since when
	store     uint64                   // highest pod version that this replica has applied
	granted   map[string]time.Duration // ids of seats that others gave to pods of this replica, not seen yet, and since when
	newestPod uint64                   // highest version of a pod of the owner
	claims    []*claim                 // in the order they became known
	byID      map[string]*claim

	// The ledger.
	version         uint64 // 0 if there is none
	wroteLast       string // the replica that wrote this version
	newest          uint64 // highest version that was ever seen
	known           bool   // version and claims are the API's, as far as we know
	reading         bool
	outdated        bool          // the read under way began before a write whose fate is unknown
	readAt          time.Duration // when to read, if it is not known
	writing         bool
	sentAt          time.Duration // when the last write was sent
	observed        *Object       // came while a write was under way
	observedDeleted bool          // it is the version of a deletion
	changedAt       time.Duration
	unwritten       bool          // seats were given away or given back, and no write says so yet
	failures        int           // requests for the ledger that failed in a row
	heldUntil       time.Duration // no request before: the API server has no room
	heldFor         time.Duration // the end of the replica's wait that heldUntil was made of

	// The owner's replica count.
	replicas      int64         // -1 is unknown
	replicasSince time.Duration // when the read of it began: it is not older
	replicasAt    time.Duration // when the answer came
	replicasStart time.Duration // of the read under way
	readingCount  bool
	countFailures int           // reads of it that failed in a row
	countAt       time.Duration // when to read it again after a failure
	endedAt       time.Duration // when a pod was last seen to end

	queue     []*Request
	arrivals  []time.Duration // of requests lately, see recent
	latest    *Request        // the one that came last
	requestAt time.Duration   // when the last one came or was answered
	relayedAt time.Duration   // when the last one of another replica came
	gaveBack  bool            // seats ahead were given back since the last one came
	spare     []*claim        // claimed ahead, with some that are not to be used any more
	seatedBy  shares          // which replicas have seated the pods seen lately
	wake      time.Duration
}

// NewBook returns the book of an owner without pods and without a ledger.
func NewBook(timing *Timing, shared *Shared, writer string, newID func() string) *Book {
	return &Book{
		timing: timing, settle: &shared.settle, watch: &shared.Watch, load: &shared.Load, writer: writer, newID: newID,
		table: map[string]*poolSeats{}, pods: map[string]Pod{}, ids: map[string]uint64{}, gone: map[string]time.Duration{},
		byID: map[string]*claim{}, granted: map[string]time.Duration{},
		known: true, changedAt: -time.Hour, endedAt: -time.Hour, replicasSince: -time.Hour, replicasAt: -time.Hour, relayedAt: -time.Hour, replicas: -1, wake: never,
	}
}

// Wake returns when Step wants to be called again, if nothing happens before.
func (b *Book) Wake() (time.Duration, bool) { return b.wake, b.wake != never }

func (b *Book) wakeAt(t time.Duration) { b.wake = min(b.wake, t) }

// PodSeen notes what the watch shows of a pod.
func (b *Book) PodSeen(now time.Duration, uid string, p Pod) {
	old, had := b.pods[uid]
	if had && old.Active {
		b.release(old.Seat, old.ID)
	}
	if had && old.ID != p.ID {
		b.forget(now, old.ID)
	}
	b.pods[uid] = p
	b.newestPod = max(b.newestPod, p.Version)
	if had && old.Active && !p.Active {
		b.endedAt = now
	}
	if p.Active {
		b.take(p.Seat, p.ID)
	}
	if p.ID == "" {
		return
	}
	c := b.byID[p.ID]
	if _, ok := b.ids[p.ID]; !ok {
		b.ids[p.ID] = p.Version
		b.firstSeen(now, p.ID, c)
	}
	if c != nil && c.counted {
		b.uncount(c)
	}
}

// firstSeen notes how long the pod of a claim has taken, and which replica was asked for it. The claim is nil if this book does not know it.
func (b *Book) firstSeen(now time.Duration, id string, c *claim) {
	since, own := b.granted[id]
	delete(b.granted, id)
	if c != nil && c.own {
		since, own = c.firstSeen, true
	}
	if own {
		b.settle.observe(now-since, b.timing.MaxPatience)
	}
	if own || c != nil { // pods from before this process do not show which replica is called now
		b.seatedBy.count(own)
	}
}

// PodGone notes that a pod does not exist any more.
func (b *Book) PodGone(now time.Duration, uid string) {
	old, had := b.pods[uid]
	if !had {
		return
	}
	if old.Active {
		b.release(old.Seat, old.ID)
		b.endedAt = now
	}
	delete(b.pods, uid)
	b.forget(now, old.ID)
}

// forget keeps the id of a pod that is gone, as long as a ledger that is seen late can bring its claim back.
func (b *Book) forget(now time.Duration, id string) {
	if id != "" {
		b.gone[id] = now
	}
}

// Applied notes that every pod event up to a resource version was passed to the book. A
// pod's own version does not say that: a list is in no order.
func (b *Book) Applied(version uint64) {
	b.store = max(b.store, version)
	b.watch.Reached(version)
}

// GiveBack ends a claim of this book, because no pod will have it. The next write leaves it out of the ledger. A claim whose pod was
// seen stays.
func (b *Book) GiveBack(id string) {
	c := b.byID[id]
	if c == nil || !c.own || !c.unused() {
		return
	}
	if _, seen := b.ids[id]; !seen {
		b.void(c)
	}
}

// LedgerSeen notes the ledger as a watch shows it. An absent ledger has claims of
// none, and as its version the one of its deletion.
func (b *Book) LedgerSeen(now time.Duration, o Object, deleted bool) {
	if o.Version <= b.newest && (!deleted || o.Version != b.version) {
		return
	}
	b.newest = max(b.newest, o.Version)
	if b.writing {
		b.observed, b.observedDeleted = &o, deleted
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
	b.withdraw()
}

// retry plans to read the ledger, later after each failure.
func (b *Book) retry(now time.Duration) {
	b.known, b.readAt = false, b.timing.later(now, b.timing.Retry<<min(b.failures, 5))
	b.failures++
}

// WriteDone notes the answer to Write. The object is the one that the API returned.
func (b *Book) WriteDone(now time.Duration, res WriteResult, o *Object) {
	b.writing = false
	b.outdated = b.reading
	observed := b.observed
	b.observed = nil
	late := res == WriteOK && observed != nil && observed.Version <= o.Version // older than our write
	if observed != nil && b.observedDeleted {
		observed = &Object{}
	}
	switch res {
	case WriteOK:
		b.failures = 0
		b.watch.wrote(b.sentAt, o.Version)
		b.adopt(now, o)
		if observed != nil && !late {
			b.adopt(now, observed)
		}
	case WriteConflict:
		if observed != nil {
			b.adopt(now, observed)
			return
		}
		// The watch brings the winner's write any moment now, at no cost.
		b.withdraw()
		b.known, b.readAt = false, now+b.timing.Conflict
	case WriteUncertain:
		// Seats stay decided until we know whether they are in the ledger. A newer
		// version says so: ours was for the one before it.
		b.retry(now)
		if observed != nil {
			b.adopt(now, observed)
		}
	case WriteBusy:
		// The ledger is as it was. What was decided is decided anew when there is room.
		b.heldUntil = max(b.heldUntil, b.timing.later(now, b.timing.Busy))
		b.withdraw()
		if observed != nil {
			b.adopt(now, observed)
		}
	case WriteRefused:
		b.giveUpWriting(now)
		b.retry(now)
	}
}

// giveUpWriting leaves the claims apart that no write can bring into the ledger or out of it. Nobody gains by waiting.
func (b *Book) giveUpWriting(now time.Duration) {
	for _, r := range b.queue {
		if r.claim != nil {
			r.Deadline = now
			if r.claim.place == unwritten {
				r.claim.place = apart
			}
		}
	}
	b.dropAhead()
	for _, c := range b.claims {
		switch {
		case c.end == void:
			c.place = apart // it stays in the ledger, as the claims of a replica that is gone do
		case c.place == unwritten && !c.waiting:
			c.place = apart
		}
	}
}

// Enqueue adds a pod that waits for a seat.
func (b *Book) Enqueue(now time.Duration, r *Request) {
	r.arrived, b.requestAt, b.latest, b.gaveBack = now, now, r, false
	if r.Relayed {
		b.relayedAt = now
	}
	b.arrivals = append(b.arrivals, now)
	b.recent(now) // forgets the older ones
	if b.Struggles() {
		// What is left is for the replica check, which needs no ledger.
		r.Deadline = min(r.Deadline, now+b.timing.MinPatience+b.timing.Reserve)
	}
	b.queue = append(b.queue, r)
}

// Step decides what to do now.
func (b *Book) Step(now time.Duration) []Action {
	var acts []Action
	b.wake = never

	// 1. Answer those whose claims are written, those who cannot wait any more, and those who are to ask another replica.
	b.useAhead(now)
	acts = b.answer(now, acts)
	acts = b.refer(now, acts)
	b.wakeAhead()
	if b.replicasExpireSoon(now) {
		acts = b.readReplicas(now, acts)
	}
	wanted := len(b.queue) > 0 || !b.writing && b.runsShort(now) // seats
	if b.writing || !wanted && !b.unwritten || b.waitsForRoom(now) {
		return acts
	}

	// 2. Know the ledger and the replica count, reading both at once if need be.
	fresh := b.replicasHold(now)
	acts, enough := b.learn(now, wanted && !fresh, acts)
	if !enough {
		return acts
	}

	// 3. Wait for others to share the write.
	if t := b.commitAt(now); now < t {
		b.wakeAt(t)
		return acts
	}

	// 4. Decide for everyone who waits, and write.
	acts, decided := b.decide(now, fresh, acts)
	claimed := fresh && b.claimAhead(now)
	if !decided && !claimed && !b.unwritten {
		return acts
	}
	b.writing, b.sentAt = true, now
	return append(acts, Action{Write: b.compose(now)})
}

// learn has the ledger read and, if need be, the replica count. It reports whether enough is known to decide for somebody.
func (b *Book) learn(now time.Duration, count bool, acts []Action) ([]Action, bool) {
	acts = b.readLedger(now, acts)
	if !count {
		return acts, b.known
	}
	acts = b.readReplicas(now, acts)
	return acts, b.known && slices.ContainsFunc(b.queue, func(r *Request) bool { return b.withoutCount(now, r) })
}

// readLedger has the ledger read, unless it is known, or that is under way or has just failed.
func (b *Book) readLedger(now time.Duration, acts []Action) []Action {
	if b.known || b.reading {
		return acts
	}
	if now < b.readAt {
		b.wakeAt(b.readAt)
		return acts
	}
	b.reading = true
	return append(acts, Action{ReadLedger: true})
}

// answer takes the requests out of the queue that can be answered.
func (b *Book) answer(now time.Duration, acts []Action) []Action {
	b.queue = slices.DeleteFunc(b.queue, func(r *Request) bool {
		switch {
		case r.claim != nil && r.claim.place == written:
			r.claim.waiting = false
			r.Result = Result{Claim: r.claim.Claim, Written: true, Unverified: r.unverified, Prepared: r.ahead, Until: r.claim.until}
		case r.Deadline <= now:
			if r.claim == nil && (r.Held || r.Relayed) {
				r.Result = Result{Err: ErrLate, Unverified: true} // it may ask again
				break
			}
			if r.claim == nil {
				b.voidUnwritten() // nobody knows when they can be used
				b.refresh(now)
				if err := b.seat(now, r); err != nil {
					r.Result = Result{Err: err, Unverified: true}
					break
				}
			}
			// The claim stays: other replicas learn of it with the next write.
			r.claim.waiting = false
			b.unwritten = b.unwritten || r.claim.place == unwritten
			r.Result = Result{Claim: r.claim.Claim}
		default:
			b.wakeAt(r.Deadline)
			return false
		}
		b.requestAt = now
		acts = append(acts, Action{Answer: r})
		return true
	})
	return acts
}
