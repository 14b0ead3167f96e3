// Package listeners tells functions of events, for as long as they listen. So a source of events need not know who
// listens, and can be made before.
package listeners

import "sync"

// Listeners are functions that are told of events of one type. The zero value has none. Its methods may be called at once.
type Listeners[Event any] struct {
	mu   sync.RWMutex
	all  map[int]func(Event)
	next int
}

// Add has a function told of events from now on, until remove is called. After remove has returned, the function is not
// called any more. The function must not call remove.
func (l *Listeners[Event]) Add(told func(Event)) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[int]func(Event){}
	}
	n := l.next
	l.next++
	l.all[n] = told
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, n)
	}
}

// Tell tells those who listen, one after the other.
func (l *Listeners[Event]) Tell(e Event) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, told := range l.all {
		told(e)
	}
}
