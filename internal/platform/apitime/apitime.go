// Package apitime tells the time by the API server's clock. Every answer of the API server has a Date. Between two
// answers the local clock measures how much time has passed.
//
// The time is at most a second, and the delay of the network, behind the API server's. It may go back where API servers
// disagree. So it serves to judge dates; a local clock measures waits. Before the first answer it is the local time.
package apitime

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Clock is the API server's clock.
type Clock struct {
	local clock.PassiveClock
	last  atomic.Pointer[reading]
}

// reading is the time on both clocks at one moment.
type reading struct{ local, server time.Time }

// New returns a Clock that goes by a local one until it has an answer.
func New(local clock.PassiveClock) *Clock { return &Clock{local: local} }

// Now implements clock.PassiveClock.
func (c *Clock) Now() time.Time {
	now := c.local.Now()
	last := c.last.Load()
	if last == nil {
		return now
	}
	return last.server.Add(now.Sub(last.local))
}

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Wrap is for rest.Config.Wrap. It reads the Date of every answer that passes.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{c, next} }

type transport struct {
	clock *Clock
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && own(req, resp) {
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			t.clock.last.Store(&reading{local: t.clock.local.Now(), server: date})
		}
	}
	return resp, err
}

// WrappedRoundTripper is how client-go finds the connection below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// own reports whether the API server itself has answered. Paths under /apis may lead to an aggregated server with
// another clock. A load balancer without a server behind it answers with 502 to 504.
func own(req *http.Request, resp *http.Response) bool {
	return strings.Contains(req.URL.Path, "/api/v1/") && resp.StatusCode < http.StatusInternalServerError
}
