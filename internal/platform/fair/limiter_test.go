package fair

import (
	"fmt"
	"testing"
	"time"
)

// Many users share the rate: each gets something, and all together stay within it.
func TestLimiterIsShared(t *testing.T) {
	l := NewLimiter[string](10, 50)
	now := time.Unix(0, 0)
	allowed := map[string]int{}
	for tick := range 600 { // a minute
		for i := range 80 {
			if name := fmt.Sprint("ns-", i); l.Allow(name, now.Add(time.Duration(tick)*100*time.Millisecond)) {
				allowed[name]++
			}
		}
	}
	sum := 0
	for _, n := range allowed {
		sum += n
	}
	if sum > 50+60*10 || sum < 400 {
		t.Errorf("%d events in a minute", sum)
	}
	if len(allowed) < 60 {
		t.Errorf("only %d of 80 users had an event", len(allowed))
	}
}

// A user that asks all the time gets the whole rate while it is alone, and another one that comes waits for one event at most.
func TestLimiterServesWhoComes(t *testing.T) {
	l := NewLimiter[string](2, 1)
	now := time.Unix(0, 0)
	alone := 0
	for range 600 { // a minute
		if l.Allow("greedy", now) {
			alone++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if alone < 119 || alone > 121 {
		t.Errorf("%d events in a minute, want 120", alone)
	}
	for began, greedy := now, 0; ; now = now.Add(100 * time.Millisecond) {
		if l.Allow("greedy", now) {
			greedy++
		}
		if l.Allow("modest", now) {
			break
		}
		if greedy > 1 || now.Sub(began) > time.Minute {
			t.Fatalf("after %s the greedy user had %d events and the other one none", now.Sub(began), greedy)
		}
	}
	now = now.Add(2 * activeFor)
	l.Allow("greedy", now)
	if len(l.buckets) != 1 {
		t.Errorf("%d users are remembered, want 1", len(l.buckets))
	}
}

// A pause gives no more than the burst.
func TestLimiterAfterAPause(t *testing.T) {
	l, now := NewLimiter[string](10, 50), time.Unix(0, 0)
	for range 2 {
		allowed := 0
		for range 1000 {
			if l.Allow("user", now) {
				allowed++
			}
		}
		if allowed != 25 { // the other half is for whoever comes
			t.Errorf("%d events at once, want 25", allowed)
		}
		now = now.Add(activeFor - time.Second)
	}
}
