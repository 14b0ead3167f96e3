// Package bounded remembers values within a number of bytes. Tenants write what the values are computed from, so a
// number of entries would bound nothing.
package bounded

import (
	"container/list"
	"sync"
	"time"
)

// Clock tells the time.
type Clock interface{ Now() time.Time }

// Cache remembers values for a time. Where they have too many bytes together, the one used least lately goes first.
type Cache[K comparable, V any] struct {
	most  int64
	clock Clock

	mu    sync.Mutex
	bytes int64
	order *list.List // of *entry[K, V], the one used last in front
	known map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
	bytes int64
	until time.Time
}

// overhead is about what an entry takes beside its key and its value.
const overhead = 256

// New returns a cache of at most so many bytes.
func New[K comparable, V any](most int64, clock Clock) *Cache[K, V] {
	return &Cache[K, V]{most: most, clock: clock, order: list.New(), known: map[K]*list.Element{}}
}

// Get returns what is remembered under a key.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.known[key]
	if at == nil {
		return value, false
	}
	e := at.Value.(*entry[K, V])
	if !c.clock.Now().Before(e.until) {
		c.remove(at)
		return value, false
	}
	c.order.MoveToFront(at)
	return e.value, true
}

// Add remembers a value for a time. The bytes are those of the key and the value.
func (c *Cache[K, V]) Add(key K, value V, bytes int64, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.known[key]; at != nil {
		c.remove(at)
	}
	if bytes += overhead; bytes > c.most {
		return
	}
	c.bytes += bytes
	c.known[key] = c.order.PushFront(&entry[K, V]{key, value, bytes, c.clock.Now().Add(ttl)})
	for c.bytes > c.most {
		c.remove(c.order.Back())
	}
}

// Len returns the number of entries.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known)
}

func (c *Cache[K, V]) remove(at *list.Element) {
	e := c.order.Remove(at).(*entry[K, V])
	delete(c.known, e.key)
	c.bytes -= e.bytes
}
