package ledger

import (
	"time"

	"github.com/stowage-dev/stowage/internal/spread"
)

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
