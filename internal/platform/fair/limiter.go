package fair

import (
	"sync"
	"time"
)

// Limiter is a rate limit that users share fairly. Each user that asked within the last seconds has a token bucket of its own.
// The bucket has an equal part of the rate and of the burst, and at least one token. One part of the burst is left for a user
// that comes. All together stay within the rate.
type Limiter[User comparable] struct {
	rate, burst float64

	mu      sync.Mutex
	all     bucket
	buckets map[User]*bucket
	forgot  time.Time // when users were forgotten last
}

type bucket struct {
	tokens float64
	filled time.Time // when tokens was computed
	asked  time.Time // when the user asked last
}

// aToken is one, less what sums of fractions may lack.
const aToken = 1 - 1e-6

func (b *bucket) fill(now time.Time, rate, burst float64) {
	if now.After(b.filled) {
		b.tokens += now.Sub(b.filled).Seconds() * rate
		b.filled = now
	}
	b.tokens = min(b.tokens, burst)
}

// until returns how long a bucket takes to have a token.
func (b *bucket) until(rate float64) time.Duration {
	if b.tokens >= aToken {
		return 0
	}
	return max(time.Millisecond, time.Duration((1-b.tokens)/rate*float64(time.Second)))
}

// activeFor is how long a user has a part after it asked last.
const activeFor = 10 * time.Second

// NewLimiter returns a limiter of so many events a second, and at once.
func NewLimiter[User comparable](rate, burst float64) *Limiter[User] {
	return &Limiter[User]{rate: rate, burst: burst, all: bucket{tokens: burst}, buckets: map[User]*bucket{}}
}

// Allow reports whether an event of a user may happen now, and counts it if so.
func (l *Limiter[User]) Allow(user User, now time.Time) bool { return l.Take(user, now) == 0 }

// Take counts an event of a user if it may happen now, and returns 0. Otherwise it returns how long it takes, at least, until the
// event may happen. That is no promise: others may come first.
func (l *Limiter[User]) Take(user User, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all.filled.IsZero() {
		l.all.filled = now
	}
	l.all.fill(now, l.rate, l.burst)
	l.forget(now)
	b := l.buckets[user]
	if b == nil {
		b = &bucket{tokens: l.burst, filled: now} // fill cuts it to its part
		l.buckets[user] = b
	}
	b.asked = now
	users := float64(len(l.buckets))
	rate := l.rate / users
	b.fill(now, rate, max(1, l.burst/(users+1)))
	if wait := max(b.until(rate), l.all.until(l.rate)); wait > 0 {
		return wait
	}
	b.tokens--
	l.all.tokens--
	return 0
}

// forget drops the users that do not ask any more, at most once a second: there may be many.
func (l *Limiter[User]) forget(now time.Time) {
	if now.Sub(l.forgot) < time.Second {
		return
	}
	l.forgot = now
	for user, b := range l.buckets {
		if now.Sub(b.asked) > activeFor {
			delete(l.buckets, user)
		}
	}
}
