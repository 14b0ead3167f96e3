package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/stowage-dev/stowage/internal/platform/leader"
)

// The checks that fail where another replica answers reviews better. A leader is ready whatever its watch shows.
const (
	watchCheck = "watch"      // of how far the watch of pods is behind
	reachCheck = "api-server" // of whether the API server answers
)

// A check runs at most once in checkEvery, and ends within checkTimeout, however many ask. Whoever reaches the port may ask, and one of
// the checks connects to the webhook's port.
const (
	checkEvery   = 500 * time.Millisecond
	checkTimeout = 5 * time.Second
)

// readiness is the checks of a replica. Ready means that a request would be answered well.
type readiness struct {
	leaving  atomic.Bool // the process is shutting down
	checks   map[string]healthz.Checker
	outcomes map[string]*outcome
	clock    clock.PassiveClock
}

// outcome is what a check has found last. Until it has run, it has neither passed nor failed.
type outcome struct {
	passed, failed atomic.Bool

	mu  sync.Mutex // held while the check runs
	ran time.Time
	err error
}

// newReadiness returns readiness that ends when the process begins to shut down.
func newReadiness(clk clock.PassiveClock) *readiness {
	r := &readiness{checks: map[string]healthz.Checker{}, outcomes: map[string]*outcome{}, clock: clk}
	r.add("leaving", func(*http.Request) error {
		if r.leaving.Load() {
			return errors.New("shutting down")
		}
		return nil
	})
	return r
}

// add adds a check, whose outcome is kept. The kubelet runs it every two seconds, so nobody else has to. No check is added
// once the process runs.
func (r *readiness) add(name string, check healthz.Checker) {
	o := &outcome{}
	r.outcomes[name] = o
	r.checks[name] = func(req *http.Request) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !o.ran.IsZero() && r.clock.Since(o.ran) < checkEvery && !r.leaving.Load() {
			return o.err
		}
		// The outcome is for all who ask, so it does not depend on how long one of them waits.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), checkTimeout)
		defer cancel()
		o.err, o.ran = check(req.WithContext(ctx)), r.clock.Now()
		o.passed.Store(o.err == nil)
		o.failed.Store(o.err != nil)
		return o.err
	}
}

// paths are those of the checks: /readyz and one by one below, and /healthz.
func (r *readiness) paths() map[string]http.Handler {
	paths := map[string]http.Handler{}
	for path, checks := range map[string]map[string]healthz.Checker{"/readyz": r.checks, "/healthz": {"ping": healthz.Ping}} {
		h := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		paths[path], paths[path+"/"] = h, h
	}
	return paths
}

// ready reports whether every check but one has passed.
func (r *readiness) ready(but string) bool {
	for name, o := range r.outcomes {
		if name != but && !o.passed.Load() {
			return false
		}
	}
	return true
}

// leaves reports whether requests are to go to other replicas. A connection that stays open would bring them here.
func (r *readiness) leaves() bool {
	for _, name := range []string{watchCheck, reachCheck} {
		if o := r.outcomes[name]; o != nil && o.failed.Load() {
			return true
		}
	}
	return r.leaving.Load()
}

// notBehind returns a check of how far the watch of pods is behind.
func notBehind(lag func() time.Duration, board *leader.Board) healthz.Checker {
	return func(*http.Request) error {
		if lag := lag(); lag > leader.MostLag && board.NearerLeader(lag) {
			return fmt.Errorf("the watch of pods is %s behind, and the leader's is not", lag.Round(time.Second))
		}
		return nil
	}
}

// cachesSynced is ready when every informer has its first list.
func cachesSynced(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the caches have not synced yet")
		}
		return nil
	}
}
