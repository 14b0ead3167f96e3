package seats

import (
	"context"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Run forgets old books until ctx ends.
func (l *Service) Run(ctx context.Context) error {
	return eachSweep(ctx, l.clock, func() { l.Sweep(ctx, false) })
}

// eachSweep calls a function after each [sweepEvery] until ctx ends. A panic in it is counted and logged.
func eachSweep(ctx context.Context, clock clock.WithTicker, do func()) error {
	tick := clock.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			func() {
				defer utilruntime.HandleCrashWithContext(ctx)
				do()
			}()
		}
	}
}

// sweepTimeout bounds each request of a sweep, so that one that hangs does not end all later ones.
const sweepTimeout = 10 * time.Second

// Sweep forgets the books that nobody would miss. With collect, it also removes the
// ledgers whose claims have all ended; one replica does that.
func (l *Service) Sweep(ctx context.Context, collect bool) {
	states := map[string]int{}
	for _, e := range l.entries() {
		var owner ledger.Owner
		var version uint64
		var spent bool
		l.with(e.key, func(now time.Duration, e *entry) {
			owner = e.owner
			e.book.Forget(now)
			e.book.Tally(states)
			version, spent = e.book.Spent(now)
		})
		switch {
		case spent && collect:
			err := within(ctx, func(ctx context.Context) error { return l.api.DeleteLedger(ctx, owner, version) })
			if err != nil {
				l.logError(err, "ledger not removed", owner)
			} else {
				l.with(e.key, func(now time.Duration, e *entry) { e.book.LedgerGone(now, version) })
			}
		case spent && len(l.pods.Of(e.key)) == 0:
			// A watch that broke may have missed the deletion.
			_ = within(ctx, func(ctx context.Context) error { // or by a later sweep
				o, err := l.api.ReadLedger(ctx, owner)
				if err == nil && o.Version == 0 {
					l.with(e.key, func(now time.Duration, e *entry) { e.book.LedgerGone(now, version) })
				}
				return err
			})
		}
		l.mu.Lock()
		e.mu.Lock()
		if !e.dead && e.book.Idle() {
			e.dead = true
			if e.timer != nil {
				e.timer.Stop()
			}
			delete(l.books, e.key)
		}
		e.mu.Unlock()
		l.mu.Unlock()
	}
	l.metrics.keeps(states)
}

// within calls a function with a context that ends after sweepTimeout.
func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	return do(ctx)
}
