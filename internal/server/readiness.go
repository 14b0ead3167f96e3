package server

import (
	"errors"
	"net/http"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The checks that fail where another replica answers reviews better. A leader is ready whatever its watch shows.
const (
	watchCheck = "watch"      // of how far the watch of pods is behind
	reachCheck = "api-server" // of whether the API server answers
)

// readiness is the checks of a replica. Ready means that a request would be answered well.
type readiness struct {
	leaving  atomic.Bool // the process is shutting down
	checks   map[string]healthz.Checker
	outcomes map[string]*outcome
}

// outcome is what a check has found last. Until it has run, it has neither passed nor failed.
type outcome struct{ passed, failed atomic.Bool }

// newReadiness returns readiness that ends when the process begins to shut down.
func newReadiness() *readiness {
	r := &readiness{checks: map[string]healthz.Checker{}, outcomes: map[string]*outcome{}}
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
		err := check(req)
		o.passed.Store(err == nil)
		o.failed.Store(err != nil)
		return err
	}
}

// serve has the manager serve the checks.
func (r *readiness) serve(mgr manager.Manager) error {
	for name, check := range r.checks {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return err
		}
	}
	return mgr.AddHealthzCheck("ping", healthz.Ping)
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
