package server

import (
	"context"
	"maps"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/apitime"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/size"
	"github.com/stowage-dev/stowage/internal/spread"
	"github.com/stowage-dev/stowage/internal/vm"
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
	recorder    events.Recorder
}

// newProcess makes what the parts of a process share: its connection to the API server, its certificate and its settings.
func newProcess(ctx context.Context, reloader *Reloader, env Environment) (*process, error) {
	set := metrics.NewSet(env.Metrics)
	countPanics(set)
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
	p.recorder = events.Recorder{EventRecorder: p.mgr.GetEventRecorder("stowage")}
	if err := p.certificate.add(p.mgr, p.ready, set); err != nil {
		return nil, err
	}
	p.Options, err = reloader.Start(ctx, p.clients.set)
	return p, err
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
		Webhook: p.Admits(), Controllers: p.Controls(),
	}
	if err := worldcache.StartInformers(ctx, p.mgr.GetCache(), on); err != nil {
		return nil, err
	}
	scopes := scope.New(reader, p.Namespace)
	if p.VM.Feature.Enabled {
		scopes.PeerPods = p.VM.Feature.Config.RuntimeClasses
	}
	if err := p.mgr.Add(withoutElection(p.pulse.Run)); err != nil {
		return nil, err
	}
	var dates clock.PassiveClock = p.apiTime
	if p.env.Time != nil {
		dates = p.env.Time
	}
	return &capability.Host{
		Namespace: p.Namespace, Registration: Registration, Replica: leader.Identity(p.env.Lookup), Admits: p.Admits(), Controls: p.Controls(), Nodes: on.Nodes(),
		Cached: p.mgr.GetClient(), Uncached: p.clients.uncached, Once: p.clients.once, Clientset: p.clients.set, Informers: p.mgr.GetCache(),
		World: reader, Scope: scopes, Evictor: evict.New(p.clients.uncached, p.env.Clock, p.EvictionRate, p.set),
		Clock: p.env.Clock, Time: dates, Unsettled: p.pulse.Unsettled, Log: p.log, Events: p.recorder, Metrics: p.set,
	}, nil
}

// capabilities are what the capabilities bring to a process, together.
type capabilities struct {
	features    []feature.Feature // in the order in which a pod passes them
	controllers []leader.Controller
	runs        []func(ctx context.Context) error
	checks      map[string]healthz.Checker
	debug       map[string]http.Handler

	exclude func(namespaces []string) // from strategies
	check   func(context.Context, feature.Written) ([]string, error)
	board   *leader.Board // nil without the spread
}

// add adds what one capability brings.
func (c *capabilities) add(one *capability.Capability) {
	c.features, c.controllers, c.runs = append(c.features, one.Feature), append(c.controllers, one.Controllers...), append(c.runs, one.Runs...)
	maps.Copy(c.checks, one.Checks)
	maps.Copy(c.debug, one.Debug)
}

// newCapabilities makes the capabilities that are on. Sizing comes before the peer pods, which keep a record of what they removed; the
// sizes of a second pass are fresher than that record.
func (p *process) newCapabilities(ctx context.Context, host *capability.Host) (*capabilities, error) {
	all := &capabilities{
		checks: map[string]healthz.Checker{}, debug: map[string]http.Handler{}, exclude: func([]string) {},
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
			return leader.Standing{Ready: p.ready.ready(watchCheck), Lag: c.Lag()}
		}}
		if p.Admits() {
			all.checks[watchCheck] = notBehind(c.Lag, all.board)
		}
	}
	if p.Size.Feature.Enabled {
		all.add(size.New(&p.Size, host))
	}
	if p.VM.Feature.Enabled {
		c, err := vm.New(&p.VM, host)
		if err != nil {
			return nil, err
		}
		all.add(c)
	}
	return all, nil
}
