package evict

import "time"

// While nothing proves that the webhook is reached, the successor of a pod that is evicted may come without what it was evicted for. So that many
// pods are evicted at most, and then one after each wait.
const (
	MostUnproven = 10
	TryUnproven  = time.Minute
)

// Unproven counts the evictions since it was last proven that the webhook is reached.
type Unproven struct {
	proof     int64
	evictions int
	last      time.Time
}

// MayEvict reports whether one more pod may be evicted. Proof is a number that changes each time that a pod has come through the webhook.
func (u *Unproven) MayEvict(proof int64, now time.Time) bool {
	if proof != u.proof {
		*u = Unproven{proof: proof}
	}
	return u.evictions < MostUnproven || now.Sub(u.last) >= TryUnproven
}

// Note notes an eviction.
func (u *Unproven) Note(now time.Time) { u.evictions, u.last = u.evictions+1, now }
