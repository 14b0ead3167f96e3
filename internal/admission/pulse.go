package admission

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// The times of a pulse. A process that did not run for frozenAfter was frozen: stopped, or moved with its machine. What it reads within
// settleAfter then may have been sent before.
const (
	pulseEvery  = 250 * time.Millisecond
	frozenAfter = 2 * time.Second
	settleAfter = 500 * time.Millisecond
)

// After unsettledFrom, the API server may have closed the connections of watches. The client finds that out within unsettledFor. It sends
// a ping on a connection on which nothing came for 30 s, and waits 15 s for the answer. See k8s.io/apimachinery/pkg/util/net, the defaults of
// HTTP2_READ_IDLE_TIMEOUT_SECONDS and HTTP2_PING_TIMEOUT_SECONDS.
const (
	unsettledFrom = 5 * time.Second
	unsettledFor  = 45 * time.Second
)

// Pulse notices that the process was frozen. Then there are requests in its sockets that nobody waits for any more. To decide about them
// would claim seats for pods that were created long ago. Its methods may be called at once, also of nil.
type Pulse struct {
	clock clock.WithTicker

	mu      sync.Mutex
	last    time.Time     // when the process ran last, as far as is known; zero at the beginning
	resumed time.Time     // when it ran again after it was frozen last
	frozen  time.Duration // for how long it was
	// unsettled is when it ran again after it was frozen for unsettledFrom.
	unsettled time.Time
}

// NewPulse returns a pulse that begins when it is asked first, or runs.
func NewPulse(clock clock.WithTicker) *Pulse { return &Pulse{clock: clock} }

// Run beats until ctx ends.
func (p *Pulse) Run(ctx context.Context) error {
	tick := p.clock.NewTicker(pulseEvery)
	defer tick.Stop()
	p.mu.Lock()
	p.last = p.clock.Now() // the time before is no freeze: it took that long to start
	p.mu.Unlock()
	for {
		p.beat(p.clock.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

func (p *Pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gap := now.Sub(p.last); gap >= frozenAfter && !p.last.IsZero() {
		p.resumed, p.frozen = now, gap
		if gap >= unsettledFrom {
			p.unsettled = now
		}
	}
	p.last = now
}

// age returns how old a request that is read now may be, because it was sent before the process was frozen.
func (p *Pulse) age(now time.Time) time.Duration {
	if p == nil {
		return 0
	}
	p.beat(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.resumed) >= settleAfter {
		return 0
	}
	return p.frozen
}

// Unsettled reports whether the watches may show what was before the process was frozen.
func (p *Pulse) Unsettled() bool {
	now := p.clock.Now()
	p.beat(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.unsettled.IsZero() && now.Sub(p.unsettled) < unsettledFor
}

// refuseLate ends a connection without an answer, if the answer comes after the API server has given up.
func refuseLate(ctx context.Context, now time.Time) {
	if deadline, ok := ctx.Deadline(); ok && now.Sub(deadline) >= wayBack {
		panic(http.ErrAbortHandler)
	}
}
