package leader

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Term is the time for which this replica leads without a break, for one controller. Its methods
// are for the goroutine that registers the controller, but for Go and Every.
type Term struct {
	ctx   context.Context
	clock clock.WithTicker
	log   logr.Logger

	running     sync.WaitGroup
	reconcilers []func(ctx context.Context) // they run from Start on
	queues      []func()                    // shut them down
	ends        []func()
}

// NewTerm returns a term that lasts until ctx ends, and a function to call then, which waits until
// everything in the term has ended. It is for tests of controllers; a [Runner] makes its own.
func NewTerm(ctx context.Context, clock clock.WithTicker, log logr.Logger) (t *Term, wait func()) {
	t = &Term{ctx: ctx, clock: clock, log: log}
	return t, t.end
}

// Start starts the reconcilers that were added. Until then they wait, so that a reconciler finds
// all that [Controller.Register] sets. A [Runner] calls it once the controller is registered.
func (t *Term) Start() {
	for _, run := range t.reconcilers {
		t.Go(run)
	}
}

// Context ends with the term.
func (t *Term) Context() context.Context { return t.ctx }

// end undoes what was registered and waits until all of it has ended.
func (t *Term) end() {
	for _, shutDown := range t.queues {
		shutDown()
	}
	t.running.Wait()
	for _, do := range t.ends {
		do()
	}
}

// AtEnd has a function called when everything that runs in the term has ended.
func (t *Term) AtEnd(do func()) { t.ends = append(t.ends, do) }

// Go runs a function until the term ends. A panic in it is counted, logged, and ends it.
func (t *Term) Go(do func(ctx context.Context)) {
	t.running.Go(func() {
		defer utilruntime.HandleCrashWithContext(t.ctx)
		do(t.ctx)
	})
}

// Every calls a function at once and then in intervals. A panic in it is counted and logged, and
// the next call comes as if it had returned.
func (t *Term) Every(interval time.Duration, do func(ctx context.Context)) {
	safely := func(ctx context.Context) {
		defer utilruntime.HandleCrashWithContext(ctx)
		do(ctx)
	}
	t.Go(func(ctx context.Context) {
		tick := t.clock.NewTicker(interval)
		defer tick.Stop()
		for {
			safely(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C():
			}
		}
	})
}

// Watch has handlers called with the events of an informer until the term ends. A source of
// controller-runtime would leave its handler with the informer, which outlives the term.
func (t *Term) Watch(informers cache.Informers, object client.Object, handler toolscache.ResourceEventHandler) error {
	informer, err := informers.GetInformer(t.ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch %T: %w", object, err)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("watch %T: %w", object, err)
	}
	t.AtEnd(func() {
		if err := informer.RemoveEventHandler(registration); err != nil {
			t.log.Error(err, "event handler not removed", "kind", fmt.Sprintf("%T", object))
		}
	})
	return nil
}

// Inform runs an informer of the term's own until it ends.
func (t *Term) Inform(informer toolscache.SharedIndexInformer) {
	t.Go(func(ctx context.Context) { informer.RunWithContext(ctx) })
}

// Queue is the queue of one reconciler.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
}

// AddUnlessFailing adds an item, unless it waits for its next try after a failure.
func (q Queue[T]) AddUnlessFailing(item T) {
	if q.NumRequeues(item) == 0 {
		q.Add(item)
	}
}

// The waits after reconciliations that fail.
const (
	firstBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

// Reconcile adds a reconciler to a term, with as many workers, and returns its queue. The name
// labels the standard metrics of queues and controllers. Keys returns the log keys of an item.
// The reconciler runs from [Term.Start] on.
//
// Each term has its own controller-runtime controller, because a controller cannot be started
// twice.
func Reconcile[T comparable](t *Term, name string, workers int, reconcileOne func(context.Context, T) (reconcile.Result, error), keys func(T) []any) (Queue[T], error) {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstBackoff, mostBackoff)
	q := Queue[T]{workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[T]{Name: name, Clock: t.clock})}
	again := true // names of controllers of an earlier term
	c, err := controller.NewTypedUnmanaged(name, controller.TypedOptions[T]{
		SkipNameValidation: &again, MaxConcurrentReconciles: workers, RateLimiter: limiter,
		Reconciler: reconcile.TypedFunc[T](reconcileOne),
		NewQueue: func(string, workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T] {
			return q
		},
		LogConstructor: func(item *T) logr.Logger {
			log := t.log.WithValues("controller", name)
			if item != nil {
				log = log.WithValues(keys(*item)...)
			}
			return log
		},
	})
	if err != nil {
		q.ShutDown()
		return q, err
	}
	t.queues = append(t.queues, q.ShutDown)
	t.reconcilers = append(t.reconcilers, func(ctx context.Context) {
		if err := c.Start(ctx); err != nil && ctx.Err() == nil {
			t.log.Error(err, "controller ended", "controller", name)
		}
	})
	return q, nil
}

// ObjectKeys are the log keys of a namespaced object.
func ObjectKeys(key types.NamespacedName) []any {
	return []any{"namespace", key.Namespace, "name", key.Name}
}
