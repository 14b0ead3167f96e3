// Package server runs the webhook and the controllers: it makes the parts of a process from its
// settings and puts them together. What the parts do is in their own packages.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/apitime"
	"github.com/stowage-dev/stowage/internal/platform/certs"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/platform/version"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// The names of Stowage's own objects in config/ and the chart.
const (
	certSecret = "stowage-webhook-cert"
	seatSecret = "stowage-seats"
	// repairConfigMap keeps the back-off of repair for the next leader.
	repairConfigMap = "stowage-repair"
	service         = "stowage-webhook"

	// Registration is the name of the webhook's registrations.
	Registration = "stowage"
	// Deployment is the name of the Deployment whose pods are the replicas.
	Deployment = "stowage"
	// LeaderLease is the name of the lease that the leader holds.
	LeaderLease = "stowage-leader"
)

// server is a process in the making.
type server struct {
	options  config.Options
	reloader *config.Reloader
	lookup   func(string) (string, bool)
	log      logr.Logger
	metrics  *metrics.Set
	leaving  atomic.Bool     // the process is shutting down
	leaveCtx context.Context // ends when leaving is set
	clock    clock.WithTickerAndDelayedExecution

	mgr       ctrl.Manager
	webhook   webhook.Server
	uncached  client.Client // does not read from the cache
	clientset kubernetes.Interface
	apiTime   *apitime.Clock // the API server's clock
	contact   *contact
	// getCertificate is for tls.Config.
	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	callers        *clientAuthorities // whose certificates callers must show, or nil
	reader         *cluster.Cache
	scope          *scope.Scope
	policies       *policy.Finder // nil where the spread is off, as is seats
	seats          *seats.Service
	board          *leader.Board // nil as seats is
	features       []feature.Feature
	sizing         *sizeadmit.Feature // nil where it is off
	evictor        *evict.Evictor
	leads          []leader.Controller
	checks         map[string]healthz.Checker
	outcomes       map[string]*outcome // of checks, by name
}

// Environment is what a process has of its surroundings.
type Environment struct {
	// Lookup reads environment variables.
	Lookup func(string) (string, bool)
	// Clock is that of the controllers and of the seats; certificates follow the API server's, and leases the real time.
	Clock clock.WithTickerAndDelayedExecution
	// Metrics is where the metrics are registered.
	Metrics prometheus.Registerer
}

// NewEnvironment returns the environment of a program.
func NewEnvironment(lookup func(string) (string, bool)) Environment {
	return Environment{Lookup: lookup, Clock: clock.RealClock{}, Metrics: ctrlmetrics.Registry}
}

// Run runs the webhook and the controllers until ctx ends, and then lets the requests in flight
// end.
func Run(ctx context.Context, reloader *config.Reloader, env Environment) error {
	s := &server{
		options: reloader.Options, reloader: reloader, lookup: env.Lookup, log: reloader.Log, leaveCtx: ctx, clock: env.Clock,
		metrics: metrics.NewSet(env.Metrics), checks: map[string]healthz.Checker{}, outcomes: map[string]*outcome{},
	}
	s.log.Info("starting", "version", version.String(), "namespace", s.options.Namespace)
	for _, add := range []func(context.Context) error{
		s.addPanics,
		s.addManager,
		s.addCertificate,
		s.addSettings,
		s.addDecisions,
		s.addSeats,
		s.addFeatures,
		s.addControllers,
		s.addHandlers,
		s.addReach,
		s.addHealth,
	} {
		if err := add(ctx); err != nil {
			return err
		}
	}
	return s.run(ctx)
}

// addPanics has panics of goroutines counted and logged; they do not end the process. Those of
// requests and reconcilers are recovered where they happen.
func (s *server) addPanics(context.Context) error {
	panics := NewPanics(s.metrics)
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) { panics.Inc() })
	return nil
}

// NewPanics registers the metric that counts panics.
func NewPanics(set *metrics.Set) prometheus.Counter {
	return set.Counter("stowage_panics_total", "Panics outside of requests and reconciliations. Each is logged, and the work goes on.")
}

// addManager makes the manager, with a cache that keeps only what is used.
func (s *server) addManager(context.Context) error {
	o := &s.options
	cfg, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// API priority and fairness protects the server; a limit here would only make
	// pods wait.
	cfg.QPS = -1
	cfg.UserAgent = "stowage/" + version.String()
	s.apiTime = apitime.New(clock.RealClock{})
	cfg.Wrap(s.apiTime.Wrap)
	s.contact = &contact{clock: clock.RealClock{}}
	cfg.Wrap(s.contact.wrap)
	cacheOptions := cluster.CacheOptions()
	cacheOptions.DefaultTransform = cache.TransformStripManagedFields()
	if o.CertDir == "" {
		maps.Copy(cacheOptions.ByObject, s.certOptions().CacheByObject())
	}
	scheme, err := api.NewScheme()
	if err != nil {
		return err
	}
	if o.ClientCAFile != "" {
		if s.callers, err = newClientAuthorities(o.ClientCAFile); err != nil {
			return err
		}
	}
	s.webhook = newPort(o.Host, o.Port, s.configureTLS, s.metrics)
	s.mgr, err = ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                  scheme,
		MapperProvider:          restMapper,
		Logger:                  s.log,
		Cache:                   cacheOptions,
		WebhookServer:           s.webhook,
		Metrics:                 s.metricsOptions(),
		HealthProbeBindAddress:  o.HealthAddress,
		PprofBindAddress:        o.PprofAddress,
		GracefulShutdownTimeout: &o.DrainTimeout,
		Controller:              ctrlconfig.Controller{SkipNameValidation: new(true)}, // tests run several servers, one after the other
	})
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	s.uncached, s.clientset, err = uncached(s.mgr)
	return err
}

func (s *server) certOptions() certs.Options {
	return certs.Options{
		Secret:       types.NamespacedName{Namespace: s.options.Namespace, Name: certSecret},
		Registration: Registration,
		DNSNames:     append([]string{fmt.Sprintf("%s.%s.svc", service, s.options.Namespace)}, s.options.CertDNSNames...),
		Clock:        clock.RealClock{},
		Time:         s.apiTime,
	}
}

// addCertificate adds what keeps the serving certificate, or follows its files.
func (s *server) addCertificate(context.Context) error {
	if s.options.CertDir == "" {
		keeper, err := certs.Add(s.mgr, s.certOptions())
		if err != nil {
			return err
		}
		s.getCertificate = keeper.GetCertificate
		s.checks["certificate"] = keeper.Ready
	} else {
		files, err := certwatcher.New(filepath.Join(s.options.CertDir, corev1.TLSCertKey), filepath.Join(s.options.CertDir, corev1.TLSPrivateKeyKey))
		if err != nil {
			return fmt.Errorf("read the serving certificate: %w", err)
		}
		if err := s.mgr.Add(files); err != nil {
			return err
		}
		s.getCertificate = files.GetCertificate
	}
	certs.AddExpiry(s.metrics, s.getCertificate)
	return nil
}

// addSettings reads the settings that may change, and follows them.
func (s *server) addSettings(ctx context.Context) (err error) {
	s.reloader.Clients, s.reloader.Events = s.clientset, s.events()
	if s.options, err = s.reloader.Start(ctx, config.NewMetric(s.metrics)); err != nil {
		return err
	}
	return s.mgr.Add(withoutElection(s.reloader.Follow))
}

func (s *server) events() events.Recorder {
	return events.Recorder{EventRecorder: s.mgr.GetEventRecorder("stowage")}
}

// addHandlers registers the webhook's paths.
func (s *server) addHandlers(context.Context) error {
	handler := &admission.Handler{
		Pipeline: admission.NewPipeline(s.scope, s.features...),
		Metrics:  admission.NewMetrics(s.metrics),
		Log:      s.log.WithName("admission"),
		Events:   s.events(),
		// A burst for a cluster's start, and a rate that an API server does not
		// notice.
		EventLimit:   flowcontrol.NewTokenBucketPassiveRateLimiter(5, 100),
		LogLimit:     flowcontrol.NewTokenBucketPassiveRateLimiter(1, 10),
		FailureLimit: flowcontrol.NewTokenBucketPassiveRateLimiter(5, 50),
		ChangeLimit:  flowcontrol.NewTokenBucketPassiveRateLimiter(200, 2000),
		Intake:       admission.NewIntake(clock.RealClock{}),
		Clock:        clock.RealClock{},
	}
	workloads := &admission.WorkloadHandler{
		Log: s.log.WithName("workloads"), LogLimit: handler.LogLimit, Intake: handler.Intake,
		Check: func(annotations map[string]string) []string { return slices.Concat(policy.Check(annotations)) },
	}
	for path, h := range map[string]http.Handler{"/mutate-v1-pod": handler, "/mutate": handler, "/validate-workload": workloads} {
		if s.callers != nil {
			h = onlyClients(s.options.ClientNames, s.log.WithName("clients"), h)
		}
		s.mgr.GetWebhookServer().Register(path, closeWhen(s.leaves, s.contact.reviews(h)))
	}
	return nil
}

// addHealth adds the health checks. Ready means that a request would be answered well.
func (s *server) addHealth(context.Context) error {
	s.checks["webhook"] = s.webhook.StartedChecker()
	s.checks["caches"] = cachesSynced(s.mgr.GetCache())
	s.checks["leaving"] = func(*http.Request) error {
		if s.leaving.Load() {
			return errors.New("shutting down")
		}
		return nil
	}
	for name, check := range s.checks {
		if err := s.mgr.AddReadyzCheck(name, s.remember(name, check)); err != nil {
			return err
		}
	}
	return s.mgr.AddHealthzCheck("ping", healthz.Ping)
}

// run runs until ctx ends; then it says so before requests are refused.
func (s *server) run(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		s.leaving.Store(true)
		s.log.Info("shutting down", "delay", s.options.ShutdownDelay.String())
		time.AfterFunc(s.options.ShutdownDelay, stop)
	})
	if err := s.mgr.Start(running); err != nil {
		return err
	}
	s.log.Info("stopped")
	return nil
}

// closeWhen tells clients, while this replica leaves, not to use their connections again.
// A request on a connection that the server closes at that moment is lost, because
// its client cannot know whether it was read.
func closeWhen(leaves func() bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaves() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// serveTLS sets up a TLS server with Stowage's certificate.
func (s *server) serveTLS(c *tls.Config) {
	c.MinVersion, _ = config.ParseTLSVersion(s.options.TLSMinVersion) // validated before, both
	c.CipherSuites, _ = config.ParseCipherSuites(s.options.TLSCipherSuites)
	c.NextProtos = []string{"http/1.1"} // an API server asks a Service for nothing else
	c.GetCertificate = s.getCertificate
}

// configureTLS sets up the webhook's TLS server.
func (s *server) configureTLS(c *tls.Config) {
	s.serveTLS(c)
	if s.callers != nil {
		// Whether there is one at all, the handlers ask: our own readiness check has none.
		c.ClientAuth = tls.VerifyClientCertIfGiven
		c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			current := c.Clone()
			current.ClientCAs = s.callers.current()
			return current, nil
		}
	}
}

// loadConfig returns the configuration of a named kubeconfig, or of the pod's
// service account, or of the usual kubeconfig.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		if cfg, err := rest.InClusterConfig(); !errors.Is(err, rest.ErrNotInCluster) {
			return cfg, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if len(filepath.SplitList(kubeconfig)) == 1 { // several are what the rules read from $KUBECONFIG
		rules.ExplicitPath = kubeconfig
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}

// cachesSynced is ready when every informer has its first list.
func cachesSynced(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the caches have not synced yet")
		}
		return nil
	}
}

// withoutElection is a part of the manager that runs whoever leads.
type withoutElection func(ctx context.Context) error

// Start implements manager.Runnable.
func (f withoutElection) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (f withoutElection) NeedLeaderElection() bool { return false }
