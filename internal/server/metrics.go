package server

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

const metricsPath = "/metrics"

// addMetrics serves the metrics, and pages for support beside them. Without --metrics-auth everybody may read the metrics, and the
// pages are for the pod itself alone. With it all are served over TLS, to clients that the API server knows and that may get the path.
func addMetrics(mgr ctrl.Manager, o *Options, c *certificate, clients kubernetes.Interface, pages map[string]http.Handler, dropped prometheus.Counter) error {
	if o.MetricsAddress == "0" {
		return nil
	}
	var secure func(*tls.Config)
	allow := func(path string, h http.Handler) http.Handler {
		if path != metricsPath {
			h = onlyLoopback(h)
		}
		return h
	}
	if o.MetricsAuth {
		secure = serveTLS(&o.Process, c)
		readers := newReaders(clients.AuthenticationV1().TokenReviews(), clients.AuthorizationV1().SubjectAccessReviews(), clock.RealClock{}, mgr.GetLogger().WithName("metrics"))
		allow = readers.only
	}
	all := map[string]http.Handler{metricsPath: promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})}
	maps.Copy(all, pages)
	mux := http.NewServeMux()
	for path, h := range all {
		mux.Handle(path, allow(path, h))
	}
	return servePlain(mgr, "metrics", o.MetricsAddress, secure, mux, maxTokenHeader, dropped)
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
