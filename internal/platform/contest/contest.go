// Package contest notices another writer that keeps undoing what Stowage writes into an object.
package contest

import (
	"sync"
	"time"
)

// How often in a row an object is written at once, within what time that is a row, and the
// longest wait after that.
const (
	atOnce    = 3
	inARow    = 10 * time.Minute
	longest   = 5 * time.Minute
	firstWait = time.Second
)

// Contest notices another writer that keeps undoing what Stowage writes into an object. The first writes are not
// delayed. After them each write waits twice as long as the one before, so that two writers do not fight at API
// speed. The zero value is ready for use.
type Contest[K comparable] struct {
	mu      sync.Mutex
	objects map[K]contested
}

type contested struct {
	times int
	last  time.Time
}

// Wait returns how long to wait before an object is written again.
func (c *Contest[K]) Wait(object K, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	past := c.objects[object]
	if past.times < atOnce {
		return 0
	}
	wait := min(longest, firstWait<<min(past.times-atOnce, 16))
	return max(0, wait-now.Sub(past.last))
}

// Written notes that an object was written. It returns true once in a row, when it is plain that
// there is another writer: that is worth an event.
func (c *Contest[K]) Written(object K, now time.Time) (begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil {
		c.objects = map[K]contested{}
	}
	past := c.objects[object]
	if now.Sub(past.last) > inARow+longest {
		past.times = 0
	}
	past.times, past.last = past.times+1, now
	c.objects[object] = past
	return past.times == atOnce+1
}

// Forget forgets an object that is gone.
func (c *Contest[K]) Forget(object K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.objects, object)
}

// ForgetOld forgets the objects that were not written for so long that their row has ended.
func (c *Contest[K]) ForgetOld(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, past := range c.objects {
		if now.Sub(past.last) > inARow+longest {
			delete(c.objects, k)
		}
	}
}
