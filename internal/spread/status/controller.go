// Package status writes the status of PodDistributors: what there is in each pool and what there should be, and what is
// wrong in plain words. Package division has the facts.
package status

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Progress is what repair knows of a workload.
type Progress interface {
	// Moving reports whether an owner's pods moved within the last moments.
	Moving(owner ledger.OwnerKey) bool
	// Stuck reports whether an owner has had the same pods for some minutes, and another number than it asks for.
	Stuck(owner ledger.OwnerKey, current, replicas int64) bool
}

// Timing is the waits of a [Controller].
type Timing struct {
	// Every is the shortest time between two updates of one status, and All the time between two looks at every PodDistributor.
	Every, All time.Duration
	// Quiet is how long repair waits for pods to come to rest. A status is looked at again until after that.
	Quiet time.Duration
}

// Controller is the controller of the status of PodDistributors.
type Controller struct {
	Uncached  client.Client
	Informers crcache.Informers
	World     *worldcache.Cache
	Seats     *seats.Service
	Progress  Progress
	Clock     clock.WithTicker
	Timing    Timing
	Log       logr.Logger
}

// +kubebuilder:rbac:groups=versprei.versprei.io,resources=poddistributors/status,verbs=patch,roleName=stowage-spread

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "status" }

// Run is the controller in one term.
type Run struct {
	*Controller
	Queue leader.Queue[types.NamespacedName]

	mu sync.Mutex
	// changed is when pods of a namespace changed last, and all when every PodDistributor was looked at last.
	changed map[string]time.Time
	all     time.Time
}

// NewRun returns a run that has no queue yet.
func (c *Controller) NewRun() *Run { return &Run{Controller: c, changed: map[string]time.Time{}} }

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := c.NewRun()
	var err error
	if r.Queue, err = leader.Reconcile(t, "poddistributor-status", 1, r.Reconcile, leader.ObjectKeys); err != nil {
		return err
	}
	t.AtEnd(c.Seats.Changes.Add(func(change seats.Change) { r.note(change.Owner.Namespace) }))
	// A pool that has no room, or has room again, changes the status.
	changed := func(obj any) {
		if state, ok := obj.(*stowage.PoolState); ok {
			r.note(state.Namespace)
		}
	}
	if err := t.Watch(c.Informers, &stowage.PoolState{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: func(obj any) { changed(leader.Deleted(obj)) },
	}); err != nil {
		return err
	}
	t.Go(func(ctx context.Context) {
		// Without its pods, every workload would look as if none of them had a seat.
		if toolscache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			t.Every(c.Timing.Every, r.Look)
		}
	})
	return nil
}

func (r *Run) note(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed[namespace] = r.Clock.Now()
}

// Look looks at the PodDistributors that were edited, and at those in whose namespace pods have changed,
// until some time after that. Once in a resync it looks at all.
func (r *Run) Look(ctx context.Context) {
	list, err := r.World.PodDistributors(ctx, metav1.NamespaceAll)
	if err != nil {
		r.Log.Error(err, "PodDistributors were not listed")
		return
	}
	now := r.Clock.Now()
	r.mu.Lock()
	all := now.Sub(r.all) >= r.Timing.All
	if all {
		r.all = now
	}
	changed := map[string]bool{}
	for namespace, t := range r.changed {
		changed[namespace] = true
		if now.Sub(t) > r.Timing.Quiet+2*r.Timing.Every {
			delete(r.changed, namespace)
		}
	}
	r.mu.Unlock()
	for i := range list {
		if d := &list[i]; all || changed[d.Namespace] || d.Status.ObservedGeneration != d.Generation {
			r.Queue.AddUnlessFailing(client.ObjectKeyFromObject(d))
		}
	}
}
