// Package gate is the controller of pods that wait at the scheduling gate stowage.dev/seat (KEP-3521). A pod with the gate in its
// template, or from the MutatingAdmissionPolicy, waits there if no replica of the webhook saw it. The leader seats it as the webhook
// would have done.
//
// The package promises that
//   - the gate is removed with a seat whose claim is written, or where there is nothing to decide, and no other gate is touched;
//   - a pod about which nobody can decide as things are waits for a minute, and any other without a limit;
//   - a pod gets seat and freedom in one patch, which the API server refuses if the pod has changed since it was read;
//   - no patch is sent after other replicas may presume its claim dead, and a claim whose patch was not applied is given back;
//   - namespaces take turns, within one its owners, and within an owner the pods by the time of their creation;
//   - what is kept of pods that wait is bounded; of those beyond it, there are the name and the owner.
package gate

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Controller seats the pods that wait at the gate.
type Controller struct {
	API API
	// Feature decides as in an admission. Its seats are those of Seats.
	Feature *admit.Feature
	Seats   Seats
	Scope   *scope.Scope
	// Synced reports whether this process knows all policies.
	Synced  func() bool
	Clock   clock.WithTicker
	Log     logr.Logger
	Events  events.Recorder
	Metrics *Metrics
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups=stowage.dev,resources=seatledgers,verbs=create;update,roleName=stowage-spread-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "gate" }

// run is what the controller knows in one term.
type run struct {
	*Controller
	waiting *queue
	work    leader.Queue[lane]
	logs    *fair.Limiter[string] // of lines and of events, by namespace: whoever creates pods can cause them
	events  *fair.Limiter[string]

	// reads bounds the reads of pods, by namespace, and verdicts has a sibling's verdict in place of most of them.
	reads    *fair.Limiter[string]
	verdicts *verdicts
	began    time.Time // the term

	registration registration
}

// lane is one of the turns that the owners of a namespace have at the same time. While seats are decided in one, those of another owner
// are written.
type lane struct {
	namespace string
	number    int
}

// How many turns there are at once, in all and in one namespace. Most of them wait for seats. In one turn, so many pods are read at the
// same time.
const (
	workers = 16
	lanes   = 2
	atOnce  = 50
)

// Reads of pods that are not kept, by second and at once. Namespaces have equal parts.
const (
	readRate  = 200
	readBurst = 1000
)

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := &run{Controller: c, waiting: newQueue(), logs: fair.NewLimiter[string](1, 20), events: fair.NewLimiter[string](5, 50), reads: fair.NewLimiter[string](readRate, readBurst), verdicts: newVerdicts(), began: c.Clock.Now()}
	var err error
	if r.work, err = leader.Reconcile(t, "gate", workers, r.reconcile, func(l lane) []any { return []any{"namespace", l.namespace} }); err != nil {
		return err
	}
	c.Metrics.queue.Store(r.waiting)
	t.AtEnd(func() { c.Metrics.queue.Store(nil) })
	w := &watcher{queue: r.waiting, found: r.look}
	t.Go(func(ctx context.Context) { r.API.Watch(ctx, w) })
	t.Every(verdictsEvery, func(ctx context.Context) {
		r.inherit(ctx)
		r.keep(ctx)
	})
	return nil
}

// Waits reports whether a pod of an owner waits at the gate.
func (c *Controller) Waits(owner ledger.OwnerKey) bool {
	q := c.Metrics.queue.Load()
	return q != nil && q.waits(owner)
}

// syncEvery is how often it is asked whether this process knows what it needs to decide.
const syncEvery = 50 * time.Millisecond

// look has the owners of a namespace looked at whose turn it is.
func (r *run) look(namespace string) {
	for i := range lanes {
		r.work.Add(lane{namespace, i})
	}
}

// reconcile gives a turn to the owner of a namespace whose turn it is.
func (r *run) reconcile(ctx context.Context, l lane) (reconcile.Result, error) {
	if !r.Seats.Pods().HasSynced() || !r.Synced() {
		return reconcile.Result{RequeueAfter: syncEvery}, nil
	}
	now := r.Clock.Now()
	batch, next := r.waiting.take(l.namespace, now)
	if len(batch) == 0 {
		if next.IsZero() {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{RequeueAfter: max(next.Sub(now), time.Millisecond)}, nil
	}
	defer r.look(l.namespace)
	r.turn(ctx, batch)
	return reconcile.Result{}, nil
}

// turn gives a turn to some pods of one owner. Where nobody could decide about such pods, one of them tells first whether that still holds.
// By that the others wait on unread, and no more: before one is let through, it is read and decided about itself.
func (r *run) turn(ctx context.Context, batch []*waiting) {
	defer r.waiting.done(batch[0])
	owner := batch[0].ownerKey()
	if known, fresh := r.verdicts.undecidable(owner, r.Clock.Now()); known && !fresh && len(batch) > 1 {
		one := rand.IntN(len(batch)) // another one each time: pods of one owner may differ
		r.decideAll(ctx, batch[one:one+1])
		batch = slices.Delete(batch, one, one+1)
	}
	if _, fresh := r.verdicts.undecidable(owner, r.Clock.Now()); fresh {
		now := r.Clock.Now()
		batch = slices.DeleteFunc(batch, func(w *waiting) bool {
			stays := r.waiting.known(w) == nil && !r.waitsTooLong(w, now)
			if stays {
				r.Metrics.left.WithLabelValues(leftUndecidable).Inc()
				r.waiting.wait(now.Add(retryEvery), w)
			}
			return stays
		})
	}
	if len(batch) > 0 {
		r.decideAll(ctx, batch)
	}
}

// errNotRead is why nothing is decided about a pod whose read did not come to its end.
var errNotRead = errors.New("the pod was not read")

// errLater is why a pod is not read now: others are, and it has its turn later.
var errLater = errors.New("too many pods are read")

// decideAll decides about some pods of one owner, in their order, and writes what was decided.
func (r *run) decideAll(ctx context.Context, batch []*waiting) {
	// 1. As they are. Where one has to wait for its read, so have those after it.
	pods, errs := make([]*corev1.Pod, len(batch)), slices.Repeat([]error{errNotRead}, len(batch))
	workqueue.ParallelizeUntil(ctx, atOnce, len(batch), func(i int) { pods[i], errs[i] = r.read(ctx, batch[i]) })
	if ctx.Err() != nil {
		return // the queue ends with the term
	}
	if first := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, errLater) }); first >= 0 {
		for _, w := range batch[first:] {
			// Not all at the same time, or the same ones would have their reads each time.
			r.waiting.wait(r.Clock.Now().Add(retryEvery/2+rand.N(retryEvery)), w)
		}
		batch = batch[:first]
	}

	// 2. They ask for seats one after the other, so that the oldest gets the first one. One write has the claims of all pods that wait. None
	// waits for another one with what was decided.
	var due []*decision
	var running sync.WaitGroup
	for i, w := range batch {
		if errs[i] == nil && pods[i] == nil {
			r.waiting.drop(w.uid) // it is gone, or waits no more
			continue
		}
		d := &decision{waiting: w, pod: pods[i], why: errs[i], outcome: waitsLater, asked: make(chan struct{})}
		due = append(due, d)
		running.Go(func() {
			defer utilruntime.HandleCrashWithContext(ctx) // it is tried again
			defer r.giveBack(d)                           // unless a pod has it
			defer d.isAsked()
			if d.why == nil {
				r.decide(ctx, d)
			}
			r.noteVerdict(d)
			r.carryOut(ctx, d)
		})
		<-d.asked
	}
	running.Wait()

	// 3. Which pods still wait?
	now := r.Clock.Now()
	var soon []*waiting
	for _, d := range due {
		switch d.outcome {
		case gone:
			r.waiting.drop(d.uid)
		case waitsLater:
			soon = append(soon, d.waiting)
		case waitsAgain:
			r.waiting.again(now, d.waiting)
		}
	}
	r.waiting.later(now, soon)
}
