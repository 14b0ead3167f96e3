// Package shortage is the controller of PoolStates. It finds out which node pools have no room for the pods of a
// workload. It also finds out in which pools of a policy they could not run at all. It records that for all replicas. It evicts the pods that wait there, so that other pools take their
// successors.
//
// What follows from what is seen is decided by package spill. This package looks, writes and evicts. It promises that
//   - a workload without a pod that waits and without a PoolState costs no request;
//   - a pod is evicted only if nothing has changed of it since it was seen to wait without a node;
//   - a pod is evicted only after the state that demands it was stored and seen in the cache.
package shortage

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Timing is the waits of a [Controller].
type Timing struct {
	// Look is how often workloads are looked at whose pods wait, or that have a PoolState.
	Look time.Duration
	// Probes are the waits between the tries of a pool without room. The first of them is also how often, at most, the nodes
	// of a pool without room are looked at for a workload. A node of the pool that becomes ready is looked at earlier.
	Probes tries.Timing
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{Look: time.Second, Probes: tries.Default()}
}

// The limits of evictions of pods that wait, in a second: of one workload, and of all. Namespaces share the second.
const (
	workloadRate = 5
	totalRate    = 20
)

// Controller is the controller of PoolStates.
type Controller struct {
	// Cached reads from informers, and Uncached asks the API server.
	Cached, Uncached client.Client
	Informers        crcache.Informers
	World            *worldcache.Cache
	Policies         *owners.Owners
	Seats            *seats.Service
	Scope            *scope.Scope
	Room             *poolroom.Reader
	Evictor          *evict.Evictor
	Successors       *successor.Finder
	Clock            clock.WithTicker
	Timing           Timing
	NodeGroups       NodeGroups
	Log              logr.Logger
	Events           events.Recorder
	Metrics          *Metrics
	// Yielding tells of owners whose pods, of an older revision in pools without room, are to get the lowest deletion cost.
	Yielding listeners.Listeners[ledger.Owner]
}

// +kubebuilder:rbac:groups=stowage.dev,resources=poolstates,verbs=list;watch,roleName=stowage-spread
// +kubebuilder:rbac:groups=stowage.dev,resources=poolstates,verbs=create;update;delete,roleName=stowage-spread-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "shortage" }

// run is what the controller knows in one term.
type run struct {
	*Controller
	work  leader.Queue[world.Object] // the workloads of pods
	limit *fair.Limiter[string]      // of evictions, by namespace
	looks *fair.Limiter[string]      // at pods that wait in pools which may be unsuitable, by namespace

	looked int // how often; only its ticker uses it

	mu    sync.Mutex
	known map[types.UID]*memory
	// autoscaler, groups, scaleUps and unproven are used by the reconciler alone, which has one worker.
	autoscaler autoscaler
	groups     groups
	scaleUps   map[string]scaleUps // by namespace
	unproven   evict.Unproven      // by how many seats the webhook has given
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	// One namespace gets half of a burst, which is all of a second's rate.
	r := &run{Controller: c, limit: fair.NewLimiter[string](totalRate, 2*totalRate), looks: fair.NewLimiter[string](judgeRate, judgeBurst), known: map[types.UID]*memory{}, scaleUps: map[string]scaleUps{}}
	var err error
	// One worker: the rate of evictions in all is not more than one can do.
	if r.work, err = leader.Reconcile(t, "shortage", 1, r.reconcile, world.Object.LogKeys); err != nil {
		return err
	}
	t.AtEnd(c.Metrics.reset)
	if err := t.Watch(c.Informers, &stowage.PoolState{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.stateChanged(obj) },
		UpdateFunc: func(_, obj any) { r.stateChanged(obj) },
		DeleteFunc: func(obj any) {
			if state, ok := worldcache.Deleted(obj).(*stowage.PoolState); ok {
				r.forget(types.UID(state.Name)) // the clocks of the pods that wait start again
			}
		},
	}); err != nil {
		return err
	}
	// A rollout begins: the old revision's pods in pools without room are to go first, and it does not wait for us.
	if err := t.Watch(c.Informers, &appsv1.ReplicaSet{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { r.revisionChanged(t.Context(), nil, obj.(*appsv1.ReplicaSet)) },
		UpdateFunc: func(was, is any) {
			r.revisionChanged(t.Context(), was.(*appsv1.ReplicaSet), is.(*appsv1.ReplicaSet))
		},
	}); err != nil {
		return err
	}
	t.Go(func(ctx context.Context) {
		// Without its pods, every workload would look as if none of them waited.
		if toolscache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			t.Every(c.Timing.Look, r.look)
		}
	})
	return nil
}

// revisionChanged looks at a workload with a PoolState of which a revision begins to ask for pods.
func (r *run) revisionChanged(ctx context.Context, was, is *appsv1.ReplicaSet) {
	owner := metav1.GetControllerOfNoCopy(is)
	if owner == nil || ptr.Deref(is.Spec.Replicas, 1) == 0 || was != nil && ptr.Deref(was.Spec.Replicas, 1) > 0 {
		return
	}
	if state, err := r.World.PoolState(ctx, is.Namespace, owner.UID); err == nil && state != nil {
		r.stateChanged(state)
	}
}

func (r *run) stateChanged(obj any) {
	if w, ok := workloadOf(obj.(*stowage.PoolState)); ok {
		r.work.AddUnlessFailing(w)
	}
}

// workloadOf returns the workload that a PoolState is about.
func workloadOf(state *stowage.PoolState) (world.Object, bool) {
	for _, o := range state.OwnerReferences {
		if string(o.UID) == state.Name {
			return world.Object{Namespace: state.Namespace, Ref: world.RefOf(&o)}, true
		}
	}
	return world.Object{}, false
}

// lookRarely is how many looks there are for one at the workloads whose pods do not wait, and that have no pool without room.
const lookRarely = 10

// look looks at the workloads of which pods wait, and at those with a PoolState.
func (r *run) look(ctx context.Context) {
	there := map[types.UID]bool{}
	for _, owner := range r.Seats.Pods().Waiting() {
		top, err := r.concerned(ctx, owner)
		if err != nil {
			r.Log.Error(err, "the workload of pods that wait, or its policy, is not known", "namespace", owner.Namespace, "kind", owner.Kind, "name", owner.Name)
		} else if top != nil {
			there[top.UID] = true
			r.work.AddUnlessFailing(world.Object{Namespace: owner.Namespace, Ref: top.Ref})
		}
	}
	r.looked++
	rarely := r.looked%lookRarely == 1
	var states stowage.PoolStateList
	if err := r.Cached.List(ctx, &states, client.InNamespace(metav1.NamespaceAll), client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "PoolStates were not listed")
		return
	}
	for i := range states.Items {
		state := &states.Items[i]
		w, ok := workloadOf(state)
		if !ok { // somebody took its owner from it, so nothing would ever end it
			if err := r.delete(ctx, state); client.IgnoreNotFound(err) != nil {
				r.Log.Error(err, "a PoolState without an owner was not deleted", "namespace", state.Namespace, "name", state.Name)
			}
			continue
		}
		there[w.UID] = true
		if rarely || len(state.Pools) > 0 || len(state.Ordinals) > 0 {
			r.work.AddUnlessFailing(w)
		}
	}
	for _, uid := range r.old() {
		if !there[uid] {
			r.forget(uid)
		}
	}
}

// concerned returns the workload of an owner whose pods wait, if its pools are watched or its pods may be outdated, and nil otherwise.
func (r *run) concerned(ctx context.Context, owner ledger.Owner) (*world.Workload, error) {
	chain, err := world.Owners(ctx, r.World, owner.Namespace, seats.Ref(owner))
	if err != nil {
		return nil, err
	}
	top, bottom := chain.Top(), chain.Bottom()
	if top == nil {
		return nil, nil
	}
	p, err := r.Policies.FindForSelected(ctx, owner.Namespace, seats.Ref(owner), bottom)
	if err != nil {
		return nil, err
	}
	if watched := p != nil && (p.Spill != nil || judges(p)); watched || bottom != nil && r.hasOutdated(p, owner) {
		return top, nil
	}
	return nil, nil
}

// old returns the workloads that are known, and of which nothing was corrected lately.
func (r *run) old() (out []types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, m := range r.known {
		if r.Clock.Since(m.correctedAt) > correctedFor {
			out = append(out, uid)
		}
	}
	return out
}
