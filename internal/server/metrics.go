package server

import (
	"context"
	"crypto/tls"
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
	// Many may be allowed to read the metrics, so a client that reads them slowly holds no place.
	places := fair.NewPool[string](mostInFlight)
	scrapes := promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	paths := map[string]http.Handler{metricsPath: allow(metricsPath, (&unread{}).inMemory(limitInFlight(places, scrapes)))}
	for path, h := range pages {
		paths[path] = allow(path, limitInFlight(places, h))
	}
	return p.addPlainPort(plainPort{name: "metrics", address: p.MetricsAddress, paths: paths, secure: secure, header: maxTokenHeader})
}

// The limits of a plain port. Answers are made in memory, and the metrics of a large cluster are megabytes.
const (
	mostInFlight    = 8           // requests; one client has half of them at most
	waitForInFlight = time.Second // for how long a request waits for its turn
)

// limitInFlight limits how many requests a handler answers at once. Clients, by their addresses, share the places.
func limitInFlight(places *fair.Pool[string], next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := admission.ClientOf(r.RemoteAddr)
		ctx, cancel := context.WithTimeout(r.Context(), waitForInFlight)
		defer cancel()
		if places.Acquire(ctx, client, 1) != nil {
			http.Error(w, "too many requests are being answered at once", http.StatusServiceUnavailable)
			return
		}
		defer places.Release(client, 1)
		next.ServeHTTP(w, r)
	})
}

// profileTimeout limits how long a profile takes. A CPU profile takes 30 s by default.
const profileTimeout = 2 * time.Minute

// profiles are the pages of net/http/pprof.
func profiles() map[string]http.Handler {
	paths := map[string]http.Handler{
		"/debug/pprof/": http.HandlerFunc(pprof.Index), "/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline), "/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol": http.HandlerFunc(pprof.Symbol), "/debug/pprof/trace": http.HandlerFunc(pprof.Trace),
	}
	places := fair.NewPool[string](mostInFlight)
	for path, h := range paths {
		paths[path] = limitInFlight(places, h)
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
