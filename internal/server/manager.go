package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	goruntime "runtime"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/apitime"
	"github.com/stowage-dev/stowage/internal/platform/certs"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/platform/version"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// process is what the parts of a process share.
type process struct {
	Options // with those of the ConfigMap
	env     Environment
	log     logr.Logger
	set     *metrics.Set
	dropped prometheus.Counter
	ready   *readiness
	apiTime *apitime.Clock
	contact *contact
	pulse   *admission.Pulse

	certificate *certificate
	policies    *worldcache.WatchedPolicies
	mgr         ctrl.Manager
	clients     *clients
	endpoints   toolscache.SharedIndexInformer // of the webhook's Service
	recorder    events.Recorder
	rights      *rights
	// lacks returns the rights that this process lacks, each in a word, with those to read kinds that the policies of a namespace name.
	lacks func(ctx context.Context, namespace string) []string
}

// AddBuildInfo registers a metric of the version.
func AddBuildInfo(set *metrics.Set) {
	set.GaugeVec("stowage_build_info", "1, with the version of this replica and of Go.", "version", "go_version").WithLabelValues(version.String(), goruntime.Version()).Set(1)
}

// newProcess makes what the parts of a process share: its connection to the API server, its certificate and its settings.
func newProcess(ctx context.Context, reloader *Reloader, env Environment) (*process, error) {
	set := metrics.NewSet(env.Metrics)
	countPanics(set)
	AddBuildInfo(set)
	p := &process{
		env: env, log: reloader.Log, set: set, dropped: NewDropped(set), ready: newReadiness(clock.RealClock{}), apiTime: apitime.New(clock.RealClock{}),
		contact: &contact{clock: clock.RealClock{}}, pulse: admission.NewPulse(clock.RealClock{}), policies: worldcache.NewWatchedPolicies(),
	}
	var err error
	if p.certificate, err = newCertificate(&reloader.Options, p.apiTime); err != nil {
		return nil, err
	}
	if p.mgr, err = newManager(&reloader.Options, p.log, p.certificate, p.policies, p.apiTime.Wrap, p.contact.wrap); err != nil {
		return nil, err
	}
	if p.clients, err = newClients(p.mgr); err != nil {
		return nil, err
	}
	p.endpoints = newEndpoints(p.clients.set, reloader.Options.Namespace)
	p.recorder = events.Recorder{EventRecorder: p.mgr.GetEventRecorder("stowage")}
	if err := p.certificate.add(p.mgr, p.ready, set); err != nil {
		return nil, err
	}
	p.Options, err = reloader.Start(ctx, p.clients.set)
	return p, err
}

// certificate is the serving certificate: one that Stowage keeps, or one in files. Where nothing is served with it, there is none.
type certificate struct {
	kept    certs.Options
	serving *certs.Serving           // nil if it is in files
	files   *certwatcher.CertWatcher // nil if Stowage keeps it
}

func newCertificate(o *Options, apiTime *apitime.Clock) (*certificate, error) {
	switch {
	case !o.withWebhook() && !o.MetricsAuth:
		return &certificate{}, nil
	case o.CertDir == "":
		return &certificate{serving: &certs.Serving{}, kept: certs.Options{
			Secret:       types.NamespacedName{Namespace: o.Namespace, Name: certSecret},
			Registration: Registration,
			ReadOnly:     !o.Controls(),
			DNSNames:     append([]string{fmt.Sprintf("%s.%s.svc", service, o.Namespace)}, o.CertDNSNames...),
			Clock:        clock.RealClock{},
			Time:         apiTime,
		}}, nil
	}
	files, err := certwatcher.New(filepath.Join(o.CertDir, corev1.TLSCertKey), filepath.Join(o.CertDir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate: %w", err)
	}
	return &certificate{files: files}, nil
}

// get is for tls.Config.
func (c *certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	switch {
	case c.files != nil:
		return c.files.GetCertificate(hello)
	case c.serving == nil:
		return nil, errors.New("no certificate is kept, because there is no webhook")
	}
	return c.serving.GetCertificate(hello)
}

// add has the manager keep the certificate, or follow its files.
func (c *certificate) add(mgr ctrl.Manager, ready *readiness, set *metrics.Set) error {
	certs.AddExpiry(set, c.get)
	switch {
	case c.files != nil:
		return mgr.Add(c.files)
	case c.serving == nil:
		return nil
	}
	ready.add("certificate", c.serving.Ready)
	return certs.Add(mgr, c.kept, c.serving)
}

// serveTLS returns what sets up a TLS server with Stowage's certificate.
func serveTLS(o *config.Process, c *certificate) func(*tls.Config) {
	return func(cfg *tls.Config) {
		cfg.MinVersion, _ = config.ParseTLSVersion(o.TLSMinVersion) // validated before, both
		cfg.CipherSuites, _ = config.ParseCipherSuites(o.TLSCipherSuites)
		cfg.NextProtos = []string{"http/1.1"} // an API server asks a Service for nothing else
		cfg.GetCertificate = c.get
	}
}

// newWebhookPort makes the webhook's port.
func newWebhookPort(o *Options, c *certificate, dropped prometheus.Counter) (*port, error) {
	var callers *clientAuthorities
	if o.ClientCAFile != "" {
		var err error
		if callers, err = newClientAuthorities(o.ClientCAFile); err != nil {
			return nil, err
		}
	}
	return newPort(o.Host, o.Port, serveTLS(&o.Process, c), callers, o.ClientNames, dropped), nil
}

// newManager makes the manager, with a cache that keeps only what is used.
func newManager(o *Options, log logr.Logger, c *certificate, policies *worldcache.WatchedPolicies, wrap ...transport.WrapperFunc) (ctrl.Manager, error) {
	cfg, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	// API priority and fairness protects the server; a limit here would only make
	// pods wait.
	cfg.QPS = -1
	cfg.UserAgent = "stowage/" + version.String()
	for _, w := range wrap {
		cfg.Wrap(w)
	}
	cacheOptions := worldcache.Options(policies, o.Controls())
	if c.serving != nil {
		maps.Copy(cacheOptions.ByObject, c.kept.CacheByObject())
	}
	scheme, err := api.NewScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                  scheme,
		MapperProvider:          restMapper,
		Logger:                  log,
		Cache:                   cacheOptions,
		Metrics:                 metricsserver.Options{BindAddress: "0"}, // see addMetrics; theirs has no bound for connections
		HealthProbeBindAddress:  "0",                                     // see addPlainPort
		GracefulShutdownTimeout: &o.DrainTimeout,
		Controller:              ctrlconfig.Controller{SkipNameValidation: new(true)}, // tests run several servers, one after the other
	})
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return mgr, nil
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

// clients do not read from the cache.
type clients struct {
	uncached client.Client
	once     client.Client        // sends each request once
	set      kubernetes.Interface // speaks protobuf
}

func newClients(mgr ctrl.Manager) (*clients, error) {
	through := func(wrap func(http.RoundTripper) http.RoundTripper) (client.Client, error) {
		h := *mgr.GetHTTPClient() // a copy: the answers of watches have no end
		h.Transport = wrap(h.Transport)
		return client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: &h})
	}
	uncached, err := through(worldapi.LimitAnswers)
	if err != nil {
		return nil, err
	}
	single, err := through(func(next http.RoundTripper) http.RoundTripper { return once{next} })
	if err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	set, err := kubernetes.NewForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return &clients{uncached: uncached, once: single, set: set}, nil
}

// discoveryTimeout bounds one request for kinds. Nobody can look up another kind meanwhile, and no context ends it.
const discoveryTimeout = 10 * time.Second

func restMapper(cfg *rest.Config, c *http.Client) (meta.RESTMapper, error) {
	bounded := *c
	bounded.Timeout = discoveryTimeout
	return apiutil.NewDynamicRESTMapper(cfg, &bounded)
}
