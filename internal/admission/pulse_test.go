package admission

import (
	"bytes"
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

// What is read just after the process was frozen for longer than a request may take is not answered. What comes later is.
func TestFrozenProcess(t *testing.T) {
	const budget = 5 * time.Second
	cases := map[string]struct {
		frozen, after time.Duration
		beats         bool // before the request
		old           bool
	}{
		"it was not frozen":                       {frozen: pulseEvery},
		"it was frozen for less than the request": {frozen: budget - time.Millisecond},
		"it was frozen for longer":                {frozen: budget, old: true},
		"the pulse noticed it first":              {frozen: time.Minute, beats: true, old: true},
		"the request came later":                  {frozen: time.Minute, beats: true, after: settleAfter},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			p := NewPulse(now)
			now.Step(tc.frozen)
			if tc.beats {
				p.beat(now.Now())
			}
			for passed := time.Duration(0); passed < tc.after; passed += pulseEvery {
				now.Step(pulseEvery)
				p.beat(now.Now())
			}
			if got := p.old(now.Now(), budget); got != tc.old {
				t.Errorf("the request is taken to be old: %t", got)
			}
		})
	}
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
	now.Step(14 * time.Second)
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
		ctx, cancel := arrive(r)
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
