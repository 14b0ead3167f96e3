package evict

import (
	"testing"
	"time"
)

// While nothing proves that the webhook is reached, few pods are evicted.
func TestUnproven(t *testing.T) {
	now := time.Unix(1000, 0)
	u, evicted := Unproven{}, 0
	for range 100 {
		if u.MayEvict(7, now) {
			u.Note(now)
			evicted++
		}
	}
	if evicted != MostUnproven {
		t.Errorf("%d pods are evicted", evicted)
	}
	if u.MayEvict(7, now.Add(TryUnproven-1)) || !u.MayEvict(7, now.Add(TryUnproven)) {
		t.Error("the next eviction does not come after the wait")
	}
	if !u.MayEvict(8, now.Add(time.Second)) {
		t.Error("a pod that has come through the webhook proves nothing")
	}
}
