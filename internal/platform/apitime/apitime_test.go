package apitime

import (
	"errors"
	"net/http"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// answer is a server that always gives one answer.
type answer struct {
	status int
	date   string
	err    error
}

// RoundTrip implements http.RoundTripper.
func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{"Date": {a.date}}, Body: http.NoBody}, nil
}

func TestNow(t *testing.T) {
	server := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	local := server.Add(5 * time.Hour)
	date := server.Format(http.TimeFormat)
	cases := map[string]struct {
		path   string
		answer answer
		want   time.Time
	}{
		"an answer of the API server counts":                    {"/api/v1/secrets", answer{status: 200, date: date}, server},
		"so does one behind a prefix":                           {"/k8s/clusters/a/api/v1/secrets", answer{status: 200, date: date}, server},
		"so does a refusal":                                     {"/api/v1/secrets", answer{status: 403, date: date}, server},
		"an answer that an aggregated server may give does not": {"/apis/metrics.k8s.io/v1beta1/namespaces/api/pods", answer{status: 200, date: date}, local},
		"a load balancer's does not":                            {"/api/v1/secrets", answer{status: 503, date: date}, local},
		"an answer without a date does not":                     {"/api/v1/secrets", answer{status: 200}, local},
		"an answer with another text does not":                  {"/api/v1/secrets", answer{status: 200, date: "today"}, local},
		"no answer changes nothing":                             {"/api/v1/secrets", answer{err: errors.New("refused")}, local},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(local)
			c := New(clock)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Wrap(tc.answer).RoundTrip(req)
			if !errors.Is(err, tc.answer.err) || resp == nil && err == nil {
				t.Errorf("the answer did not pass: %v, %v", resp, err)
			}
			if got := c.Now(); !got.Equal(tc.want) {
				t.Errorf("it is %s, want %s", got, tc.want)
			}
			clock.SetTime(local.Add(time.Hour))
			if got := c.Since(tc.want); got != time.Hour {
				t.Errorf("after an hour %s have passed", got)
			}
		})
	}
}

// A later answer corrects what the local clock has got wrong since the one before.
func TestNowFollowsTheLastAnswer(t *testing.T) {
	server := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakePassiveClock(server)
	c := New(clock)
	for _, jump := range []time.Duration{0, 280 * 24 * time.Hour, -5 * time.Hour} {
		clock.SetTime(server.Add(jump))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wrap(answer{status: 200, date: server.Format(http.TimeFormat)}).RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if got := c.Now(); !got.Equal(server) {
			t.Errorf("with a local clock that is off by %s it is %s, want %s", jump, got, server)
		}
		server = server.Add(time.Minute)
	}
}
