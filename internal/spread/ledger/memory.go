package ledger

import (
	"context"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Memory gives out seats that nobody else knows of, for decisions made offline. The
// same questions get the same answers.
type Memory struct {
	books  map[types.UID]*Book
	timing Timing
	shared Shared
	serial int
}

// NewMemory returns a memory in which every seat is free.
func NewMemory() *Memory {
	return &Memory{books: map[types.UID]*Book{}, timing: Timing{Expiry: time.Hour}}
}

func (m *Memory) book(owner types.UID) *Book {
	b := m.books[owner]
	if b == nil {
		b = NewBook(&m.timing, &m.shared, "", func() string { m.serial++; return strconv.Itoa(m.serial) })
		m.books[owner] = b
	}
	return b
}

// Claim gives out the next seat of an owner. See Request.WriteCost.
func (m *Memory) Claim(_ context.Context, owner Owner, s *sequence.Strategy, writeCost bool) (Result, error) {
	r := &Request{Strategy: s, WriteCost: writeCost}
	if err := m.book(owner.UID).seat(0, r); err != nil {
		return Result{}, err
	}
	return Result{Claim: r.claim.Claim, Written: true}, nil
}

// Peek returns the seat that Claim would give out.
func (m *Memory) Peek(owner Owner, s *sequence.Strategy) (Seat, error) {
	return m.book(owner.UID).Peek(0, s)
}

// GiveBack ends a claim that no pod will have.
func (m *Memory) GiveBack(owner Owner, id string) { m.book(owner.UID).GiveBack(id) }

// Claimed reports whether an id was given out.
func (m *Memory) Claimed(_ context.Context, owner Owner, id string) (bool, error) {
	return m.book(owner.UID).Claimed(0, id), nil
}
