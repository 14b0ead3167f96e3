package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/certs"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/controller"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/policy"
)

// The names of Stowage's own objects in config/ and the chart.
const (
	certSecret   = "stowage-webhook-cert"
	seatSecret   = "stowage-seats"
	leaderLease  = "stowage-leader"
	peerPodsCM   = "peer-pods-cm"
	registration = "stowage"
	service      = "stowage-webhook"
)

func newServeCommand(s Streams) *cobra.Command {
	o := DefaultOptions()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the webhook and the controllers",
		Long: `Run the admission webhook: /mutate-v1-pod and /mutate (pods) and
/validate-workload (warnings about strategies) on --port, /healthz and /readyz on
--health-probe-bind-address, /metrics on --metrics-bind-address. One replica, elected,
runs the controllers, too: status of PodDistributors and FlexDaemonsetTemplates,
repair, rebalancing, in-place resizing, VM capacity of nodes.

Every flag can be given as an environment variable, named in brackets. A flag
wins over its variable.`,
		Example: `  # In the cluster, with a certificate of its own
  stowage serve

  # On this machine, against the current kubeconfig, with a certificate from files
  stowage serve --cert-dir ./certs --log-level DEBUG --log-format text`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(unknownVariables(cmd.Flags(), s.Environ()), applyEnv(cmd.Flags(), s.LookupEnv), o.Validate()); err != nil {
				return usageError{fmt.Errorf("invalid settings:\n%w", err)}
			}
			level, _ := parseLogLevel(o.LogLevel) // validated above
			l := &live{options: o, pinned: given(cmd.Flags()), level: &slog.LevelVar{}}
			l.level.Set(level)
			l.log = newLogger(s.Err, l.level, o.LogFormat)
			return serve(cmd.Context(), l)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// serve runs the webhook until ctx ends, and then lets the requests in flight end.
func serve(ctx context.Context, l *live) error {
	o, log := l.options, l.log
	log.Info("starting", "version", version(), "namespace", o.Namespace)
	cfg, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// API priority and fairness protects the server; a limit here would only make
	// pods wait.
	cfg.QPS = -1
	cfg.UserAgent = "stowage/" + version()

	// 1. The manager, with a cache that keeps only what is used.
	certOptions := certs.Options{
		Secret:       types.NamespacedName{Namespace: o.Namespace, Name: certSecret},
		Registration: registration,
		DNSNames:     append([]string{fmt.Sprintf("%s.%s.svc", service, o.Namespace)}, o.CertDNSNames...),
		Clock:        clock.RealClock{},
	}
	cacheOptions := cluster.CacheOptions()
	cacheOptions.DefaultTransform = cache.TransformStripManagedFields()
	if o.CertDir == "" {
		maps.Copy(cacheOptions.ByObject, certOptions.CacheByObject())
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	var clients *clientAuthorities
	if o.ClientCAFile != "" {
		if clients, err = newClientAuthorities(o.ClientCAFile); err != nil {
			return err
		}
	}
	var keeper *certs.Keeper
	var certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	server := webhook.NewServer(webhook.Options{
		Host: o.Host,
		Port: o.Port,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			configureTLS(c, &o)
			c.GetCertificate = certificate
			if clients != nil {
				// Whether there is one at all, the handlers ask: our own readiness check has none.
				c.ClientAuth = tls.VerifyClientCertIfGiven
				c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
					current := c.Clone()
					current.ClientCAs = clients.current()
					return current, nil
				}
			}
		}},
	})
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                  scheme,
		Logger:                  log,
		Cache:                   cacheOptions,
		WebhookServer:           server,
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:  o.HealthAddress,
		PprofBindAddress:        o.PprofAddress,
		GracefulShutdownTimeout: &o.DrainTimeout,
	})
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	if o.CertDir == "" {
		if keeper, err = certs.Add(mgr, certOptions); err != nil {
			return err
		}
		certificate = keeper.GetCertificate
	} else {
		files, err := certwatcher.New(filepath.Join(o.CertDir, corev1.TLSCertKey), filepath.Join(o.CertDir, corev1.TLSPrivateKeyKey))
		if err != nil {
			return fmt.Errorf("read the serving certificate: %w", err)
		}
		if err := mgr.Add(files); err != nil {
			return err
		}
		certificate = files.GetCertificate
	}
	if err := ctrlmetrics.Registry.Register(certs.Expiry(certificate)); err != nil {
		return err
	}

	// 2. The settings that may change.
	if _, l.clientset, err = uncached(mgr); err != nil {
		return err
	}
	l.events, l.invalid = mgr.GetEventRecorder("stowage"), newInvalidConfig()
	if err := ctrlmetrics.Registry.Register(l.invalid); err != nil {
		return err
	}
	if o, err = l.start(ctx); err != nil {
		return err
	}
	if err := mgr.Add(everyReplica(l.follow)); err != nil {
		return err
	}

	// 3. The decisions.
	reader := &cluster.Cache{Cached: mgr.GetCache(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}}
	if err := cluster.StartInformers(ctx, mgr.GetCache()); err != nil {
		return err
	}
	metrics, err := admission.NewMetrics(ctrlmetrics.Registry)
	if err != nil {
		return err
	}
	checks := map[string]healthz.Checker{}
	p := parts{sizing: &o.Sizing, peerPods: &o.PeerPods, reader: reader, namespace: o.Namespace}
	var controllers *controller.Spread
	if o.Spread.Enabled {
		if controllers, err = addSeats(ctx, mgr, &o); err != nil {
			return err
		}
		seats := controllers.Ledger
		p.spread = newSpread(&o.Spread, reader, seats, seats.Pods().Key)
		l.finder = p.spread.Policies
		checks["seats"] = func(*http.Request) error {
			if !seats.Pods().HasSynced() {
				return errors.New("the pods that have a seat are not listed yet")
			}
			return nil
		}
	}
	pipeline := newPipeline(p)
	var leads []func(context.Context)
	if controllers != nil {
		controllers.Cluster, controllers.Pipeline, controllers.Policies = reader, pipeline, p.spread.Policies
		leads = append(leads, controllers.Run)
	}
	if o.Sizing.Enabled {
		sizer, err := newSizer(mgr, &o, reader, pipeline)
		if err != nil {
			return err
		}
		leads = append(leads, sizer.Run)
	}
	if o.PeerPods.Enabled && o.Capacity.Enabled {
		capacity, err := newCapacity(mgr, &o)
		if err != nil {
			return err
		}
		leads = append(leads, capacity.Run)
	}
	if len(leads) > 0 {
		if err := addLeader(mgr, &o, leads...); err != nil {
			return err
		}
	}
	handler := &admission.Handler{
		Pipeline: pipeline,
		Metrics:  metrics,
		Log:      log.WithName("admission"),
		Events:   mgr.GetEventRecorder("stowage"),
		// A burst for a cluster's start, and a rate that an API server does not
		// notice.
		EventLimit: flowcontrol.NewTokenBucketPassiveRateLimiter(5, 100),
		Clock:      clock.RealClock{},
	}
	var leaving atomic.Bool
	workloads := &admission.WorkloadHandler{Log: log.WithName("workloads"), Clock: clock.RealClock{}}
	for path, h := range map[string]http.Handler{"/mutate-v1-pod": handler, "/mutate": handler, "/validate-workload": workloads} {
		if clients != nil {
			h = onlyClients(o.ClientNames, log.WithName("clients"), h)
		}
		mgr.GetWebhookServer().Register(path, closeWhen(&leaving, h))
	}

	// 4. Health. Ready means that a request would be answered well.
	checks["webhook"] = server.StartedChecker()
	checks["caches"] = cachesSynced(mgr.GetCache())
	checks["leaving"] = func(*http.Request) error {
		if leaving.Load() {
			return errors.New("shutting down")
		}
		return nil
	}
	if keeper != nil {
		checks["certificate"] = keeper.Ready
	}
	for name, check := range checks {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return err
		}
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}

	// 5. Run, until we are asked to end; then say so before we refuse.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		leaving.Store(true)
		log.Info("shutting down", "delay", o.ShutdownDelay.String())
		time.AfterFunc(o.ShutdownDelay, stop)
	})
	if err := mgr.Start(running); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// newScheme returns the kinds of Kubernetes and our own.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), stowage.AddToScheme(s), versprei.AddToScheme(s), flexdaemonsets.AddToScheme(s))
}

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// parts are what a pipeline is made of. A feature that is nil is off.
type parts struct {
	spread    *admission.Spread
	sizing    *SizingOptions
	peerPods  *PeerPodOptions
	reader    cluster.Reader
	namespace string
}

// newPipeline lists the features, in their fixed order.
func newPipeline(p parts) *admission.Pipeline {
	out := &admission.Pipeline{Cluster: p.reader, Excluded: append(slices.Clone(admission.SystemNamespaces), p.namespace)}
	if p.spread != nil {
		out.Features = append(out.Features, p.spread)
	}
	if p.sizing.Enabled {
		out.Features = append(out.Features, &admission.Sizing{Cluster: p.reader})
	}
	if p.peerPods.Enabled {
		out.Features = append(out.Features, &admission.PeerPods{Config: p.peerPods.Config, Cluster: p.reader})
	}
	return out
}

// newSpread returns the spread, or nil if it is off.
func newSpread(o *SpreadOptions, reader cluster.Reader, seats admission.Seats, key ledger.Key) *admission.Spread {
	if !o.Enabled {
		return nil
	}
	policies := &policy.Finder{Cluster: reader, NamespaceLabel: o.NamespaceLabel}
	policies.Exclude(o.ExcludedNamespaces)
	return &admission.Spread{Policies: policies, Seats: seats, Key: key}
}

// closeWhen tells clients, once a flag is set, not to use their connections again.
// A request on a connection that the server closes at that moment is lost, because
// its client cannot know whether it was read.
func closeWhen(leaving *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func configureTLS(c *tls.Config, o *Options) {
	c.MinVersion, _ = parseTLSVersion(o.TLSMinVersion)
	c.CipherSuites, _ = parseCipherSuites(o.TLSCipherSuites)
	c.NextProtos = []string{"http/1.1"}
	if o.EnableHTTP2 {
		c.NextProtos = []string{"h2", "http/1.1"}
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
