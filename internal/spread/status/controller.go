// Package status writes the statuses of PodDistributors, SpreadPolicies and ClusterSpreadPolicies: what there is in each pool and what there
// should be, and what is wrong in plain words. Package division has the facts.
package status

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Progress is what repair knows of a workload.
type Progress interface {
	// Moving reports whether an owner's pods moved within the last moments.
	Moving(owner ledger.OwnerKey) bool
	// Stuck reports whether an owner has had the same pods for some minutes, and another number than it asks for.
	Stuck(owner ledger.OwnerKey, current, replicas int64) bool
	// Hindrances are what keeps pods of an owner from moving that are in the wrong place.
	Hindrances(owner ledger.OwnerKey) []stowage.Hindrance
	// Elsewhere are the pods of an owner whose volumes reach no place for a seat. They lower the targets.
	Elsewhere(owner ledger.OwnerKey) layout.Elsewhere
}

// Timing is the waits of a [Controller].
type Timing struct {
	// Every is the shortest time between two updates of one status, and All the time between two looks at every PodDistributor. It
	// is longer if there are more than Rate for each second of it.
	Every, All time.Duration
	Rate       int // PodDistributors in a second
	// Quiet is how long repair waits for pods to come to rest. A status is looked at again until after that.
	Quiet time.Duration
}

// Controller is the controller of the status of PodDistributors.
type Controller struct {
	Cached    client.Reader
	Uncached  client.Client
	Informers crcache.Informers
	World     *worldcache.Cache
	Seats     *seats.Service
	Scope     *scope.Scope
	Find      *owners.Owners
	Progress  Progress
	Clock     clock.WithTicker
	Time      clock.PassiveClock // the API server's, for dates that it wrote
	Timing    Timing
	// Writes limits how fast statuses are written, by namespace. So a namespace with many that change does not delay others.
	Writes *fair.Limiter[string]
	Log    logr.Logger
}

// +kubebuilder:rbac:groups=versprei.versprei.io,resources=poddistributors/status,verbs=patch,roleName=stowage-spread-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "status" }

// Run is the controller in one term.
type Run struct {
	*Controller
	Queue leader.Queue[types.NamespacedName]

	mu sync.Mutex
	// pods is when pods of an owner changed last. objects is when something else of a workload did: a PodDistributor that targets
	// it, or the room for its pods.
	pods    map[ledger.OwnerKey]time.Time
	objects map[world.Object]time.Time
	gone    map[string]bool // nodes that were deleted since the last Look
	all     time.Time       // when every PodDistributor is looked at again; only Look uses it

	// dividedBy is the PodDistributor of each owner that has pods. It is known for a while after the owner or its last pod is gone.
	// Only Look uses it.
	dividedBy map[ledger.OwnerKey]types.NamespacedName
	// postponed are the statuses that wait to be written, by namespace. Only the reconciler uses it, which has one worker.
	postponed map[string]map[string]bool
	// rollouts are what was read of targets for the remedies. Only the reconciler uses it.
	rollouts map[types.UID]knownRollout
}

// NewRun returns a run that has no queue yet.
func (c *Controller) NewRun() *Run {
	return &Run{Controller: c, pods: map[ledger.OwnerKey]time.Time{}, objects: map[world.Object]time.Time{}, dividedBy: map[ledger.OwnerKey]types.NamespacedName{}, postponed: map[string]map[string]bool{}, rollouts: map[types.UID]knownRollout{}}
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := c.NewRun()
	var err error
	if r.Queue, err = leader.Reconcile(t, "poddistributor-status", 1, r.Reconcile, leader.ObjectKeys); err != nil {
		return err
	}
	t.AtEnd(c.Seats.Changes.Add(func(change seats.Change) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pods[change.Owner] = r.Clock.Now()
	}))
	// A pool that has no room, or has room again, changes the status.
	room := func(obj any) {
		if state, ok := obj.(*stowage.PoolState); ok {
			for n := range state.OwnerReferences {
				r.note(world.Object{Namespace: state.Namespace, Ref: world.RefOf(&state.OwnerReferences[n])})
			}
		}
	}
	if err := t.Watch(c.Informers, &stowage.PoolState{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: room, UpdateFunc: func(_, obj any) { room(obj) }, DeleteFunc: func(obj any) { room(worldcache.Deleted(obj)) },
	}); err != nil {
		return err
	}
	// An edit concerns the PodDistributor, and others of the same target.
	edited := func(obj any) {
		if d, ok := obj.(*versprei.PodDistributor); ok {
			r.Queue.AddUnlessFailing(client.ObjectKeyFromObject(d))
			r.note(world.TargetOf(d))
		}
	}
	if err := t.Watch(c.Informers, &versprei.PodDistributor{}, toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			if !first { // the term begins with a look at all
				edited(obj)
			}
		},
		UpdateFunc: func(was, is any) {
			if old, now := was.(*versprei.PodDistributor), is.(*versprei.PodDistributor); old.Generation != now.Generation {
				edited(old)
				edited(now)
			}
		},
		DeleteFunc: func(obj any) { edited(worldcache.Deleted(obj)) },
	}); err != nil {
		return err
	}
	// Until the pods of a node that is gone are deleted, some 40 s later, they say that they are ready.
	if err := t.Watch(c.Informers, &corev1.Node{}, toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if node, ok := worldcache.Deleted(obj).(*corev1.Node); ok {
			r.nodeGone(node.Name)
		}
	}}); err != nil {
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

func (r *Run) note(object world.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects[object] = r.Clock.Now()
}

// nodeGone notes that a node does not exist any more.
func (r *Run) nodeGone(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone == nil {
		r.gone = map[string]bool{}
	}
	r.gone[name] = true
}

// noteGone notes the owners of pods on nodes that were deleted. All pods are gone through, once for the nodes of a second.
func (r *Run) noteGone(now time.Time) {
	r.mu.Lock()
	gone := r.gone
	r.gone = nil
	r.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	on := r.Seats.Pods().OwnersOn(gone)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range on {
		r.pods[key] = now
	}
}

// Look looks at the PodDistributors whose pods, room or siblings have changed, until some time after that. Once in a resync it
// looks at all.
func (r *Run) Look(ctx context.Context) {
	now := r.Clock.Now()
	r.noteGone(now)
	settled := now.Add(-r.Timing.Quiet - 2*r.Timing.Every)
	r.mu.Lock()
	all := !now.Before(r.all)
	owners, objects := take(r.pods, settled), take(r.objects, settled)
	r.mu.Unlock()
	if all {
		list, err := r.World.PodDistributors(ctx, metav1.NamespaceAll)
		if err != nil {
			r.Log.Error(err, "PodDistributors were not listed")
		} else {
			r.all = now.Add(max(r.Timing.All, time.Duration(len(list))*time.Second/time.Duration(r.Timing.Rate)))
		}
		for i := range list {
			r.Queue.AddUnlessFailing(client.ObjectKeyFromObject(&list[i]))
		}
	}
	for key, last := range owners {
		r.lookAt(ctx, key, last)
	}
	for object := range objects {
		under, err := r.Seats.Pods().OwnersUnder(ctx, r.World, object)
		if err != nil {
			r.Log.Error(err, "the pods of a workload were not found", object.LogKeys()...)
		}
		targets := []world.Object{object}
		for _, w := range under {
			targets = append(targets, world.Object{Namespace: w.Namespace, Ref: w.Ref})
		}
		for _, target := range targets {
			if d, _ := r.distributorOf(ctx, target); d != nil {
				r.Queue.AddUnlessFailing(client.ObjectKeyFromObject(d))
			}
		}
		siblings, err := r.World.PodDistributorsOf(ctx, object, mostSiblings)
		if err != nil {
			r.Log.Error(err, "the PodDistributors of a workload were not found", object.LogKeys()...)
		}
		for _, d := range siblings {
			r.Queue.AddUnlessFailing(client.ObjectKeyFromObject(d))
		}
	}
}

// take returns what changed, with whether that was the last look at it, and forgets what has settled.
func take[K comparable](changed map[K]time.Time, settled time.Time) map[K]bool {
	out := make(map[K]bool, len(changed))
	for key, t := range changed {
		if out[key] = t.Before(settled); out[key] {
			delete(changed, key)
		}
	}
	return out
}

// lookAt looks at the PodDistributor that divides the pods of an owner, for the last time or not.
func (r *Run) lookAt(ctx context.Context, key ledger.OwnerKey, last bool) {
	if owner, ok := r.Seats.Pods().Owner(key); ok {
		// While a workload is deleted, its pods are there and it is not.
		switch d, known := r.distributorOf(ctx, world.Object{Namespace: owner.Namespace, Ref: seats.Ref(owner)}); {
		case d != nil:
			r.dividedBy[key] = client.ObjectKeyFromObject(d)
		case known:
			delete(r.dividedBy, key)
		}
	} else if last {
		defer delete(r.dividedBy, key)
	}
	if d, ok := r.dividedBy[key]; ok {
		r.Queue.AddUnlessFailing(d)
	}
}

// distributorOf returns the PodDistributor that divides the pods of an object, or nil if none does. It is not known while the object
// cannot be read.
func (r *Run) distributorOf(ctx context.Context, object world.Object) (d *versprei.PodDistributor, known bool) {
	chain, err := world.Owners(ctx, r.World, object.Namespace, object.Ref)
	if err == nil {
		d, err = r.World.PodDistributor(ctx, object.Namespace, chain.Refs)
	}
	if err != nil {
		r.Log.Error(err, "the PodDistributor of a workload was not found", object.LogKeys()...)
	}
	return d, err == nil && chain.Bottom() != nil
}

// mostSiblings is how many PodDistributors of one target are looked at when one of them changes. The resync looks at the others.
const mostSiblings = 20

// resume notes that a status does not wait any more.
func (r *Run) resume(key types.NamespacedName) {
	of := r.postponed[key.Namespace]
	if delete(of, key.Name); len(of) == 0 {
		delete(r.postponed, key.Namespace)
	}
}

// postpone returns how long a status waits, if the first of its namespace waits for so long. They come one after the other: to
// describe all of them each time would cost more with each one.
func (r *Run) postpone(key types.NamespacedName, first time.Duration) time.Duration {
	if r.postponed[key.Namespace] == nil {
		r.postponed[key.Namespace] = map[string]bool{}
	}
	of := r.postponed[key.Namespace]
	of[key.Name] = true
	return min(r.Timing.All, time.Duration(len(of))*first)
}
