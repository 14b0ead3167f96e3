// Package repair is the controller of workloads with a strategy. It repairs what the webhook could not get right
// and rebalances where a policy asks for it.
//
// What to do about a workload's pods is decided by package planner; this package looks,
// limits how much is done, and does it. It promises that
//   - a workload of a kind that is watched costs no request to the API server in steady state;
//   - nothing is done to a workload whose pods changed within the last moments;
//   - pods are only ever removed by eviction, one at a time, within a budget that
//     shrinks as long as nothing is won by it;
//   - pods that were created just before their policy are evicted while they are not in use.
package repair

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/contest"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Timing is the waits of a [Controller].
type Timing struct {
	// Quiet is how long a workload's pods must not have changed before it is repaired.
	Quiet time.Duration
	// Resync is how often every workload is looked at though nothing changed, unless there are more than [ResyncRate] for each
	// second of it.
	Resync time.Duration
	// Backoff is the wait after a pod was removed and nothing was won, doubled each
	// time up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Cooldown is the wait between two evictions of a workload.
	Cooldown time.Duration
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{
		Quiet: 2 * time.Second, Resync: 30 * time.Second, Backoff: 10 * time.Second, MaxBackoff: 10 * time.Minute,
		Cooldown: 30 * time.Second,
	}
}

// Controller is the controller of workloads with a strategy.
type Controller struct {
	// Cached reads from informers, and Uncached asks the API server.
	Cached, Uncached client.Client
	Informers        crcache.Informers
	World            *worldcache.Cache
	Policies         *owners.Owners
	Seats            *seats.Service
	Scope            *scope.Scope
	// Registrations reads the webhook's registration.
	Registrations *selection.Reader
	// Replica names this one.
	Replica string
	// Backoffs is the ConfigMap that keeps the back-off for the next leader.
	Backoffs types.NamespacedName
	Clock    clock.WithTicker
	Time     clock.PassiveClock // the API server's, for dates that it wrote
	Timing   Timing
	Log      logr.Logger
	Events   events.Recorder
	Metrics  *Metrics
	// Writes limits how fast pods are patched, by namespace.
	Writes  *fair.Limiter[string]
	Evictor *evict.Evictor
	Room    *poolroom.Reader
	// Gated reports whether a pod of an owner waits at the gate. Then the workload is left alone: its pods are not all seated yet.
	Gated func(ledger.OwnerKey) bool
	// Yielding tells of owners whose pods are to give way to a newer revision in a pool without room.
	Yielding *listeners.Listeners[ledger.Owner]

	term atomic.Pointer[run] // nil while another replica leads
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;patch,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=stowage,verbs=get,roleName=stowage-spread-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "workload" }

// run is what the controller knows in one term.
type run struct {
	*Controller
	since time.Time // when the term began
	next  time.Time // when every workload is looked at again; only resync uses it
	// followed says that SpreadPolicies are watched; only followSpreadPolicies uses it.
	followed bool
	work     leader.Queue[ledger.Owner]

	// adoptions are the turns of workloads of policies.
	adoptions *adoptions
	// seatWrites notices another writer of pods' labels.
	seatWrites contest.Contest[seatWrite]
	// refusals are the pods that the API server refuses to update. They are tried less and less often.
	refusals contest.Contest[types.UID]
	// hindranceWrites limits how fast hindrances are stored, by namespace. Until unserved, the API server does not know of any.
	hindranceWrites *fair.Limiter[string]
	unserved        time.Time
	missing         int // writes in a row that found no PoolState

	mu        sync.Mutex
	movements *movements
	policies  map[world.Object]change // of policies that changed lately, by their target
	reported  map[ledger.OwnerKey]distance
	counted   map[ledger.OwnerKey]map[poolName]poolCount // of each owner in each pool
	sums      map[poolName]poolCount                     // of all owners of a workload
	history   map[ledger.OwnerKey]*history

	storing  sync.Mutex         // guards backoffs, and orders their writes
	backoffs map[string]backoff // nil until they are read
}

// ResyncRate is how many workloads are looked at in a second though nothing changed.
const ResyncRate = 25

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	// 1. The reconciler.
	r := &run{
		Controller: c, since: c.Clock.Now(),
		history: map[ledger.OwnerKey]*history{}, movements: newMovements(), reported: map[ledger.OwnerKey]distance{},
		counted: map[ledger.OwnerKey]map[poolName]poolCount{}, sums: map[poolName]poolCount{},
		policies: map[world.Object]change{}, adoptions: newAdoptions(), hindranceWrites: fair.NewLimiter[string](HindranceRate, HindranceRate),
	}
	var err error
	if r.work, err = leader.Reconcile(t, "workload", 2, r.reconcile, ownerKeys); err != nil {
		return err
	}

	// 2. What feeds them.
	c.term.Store(r)
	t.AtEnd(func() { c.term.Store(nil) })
	for _, gauge := range []*metrics.BoundedGauge{c.Metrics.distance, c.Metrics.domainDistance, c.Metrics.desired, c.Metrics.current, c.Metrics.ready, c.Metrics.foreignCosts} {
		t.AtEnd(gauge.Reset)
	}
	t.AtEnd(c.Seats.Changes.Add(r.changed))
	t.AtEnd(c.Yielding.Add(r.work.AddUnlessFailing))
	if err := r.watchPolicies(t); err != nil {
		return err
	}
	t.Go(func(ctx context.Context) {
		// Without its pods, every workload would look as if none of them had a seat.
		if !cache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			return
		}
		t.Every(c.Timing.Resync, r.resync)
		t.Every(c.Timing.Quiet, r.lookAtChanges)
		t.Every(c.Timing.Quiet, func(ctx context.Context) {
			r.followSpreadPolicies(t)
			r.lookAtPolicies(ctx)
		})
		t.Every(time.Second, r.adopt)
		t.Every(c.Timing.Quiet, r.tellHindrances)
	})
	return nil
}

func ownerKeys(o ledger.Owner) []any {
	return []any{"namespace", o.Namespace, "kind", o.Kind, "name", o.Name}
}

// changed notes that an owner's pods changed. A write of the status alone, such as that of a probe that flaps, must not
// delay repair.
func (r *run) changed(change seats.Change) {
	if !change.Moved {
		return
	}
	now := r.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.movements.note(change.Owner, now)
}

// resync looks at every workload: those with seats, and those that might have some.
func (r *run) resync(ctx context.Context) {
	now := r.Clock.Now()
	if now.Before(r.next) {
		return
	}
	there := map[ledger.OwnerKey]bool{}
	for _, o := range r.Seats.Pods().Owners() {
		there[o.Key()] = true
		r.work.AddUnlessFailing(o)
	}
	owners, err := r.World.PodOwnersIn(ctx, "")
	if err != nil {
		r.Log.Error(err, "workloads were not listed")
		return
	}
	for _, w := range owners {
		if o := seats.OwnerOf(w); w.Current > 0 && !there[o.Key()] {
			there[o.Key()] = true
			r.work.AddUnlessFailing(o)
		}
	}
	r.forget(there)
	r.next = now.Add(max(r.Timing.Resync, time.Duration(len(there))*time.Second/ResyncRate) - r.Timing.Resync/2) // ticks are not exact
}

// lookAtChanges looks at the workloads whose pods moved lately, once they are quiet.
func (r *run) lookAtChanges(context.Context) {
	r.mu.Lock()
	due := r.movements.due(r.Clock.Now(), r.Timing.Quiet)
	r.mu.Unlock()
	for _, key := range due {
		if o, ok := r.Seats.Pods().Owner(key); ok {
			r.work.AddUnlessFailing(o)
			continue
		}
		r.mu.Lock()
		r.movements.forget(key) // all its pods are gone
		r.mu.Unlock()
	}
}

// adopt looks at the workloads of policies whose turn it is to have pods adopted.
func (r *run) adopt(context.Context) {
	for _, o := range r.adoptions.next() {
		r.work.AddUnlessFailing(o)
	}
}

// starting reports whether the term is so young that what moved before it is not known.
func (r *run) starting() bool { return r.Clock.Since(r.since) < r.Timing.Quiet }

// Moving implements [status.Progress]. Outside of a term everything may move.
func (c *Controller) Moving(owner ledger.OwnerKey) bool {
	r := c.term.Load()
	return r == nil || r.moving(owner)
}

// moving reports whether an owner's pods moved within the last moments.
func (r *run) moving(owner ledger.OwnerKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starting() || r.movements.moving(owner, r.Clock.Now(), r.Timing.Quiet)
}

// mayLook reports whether an owner is quiet, or has moved for so long that it is looked at anyway.
func (r *run) mayLook(owner ledger.OwnerKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.starting() && r.movements.look(owner, r.Clock.Now(), r.Timing.Quiet)
}
