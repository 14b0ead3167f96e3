package seats

import (
	"sync"
	"time"
)

// How many writes of ledgers a second, and at once, owners may cause that Stowage cannot verify.
// Anybody who may create pods can invent such owners.
const (
	unverifiedRate  = 10
	unverifiedBurst = 50
)

// fairLimiter is a rate limit that namespaces share fairly: each one that was active within the
// last seconds has a token bucket of its own, with an equal part of the rate and of the burst.
type fairLimiter struct {
	rate, burst float64

	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	last   time.Time // when tokens was computed, and a write asked for
}

// activeFor is how long a namespace has a part after its last write.
const activeFor = 10 * time.Second

func newFairLimiter(rate, burst float64) *fairLimiter {
	return &fairLimiter{rate: rate, burst: burst, buckets: map[string]*bucket{}}
}

// allow reports whether a write for a namespace may be made now, and counts it if so.
func (f *fairLimiter) allow(namespace string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, b := range f.buckets {
		if name != namespace && now.Sub(b.last) > activeFor {
			delete(f.buckets, name)
		}
	}
	b := f.buckets[namespace]
	fresh := b == nil
	if fresh {
		b = &bucket{last: now}
		f.buckets[namespace] = b
	}
	parts := float64(len(f.buckets))
	if fresh {
		// Its part of the burst is what the others give up.
		b.tokens = f.burst / parts
		for name, other := range f.buckets {
			if name != namespace {
				other.tokens = min(other.tokens, f.burst/parts)
			}
		}
	}
	b.tokens = min(b.tokens+now.Sub(b.last).Seconds()*f.rate/parts, f.burst/parts)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
