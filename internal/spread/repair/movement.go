package repair

import (
	"time"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// longestMovement is how long a workload may go on moving before it is looked at anyway.
const longestMovement = time.Minute

// movements is which workloads' pods come, go or change their seats now. Nothing is done to a
// workload that moves, but for one look a minute at one that never stops.
type movements struct {
	began map[ledger.OwnerKey]movement
	// overdue are the workloads that are to be looked at although they move.
	overdue map[ledger.OwnerKey]bool
}

type movement struct{ first, last time.Time }

func newMovements() *movements {
	return &movements{began: map[ledger.OwnerKey]movement{}, overdue: map[ledger.OwnerKey]bool{}}
}

// note notes that an owner's pods moved.
func (m *movements) note(owner ledger.OwnerKey, now time.Time) {
	at, ok := m.began[owner]
	if !ok {
		at.first = now
	}
	at.last = now
	m.began[owner] = at
}

// due returns the owners that are to be looked at. They have not moved for a time, or they have moved for too long.
func (m *movements) due(now time.Time, quiet time.Duration) []ledger.OwnerKey {
	var out []ledger.OwnerKey
	for owner, at := range m.began {
		still := now.Sub(at.last) >= quiet
		if !still && now.Sub(at.first) < longestMovement {
			continue
		}
		if !still {
			m.overdue[owner] = true
		}
		out = append(out, owner)
		delete(m.began, owner)
	}
	return out
}

// moving reports whether an owner's pods moved within the last moments.
func (m *movements) moving(owner ledger.OwnerKey, now time.Time, quiet time.Duration) bool {
	at, ok := m.began[owner]
	return ok && now.Sub(at.last) < quiet
}

// look reports whether an owner may be looked at now.
func (m *movements) look(owner ledger.OwnerKey, now time.Time, quiet time.Duration) bool {
	if m.overdue[owner] {
		delete(m.overdue, owner)
		return true
	}
	return !m.moving(owner, now, quiet)
}

// forget drops what is known of an owner.
func (m *movements) forget(owner ledger.OwnerKey) {
	delete(m.began, owner)
	delete(m.overdue, owner)
}
