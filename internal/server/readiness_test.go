package server

import (
	"errors"
	"net/http"
	"testing"
)

// A replica that is behind is ready but for that, and leaves. Nothing is known before the first check.
func TestReadiness(t *testing.T) {
	s := newReadiness()
	var behind error
	s.add(watchCheck, func(*http.Request) error { return behind })
	s.add("caches", func(*http.Request) error { return nil })
	check := func() {
		for _, c := range s.checks {
			_ = c(nil)
		}
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
