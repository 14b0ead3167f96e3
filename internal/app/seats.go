package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/controller"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// sweepEvery is how often books that nobody would miss are forgotten.
const sweepEvery = 15 * time.Second

// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-seats,verbs=get,namespace=stowage-system

// addSeats makes the ledger of this replica, adds to the manager what feeds it, and
// returns the controller that looks after it. That still lacks the webhook's parts.
func addSeats(ctx context.Context, mgr ctrl.Manager, o *Options) (*controller.Spread, error) {
	direct, clientset, err := uncached(mgr)
	if err != nil {
		return nil, err
	}
	key, err := ledger.SharedKey(ctx, direct, types.NamespacedName{Namespace: o.Namespace, Name: seatSecret})
	if err != nil {
		return nil, fmt.Errorf("the key that signs seats: %w", err)
	}
	metrics, err := ledger.NewMetrics(ctrlmetrics.Registry)
	if err != nil {
		return nil, err
	}
	repairs, err := controller.NewMetrics(ctrlmetrics.Registry)
	if err != nil {
		return nil, err
	}
	spread := &controller.Spread{
		Client: mgr.GetClient(), Live: direct,
		Registration: registration, KeySecret: types.NamespacedName{Namespace: o.Namespace, Name: seatSecret},
		Clock: clock.RealClock{}, Timing: o.Repair,
		Log: mgr.GetLogger().WithName("repair"), Events: mgr.GetEventRecorder("stowage"), Metrics: repairs,
		Writes: flowcontrol.NewTokenBucketRateLimiter(50, 200),
	}
	seats := ledger.New(ledger.Options{
		API: &ledger.Kube{Client: direct}, Key: key, Writer: identity(),
		Clock: clock.RealClock{}, Log: mgr.GetLogger().WithName("seats"), Metrics: metrics, Changed: spread.Changed,
	})
	spread.Ledger = seats

	// The watch of ledgers, by which replicas learn of each other's claims.
	informer, err := mgr.GetCache().GetInformer(ctx, &stowage.SeatLedger{})
	if err != nil {
		return nil, fmt.Errorf("watch SeatLedgers: %w", err)
	}
	see := func(obj any, deleted bool) {
		if sl, ok := obj.(*stowage.SeatLedger); ok {
			owner, o := ledger.FromSeatLedger(sl)
			seats.LedgerSeen(owner, o, deleted)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, false) },
		UpdateFunc: func(_, obj any) { see(obj, false) },
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			see(obj, true)
		},
	}); err != nil {
		return nil, err
	}
	for _, r := range []everyReplica{
		func(ctx context.Context) error { seats.Pods().Run(ctx, clientset.CoreV1().RESTClient()); return nil },
		func(ctx context.Context) error {
			tick := time.NewTicker(sweepEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
					seats.Sweep(ctx, false)
				}
			}
		},
	} {
		if err := mgr.Add(r); err != nil {
			return nil, err
		}
	}
	return spread, nil
}

// uncached returns clients that do not read from the cache. The clientset speaks protobuf:
// every pod with a seat or a size passes there several times in its life.
func uncached(mgr ctrl.Manager) (client.Client, kubernetes.Interface, error) {
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
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

// newSizer returns the controller of the sizing.
func newSizer(mgr ctrl.Manager, o *Options, reader *cluster.Cache, pipeline *admission.Pipeline) (*controller.Sizing, error) {
	direct, clientset, err := uncached(mgr)
	if err != nil {
		return nil, err
	}
	metrics, err := controller.NewSizingMetrics(ctrlmetrics.Registry)
	if err != nil {
		return nil, err
	}
	return &controller.Sizing{
		Client: direct, Clientset: clientset, Informers: mgr.GetCache(), Pipeline: pipeline,
		Feature: &admission.Sizing{Cluster: reader}, Clock: clock.RealClock{}, Timing: o.Resize,
		Log: mgr.GetLogger().WithName("sizing"), Events: mgr.GetEventRecorder("stowage"), Metrics: metrics,
	}, nil
}

// newCapacity returns the controller of the nodes' VM capacity.
func newCapacity(mgr ctrl.Manager, o *Options) (*controller.Capacity, error) {
	direct, clientset, err := uncached(mgr)
	if err != nil {
		return nil, err
	}
	metrics, err := controller.NewCapacityMetrics(ctrlmetrics.Registry)
	if err != nil {
		return nil, err
	}
	nodes, err := labels.Parse(o.Capacity.NodeSelector)
	if err != nil {
		return nil, err
	}
	return &controller.Capacity{
		Client: direct, Clientset: clientset, Informers: mgr.GetCache(), Resource: corev1.ResourceName(o.PeerPods.Config.VMResource),
		ConfigMap: types.NamespacedName{Namespace: cmp.Or(o.Capacity.ConfigMapNamespace, o.Namespace), Name: peerPodsCM}, Default: o.Capacity.Default, Nodes: nodes, Clock: clock.RealClock{},
		Log: mgr.GetLogger().WithName("capacity"), Events: mgr.GetEventRecorder("stowage"), Metrics: metrics,
	}, nil
}

// identity is a name that no other replica has.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "stowage"
	}
	return host + "-" + rand.String(5) // a container that restarts keeps its host's name
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create,namespace=stowage-system
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=stowage-leader,verbs=get;update,namespace=stowage-system

// addLeader adds parts that one replica runs. A replica that loses the lead ends those
// parts and nothing else, because its webhook still answers; the manager's own election
// would end the process.
func addLeader(mgr ctrl.Manager, o *Options, parts ...func(context.Context)) error {
	log := mgr.GetLogger().WithName("leader")
	run := func(ctx context.Context) {
		var all sync.WaitGroup
		for _, part := range parts {
			all.Go(func() { part(ctx) })
		}
		all.Wait()
	}
	if !o.LeaderElection {
		return mgr.Add(everyReplica(func(ctx context.Context) error { run(ctx); return nil }))
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, leaderLease,
		resourcelock.ResourceLockConfig{Identity: identity()}, mgr.GetConfig(), 10*time.Second)
	if err != nil {
		return err
	}
	var runs sync.Mutex // the old run ends before a new one begins
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: leaderLease, ReleaseOnCancel: true,
		// Shorter than usual: a leader that dies hard is the one whose pods need repair.
		LeaseDuration: 8 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: 1500 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				runs.Lock()
				defer runs.Unlock()
				log.Info("leading")
				run(ctx)
			},
			OnStoppedLeading: func() { log.Info("not leading") },
		},
	})
	if err != nil {
		return err
	}
	return mgr.Add(everyReplica(func(ctx context.Context) error {
		for ctx.Err() == nil {
			elector.Run(ctx)
		}
		return nil
	}))
}

// everyReplica is a part of the manager that runs whoever leads.
type everyReplica func(ctx context.Context) error

// Start implements manager.Runnable.
func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (f everyReplica) NeedLeaderElection() bool { return false }
