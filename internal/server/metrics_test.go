package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// A client that guesses tokens is refused before the API server is asked, and another client is not.
func TestMetricsRequestsAreLimited(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	asked := 0
	h := limited(fair.NewLimiter[string](metricsRate, metricsBurst), clk, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	get := func(from string) int {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for range 1000 {
		get("10.0.0.7:1")
	}
	if asked > metricsBurst {
		t.Errorf("1000 requests at once were authenticated %d times, want at most %d", asked, metricsBurst)
	}
	if code := get("10.0.0.7:2"); code != http.StatusTooManyRequests {
		t.Errorf("the client got %d by another port", code)
	}
	if code := get("10.0.0.8:1"); code != http.StatusOK {
		t.Errorf("another client got %d", code)
	}
	clk.Step(10 * time.Second)
	if code := get("10.0.0.7:1"); code != http.StatusOK {
		t.Errorf("the client got %d after ten seconds", code)
	}
}
