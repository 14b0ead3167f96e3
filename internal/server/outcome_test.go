package server

import (
	"errors"
	"net/http"
	"testing"
)

// A replica that is behind is ready but for that, and leaves. Nothing is known before the first check.
func TestOutcomes(t *testing.T) {
	s := &server{outcomes: map[string]*outcome{}}
	var behind error
	watch := s.remember(watchCheck, func(*http.Request) error { return behind })
	caches := s.remember("caches", func(*http.Request) error { return nil })
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
	_, _ = watch(nil), caches(nil)
	expect("after checks that pass", true, false)
	behind = errors.New("behind")
	_, _ = watch(nil), caches(nil)
	expect("while the watch is behind", true, true)
	behind = nil
	_, _ = watch(nil), caches(nil)
	expect("afterwards", true, false)
}
