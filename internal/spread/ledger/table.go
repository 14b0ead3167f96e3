package ledger

import (
	"cmp"
	"maps"
	"slices"
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

// freePosition returns the lowest position of a pool that no pod has: see [WithPosition]. Ordinal is the one that a pod is about to get.
func (h held) freePosition(pool int, ordinal int64) int64 {
	if p := h.b.table[h.s.PoolKey(pool)]; p != nil && p.positions != nil {
		return p.positions.lowestFree()
	}
	return ordinal
}

// take notes that a seat is held. The id is that of its claim.
func (b *Book) take(s Seat, id string) {
	p := b.table[s.Pool]
	if p == nil {
		p = &poolSeats{}
		b.table[s.Pool] = p
	}
	position := cmp.Or(Position(id), s.Ordinal)
	if p.positions == nil && position != s.Ordinal {
		p.positions = p.clone()
	}
	if p.positions != nil {
		p.positions.take(position)
	}
	p.take(s.Ordinal)
	b.total++
}

func (b *Book) release(s Seat, id string) {
	p := b.table[s.Pool]
	p.release(s.Ordinal)
	if p.positions != nil {
		p.positions.release(cmp.Or(Position(id), s.Ordinal))
	}
	b.total--
	if p.count == 0 {
		delete(b.table, s.Pool)
	}
}

// poolSeats has the holders of a pool's ordinals. Its memory grows with the holders and not with their ordinals: the pods
// of a StatefulSet say which ordinals they have.
type poolSeats struct {
	count int64
	held  []uint32         // how many hold ordinal i+1
	far   map[int64]uint32 // the same of ordinals far beyond the holders
	low   int64            // no ordinal up to it is free
	// positions is the same for positions. It is nil while they are the ordinals.
	positions *poolSeats
}

func (p *poolSeats) clone() *poolSeats {
	return &poolSeats{count: p.count, held: slices.Clone(p.held), far: maps.Clone(p.far), low: p.low}
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
