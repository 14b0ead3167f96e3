package server

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

const metricsPath = "/metrics"

// addMetrics serves the metrics, and pages for support beside them. Without --metrics-auth everybody may read the metrics, and the
// pages are for the pod itself alone. With it all are served over TLS, to clients that the API server knows and that may get the path.
func (p *process) addMetrics(pages map[string]http.Handler) error {
	var secure func(*tls.Config)
	allow := func(path string, h http.Handler) http.Handler {
		if path != metricsPath {
			h = onlyLoopback(h)
		}
		return h
	}
	if p.MetricsAuth {
		secure = serveTLS(&p.Process, p.certificate)
		readers := newReaders(p.clients.set.AuthenticationV1().TokenReviews(), p.clients.set.AuthorizationV1().SubjectAccessReviews(), clock.RealClock{}, p.log.WithName("metrics"))
		allow = readers.only
	}
	paths := map[string]http.Handler{metricsPath: promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})}
	maps.Copy(paths, pages)
	few := newFew()
	for path, h := range paths {
		paths[path] = allow(path, few.only(h))
	}
	return p.addPlainPort(plainPort{name: "metrics", address: p.MetricsAddress, paths: paths, secure: secure, header: maxTokenHeader})
}

// few answers few requests at once, as each answer is made in memory: some 7 MB of metrics, and up to five times as much while they are written.
type few struct{ places *fair.Pool[string] } // by client

// How many are answered at once. One client alone has half of the places. A request waits for its place for a second: a scrape takes less.
const (
	mostScrapes   = 8
	waitForScrape = time.Second
)

func newFew() few { return few{fair.NewPool[string](mostScrapes)} }

// only has a handler answer no more than those few.
func (f few) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := admission.ClientOf(r.RemoteAddr)
		ctx, cancel := context.WithTimeout(r.Context(), waitForScrape)
		defer cancel()
		if f.places.Acquire(ctx, client, 1) != nil {
			http.Error(w, "too many requests are being answered at once", http.StatusServiceUnavailable)
			return
		}
		defer f.places.Release(client, 1)
		next.ServeHTTP(w, r)
	})
}

// profileTimeout is how long a profile takes at most. One of the processors takes 30 s unless it is asked for another time.
const profileTimeout = 2 * time.Minute

// profiles are the pages of net/http/pprof.
func profiles() map[string]http.Handler {
	paths := map[string]http.Handler{
		"/debug/pprof/": http.HandlerFunc(pprof.Index), "/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline), "/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol": http.HandlerFunc(pprof.Symbol), "/debug/pprof/trace": http.HandlerFunc(pprof.Trace),
	}
	few := newFew()
	for path, h := range paths {
		paths[path] = few.only(h)
	}
	return paths
}

// countPanics has panics of goroutines counted and logged; they do not end the process. Those of
// requests and reconcilers are recovered where they happen.
func countPanics(set *metrics.Set) {
	panics := NewPanics(set)
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) { panics.Inc() })
}

// NewPanics registers the metric that counts panics.
func NewPanics(set *metrics.Set) prometheus.Counter {
	return set.Counter("stowage_panics_total", "Panics outside of requests and reconciliations. Each is logged, and the work goes on.")
}
