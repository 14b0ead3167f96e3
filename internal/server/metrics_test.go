package server

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// One client has at most half of the requests that are answered at once.
func TestScrapesInFlightAreLimited(t *testing.T) {
	t.Parallel()
	begun, end := make(chan string, 2*mostInFlight), make(chan struct{})
	h := limitInFlight(fair.NewPool[string](mostInFlight), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- r.RemoteAddr
		<-end
	}))
	scrape := func(client string) int {
		r := httptest.NewRequest(http.MethodGet, metricsPath, nil)
		r.RemoteAddr = client + ":1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	var answered sync.WaitGroup
	for range mostInFlight / 2 {
		answered.Go(func() { scrape("192.0.2.1") })
		<-begun
	}
	if got := scrape("192.0.2.1"); got != http.StatusServiceUnavailable {
		t.Errorf("a client that has half of the places is answered %d", got)
	}
	answered.Go(func() {
		if got := scrape("192.0.2.2"); got != http.StatusOK {
			t.Errorf("another client is answered %d", got)
		}
	})
	if from := <-begun; from != "192.0.2.2:1" {
		t.Errorf("%s is answered", from)
	}
	close(end)
	answered.Wait()
	if got := scrape("192.0.2.1"); got != http.StatusOK {
		t.Errorf("a client that asks again is answered %d", got)
	}
}
