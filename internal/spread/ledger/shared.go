package ledger

import (
	"slices"
	"sync"
	"time"
)

// Shared is what the books of one replica share. Its zero value is ready for use.
type Shared struct {
	settle SettleTime
	Watch  Watch
	Load   Load
}

// Watch is how far a replica's watch of pods is. A claim ends by it: a replica whose watch lags counts claims for longer. Its
// methods may be called at once.
type Watch struct {
	mu         sync.Mutex
	reached    uint64        // whatever has a version up to this one was passed to the books
	shown      time.Duration // and so was whatever was written before this time
	next, last sighting      // writes of ours that are not reached yet: the first one, and the newest other one
	noted      []sighting    // of pods by other replicas, not reached yet, in their order
}

// sighting is a version, and a time at which it was new.
type sighting struct {
	at      time.Duration
	version uint64
}

// noteEvery is how exact a lag is, and mostNotes how many notes are kept.
const (
	noteEvery = 50 * time.Millisecond
	mostNotes = 1000
)

// Reached notes that every pod event up to a version was passed to the books.
func (w *Watch) Reached(version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if version <= w.reached {
		return
	}
	w.reached = version
	switch {
	case w.last.version != 0 && w.last.version <= version:
		w.shown, w.next, w.last = max(w.shown, w.next.at, w.last.at), sighting{}, sighting{}
	case w.next.version != 0 && w.next.version <= version:
		w.shown, w.next, w.last = max(w.shown, w.next.at), w.last, sighting{}
	}
	n := 0
	for n < len(w.noted) && w.noted[n].version <= version {
		n++
	}
	w.noted = slices.Delete(w.noted, 0, n)
}

// Reset forgets how far the watch was. It is for a watch that begins anew, with new books.
func (w *Watch) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached, w.shown, w.next, w.last, w.noted = 0, 0, sighting{}, sighting{}, nil
}

// wrote notes the version that a write got, and when it was sent. All that was written before has a smaller version, if
// SeatLedgers and pods are in one etcd. If they are not, claims end too late, or by their age alone.
func (w *Watch) wrote(sent time.Duration, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case version <= w.reached:
		w.shown = max(w.shown, sent)
	case w.next.version == 0:
		w.next = sighting{sent, version}
	default:
		w.last = sighting{sent, version}
	}
}

// shownUntil returns a time: the books know of every pod that was created before.
func (w *Watch) shownUntil() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}

// note notes that another replica has seen a pod at a version.
func (w *Watch) note(now time.Duration, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.noted) - 1
	switch {
	case version <= w.reached || last >= 0 && version <= w.noted[last].version:
	case last >= 0 && now-w.noted[last].at < noteEvery, len(w.noted) == mostNotes:
		w.noted[last].version = version
	default:
		w.noted = append(w.noted, sighting{now, version})
	}
}

// Lag returns how long ago a SeatLedger first told of a pod that the watch does not show yet. It is 0 if there is no such pod. A
// watch that lags is not noticed while no SeatLedger tells of newer pods.
func (w *Watch) Lag(now time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.noted) == 0 {
		return 0
	}
	return now - w.noted[0].at
}

// Load is what a replica knows of an API server that has no room for its requests (HTTP 429 and 503). What one owner's
// request has met, the requests of all others need not try. Its methods may be called at once.
type Load struct {
	mu    sync.Mutex
	waits int           // in a row
	until time.Duration // the end of the last one
}

// fullAfter is how many waits in a row there must have been before pods do not wait any more.
const fullAfter = 2

// Refused notes that there was no room for a request. The next wait is twice as long, up to eight times the first one.
func (l *Load) Refused(now, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now < l.until {
		return // it was sent before this wait
	}
	l.until = now + wait<<min(l.waits, 3)
	l.waits++
}

// Served notes that there was room for a request.
func (l *Load) Served() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits, l.until = 0, 0
}

// full reports whether nobody is to wait for the API server.
func (l *Load) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits >= fullAfter
}

// waitsForRoom reports whether the book sends nothing now, because the API server has no room. After the replica's wait, each book
// waits for a time of its own.
func (b *Book) waitsForRoom(now time.Duration) bool {
	b.load.mu.Lock()
	until := b.load.until
	b.load.mu.Unlock()
	if until > b.heldFor {
		b.heldFor, b.heldUntil = until, max(b.heldUntil, b.timing.later(until, b.timing.Busy))
	}
	if now >= b.heldUntil {
		return false
	}
	b.wakeAt(b.heldUntil)
	return true
}
