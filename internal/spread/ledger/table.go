package ledger

import (
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// held shows a book's seats to a strategy.
type held struct {
	b *Book
	s *sequence.Strategy
}

func (h held) Count(pool int) int64 {
	if p := h.b.table[h.s.PoolKey(pool)]; p != nil {
		return p.count
	}
	return 0
}

func (h held) LowestFree(pool int) int64 {
	if p := h.b.table[h.s.PoolKey(pool)]; p != nil {
		return p.lowestFree()
	}
	return 1
}

// Held returns how many seats of a pool are held: by active pods, and by claims whose pods were not seen yet.
func (b *Book) Held(now time.Duration, pool string) int64 {
	b.refresh(now)
	if p := b.table[pool]; p != nil {
		return p.count
	}
	return 0
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

// poolSeats is who holds the ordinals of a pool. Its memory grows with the holders and not with their ordinals: the pods
// of a StatefulSet say which ordinals they have.
type poolSeats struct {
	count int64
	held  []uint32         // how many hold ordinal i+1
	far   map[int64]uint32 // the same of ordinals far beyond the holders
	low   int64            // no ordinal up to it is free
}

func (p *poolSeats) take(ordinal int64) {
	p.count++
	if ordinal > int64(len(p.held)) && ordinal > 4*p.count+64 {
		if p.far == nil {
			p.far = map[int64]uint32{}
		}
		p.far[ordinal]++
		return
	}
	for int64(len(p.held)) < ordinal {
		p.held = append(p.held, 0)
	}
	p.held[ordinal-1]++
}

func (p *poolSeats) release(ordinal int64) {
	p.count--
	if ordinal <= int64(len(p.held)) && p.held[ordinal-1] > 0 {
		p.held[ordinal-1]--
	} else if p.far[ordinal]--; p.far[ordinal] == 0 {
		delete(p.far, ordinal)
	}
	if !p.holds(ordinal) {
		p.low = min(p.low, ordinal-1)
	}
}

func (p *poolSeats) holds(ordinal int64) bool {
	return ordinal <= int64(len(p.held)) && p.held[ordinal-1] > 0 || p.far[ordinal] > 0
}

func (p *poolSeats) lowestFree() int64 {
	for p.holds(p.low + 1) {
		p.low++
	}
	return p.low + 1
}
