package server

import (
	"crypto/tls"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// Requests for metrics that are authenticated, by second and at once. Each may cost the API server two reviews.
const (
	metricsRate  = 5
	metricsBurst = 50
)

// metricsOptions returns how the metrics are served. Without --metrics-auth everybody is answered. With it they are served over
// TLS, to clients that the API server knows and that may get the path.
func metricsOptions(o *config.Process, serveTLS func(*tls.Config)) metricsserver.Options {
	options := metricsserver.Options{BindAddress: o.MetricsAddress}
	if o.MetricsAuth {
		options.SecureServing = true
		options.TLSOpts = []func(*tls.Config){serveTLS}
		options.FilterProvider = authenticated
	}
	return options
}

// addDebug serves pages beside the metrics. Where the metrics are for everybody, the pages are for the pod itself alone.
func addDebug(mgr ctrl.Manager, o *Options, pages map[string]http.Handler) error {
	if o.MetricsAddress == "0" {
		return nil
	}
	for path, page := range pages {
		if !o.MetricsAuth {
			page = onlyLoopback(page)
		}
		if err := mgr.AddMetricsServerExtraHandler(path, page); err != nil {
			return err
		}
	}
	return nil
}

// authenticated returns controller-runtime's filter behind a limit that clients share fairly.
func authenticated(cfg *rest.Config, c *http.Client) (metricsserver.Filter, error) {
	filter, err := filters.WithAuthenticationAndAuthorization(cfg, c)
	if err != nil {
		return nil, err
	}
	limit := fair.NewLimiter[string](metricsRate, metricsBurst)
	return func(log logr.Logger, next http.Handler) (http.Handler, error) {
		next, err := filter(log, next)
		return limited(limit, clock.RealClock{}, next), err
	}, nil
}

// limited answers 429 to a client that asks too often.
func limited(limit *fair.Limiter[string], clk clock.PassiveClock, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			client = r.RemoteAddr
		}
		if !limit.Allow(client, clk.Now()) {
			http.Error(w, "too many requests: ask again in a second", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}
