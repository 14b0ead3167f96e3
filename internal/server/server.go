// Package server runs the webhook and the controllers: it makes the parts of a process from its
// settings and puts them together. What the parts do is in their own packages.
package server

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/version"
	"github.com/stowage-dev/stowage/internal/scaledown"
	"github.com/stowage-dev/stowage/internal/size"
	"github.com/stowage-dev/stowage/internal/spread"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/vm"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/internal/world/readable"
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
	// Served, if it is set, is called with each path and its handler before its port opens. Tests use it.
	Served func(port, path string, h http.Handler)
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
	reloader.Log.Info("starting", "version", version.String(), "namespace", reloader.Options.Namespace, "webhook", reloader.Options.Admits(), "controllers", reloader.Options.Controls())

	// 1. What the parts share, what decisions read of the cluster, and the capabilities.
	p, err := newProcess(ctx, reloader, env)
	if err != nil {
		return err
	}
	host, err := p.newHost(ctx)
	if err != nil {
		return err
	}
	c, err := p.newCapabilities(ctx, host)
	if err != nil {
		return err
	}

	// 2. What runs: the capabilities, the settings that change, the leader, the handlers, and the checks.
	for _, part := range c.runs {
		if err := p.mgr.Add(withoutElection(part)); err != nil {
			return err
		}
	}
	for name, check := range c.checks {
		p.ready.add(name, check)
	}
	if err := p.addReloader(reloader, func(o *Options) {
		c.exclude(o.Spread.Feature.ExcludedNamespaces)
		host.Scope.Pause(o.Paused)
	}); err != nil {
		return err
	}
	if err := p.addLeader(ctx, c.controllers, c.board); err != nil {
		return err
	}
	if err := p.addMetrics(c.debug); err != nil {
		return err
	}
	if p.Admits() {
		if err := p.addWebhook(pipeline.New(host.Scope, c.features...), c, host.Replica); err != nil {
			return err
		}
	}
	p.ready.add("caches", cachesSynced(p.mgr.GetCache()))
	if err := p.addPlainPort(plainPort{name: "health", address: p.HealthAddress, paths: p.ready.paths(), header: maxHeader}); err != nil {
		return err
	}
	if err := p.addPlainPort(plainPort{name: "profiles", address: p.PprofAddress, paths: profiles(), header: maxHeader, writes: profileTimeout}); err != nil {
		return err
	}
	return p.run(ctx)
}

// newHost makes what decisions read of the cluster, and what else capabilities are made from.
func (p *process) newHost(ctx context.Context) (*capability.Host, error) {
	if p.Spread.Feature.Enabled {
		if err := worldcache.AddIndexes(ctx, p.mgr.GetFieldIndexer()); err != nil {
			return nil, err
		}
	}
	reader := worldcache.New(p.mgr.GetCache(), p.clients.uncached, p.env.Clock, worldcache.ForAdmission())
	reader.Share(p.policies)
	on := worldcache.Features{
		Spread: p.Spread.Feature.Enabled, Sizing: p.Size.Feature.Enabled, PeerPods: p.VM.Feature.Enabled, Capacity: p.VM.Advertises(),
		ScaleDown: p.ScaleDown.Enabled, Webhook: p.Admits(), Controllers: p.Controls(),
	}
	kinds := on.Kinds()
	if on.Spread || on.Controllers && on.ScaleDown {
		kinds = append(kinds, &corev1.Pod{})
	}
	if on.PeerPods {
		kinds = append(kinds, &stowage.VMCatalog{})
	}
	if on.Controllers && on.ScaleDown {
		kinds = append(kinds, &stowage.ScaleDownPolicy{}, &stowage.ClusterScaleDownPolicy{})
	}
	p.rights = &rights{
		reviews: p.clients.set.AuthorizationV1().SelfSubjectAccessReviews(), clock: p.env.Clock, log: p.log.WithName("rights"),
		needs: slices.Concat(readsOf(kinds, p.mgr.GetScheme(), p.mgr.GetRESTMapper()), writesOf(on)),
	}
	named := readable.New(p.clients.set.Discovery(), p.rights.reviews, p.env.Clock)
	p.lacks = func(ctx context.Context, namespace string) []string {
		return slices.Concat(p.rights.Lacks(ctx), kindsLacking(ctx, namespace, named, reader))
	}
	if err := worldcache.StartInformers(ctx, p.mgr.GetCache(), on); err != nil {
		return nil, err
	}
	scopes := scope.New(reader, p.Namespace)
	scopes.Pause(p.Paused)
	AddPaused(p.set, func() float64 { return paused(ctx, scopes, p.mgr.GetClient()) })
	if p.VM.Feature.Enabled {
		scopes.PeerPods = p.VM.Feature.Config.RuntimeClasses
	}
	if err := p.mgr.Add(withoutElection(p.pulse.Run)); err != nil {
		return nil, err
	}
	successors := successor.New(p.clients.uncached, reader.Workload)
	host := &capability.Host{
		Namespace: p.Namespace, Registration: Registration, Replica: leader.Identity(p.env.Lookup), Admits: p.Admits(), Controls: p.Controls(), Nodes: on.Nodes(),
		Cached: p.mgr.GetClient(), Uncached: p.clients.uncached, Once: p.clients.once, Clientset: p.clients.set, Informers: p.mgr.GetCache(),
		World: reader, Kinds: named, Scope: scopes, Evictor: evict.New(p.clients.uncached, evict.Rules{Lost: successors.Lost, Paused: scopes.Paused}, p.env.Clock, p.EvictionRate, p.set), Successors: successors,
		Clock: p.env.Clock, Time: cmp.Or[clock.PassiveClock](p.env.Time, p.apiTime), Unsettled: p.pulse.Unsettled, Log: p.log, Events: p.recorder, Metrics: p.set,
	}
	if p.Admits() {
		host.Siblings = newSiblings(host.Replica, p.endpoints.GetStore(), p.certificate.get)
	}
	return host, nil
}

// capabilities are what the capabilities bring to a process, together.
type capabilities struct {
	features    []feature.Feature // in the order in which a pod passes them
	controllers []leader.Controller
	runs        []func(ctx context.Context) error
	checks      map[string]healthz.Checker
	debug       map[string]http.Handler
	forSiblings map[string]http.Handler

	exclude func(namespaces []string) // from strategies
	check   func(context.Context, feature.Written) ([]string, error)
	board   *leader.Board // nil without the spread
}

// add adds what one capability brings.
func (c *capabilities) add(one *capability.Capability) {
	if one.Feature != nil {
		c.features = append(c.features, one.Feature)
	}
	c.controllers, c.runs = append(c.controllers, one.Controllers...), append(c.runs, one.Runs...)
	maps.Copy(c.checks, one.Checks)
	maps.Copy(c.debug, one.Debug)
	maps.Copy(c.forSiblings, one.ForSiblings)
}

// newCapabilities makes the capabilities that are on. Sizing comes before the peer pods, which keep a record of what they removed; the
// sizes of a second pass are fresher than that record.
func (p *process) newCapabilities(ctx context.Context, host *capability.Host) (*capabilities, error) {
	all := &capabilities{
		checks: map[string]healthz.Checker{}, debug: map[string]http.Handler{}, forSiblings: map[string]http.Handler{}, exclude: func([]string) {},
		check: func(context.Context, feature.Written) ([]string, error) { return nil, nil },
	}
	if p.Spread.Feature.Enabled {
		c, err := spread.New(ctx, &p.Spread, host)
		if err != nil {
			return nil, err
		}
		all.add(&c.Capability)
		all.exclude, all.check = c.Exclude, c.Check
		all.board = &leader.Board{Clock: clock.RealClock{}, Blocked: c.Excluded, Own: func() leader.Standing {
			return leader.Standing{Ready: p.ready.ready(watchCheck), Lag: c.Lag(), Lacks: strings.Join(p.rights.found(), " ")}
		}}
		if p.Admits() {
			all.checks[watchCheck] = notBehind(c.Lag, all.board)
		}
	}
	if p.Size.Feature.Enabled {
		all.add(size.New(&p.Size, host))
	}
	if p.VM.Feature.Enabled {
		c, err := vm.New(ctx, &p.VM, host)
		if err != nil {
			return nil, err
		}
		all.add(c)
	}
	if p.ScaleDown.Enabled && p.Controls() {
		c, err := scaledown.New(ctx, host)
		if err != nil {
			return nil, err
		}
		all.add(c)
	}
	if len(all.controllers) > 0 {
		all.controllers = append(all.controllers, p.rights)
	}
	return all, nil
}

// addLeader has the manager elect a replica and run the controllers on it. Where this process has none, what is elected is the
// replica that stays in the Service.
func (p *process) addLeader(leaving context.Context, controllers []leader.Controller, board *leader.Board) error {
	if len(controllers) == 0 && board == nil {
		return nil
	}
	lease := LeaderLease
	if !p.Controls() {
		lease = webhookLease
	}
	runner := &leader.Runner{Controllers: controllers, Leaving: leaving, Clock: p.env.Clock, Log: p.log.WithName("leader").WithValues("lease", lease)}
	if p.LeaderElection {
		lock, err := leader.NewLock(p.mgr.GetConfig(), p.Namespace, lease, leader.Identity(p.env.Lookup), board)
		if err != nil {
			return err
		}
		runner.Lock, runner.Board = lock, board
	}
	return p.mgr.Add(runner)
}

// addWebhook has the manager serve the webhook's port, with its handlers and its checks.
func (p *process) addWebhook(pipeline *pipeline.Pipeline, c *capabilities, replica string) error {
	port, err := newWebhookPort(&p.Options, p.certificate, p.dropped)
	if err != nil {
		return err
	}
	paths := p.reviewPaths(port.callers != nil, pipeline, c.check, replica)
	maps.Copy(paths, c.forSiblings)
	for path, h := range paths {
		h = closeWhen(p.ready.leaves, h)
		port.Register(path, h)
		p.served("webhook", path, h)
	}
	pod, _ := p.env.Lookup("POD_NAME")
	if err := addReach(p.mgr, p.endpoints, p.contact, pod, p.ready); err != nil {
		return err
	}
	if err := p.mgr.Add(port); err != nil {
		return err
	}
	p.ready.add("webhook", port.StartedChecker())
	return nil
}

// reviewPaths are where the API server asks. Authenticates says that only callers with a certificate are answered there.
func (p *process) reviewPaths(authenticates bool, pipeline *pipeline.Pipeline, check func(context.Context, feature.Written) ([]string, error), replica string) map[string]http.Handler {
	handler := &admission.Handler{
		Pipeline: pipeline,
		Metrics:  admission.NewMetrics(p.set),
		Log:      p.log.WithName("admission"),
		Events:   p.recorder,
		// A burst for a cluster's start, and a rate that an API server does not
		// notice.
		EventLimit:   fair.NewLimiter[string](5, 200), // half of the burst is for one namespace
		LogLimit:     flowcontrol.NewTokenBucketPassiveRateLimiter(1, 10),
		FailureLimit: flowcontrol.NewTokenBucketPassiveRateLimiter(5, 50),
		ChangeLimit:  flowcontrol.NewTokenBucketPassiveRateLimiter(200, 2000),
		Replica:      replica, Authenticates: authenticates, Lacks: p.lacks,
		Intake: admission.NewIntake(clock.RealClock{}),
		Clock:  clock.RealClock{},
		Pulse:  p.pulse,
	}
	workloads := &admission.WorkloadHandler{
		Log: p.log.WithName("workloads"), LogLimit: handler.LogLimit, Intake: handler.Intake, Check: check,
	}
	paths := map[string]http.Handler{"/mutate-v1-pod": handler, "/mutate": handler, "/validate-workload": workloads}
	for path, h := range paths {
		if authenticates {
			h = onlyClients(p.ClientNames, p.log.WithName("clients"), h)
		}
		paths[path] = p.contact.reviews(h)
	}
	return paths
}

// served tells the environment of a path.
func (p *process) served(port, path string, h http.Handler) {
	if p.env.Served != nil {
		p.env.Served(port, path, h)
	}
}

// run runs until ctx ends; then it says so before requests are refused.
func (p *process) run(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		p.ready.leaving.Store(true)
		p.log.Info("shutting down", "delay", p.ShutdownDelay.String())
		time.AfterFunc(p.ShutdownDelay, stop)
	})
	if err := p.mgr.Start(running); err != nil {
		return err
	}
	p.log.Info("stopped")
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

// withoutElection is a part of the manager that runs whoever leads.
type withoutElection func(ctx context.Context) error

// Start implements manager.Runnable.
func (f withoutElection) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (f withoutElection) NeedLeaderElection() bool { return false }
