// Package server runs the webhook and the controllers: it makes the parts of a process from its
// settings and puts them together. What the parts do is in their own packages.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/apitime"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/platform/version"
	"github.com/stowage-dev/stowage/internal/size"
	"github.com/stowage-dev/stowage/internal/spread"
	"github.com/stowage-dev/stowage/internal/vm"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// The names of Stowage's own objects in config/ and the chart.
const (
	certSecret = "stowage-webhook-cert"
	service    = "stowage-webhook"

	// Registration is the name of the webhook's registrations.
	Registration = "stowage"
	// Deployment is the name of the Deployment whose pods run the webhook.
	Deployment = "stowage"
	// ControllersDeployment is the name of the Deployment whose pods run the controllers, unless those of the webhook do.
	ControllersDeployment = "stowage-controllers"
	// LeaderLease is the name of the lease of the replica that runs the controllers.
	LeaderLease = "stowage-leader"
	// webhookLease is the name of the lease of the webhook replica that never leaves the Service, where none of them runs the
	// controllers.
	webhookLease = "stowage-webhook"
)

// Environment is what a process has of its surroundings.
type Environment struct {
	// Lookup reads environment variables.
	Lookup func(string) (string, bool)
	// Clock is that of the controllers and of the seats; certificates follow the API server's, and leases the real time.
	Clock clock.WithTickerAndDelayedExecution
	// Time is the clock for dates that the API server wrote. Nil goes by the API server's answers.
	Time clock.PassiveClock
	// Metrics is where the metrics are registered.
	Metrics prometheus.Registerer
}

// NewEnvironment returns the environment of a program.
func NewEnvironment(lookup func(string) (string, bool)) Environment {
	return Environment{Lookup: lookup, Clock: clock.RealClock{}, Metrics: ctrlmetrics.Registry}
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create,namespace=stowage-system
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=stowage-leader,verbs=get;update,namespace=stowage-system,roleName=stowage-controllers
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=stowage-webhook,verbs=get;update,namespace=stowage-system,roleName=stowage-webhook
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Run runs the webhook, the controllers or both until ctx ends, and then lets the requests in flight end.
func Run(ctx context.Context, reloader *Reloader, env Environment) error {
	log := reloader.Log
	admits, controls := reloader.Options.Admits(), reloader.Options.Controls()
	log.Info("starting", "version", version.String(), "namespace", reloader.Options.Namespace, "webhook", admits, "controllers", controls)

	// 1. The process: its connection to the API server, its ports, and the settings that the cluster has.
	set := metrics.NewSet(env.Metrics)
	countPanics(set)
	ready := newReadiness(clock.RealClock{})
	apiTime := apitime.New(clock.RealClock{})
	contact := &contact{clock: clock.RealClock{}}
	certificate, err := newCertificate(&reloader.Options, apiTime)
	if err != nil {
		return err
	}
	policies := worldcache.NewWatchedPolicies()
	mgr, err := newManager(&reloader.Options, log, certificate, policies, apiTime.Wrap, contact.wrap)
	if err != nil {
		return err
	}
	clients, err := newClients(mgr)
	if err != nil {
		return err
	}
	recorder := events.Recorder{EventRecorder: mgr.GetEventRecorder("stowage")}
	if err := certificate.add(mgr, ready, set); err != nil {
		return err
	}
	o, err := reloader.Start(ctx, clients.set)
	if err != nil {
		return err
	}

	// 2. What decisions read of the cluster.
	if o.Spread.Feature.Enabled {
		if err := worldcache.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
			return err
		}
	}
	reader := worldcache.New(mgr.GetCache(), clients.uncached, env.Clock, worldcache.ForAdmission())
	reader.Share(policies)
	on := worldcache.Features{
		Spread: o.Spread.Feature.Enabled, Sizing: o.Size.Feature.Enabled, PeerPods: o.VM.Feature.Enabled, Capacity: o.VM.Advertises(),
		Webhook: admits, Controllers: controls,
	}
	if err := worldcache.StartInformers(ctx, mgr.GetCache(), on); err != nil {
		return err
	}
	scopes := scope.New(reader, o.Namespace)
	if o.VM.Feature.Enabled {
		scopes.PeerPods = o.VM.Feature.Config.RuntimeClasses
	}
	pulse := admission.NewPulse(clock.RealClock{})
	if err := mgr.Add(withoutElection(pulse.Run)); err != nil {
		return err
	}
	var dates clock.PassiveClock = apiTime
	if env.Time != nil {
		dates = env.Time
	}
	host := &capability.Host{
		Namespace: o.Namespace, Registration: Registration, Replica: leader.Identity(env.Lookup), Admits: admits, Controls: controls, Nodes: on.Nodes(),
		Cached: mgr.GetClient(), Uncached: clients.uncached, Once: clients.once, Clientset: clients.set, Informers: mgr.GetCache(),
		World: reader, Scope: scopes, Evictor: evict.New(clients.uncached, env.Clock, o.EvictionRate, set),
		Clock: env.Clock, Time: dates, Unsettled: pulse.Unsettled, Log: log, Events: recorder, Metrics: set,
	}

	// 3. The capabilities, in the order in which a pod passes their features. Sizing comes before the peer pods, which keep a
	// record of what they removed; the sizes of a second pass are fresher than that record.
	var all []*capability.Capability
	var board *leader.Board
	exclude := func([]string) {}
	check := func(context.Context, feature.Written) ([]string, error) { return nil, nil }
	if o.Spread.Feature.Enabled {
		c, err := spread.New(ctx, &o.Spread, host)
		if err != nil {
			return err
		}
		all, exclude, check = append(all, &c.Capability), c.Exclude, c.Check
		board = &leader.Board{Clock: clock.RealClock{}, Blocked: c.Excluded, Own: func() leader.Standing {
			return leader.Standing{Ready: ready.ready(watchCheck), Lag: c.Lag()}
		}}
		if admits {
			ready.add(watchCheck, notBehind(c.Lag, board))
		}
	}
	if o.Size.Feature.Enabled {
		all = append(all, size.New(&o.Size, host))
	}
	if o.VM.Feature.Enabled {
		c, err := vm.New(&o.VM, host)
		if err != nil {
			return err
		}
		all = append(all, c)
	}

	// 4. What runs: the capabilities, the settings that change, the leader, the handlers, and the checks.
	var features []feature.Feature
	var controllers []leader.Controller
	debug := map[string]http.Handler{}
	for _, c := range all {
		features, controllers = append(features, c.Feature), append(controllers, c.Controllers...)
		for _, part := range c.Runs {
			if err := mgr.Add(withoutElection(part)); err != nil {
				return err
			}
		}
		for name, check := range c.Checks {
			ready.add(name, check)
		}
		maps.Copy(debug, c.Debug)
	}
	invalid := NewMetric(set)
	if err := mgr.Add(withoutElection(func(ctx context.Context) error {
		return reloader.Follow(ctx, clients.set, recorder, invalid, func(o *Options) { exclude(o.Spread.Feature.ExcludedNamespaces) })
	})); err != nil {
		return err
	}
	if err := addLeader(ctx, mgr, &o, controllers, board, env, log.WithName("leader")); err != nil {
		return err
	}
	dropped := NewDropped(set)
	if err := addMetrics(mgr, &o, certificate, debug, dropped); err != nil {
		return err
	}
	if admits {
		port, err := newWebhookPort(&o, certificate, dropped)
		if err != nil {
			return err
		}
		if err := addHandlers(port, &o, pipeline.New(host.Scope, features...), check, host.Replica, contact, ready, pulse, recorder, set, log); err != nil {
			return err
		}
		pod, _ := env.Lookup("POD_NAME")
		if err := addReach(mgr, clients.set, contact, o.Namespace, pod, ready); err != nil {
			return err
		}
		if err := mgr.Add(port); err != nil {
			return err
		}
		ready.add("webhook", port.StartedChecker())
	}
	ready.add("caches", cachesSynced(mgr.GetCache()))
	if err := ready.serve(mgr, o.HealthAddress, dropped); err != nil {
		return err
	}
	return run(ctx, mgr, ready, o.ShutdownDelay, log)
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

// notBehind returns a check of how far the watch of pods is behind.
func notBehind(lag func() time.Duration, board *leader.Board) healthz.Checker {
	return func(*http.Request) error {
		if lag := lag(); lag > leader.MostLag && board.NearerLeader(lag) {
			return fmt.Errorf("the watch of pods is %s behind, and the leader's is not", lag.Round(time.Second))
		}
		return nil
	}
}

// addLeader has the manager elect a replica and run the controllers on it. Where this process has none, what is elected is the
// replica that stays in the Service.
func addLeader(leaving context.Context, mgr ctrl.Manager, o *Options, controllers []leader.Controller, board *leader.Board, env Environment, log logr.Logger) error {
	if len(controllers) == 0 && board == nil {
		return nil
	}
	lease := LeaderLease
	if !o.Controls() {
		lease = webhookLease
	}
	runner := &leader.Runner{Controllers: controllers, Leaving: leaving, Clock: env.Clock, Log: log.WithValues("lease", lease)}
	if o.LeaderElection {
		lock, err := leader.NewLock(mgr.GetConfig(), o.Namespace, lease, leader.Identity(env.Lookup), board)
		if err != nil {
			return err
		}
		runner.Lock, runner.Board = lock, board
	}
	return mgr.Add(runner)
}

// addHandlers registers the webhook's paths.
func addHandlers(port *port, o *Options, pipeline *pipeline.Pipeline, check func(context.Context, feature.Written) ([]string, error), replica string, contact *contact, ready *readiness, pulse *admission.Pulse, recorder events.Recorder, set *metrics.Set, log logr.Logger) error {
	handler := &admission.Handler{
		Pipeline: pipeline,
		Metrics:  admission.NewMetrics(set),
		Log:      log.WithName("admission"),
		Events:   recorder,
		// A burst for a cluster's start, and a rate that an API server does not
		// notice.
		EventLimit:   fair.NewLimiter[string](5, 200), // half of the burst is for one namespace
		LogLimit:     flowcontrol.NewTokenBucketPassiveRateLimiter(1, 10),
		FailureLimit: flowcontrol.NewTokenBucketPassiveRateLimiter(5, 50),
		ChangeLimit:  flowcontrol.NewTokenBucketPassiveRateLimiter(200, 2000),
		Replica:      replica, Authenticates: port.callers != nil,
		Intake: admission.NewIntake(clock.RealClock{}),
		Clock:  clock.RealClock{},
		Pulse:  pulse,
	}
	workloads := &admission.WorkloadHandler{
		Log: log.WithName("workloads"), LogLimit: handler.LogLimit, Intake: handler.Intake, Check: check,
	}
	for path, h := range map[string]http.Handler{"/mutate-v1-pod": handler, "/mutate": handler, "/validate-workload": workloads} {
		if port.callers != nil {
			h = onlyClients(o.ClientNames, log.WithName("clients"), h)
		}
		port.Register(path, closeWhen(ready.leaves, contact.reviews(h)))
	}
	return nil
}

// run runs until ctx ends; then it says so before requests are refused.
func run(ctx context.Context, mgr ctrl.Manager, ready *readiness, delay time.Duration, log logr.Logger) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		ready.leaving.Store(true)
		log.Info("shutting down", "delay", delay.String())
		time.AfterFunc(delay, stop)
	})
	if err := mgr.Start(running); err != nil {
		return err
	}
	log.Info("stopped")
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
