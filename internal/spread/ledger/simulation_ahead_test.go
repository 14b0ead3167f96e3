package ledger

import (
	"fmt"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// aheadClaim is what the simulation knows of a seat that a webhook has claimed ahead.
type aheadClaim struct {
	sent      time.Duration
	replicas  int64
	strategy  *sequence.Strategy
	givenBack bool
	used      bool
}

// wrote checks what a write claims ahead, and notes what it gives back. Its sender must not use that any more. It also notes claims
// that follow a replica count from before a scale-down.
func (w *world) wrote(h *hook, o *Object) {
	in, more := map[string]bool{}, 0
	for _, c := range o.Claims {
		in[c.ID] = true
		mine := h.book.byID[c.ID]
		if mine != nil && mine.own && mine.place != written && w.behind(h) {
			w.late[c.ID] = true
		}
		switch {
		case mine == nil || !mine.own || mine.place == written || !c.Ahead || mine.until != 0: // the last is for a pod of another webhook
		case w.ahead[c.ID] == nil:
			more++
			w.ahead[c.ID] = &aheadClaim{sent: w.now, replicas: h.book.replicas, strategy: h.book.latest.Strategy}
		}
	}
	lately := 0
	for _, at := range h.asked {
		if w.now-at <= active {
			lately++
		}
	}
	switch {
	case more > growth*lately:
		w.fail("a write claims %d seats ahead, though only %d pods came lately", more, lately)
	case more > 0 && h.book.total > h.book.replicas:
		w.fail("with seats ahead, %d seats are claimed for %d pods", h.book.total, h.book.replicas)
	}
	for _, c := range h.book.claims {
		if a := w.ahead[c.ID]; a != nil && c.own && !in[c.ID] {
			a.givenBack = true
		}
	}
}

// held checks that a webhook does not keep a seat ahead for longer than it may use it.
func (w *world) held(h *hook) {
	for _, c := range h.book.claims {
		if a := w.ahead[c.ID]; a != nil && c.own && c.Ahead && c.until == 0 && c.place == written && c.end != void && w.now > a.sent+h.book.timing.Ahead {
			w.fail("the seat %v is still held %s after it was claimed ahead", c.Seat, w.now-a.sent)
		}
	}
}

// answered checks the use of a seat that was claimed ahead.
func (w *world) answered(h *hook, r *Request) {
	a := w.ahead[r.Result.ID]
	if a == nil {
		return
	}
	timing := DefaultTiming()
	switch {
	case a.used:
		w.fail("the seat %v, claimed ahead, is used twice", r.Result.Seat)
	case a.givenBack:
		w.fail("the seat %v is used after it was given back", r.Result.Seat)
	case w.now > a.sent+timing.Ahead:
		w.fail("the seat %v is used %s after it was claimed ahead", r.Result.Seat, w.now-a.sent)
	case h.book.replicas < a.replicas:
		w.fail("the seat %v was claimed ahead for %d pods and is used when %d are asked for", r.Result.Seat, a.replicas, h.book.replicas)
	case w.now > h.book.replicasSince+timing.Ahead:
		w.fail("the seat %v is used %s after the replica count was read", r.Result.Seat, w.now-h.book.replicasSince)
	case a.strategy != r.Strategy:
		w.fail("the seat %v was claimed ahead for another strategy", r.Result.Seat)
	}
	a.used = true
}

func (w *world) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
	}
}

// plant makes one of the mistakes with claims, before a book's step.
func (w *world) plant(h *hook) {
	b := h.book
	for _, c := range b.claims {
		a := w.ahead[c.ID]
		switch {
		case w.bug == endsByAge && w.now-c.firstSeen >= b.timing.Expiry, w.bug == endsWithLedger && c.place == apart:
			c.end = dead
		case a == nil || !c.own:
		case w.bug == usedVoid && c.end == void && a.givenBack:
			for _, r := range b.queue {
				if r.claim == nil {
					c.end, c.Ahead, c.waiting, c.counted, r.claim = open, false, true, true, c
					b.take(c.Seat, c.ID)
					break
				}
			}
		case w.bug == countedTwice && a.used && !a.givenBack:
			a.givenBack = true
			b.take(c.Seat, c.ID)
		case c.ahead == nil:
		case w.bug == usedLate && w.now < a.sent+3*time.Second:
			c.ahead.sent, b.requestAt = w.now, w.now
			b.replicasSince = max(b.replicasSince, w.now-b.timing.Ahead+time.Millisecond)
		case w.bug == keptAhead && c.place == written:
			c.ahead = nil
		case w.bug == usedAfterEdit:
			c.ahead.strategy = w.strategy
		}
	}
}

// plantWrite makes one of the mistakes with seats ahead in a write.
func (w *world) plantWrite(h *hook, o *Object) {
	if w.bug != beyondReplicas || h.book.replicas < 0 || len(h.book.queue) < 2 {
		return
	}
	for range 5 {
		c, err := h.book.claim(w.now, w.strategy, false)
		if err != nil {
			return
		}
		c.Ahead, c.wasAhead = true, true
		h.book.spare = append(h.book.spare, c)
		c.ahead = &ahead{strategy: w.strategy, replicas: h.book.replicas, sent: w.now}
		o.Claims = append(o.Claims, c.Claim)
	}
}
