// Package fair divides a bounded amount among users that nobody can trust to be modest.
//
// A user takes more only while it holds less than what is free. This is a dynamic threshold with alpha = 1
// (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). It promises that
//   - together the users never hold more than the pool has;
//   - one user alone gets half of the pool, and k users that give back and take all they can come to hold 1/(k+1) of it each,
//     so that as much stays free for the next one;
//   - nothing is remembered of a user that holds nothing.
package fair

import (
	"context"
	"sync"
)

// Pool is what the users share: bytes, connections or calls.
type Pool[User comparable] struct {
	mu       sync.Mutex
	free     int64
	held     map[User]int64
	released chan struct{} // closed at the next release; nil while nobody waits
}

// NewPool returns a pool of a size. One user alone gets half of it.
func NewPool[User comparable](size int64) *Pool[User] {
	return &Pool[User]{free: size, held: map[User]int64{}}
}

// TryAcquire takes n of the pool for a user, and reports whether there was room.
func (p *Pool[User]) TryAcquire(user User, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(user, n)
}

func (p *Pool[User]) take(user User, n int64) bool {
	if n > p.free || p.held[user] >= p.free {
		return false
	}
	p.free -= n
	p.held[user] += n
	return true
}

// Acquire takes n of the pool for a user, and waits for room until ctx ends. Then it returns the error of ctx.
func (p *Pool[User]) Acquire(ctx context.Context, user User, n int64) error {
	for {
		p.mu.Lock()
		if p.take(user, n) {
			p.mu.Unlock()
			return nil
		}
		if p.released == nil {
			p.released = make(chan struct{})
		}
		released := p.released
		p.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Release gives back n of what a user holds.
func (p *Pool[User]) Release(user User, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += n
	if p.held[user] -= n; p.held[user] == 0 {
		delete(p.held, user)
	}
	if p.released != nil {
		close(p.released)
		p.released = nil
	}
}
