package ledger

import (
	"slices"
	"time"
)

// What a book does with a ledger from the API.

// adopt takes over a ledger from the API.
func (b *Book) adopt(now time.Duration, o *Object) {
	b.version, b.newest, b.known, b.wroteLast = o.Version, max(b.newest, o.Version), true, o.Writer
	b.changedAt = now
	in, noted := make(map[string]bool, len(o.Claims)), uint64(0)
	for _, c := range o.Claims {
		in[c.ID], noted = true, max(noted, c.Settled)
		have := b.byID[c.ID]
		if have == nil {
			have = &claim{Claim: c, firstSeen: now}
			b.byID[c.ID] = have
			b.claims = append(b.claims, have)
		}
		have.place = written
		have.Settled = max(have.Settled, c.Settled)
		if !have.own {
			have.Ahead, have.wasAhead = c.Ahead, have.wasAhead || c.Ahead
		}
	}
	b.watch.note(now, noted)
	shown := b.watch.shownUntil()
	b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool {
		switch {
		case in[c.ID] || c.place != written:
			return false
		case b.keeps(now, shown, c, o):
			c.place = apart
			return false
		}
		b.drop(c)
		return true
	})
	// A decision that was made on another version is made again.
	b.withdraw()
}

// keeps reports whether a claim that has left the ledger still counts here. Its writer has seen the pod, or has given up
// waiting for it, and this replica's watch may be behind. Or somebody has deleted the ledger. A young claim was given back: nothing else leaves
// out one whose pod nobody has seen.
func (b *Book) keeps(now, shown time.Duration, c *claim, o *Object) bool {
	young := c.Settled == 0 && now-c.firstSeen < b.timing.Expiry/2
	given := young && (c.Ahead || !c.own && o.Version != 0)
	return !given && !c.waiting && b.outstanding(now, shown, c) &&
		!slices.ContainsFunc(o.Claims, func(other Claim) bool { return other.Seat == c.Seat })
}

// withdraw takes back the seats of waiting requests that are not in the ledger. Seats
// that are given away already stay, and a later write adds them.
func (b *Book) withdraw() {
	b.noteUnwritten()
	for _, r := range b.queue {
		if r.claim != nil && r.claim.place != written {
			b.drop(r.claim)
			b.claims = slices.DeleteFunc(b.claims, func(c *claim) bool { return c == r.claim })
			r.claim = nil
		}
	}
	b.dropAhead()
}

// noteUnwritten notes whether the ledger lacks seats that were given away, or has some that were given back.
func (b *Book) noteUnwritten() {
	b.unwritten = slices.ContainsFunc(b.claims, func(c *claim) bool {
		if c.end == void {
			return c.place == written
		}
		return c.place == unwritten && !c.waiting && c.ahead == nil
	})
}

func (b *Book) drop(c *claim) {
	if c.counted {
		b.uncount(c)
	}
	delete(b.byID, c.ID)
	c.ahead = nil
}

func (b *Book) uncount(c *claim) {
	c.counted = false
	b.release(c.Seat, c.ID)
}
