package relay

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// sibling is the other replica, or none.
type sibling struct {
	answer string
	err    error
	asked  int
	header http.Header
	body   string
}

func (s *sibling) Knows(replica string) bool { return replica != "nobody" }

func (s *sibling) Send(_ context.Context, _, _ string, header http.Header, body []byte, _ int64) ([]byte, error) {
	s.asked, s.header, s.body = s.asked+1, header, string(body)
	return []byte(s.answer), s.err
}

func TestClient(t *testing.T) {
	ask := seats.Ask{Namespace: "ns", UID: "uid", Strategy: "f", Pods: 2}
	for name, tc := range map[string]struct {
		answer string
		err    error
		grants int
		fails  bool
	}{
		"two seats":               {answer: `[{"id":"a","pool":"p","ordinal":1},{"id":"b","pool":"p","ordinal":2}]`, grants: 2},
		"one seat of two":         {answer: `[{"id":"a","pool":"p","ordinal":1}]`, grants: 1},
		"no seat":                 {answer: `null`},
		"more seats than pods":    {answer: `[{},{},{}]`, fails: true},
		"something else":          {answer: `<html>`, fails: true},
		"nothing":                 {answer: ``, fails: true},
		"a seat without an id":    {answer: `[{"pool":"p","ordinal":1}]`, fails: true},
		"a seat without a pool":   {answer: `[{"id":"a","ordinal":1}]`, fails: true},
		"a seat without a number": {answer: `[{"id":"a","pool":"p"}]`, fails: true},
		"no answer":               {err: errors.New("no answer"), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &sibling{answer: tc.answer, err: tc.err}
			grants, err := NewClient(s, make(ledger.Key, ledger.KeySize), clock.RealClock{}).Ask(t.Context(), "b", ask)
			if len(grants) != tc.grants || (err != nil) != tc.fails {
				t.Errorf("%d seats, %v", len(grants), err)
			}
			if want := `{"namespace":"ns","uid":"uid","strategy":"f","pods":2}`; s.body != want {
				t.Errorf("sent %s, want %s", s.body, want)
			}
		})
	}
}

// Who is no replica is not asked, and that is no reason to ask others less.
func TestNotAsked(t *testing.T) {
	s := &sibling{answer: "null"}
	c := NewClient(s, make(ledger.Key, ledger.KeySize), clock.RealClock{})
	if _, err := c.Ask(t.Context(), "nobody", seats.Ask{Pods: 1}); !errors.Is(err, seats.ErrNotAsked) || s.asked != 0 || len(c.silent) != 0 {
		t.Errorf("%v, %d requests, %d pauses", err, s.asked, len(c.silent))
	}
}

// failing fails requests once all are under way.
type failing struct {
	sibling
	all *sync.WaitGroup
}

func (f *failing) Send(context.Context, string, string, http.Header, []byte, int64) ([]byte, error) {
	f.all.Done()
	f.all.Wait()
	return nil, errors.New("no answer")
}

// Requests that fail together are one reason for a pause.
func TestPauseOnce(t *testing.T) {
	const together = 20
	f := &failing{all: &sync.WaitGroup{}}
	f.all.Add(together)
	c := NewClient(f, make(ledger.Key, ledger.KeySize), clock.RealClock{})
	var asked sync.WaitGroup
	for range together {
		asked.Go(func() { _, _ = c.Ask(t.Context(), "b", seats.Ask{Pods: 1}) })
	}
	asked.Wait()
	if long := c.silent["b"].long; long != firstPause {
		t.Errorf("the pause is %s, want %s", long, firstPause)
	}
}

// A replica that does not answer is asked less and less often, and as often as others once it answers again.
func TestPause(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	s := &sibling{err: errors.New("no answer")}
	c := NewClient(s, make(ledger.Key, ledger.KeySize), now)
	in := func(d time.Duration) int {
		before := s.asked
		for end := now.Now().Add(d); now.Now().Before(end); now.SetTime(now.Now().Add(100 * time.Millisecond)) {
			_, _ = c.Ask(t.Context(), "b", seats.Ask{Pods: 1})
		}
		return s.asked - before
	}
	if first, hour := in(time.Minute), in(time.Hour); first > 7 || hour > 15 {
		t.Errorf("it was asked %d times in a minute, and %d times in the next hour", first, hour)
	}
	if _, err := c.Ask(t.Context(), "c", seats.Ask{Pods: 1}); errors.Is(err, seats.ErrNotAsked) {
		t.Error("another replica is not asked either")
	}
	s.err, s.answer = nil, "null"
	if in(10*time.Minute) < 3000 {
		t.Error("it is not asked again")
	}
	for i := range 1000 { // replicas come and go
		s.err = errors.New("no answer")
		_, _ = c.Ask(t.Context(), "gone-"+string(rune('a'+i)), seats.Ask{Pods: 1})
		now.SetTime(now.Now().Add(time.Minute))
	}
	if n := len(c.silent); n > 20 {
		t.Errorf("%d replicas that are gone are remembered", n)
	}
}

// Only a request with the token is read.
func TestHandler(t *testing.T) {
	key, service := ledger.NewKey(), seats.New(seats.Options{
		Key: make(ledger.Key, ledger.KeySize), Clock: clock.RealClock{}, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
	})
	s := &sibling{answer: "null"}
	if _, err := NewClient(s, key, clock.RealClock{}).Ask(t.Context(), "b", seats.Ask{Namespace: "ns", UID: "uid", Pods: 1}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		token, body string
		status      int
		answer      string
	}{
		"a replica":                {s.header.Get(tokenHeader), s.body, http.StatusOK, "null"},
		"no token":                 {"", s.body, http.StatusUnauthorized, ""},
		"a token of another key":   {token(ledger.NewKey()), s.body, http.StatusUnauthorized, ""},
		"the key itself":           {string(key), s.body, http.StatusUnauthorized, ""},
		"no JSON":                  {s.header.Get(tokenHeader), "pods", http.StatusBadRequest, ""},
		"more than an ask can be":  {s.header.Get(tokenHeader), `{"namespace":"` + strings.Repeat("n", 2*maxRequest) + `"}`, http.StatusBadRequest, ""},
		"more pods than there are": {s.header.Get(tokenHeader), `{"pods":1000000000}`, http.StatusOK, "null"},
	} {
		t.Run(name, func(t *testing.T) {
			read := &counting{Reader: strings.NewReader(tc.body)}
			r := httptest.NewRequest(http.MethodPost, Path, read)
			r.Header.Set(tokenHeader, tc.token)
			w := httptest.NewRecorder()
			Handler(key, service).ServeHTTP(w, r)
			if w.Code != tc.status || tc.answer != "" && w.Body.String() != tc.answer {
				t.Errorf("HTTP %d: %s", w.Code, w.Body)
			}
			if tc.status == http.StatusUnauthorized && read.n > 0 {
				t.Errorf("%d bytes of a stranger were read", read.n)
			}
		})
	}
}

// counting counts what is read.
type counting struct {
	*strings.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}
