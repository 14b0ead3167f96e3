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

// fairLimiter is a rate limit that namespaces share fairly. Each one that made a write within the last seconds has a
// token bucket of its own. The bucket has an equal part of the rate and of the burst, and at least one token. One
// part is left for a namespace that comes. All together stay within the rate.
type fairLimiter struct {
	rate, burst float64

	mu      sync.Mutex
	all     bucket
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	filled time.Time // when tokens was computed
	used   time.Time // when a write was allowed last
}

func (b *bucket) fill(now time.Time, rate, burst float64) {
	b.tokens = min(b.tokens+now.Sub(b.filled).Seconds()*rate, burst)
	b.filled = now
}

// activeFor is how long a namespace has a part after its last write.
const activeFor = 10 * time.Second

func newFairLimiter(rate, burst float64) *fairLimiter {
	return &fairLimiter{rate: rate, burst: burst, all: bucket{tokens: burst}, buckets: map[string]*bucket{}}
}

// allow reports whether a write for a namespace may be made now, and counts it if so.
func (f *fairLimiter) allow(namespace string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all.filled.IsZero() {
		f.all.filled = now
	}
	f.all.fill(now, f.rate, f.burst)
	for name, b := range f.buckets {
		if name != namespace && now.Sub(b.used) > activeFor {
			delete(f.buckets, name)
		}
	}
	b := f.buckets[namespace]
	if b == nil {
		b = &bucket{tokens: f.burst, filled: now, used: now} // fill cuts it to its part
		f.buckets[namespace] = b
	}
	parts := float64(len(f.buckets) + 1) // one is for whoever comes next
	b.fill(now, f.rate/parts, max(1, f.burst/parts))
	if b.tokens < 1 || f.all.tokens < 1 {
		return false
	}
	b.tokens--
	f.all.tokens--
	b.used = now
	return true
}
