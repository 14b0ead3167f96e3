package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/platform/apisupport"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/resize"
	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/repair"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/shortage"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/capacity"
)

// sweepEvery is how often books that nobody would miss are forgotten.
const sweepEvery = 15 * time.Second

// addDecisions makes what decisions read of the cluster.
func (s *server) addDecisions(ctx context.Context) error {
	o := &s.options
	if o.Spread.Enabled {
		if err := cluster.AddIndexes(ctx, s.mgr.GetFieldIndexer()); err != nil {
			return err
		}
	}
	s.reader = cluster.NewCache(s.mgr.GetCache(), s.uncached, s.clock, cluster.ForAdmission())
	s.scope = scope.New(s.reader, s.options.Namespace)
	s.evictor = evict.New(s.uncached, s.clock, s.options.EvictionRate, s.metrics)
	return cluster.StartInformers(ctx, s.mgr.GetCache(), cluster.Features{
		Spread: o.Spread.Enabled, Sizing: o.Sizing.Enabled, PeerPods: o.PeerPods.Enabled, Capacity: o.Advertises(),
	})
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=stowage-system,roleName=stowage-spread
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-seats,verbs=get,namespace=stowage-system,roleName=stowage-spread

func (s *server) keySecret() types.NamespacedName {
	return types.NamespacedName{Namespace: s.options.Namespace, Name: seatSecret}
}

// addSeats makes what gives seats to pods, what feeds it, and the controller that looks after it.
func (s *server) addSeats(ctx context.Context) error {
	o := &s.options
	if !o.Spread.Enabled {
		return nil
	}
	key, err := seats.SharedKey(ctx, s.uncached, s.keySecret())
	if err != nil {
		return fmt.Errorf("the key that signs seats: %w", err)
	}
	s.policies = policy.NewFinder(s.reader, o.Spread.NamespaceLabel, o.Spread.ExcludedNamespaces)
	s.reloader.Exclude = s.policies.Exclude
	podOf := func(namespace string, owner types.UID) string { return s.seats.Pods().NameOf(namespace, owner) }
	owners := policy.NewOwners(s.policies, podOf, s.uncached, s.clock)
	rooms := &poolroom.Reader{Cached: s.mgr.GetClient(), Uncached: s.uncached}
	controller := &repair.Controller{
		Client: s.mgr.GetClient(), Uncached: s.uncached, Informers: s.mgr.GetCache(), Cluster: s.reader, Policies: owners, Scope: s.scope,
		Registration: Registration, KeySecret: s.keySecret(), Backoffs: types.NamespacedName{Namespace: o.Namespace, Name: repairConfigMap},
		Clock: s.clock, Timing: o.Repair,
		Log: s.log.WithName("repair"), Events: s.events(), Metrics: repair.NewMetrics(s.metrics),
		Writes:  fair.NewLimiter[string](50, 200),
		Evictor: s.evictor, Room: rooms,
	}
	s.leads = append(s.leads, controller)
	ledgers, err := withoutRetries(s.mgr)
	if err != nil {
		return err
	}
	s.seats = seats.New(seats.Options{
		API: &seats.Store{Client: ledgers}, Key: key, Writer: leader.Identity(s.lookup),
		Clock: s.clock, Log: s.log.WithName("seats"), Metrics: seats.NewMetrics(s.metrics), Changed: controller.Changed, Asker: s.reader.Asker,
	})
	seats.AddLag(s.metrics, s.seats.Lag)
	controller.Seats = s.seats
	s.policies.Held = s.seats.Held
	nodeGroups, err := o.ClusterAutoscaler.Parse()
	if err != nil {
		return err
	}
	s.leads = append(s.leads, &shortage.Controller{
		Client: s.mgr.GetClient(), Uncached: s.uncached, Informers: s.mgr.GetCache(), Cluster: s.reader, Policies: owners, Seats: s.seats, Scope: s.scope,
		Room: rooms, Evictor: s.evictor, Clock: s.clock, Timing: o.PoolState, NodeGroups: nodeGroups,
		Log: s.log.WithName("poolstate"), Events: s.events(), Metrics: shortage.NewMetrics(s.metrics), Look: controller.Look,
	})
	if o.MetricsAddress != "0" {
		var known http.Handler = s.seats
		if !o.MetricsAuth {
			known = onlyLoopback(known)
		}
		if err := s.mgr.AddMetricsServerExtraHandler("/debug/seats", known); err != nil {
			return err
		}
	}
	s.checks["seats"] = func(*http.Request) error {
		if !s.seats.Pods().HasSynced() {
			return errors.New("the pods that have a seat are not listed yet")
		}
		return nil
	}
	s.board = &leader.Board{Clock: clock.RealClock{}, Own: func() leader.Standing {
		return leader.Standing{Ready: s.ready(watchCheck), Lag: s.seats.Lag()}
	}}
	s.checks[watchCheck] = func(*http.Request) error {
		if lag := s.seats.Lag(); lag > leader.MostLag && s.board.NearerLeader(lag) {
			return fmt.Errorf("the watch of pods is %s behind, and the leader's is not", lag.Round(time.Second))
		}
		return nil
	}
	return s.feedSeats(ctx)
}

// feedSeats adds the watches of SeatLedgers, of PoolStates and of pods with a seat, and what forgets old books.
func (s *server) feedSeats(ctx context.Context) error {
	informer, err := s.mgr.GetCache().GetInformer(ctx, &stowage.SeatLedger{})
	if err != nil {
		return fmt.Errorf("watch SeatLedgers: %w", err)
	}
	see := func(obj any, deleted bool) {
		if sl, ok := obj.(*stowage.SeatLedger); ok {
			owner, o := ledger.FromSeatLedger(sl)
			s.seats.LedgerSeen(owner, o, deleted)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, false) },
		UpdateFunc: func(_, obj any) { see(obj, false) },
		DeleteFunc: func(obj any) { see(leader.Deleted(obj), true) },
	}); err != nil {
		return err
	}
	if _, err := s.mgr.GetCache().GetInformer(ctx, &stowage.PoolState{}); err != nil {
		return fmt.Errorf("watch PoolStates: %w", err)
	}
	watch := withoutElection(func(ctx context.Context) error {
		s.seats.Pods().Run(ctx, s.clientset.CoreV1().RESTClient())
		return nil
	})
	sweep := withoutElection(func(ctx context.Context) error {
		tick := s.clock.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C():
				s.sweep(ctx)
			}
		}
	})
	return errors.Join(s.mgr.Add(watch), s.mgr.Add(sweep))
}

func (s *server) sweep(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	s.seats.Sweep(ctx, false)
}

// addFeatures makes the features that are on, in the order in which a pod passes them. Sizing comes before the peer pods,
// which keep a record of what they removed; the sizes of a second pass are fresher than that record.
func (s *server) addFeatures(context.Context) error {
	if s.options.Spread.Enabled {
		s.features = append(s.features, &spreadadmit.Feature{Policies: s.policies, Seats: s.seats, Key: s.seats.Pods().Key})
	}
	if s.options.Sizing.Enabled {
		s.sizing = &sizeadmit.Feature{Cluster: s.reader}
		s.features = append(s.features, s.sizing)
	}
	if s.options.PeerPods.Enabled {
		s.features = append(s.features, &vmadmit.Feature{Config: s.options.PeerPods.Config, Cluster: s.reader})
	}
	return nil
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create,namespace=stowage-system
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=stowage-leader,verbs=get;update,namespace=stowage-system
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// addControllers makes the controllers that are on, and what runs them on the leader.
func (s *server) addControllers(context.Context) error {
	o := &s.options
	if o.Sizing.Enabled {
		if server, err := apisupport.Discover(s.clientset.Discovery()); err == nil { // else the controller asks again
			for _, text := range server.Missing() {
				s.log.Info("this Kubernetes lacks what Stowage can use", "missing", text)
			}
		}
		o.Resize.PolicyGrace = o.Repair.PolicyGrace // one setting for both
		s.leads = append(s.leads, &resize.Controller{
			Client: s.uncached, Clientset: s.clientset, Discovery: s.clientset.Discovery(), Informers: s.mgr.GetCache(), Scope: s.scope,
			Feature: s.sizing, Clock: s.clock, Timing: o.Resize, Evictor: s.evictor,
			Log: s.log.WithName("sizing"), Events: s.events(), Metrics: resize.NewMetrics(s.metrics),
		})
	}
	if o.Advertises() {
		daemons, err := labels.Parse(o.Capacity.DaemonSelector)
		if err != nil {
			return err
		}
		nodes, err := labels.Parse(o.Capacity.NodeSelector)
		if err != nil {
			return err
		}
		s.leads = append(s.leads, &capacity.Controller{
			Client: s.uncached, Clientset: s.clientset, Informers: s.mgr.GetCache(), Resource: corev1.ResourceName(o.PeerPods.Config.VMResource),
			ConfigMap: types.NamespacedName{Namespace: cmp.Or(o.Capacity.ConfigMapNamespace, o.Namespace), Name: stowage.PeerPodsConfigMap},
			Default:   o.Capacity.Default, Nodes: nodes, Mode: o.Capacity.Mode, Daemons: daemons, DaemonNamespace: o.Capacity.DaemonNamespace, Clock: s.clock,
			Log: s.log.WithName("capacity"), Events: s.events(), Metrics: capacity.NewMetrics(s.metrics),
		})
	}
	if len(s.leads) == 0 {
		return nil
	}
	runner := &leader.Runner{Controllers: s.leads, Leaving: s.leaveCtx, Clock: s.clock, Log: s.log.WithName("leader")}
	if o.LeaderElection {
		lock, err := leader.NewLock(s.mgr.GetConfig(), o.Namespace, LeaderLease, leader.Identity(s.lookup), s.board)
		if err != nil {
			return err
		}
		runner.Lock, runner.Board = lock, s.board
	}
	return s.mgr.Add(runner)
}

// uncached returns clients that do not read from the cache. The clientset speaks protobuf:
// every pod with a seat or a size passes there several times in its life.
func uncached(mgr ctrl.Manager) (client.Client, kubernetes.Interface, error) {
	bounded := *mgr.GetHTTPClient() // a copy: the answers of watches have no end
	bounded.Transport = cluster.LimitAnswers(bounded.Transport)
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: &bounded})
	if err != nil {
		return nil, nil, err
	}
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clientset, err := kubernetes.NewForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, nil, err
	}
	return direct, clientset, nil
}

// discoveryTimeout bounds one request for kinds. Nobody can look up another kind meanwhile, and no context ends it.
const discoveryTimeout = 10 * time.Second

func restMapper(cfg *rest.Config, c *http.Client) (meta.RESTMapper, error) {
	bounded := *c
	bounded.Timeout = discoveryTimeout
	return apiutil.NewDynamicRESTMapper(cfg, &bounded)
}
