// Package tries has the waits between tries of what had no room: of a node pool, or of a type of VMs.
package tries

import "time"

// Timing is the waits.
type Timing struct {
	// First is the wait before the first try. It doubles after each try in vain, up to Last.
	First, Last time.Duration
	// Forget is how long nothing must have waited for it to count as having room again.
	Forget time.Duration
}

// Default returns the waits unless others are set.
func Default() Timing {
	return Timing{First: time.Minute, Last: 30 * time.Minute, Forget: 30 * time.Minute}
}

// After returns the wait before the next try, after some tries in vain.
func (t Timing) After(vain int) time.Duration {
	wait := t.First
	for range vain {
		if wait *= 2; wait >= t.Last {
			return t.Last
		}
	}
	return wait
}
