// Package resize is the controller of sizes. It keeps the status of FlexDaemonsetTemplates. Where a template asks for
// it, it resizes running pods in place to what their template and node give them.
//
// Package admit, the webhook's feature, decides the size. The controller reconciles a pod when the
// pod appears, and when its template or its node's allocatable resources change. A node's heartbeat
// causes no work. The controller evicts a pod only if the pod was created just before its template, is
// not in use yet, and cannot be resized.
package resize

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/apisupport"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/leader"
)

// Timing is the waits of a [Controller].
type Timing struct {
	// Jitter is the time over which the pods that a change is about are resized.
	Jitter time.Duration
	// Rate is how many pods are resized in a second.
	Rate float64
	// Backoff is the wait before a pod that could not be resized is resized again,
	// doubled each time up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Settle is how long a DaemonSet must not have changed before its pods are compared
	// with it.
	Settle time.Duration
	// Status is the shortest time between two updates of one status. It grows with the
	// number of pods, all of which are looked at.
	Status time.Duration
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{
		Jitter: 10 * time.Second, Rate: 5, Backoff: 30 * time.Second, MaxBackoff: time.Hour,
		Settle: 2 * time.Second, Status: time.Second,
	}
}

// Controller is the controller of sizes.
type Controller struct {
	// Uncached asks the API server, and not the cache.
	Uncached  client.Client
	Clientset kubernetes.Interface
	// Discovery tells whether the API server resizes running pods.
	Discovery discovery.DiscoveryInterface
	Informers cache.Cache
	Scope     *scope.Scope
	// Feature decides sizes.
	Feature feature.Feature
	Clock   clock.WithTicker
	Time    clock.PassiveClock // the API server's, for dates that it wrote
	Timing  Timing
	Log     logr.Logger
	Events  events.Recorder
	Metrics *Metrics
	Evictor *evict.Evictor
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch,roleName=stowage-sizing-controllers
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch,roleName=stowage-sizing-controllers
// +kubebuilder:rbac:groups=flexdaemonsets.xai,resources=flexdaemonsettemplates/status,verbs=patch,roleName=stowage-sizing-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "resize" }

// run is what the controller knows in one term.
type run struct {
	*Controller
	term       *leader.Term
	pods       atomic.Pointer[podWatch]           // nil while no watch runs
	watchMu    sync.Mutex                         // one starts or stops the watch
	work       leader.Queue[types.NamespacedName] // pods
	daemonSets leader.Queue[types.NamespacedName]
	statuses   leader.Queue[string]    // templates, as labels name them
	writes     flowcontrol.RateLimiter // resizes
	labels     flowcontrol.RateLimiter // records of pods that had none

	mu    sync.Mutex
	tries map[types.UID]*tries
	// restarts are the pods that were asked to become a size and restart for that; see restarts.go.
	restarts map[types.UID]reservation
	// beforeTemplate is when pods without a size were found that were created just before their template.
	beforeTemplate map[types.UID]time.Time
	// planned are the series of plans that were reported, by the label of their template. Only the one worker
	// of the statuses uses it.
	planned map[string][][]string
	// counted are the pods of a template at the last look at its status, by the template's label.
	counted map[string]int
	// resizable says that the API server resized pods at resizableAt.
	resizable   bool
	keepsMemory bool // the API server does not lower memory limits
	resizableAt time.Time
	// templateSet is when this leader saw a DaemonSet's template annotation change, of the last minutes.
	templateSet map[types.UID]time.Time
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	t.AtEnd(c.Metrics.planned.Reset) // the next leader reports them

	// 1. The reconcilers.
	burst := max(1, int(c.Timing.Rate))
	r := &run{
		Controller: c, term: t, planned: map[string][][]string{}, tries: map[types.UID]*tries{}, restarts: map[types.UID]reservation{}, beforeTemplate: map[types.UID]time.Time{}, templateSet: map[types.UID]time.Time{}, counted: map[string]int{},
		writes: flowcontrol.NewTokenBucketRateLimiter(float32(c.Timing.Rate), burst),
		labels: flowcontrol.NewTokenBucketRateLimiter(10*float32(c.Timing.Rate), 10*burst),
	}
	var err error
	if r.work, err = leader.Reconcile(t, "resize", 2, r.reconcilePod, leader.ObjectKeys); err != nil {
		return err
	}
	if r.daemonSets, err = leader.Reconcile(t, "resize-daemonset", 1, r.reconcileDaemonSet, leader.ObjectKeys); err != nil {
		return err
	}
	if r.statuses, err = leader.Reconcile(t, "flexdaemonsettemplate-status", 1, r.reconcileStatus, templateKeys); err != nil {
		return err
	}

	// 2. The pods that have a size, watched by the leader only and only if one may be resized, and what sizes
	// depend on.
	if err := r.adjustWatch(t.Context()); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if w := r.pods.Load(); w != nil && !toolscache.WaitForNamedCacheSyncWithContext(t.Context(), w.synced) {
		return nil // the term has ended
	}
	if err := r.watch(t); err != nil {
		return err
	}
	t.Every(earlyFor, func(ctx context.Context) { // at once, too: a template may have been created meanwhile
		r.forgetEarly()
		r.watchIfNeeded(ctx)
	})
	return nil
}

// resizableFor is how long it is believed that the API server cannot resize pods. It may be upgraded.
const resizableFor = 5 * time.Minute

// canResize reports whether the API server resizes running pods.
func (r *run) canResize() (bool, error) {
	r.mu.Lock()
	known := r.resizable || !r.resizableAt.IsZero() && r.Clock.Since(r.resizableAt) < resizableFor
	can := r.resizable
	r.mu.Unlock()
	if known {
		return can, nil
	}
	server, err := apisupport.Discover(r.Discovery) // two at once do no harm
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	r.resizable, r.keepsMemory, r.resizableAt = server.Resize, !server.LowerMemory, r.Clock.Now()
	r.mu.Unlock()
	return server.Resize, nil
}

func templateKeys(label string) []any { return []any{"kind", "FlexDaemonsetTemplate", "name", label} }
