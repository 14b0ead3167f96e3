package server

import (
	"net/http"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// The checks that fail where another replica answers reviews better. A leader is ready whatever its watch shows.
const (
	watchCheck = "watch"      // of how far the watch of pods is behind
	reachCheck = "api-server" // of whether the API server answers
)

// outcome is what a check has found last. Until it has run, it has neither passed nor failed.
type outcome struct{ passed, failed atomic.Bool }

// remember returns a check whose outcome is kept. The kubelet runs it every two seconds, so nobody else has to.
func (s *server) remember(name string, check healthz.Checker) healthz.Checker {
	o := &outcome{}
	s.outcomes[name] = o
	return func(r *http.Request) error {
		err := check(r)
		o.passed.Store(err == nil)
		o.failed.Store(err != nil)
		return err
	}
}

// ready reports whether every check but one has passed.
func (s *server) ready(but string) bool {
	for name, o := range s.outcomes {
		if name != but && !o.passed.Load() {
			return false
		}
	}
	return true
}

// leaves reports whether requests are to go to other replicas. A connection that stays open would bring them here.
func (s *server) leaves() bool {
	for _, name := range []string{watchCheck, reachCheck} {
		if o := s.outcomes[name]; o != nil && o.failed.Load() {
			return true
		}
	}
	return s.leaving.Load()
}
