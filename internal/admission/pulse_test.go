package admission

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// What is read just after the process was frozen may be as old as that. What comes later is new.
func TestFrozenProcess(t *testing.T) {
	cases := map[string]struct {
		frozen, after time.Duration
		beats         bool // before the request
		age           time.Duration
	}{
		"it was not frozen":          {frozen: pulseEvery},
		"it was slow":                {frozen: frozenAfter - 1},
		"it was frozen for a while":  {frozen: frozenAfter, age: frozenAfter},
		"the pulse noticed it first": {frozen: time.Minute, beats: true, age: time.Minute},
		"the request came soon":      {frozen: time.Minute, beats: true, after: settleAfter - 1, age: time.Minute},
		"the request came later":     {frozen: time.Minute, beats: true, after: settleAfter},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			p := NewPulse(now)
			now.Step(time.Hour) // it does not run yet
			p.beat(now.Now())
			now.Step(tc.frozen)
			if tc.beats {
				p.beat(now.Now())
			}
			now.Step(tc.after)
			if got := p.age(now.Now()); got != tc.age {
				t.Errorf("the request may be %v old, want %v", got, tc.age)
			}
		})
	}
}

// After a long freeze, the watches may be dead for a while. The time in which a process starts is no freeze.
func TestUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPulse(clock.RealClock{})
		check := func(moment string, want bool) {
			t.Helper()
			if got := p.Unsettled(); got != want {
				t.Errorf("%s, it is unsettled: %t", moment, got)
			}
		}
		check("at first", false)
		<-time.After(time.Minute) // the caches fill
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		check("as it starts", false)
		<-time.After(10 * time.Second)
		check("while it runs", false)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-time.After(unsettledFrom - time.Millisecond)
		check("after a short stall", false)
		<-time.After(unsettledFrom)
		check("after a freeze", true)
		for range 44 {
			<-time.After(time.Second)
			check("while the watches may be dead", true)
		}
		<-time.After(time.Second)
		check("once they are known to be alive", false)
	})
}

// A request that was sent before the process was frozen gets no answer, and changes nothing; the next one is answered.
func TestRequestsOfBeforeTheFreeze(t *testing.T) {
	h := newTestHandler(t, manifests.New(world.Objects{}))
	now := clocktesting.NewFakeClock(clock.RealClock{}.Now())
	h.Pulse = NewPulse(now)
	h.Clock = now
	server := httptest.NewServer(h)
	defer server.Close()
	ask := func() error {
		res, err := http.Post(server.URL+"/mutate?timeout=5s", "application/json", bytes.NewReader(reviewOf(t, peerPod(), nil)))
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	now.Step(4900 * time.Millisecond) // the way back takes 200
	if ask() == nil {
		t.Error("a request that may be older than its deadline was answered")
	}
	now.Step(settleAfter)
	if err := ask(); err != nil {
		t.Errorf("a later request was not answered: %v", err)
	}
}

// An answer that comes after the API server has given up is not sent.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", nil)
		ctx, cancel := arrive(r, 0)
		defer cancel()
		refused := func() (was bool) {
			defer func() {
				err, _ := recover().(error)
				was = errors.Is(err, http.ErrAbortHandler)
			}()
			refuseLate(ctx, clock.RealClock{}.Now())
			return
		}
		<-time.After(5*time.Second - time.Millisecond)
		if refused() {
			t.Error("an answer in time is refused")
		}
		<-time.After(time.Millisecond)
		if !refused() {
			t.Error("a late answer is sent")
		}
	})
}
