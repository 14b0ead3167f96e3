package fair

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// takeAll takes one at a time until there is no room, and returns how many a user got.
func takeAll(p *Pool[string], user string) (n int) {
	for p.TryAcquire(user, 1) {
		n++
	}
	return n
}

// Users that take all they can leave a share for the next one, as soon as they have given back and taken again.
func TestGreedyUsersLeaveRoom(t *testing.T) {
	const size, most = 1200, 20
	p := NewPool[string](size)
	if got := takeAll(p, "1"); got != size/2 {
		t.Errorf("one user alone got %d of %d", got, size)
	}
	for k := 2; k <= most; k++ {
		takeAll(p, strconv.Itoa(k))
		for range size {
			for user := range k {
				if name := strconv.Itoa(user + 1); p.held[name] > 0 {
					p.Release(name, 1)
					takeAll(p, name)
				}
			}
		}
		if want := int64(size/(k+1) - k); p.free < want {
			t.Errorf("%d greedy users leave %d free, want %d", k, p.free, want)
		}
	}
	// A user that gives back what it holds is forgotten, and all of it is free again.
	for user, n := range p.held {
		p.Release(user, n)
	}
	if len(p.held) != 0 || p.free != size {
		t.Errorf("%d users are remembered and %d of %d is free", len(p.held), p.free, size)
	}
}

// A release wakes whoever waits, and a wait ends with its context.
func TestAcquireWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool[string](10)
		if !p.TryAcquire("a", 8) {
			t.Fatal("an empty pool has no room")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Acquire(ctx, "b", 4); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting in vain ended with %v", err)
		}
		got := make(chan error, 1)
		go func() { got <- p.Acquire(t.Context(), "b", 4) }()
		synctest.Wait()
		p.Release("a", 8)
		if err := <-got; err != nil {
			t.Errorf("after the release: %v", err)
		}
	})
}

func TestPoolConcurrent(t *testing.T) {
	const size = 16
	p := NewPool[int](size)
	var running sync.WaitGroup
	for i := range 64 {
		running.Go(func() {
			for range 50 {
				if err := p.Acquire(t.Context(), i%4, 1); err != nil {
					t.Error(err)
					return
				}
				p.mu.Lock()
				var held int64
				for _, n := range p.held {
					held += n
				}
				if held+p.free != size {
					t.Errorf("%d are held and %d free, of %d", held, p.free, size)
				}
				p.mu.Unlock()
				p.Release(i%4, 1)
			}
		})
	}
	running.Wait()
}
