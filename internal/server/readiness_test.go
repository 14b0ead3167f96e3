package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// A replica that is behind is ready but for that, and leaves. Nothing is known before the first check.
func TestReadiness(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	s := newReadiness(now)
	var behind error
	s.add(watchCheck, func(*http.Request) error { return behind })
	s.add("caches", func(*http.Request) error { return nil })
	check := func() {
		for _, c := range s.checks {
			_ = c(httptest.NewRequest(http.MethodGet, "/readyz", nil))
		}
		now.SetTime(now.Now().Add(checkEvery))
	}
	expect := func(when string, ready, leaves bool) {
		t.Helper()
		if got := s.ready(watchCheck); got != ready {
			t.Errorf("%s, it is ready but for its watch: %t", when, got)
		}
		if got := s.leaves(); got != leaves {
			t.Errorf("%s, it leaves: %t", when, got)
		}
	}
	expect("before the first checks", false, false)
	check()
	expect("after checks that pass", true, false)
	behind = errors.New("behind")
	check()
	expect("while the watch is behind", true, true)
	behind = nil
	check()
	expect("afterwards", true, false)
	s.leaving.Store(true)
	check()
	expect("while it shuts down", false, true)
}

// However many ask, a check runs once in half a second, and who gives up changes nothing for the others. A process that shuts down
// says so at once.
func TestChecksRunSeldom(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	s := newReadiness(now)
	ran := 0
	s.add("port", func(r *http.Request) error { ran++; return r.Context().Err() })
	gone, giveUp := context.WithCancel(t.Context())
	giveUp()
	ask := func() {
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if err := s.checks["port"](httptest.NewRequest(http.MethodGet, "/readyz", nil).WithContext(gone)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	ask()
	now.SetTime(now.Now().Add(checkEvery))
	ask()
	if ran != 2 {
		t.Errorf("the check ran %d times, want twice", ran)
	}
	leaving := func() error { return s.checks["leaving"](httptest.NewRequest(http.MethodGet, "/readyz", nil)) }
	if err := leaving(); err != nil {
		t.Error(err)
	}
	s.leaving.Store(true)
	if leaving() == nil {
		t.Error("a process that shuts down is ready")
	}
}
