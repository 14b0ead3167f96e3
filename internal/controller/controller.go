// Package controller is what one replica of Stowage does beside answering the webhook's
// requests: it keeps the status of PodDistributors, repairs what requests could not get
// right, and removes ledgers that nobody needs.
//
// What to do about a workload's pods is decided by package repair; this package looks,
// limits how much is done, and does it. It promises that
//   - a workload in steady state costs no request to the API;
//   - nothing is done to a workload whose pods changed within the last moments;
//   - pods are only ever removed by eviction, one at a time, within a budget that
//     shrinks as long as nothing is won by it.
//
// Leading is a matter of economy: two replicas that both think they lead write the
// same things, under optimistic concurrency.
package controller

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/policy"
)

// Timing is the waits of a [Spread].
type Timing struct {
	// Quiet is how long a workload's pods must not have changed before it is repaired.
	Quiet time.Duration
	// Resync is how often every workload is looked at though nothing changed.
	Resync time.Duration
	// Backoff is the wait after a pod was removed and nothing was won, doubled each
	// time up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Cooldown is the wait between two evictions of a workload.
	Cooldown time.Duration
	// Collect is how often ledgers without claims are removed.
	Collect time.Duration
	// Status is the shortest time between two updates of one status.
	Status time.Duration
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{
		Quiet: 2 * time.Second, Resync: 30 * time.Second, Backoff: 10 * time.Second, MaxBackoff: 10 * time.Minute,
		Cooldown: 30 * time.Second, Collect: 15 * time.Second, Status: time.Second,
	}
}

// Spread is the controller of the spread.
type Spread struct {
	// Client reads from the cache where that has what is asked, and Live does not.
	Client, Live client.Client
	Cluster      *cluster.Cache
	Policies     *policy.Finder
	Ledger       *ledger.Ledger
	// Pipeline is the webhook's.
	Pipeline *admission.Pipeline
	// Registration is the name of the webhook's registration.
	Registration string
	// KeySecret holds the key that signs seats.
	KeySecret types.NamespacedName
	Clock     clock.WithTicker
	Timing    Timing
	Log       logr.Logger
	Events    events.EventRecorder
	Metrics   *Metrics
	// Writes limits how fast pods are patched.
	Writes flowcontrol.RateLimiter

	mu       sync.Mutex
	leading  bool
	since    time.Time                     // when this replica began to lead
	changed  map[ledger.OwnerKey]time.Time // when an owner's pods changed last
	dirty    map[string]time.Time          // namespaces in which pods changed, and when last
	reported map[ledger.OwnerKey]ledger.Owner
	// allStatuses is when every PodDistributor was looked at last.
	allStatuses time.Time
	work        workqueue.TypedRateLimitingInterface[ledger.Owner]
	statuses    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	history     map[ledger.OwnerKey]*history
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=versprei.versprei.io,resources=poddistributors/status,verbs=patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=stowage,verbs=get

// Metrics counts repairs.
type Metrics struct {
	repairs  *prometheus.CounterVec
	distance *prometheus.GaugeVec
}

// The repairs. They are a metric label.
const (
	repairAdopt    = "adopt"
	repairRenumber = "renumber"
	repairRecreate = "recreate"
	repairEvict    = "evict"
)

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_repairs_total",
			Help: "Pods repaired, by what was done: adopt (given a seat), renumber (given another one), recreate or evict (removed, so that their owner makes them anew).",
		}, []string{"action"}),
		distance: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_spread_distance",
			Help: "Pods that are in a pool with too many, or in none, by workload. Workloads in which every pool has what it should have are not there.",
		}, []string{"namespace", "kind", "name"}),
	}
	for _, c := range []prometheus.Collector{m.repairs, m.distance} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Changed notes that an owner's pods changed. Outside of Run it does nothing.
func (s *Spread) Changed(owner ledger.OwnerKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leading {
		now := s.Clock.Now()
		s.changed[owner], s.dirty[owner.Namespace] = now, now
	}
}

// Run does the controller's work until ctx ends. It may be called again after that.
func (s *Spread) Run(ctx context.Context) {
	s.mu.Lock()
	s.work = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[ledger.Owner](time.Second, 5*time.Minute))
	s.statuses = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Second, 5*time.Minute))
	s.history, s.changed, s.reported = map[ledger.OwnerKey]*history{}, map[ledger.OwnerKey]time.Time{}, map[ledger.OwnerKey]ledger.Owner{}
	s.dirty, s.allStatuses = map[string]time.Time{}, time.Time{}
	s.leading, s.since = true, s.Clock.Now()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leading = false
		s.Metrics.distance.Reset()
	}()

	// Without its pods, every workload would look as if none of them had a seat.
	if !cache.WaitForNamedCacheSyncWithContext(ctx, s.Ledger.Pods().HasSynced) {
		return
	}

	var all sync.WaitGroup
	all.Go(func() { s.every(ctx, s.Timing.Resync, s.resync) })
	all.Go(func() { s.every(ctx, s.Timing.Quiet, s.lookAtChanges) })
	all.Go(func() { s.every(ctx, s.Timing.Status, s.resyncStatuses) })
	all.Go(func() {
		s.every(ctx, s.Timing.Collect, func(ctx context.Context) {
			s.Ledger.Sweep(ctx, true)
			if err := ledger.KeepKey(ctx, s.Live, s.KeySecret, s.Ledger.Pods().Key); err != nil {
				s.Log.Error(err, "the key that signs seats is not safe", "secret", s.KeySecret)
			}
		})
	})
	for range 2 {
		all.Go(func() { process(ctx, s.work, s.repair, s.Log) })
	}
	all.Go(func() { process(ctx, s.statuses, s.status, s.Log) })
	<-ctx.Done()
	s.work.ShutDown()
	s.statuses.ShutDown()
	all.Wait()
}

// every calls a function now and then until ctx ends.
func (s *Spread) every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	tick := s.Clock.NewTicker(interval)
	defer tick.Stop()
	for {
		do(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

// process takes items from a queue until it is shut down.
func process[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], do func(context.Context, T) (time.Duration, error), log logr.Logger) {
	for {
		item, down := queue.Get()
		if down {
			return
		}
		again, err := safely(ctx, item, do)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			log.Error(err, "will try again", "item", item)
			queue.AddRateLimited(item)
		default:
			queue.Forget(item)
			if again > 0 {
				queue.AddAfter(item, again)
			}
		}
		queue.Done(item)
	}
}

// safely turns a panic into an error: a fault here must not end the webhook.
func safely[T any](ctx context.Context, item T, do func(context.Context, T) (time.Duration, error)) (again time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("internal error (panic): %v\n%s", cause, debug.Stack())
		}
	}()
	return do(ctx, item)
}

// add puts an item into a queue, unless it waits there after a failure.
func add[T comparable](queue workqueue.TypedRateLimitingInterface[T], item T) {
	if queue.NumRequeues(item) == 0 {
		queue.Add(item)
	}
}

// resync looks at every workload: those with seats, and those that might have some.
func (s *Spread) resync(ctx context.Context) {
	there := map[ledger.OwnerKey]bool{}
	for _, o := range s.Ledger.Pods().Owners() {
		there[o.Key()] = true
		add(s.work, o)
	}
	makers, err := s.Cluster.Makers(ctx, "")
	if err != nil {
		s.Log.Error(err, "workloads were not listed")
		return
	}
	for _, w := range makers {
		if o := ownerOf(w); w.Current > 0 && !there[o.Key()] {
			there[o.Key()] = true
			add(s.work, o)
		}
	}
	s.forget(there)
}

// lookAtChanges looks at the workloads whose pods changed lately, once they are quiet.
func (s *Spread) lookAtChanges(context.Context) {
	s.mu.Lock()
	var quiet []ledger.OwnerKey
	for owner, t := range s.changed {
		if s.Clock.Since(t) >= s.Timing.Quiet {
			quiet = append(quiet, owner)
			delete(s.changed, owner)
		}
	}
	s.mu.Unlock()
	for _, uid := range quiet {
		if o, ok := s.Ledger.Pods().Owner(uid); ok {
			add(s.work, o)
		}
	}
}

// moving reports whether an owner's pods changed within the last moments.
func (s *Spread) moving(owner ledger.OwnerKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.changed[owner]
	return ok && s.Clock.Since(t) < s.Timing.Quiet || s.Clock.Since(s.since) < s.Timing.Quiet
}

// history is what was seen of a workload and done to it, to know when to do less. The
// controller's lock guards it.
type history struct {
	// looked is what the cache showed when a close look found nothing to do, and
	// lookedAt when that was.
	looked   string
	lookedAt time.Time

	next     time.Time // before it, no pod is removed
	backoff  time.Duration
	removed  time.Time // when a pod was removed last
	settled  bool      // whether the removal's outcome was seen
	distance int64     // the plan's distance before it
	// claimed are the pods that had come through the webhook by then.
	claimed map[types.UID]bool
}

// lookAgain is how many resyncs a close look that found nothing to do holds for, where
// the cache shows the same.
const lookAgain = 10

// skip reports whether a close look would find what the last one found: nothing to do.
func (s *Spread) skip(owner ledger.OwnerKey, shown string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.history[owner]
	return h != nil && h.looked == shown && s.Clock.Since(h.lookedAt) < lookAgain*s.Timing.Resync
}

// foundNothing notes that a close look found nothing to do.
func (s *Spread) foundNothing(owner ledger.OwnerKey, shown string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.historyOf(owner)
	h.looked, h.lookedAt = shown, s.Clock.Now()
}

func (s *Spread) historyOf(owner ledger.OwnerKey) *history {
	h := s.history[owner]
	if h == nil {
		h = &history{}
		s.history[owner] = h
	}
	return h
}

// forget drops what is known of workloads that have no pods any more.
func (s *Spread) forget(there map[ledger.OwnerKey]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, h := range s.history {
		if !there[uid] && s.Clock.Since(h.removed) > 2*s.Timing.MaxBackoff {
			delete(s.history, uid)
		}
	}
	for uid, o := range s.reported {
		if !there[uid] {
			s.Metrics.gone(o)
			delete(s.reported, uid)
		}
	}
}

// report publishes a workload's distance from its targets.
func (s *Spread) report(owner ledger.Owner, distance int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leading {
		return
	}
	if distance > 0 {
		s.reported[owner.Key()] = owner
		s.Metrics.distance.WithLabelValues(owner.Namespace, owner.Kind, owner.Name).Set(float64(distance))
		return
	}
	delete(s.reported, owner.Key())
	s.Metrics.gone(owner)
}

// mayRemove reports whether the budget allows to remove one more pod of a workload, whose
// plan has this distance now and of which these pods came through the webhook; and
// otherwise when to look again. A removal that won nothing doubles the wait, and none
// follows until a pod has come through the webhook since.
func (s *Spread) mayRemove(owner ledger.OwnerKey, distance int64, claimed map[types.UID]bool) (bool, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, now := s.historyOf(owner), s.Clock.Now()
	if !h.removed.IsZero() && !h.settled {
		h.settled = true
		wait := s.Timing.Cooldown
		if distance >= h.distance {
			h.backoff = min(max(2*h.backoff, s.Timing.Backoff), s.Timing.MaxBackoff)
			wait = max(wait, h.backoff)
		} else {
			h.backoff = 0
		}
		h.next = h.removed.Add(wait)
	}
	if left := h.next.Sub(now); left > 0 {
		return false, left
	}
	if h.claimed != nil {
		fresh := false
		for uid := range claimed {
			fresh = fresh || !h.claimed[uid]
		}
		if !fresh {
			return false, s.Timing.Resync
		}
		h.claimed = nil
	}
	return true, 0
}

// removed notes a removal.
func (s *Spread) removed(owner ledger.OwnerKey, distance int64, claimed map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.historyOf(owner)
	h.removed, h.settled, h.distance, h.claimed = s.Clock.Now(), false, distance, claimed
}

// refused notes that a removal was refused, and returns when to try again.
func (s *Spread) refused(owner ledger.OwnerKey) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.historyOf(owner)
	h.backoff = min(max(2*h.backoff, s.Timing.Backoff), s.Timing.MaxBackoff)
	h.next = s.Clock.Now().Add(h.backoff)
	return h.backoff
}
