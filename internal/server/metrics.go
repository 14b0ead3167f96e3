package server

import (
	"crypto/tls"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// Requests for metrics that are authenticated, by second and at once. Each may cost the API server two reviews.
const (
	metricsRate  = 5
	metricsBurst = 50
)

// metricsOptions returns how the metrics are served. Without --metrics-auth everybody is answered. With it they are served over
// TLS, to clients that the API server knows and that may get the path.
func (s *server) metricsOptions() metricsserver.Options {
	o := metricsserver.Options{BindAddress: s.options.MetricsAddress}
	if s.options.MetricsAuth {
		o.SecureServing = true
		o.TLSOpts = []func(*tls.Config){s.serveTLS}
		o.FilterProvider = authenticated
	}
	return o
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
