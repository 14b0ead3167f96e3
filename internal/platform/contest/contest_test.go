package contest

import (
	"testing"
	"time"
)

func TestContest(t *testing.T) {
	var c Contest[string]
	now := time.Unix(0, 0)
	begun := 0
	// write writes as soon as that is allowed, and returns how long that took.
	write := func() (waited time.Duration) {
		waited = c.Wait("node", now)
		now = now.Add(waited)
		if c.Written("node", now) {
			begun++
		}
		return waited
	}
	for i, want := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		if got := write(); got != want {
			t.Errorf("write %d waited %s, want %s", i+1, got, want)
		}
	}
	for range 20 {
		if got := write(); got > 5*time.Minute {
			t.Errorf("a write waited %s", got)
		}
	}
	if begun != 1 {
		t.Errorf("%d events, want 1", begun)
	}
	if wait := c.Wait("another node", now); wait != 0 {
		t.Errorf("another object waits %s", wait)
	}
	// Long after the last write nobody fights any more.
	now = now.Add(time.Hour)
	if got := write(); got != 0 {
		t.Errorf("after a quiet hour a write waited %s", got)
	}
	c.ForgetOld(now.Add(time.Hour))
	if n := len(c.objects); n != 0 {
		t.Errorf("%d objects are remembered", n)
	}
	c.Forget("node")
}
