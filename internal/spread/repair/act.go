package repair

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// carryOut does what a plan says, and returns when to look again if that is not when
// something changes.
func (r *run) carryOut(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *planner.State, plan *planner.Plan) (reconcile.Result, error) {
	switch {
	case len(plan.Adopt) > 0:
		if p.Policy != nil {
			n, all := r.adoptions.take(owner, len(plan.Adopt)), len(plan.Adopt)
			if n == 0 {
				return reconcile.Result{}, nil // its turn brings us back
			}
			if n < all {
				r.event(owner, stowage.EventAdoptionProgress, "%d of %d pod(s) without a seat get one now, and the others follow", n, all)
			}
			plan.Adopt = plan.Adopt[:n]
		}
		written, wait, err := r.seatAll(ctx, owner, p, pods, state, plan.Adopt, repairAdopt)
		if n := len(written); n > 0 {
			r.event(owner, stowage.EventPodsAdopted, "%d pod(s) had no seat: %s; each got a seat in the pool that it runs in", n, whyUnseated(written, state, p, r.policySince(owner, p)))
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		quiet := r.Timing.Quiet
		if len(written) == 0 {
			quiet *= 5 // each try costs a look at all pods
		}
		return reconcile.Result{RequeueAfter: max(quiet, wait)}, nil // and nothing else before that is seen
	case len(plan.Renumber) > 0:
		_, wait, err := r.seatAll(ctx, owner, p, pods, state, plan.Renumber, repairRenumber)
		return reconcile.Result{RequeueAfter: max(r.Timing.Quiet, wait)}, err
	}
	return r.remove(ctx, owner, p, pods, state, plan, mostTries)
}

// whyUnseated says why some pods had no seat.
func whyUnseated(moves []planner.Move, state *planner.State, p *policy.Policy, since time.Time) string {
	var before, early, edited, full, bypassed int
	for _, m := range moves {
		switch pod := &state.Pods[m.Pod]; {
		case pod.Foreign:
			edited++
		case pod.Full:
			full++
		case !since.IsZero() && pod.Created.Before(since):
			before++
		case pod.BeforePolicy:
			early++
		default:
			bypassed++
		}
	}
	source := "the " + p.Source
	if p.OfCluster() {
		source = p.Told() // an event is read in the namespace of the pods
	}
	missed := "%d created while the webhook was not reached, or left them alone as it does where a volume is elsewhere"
	if since.IsZero() {
		missed = "%d created before " + source + ", or while the webhook was not reached or left them alone as it does where a volume is elsewhere"
	}
	var out []string
	for _, cause := range []struct {
		pods int
		text string
	}{{before, "%d created before " + source}, {early, "%d created before every replica knew " + source}, {edited, "%d with a seat in a pool that the strategy no longer has, or in none of its domains"}, {full, "%d created while every pool had its maximum"}, {bypassed, missed}} {
		if cause.pods > 0 {
			out = append(out, fmt.Sprintf(cause.text, cause.pods))
		}
	}
	return strings.Join(out, ", ")
}

// claimedOf are the pods to which the webhook gave a seat, and whether they have a node.
func claimedOf(pods []corev1.Pod, state *planner.State) map[types.UID]bool {
	claimed := map[types.UID]bool{}
	for i := range state.Pods {
		if state.Pods[i].Claimed || state.Pods[i].Full {
			claimed[pods[i].UID] = state.Pods[i].Running
		}
	}
	return claimed
}

// seatWrite is a seat that is written into a pod, with what its deletion cost stands for. To write another one is no contest.
type seatWrite struct {
	pod            types.UID
	seat           sequence.Seat
	rank, position int64
}

func seatWriteOf(pod types.UID, m planner.Move) seatWrite {
	return seatWrite{pod, m.Seat, m.Rank, m.Position}
}

// seatsAtOnce is how many pods of one list are patched at the same time.
const seatsAtOnce = 8

// seatAll gives seats to pods of one list, as many as the rate that all workloads share allows now. It returns the moves that
// were written. It returns after what time to go on if pods are left, if another writer keeps changing one, or if the API server refuses one.
func (r *run) seatAll(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *planner.State, moves []planner.Move, action string) (done []planner.Move, longest time.Duration, err error) {
	// 1. Which of them now?
	var due []planner.Move
	refused := &refusals{unseated: action == repairAdopt}
	for _, m := range moves {
		if wait := r.refusals.Wait(pods[m.Pod].UID, r.Clock.Now()); wait > 0 {
			longest = max(longest, wait)
			refused.waiting++
			continue
		}
		if wait := r.seatWrites.Wait(seatWriteOf(pods[m.Pod].UID, m), r.Clock.Now()); wait > 0 {
			longest = max(longest, wait)
			continue
		}
		if wait := r.Writes.Take(owner.Namespace, r.Clock.Now()); wait > 0 {
			longest = max(longest, wait)
			break
		}
		due = append(due, m)
	}

	// 2. Several at once: a rollout does not wait for the deletion costs of the pods that it removes.
	written, errs := make([]bool, len(due)), make([]error, len(due))
	workqueue.ParallelizeUntil(ctx, seatsAtOnce, len(due), func(i int) {
		pod := &pods[due[i].Pod]
		// An error, such as an admission policy's, may concern this pod alone.
		written[i], errs[i] = r.seat(ctx, owner, p, pod, due[i], action, writesCost(&state.Pods[due[i].Pod], pod))
	})

	// 3. What became of them?
	for i, m := range due {
		if refuses(errs[i]) {
			r.refusals.Written(pods[m.Pod].UID, r.Clock.Now())
			refused.add(&pods[m.Pod], errs[i])
			errs[i] = nil // it is no fault of ours, and the others go on
		}
		if !written[i] {
			continue
		}
		r.refusals.Forget(pods[m.Pod].UID)
		done = append(done, m)
		if pod := &pods[m.Pod]; r.seatWrites.Written(seatWriteOf(pod.UID, m), r.Clock.Now()) {
			what := "changing the labels " + stowage.PoolLabel + " and " + stowage.SeatLabel
			if state.Pods[m.Pod].CostGone {
				what = "removing the annotation " + corev1.PodDeletionCost
			}
			r.warn(owner, stowage.EventLabelsContested, "another writer keeps %s of pod %s; Stowage writes them less and less often", what, pod.Name)
		}
	}
	r.tellRefusals(owner, refused)
	return done, longest, errors.Join(errs...)
}

// refusals are the pods of one list that the API server refuses to update. Unseated says that they have no seat.
type refusals struct {
	unseated   bool
	waiting    int64 // refused before, and not tried now
	now        int64
	first, why string // the first pod by name of those that were tried
}

func (f *refusals) add(pod *corev1.Pod, err error) {
	if f.now++; f.first == "" || pod.Name < f.first {
		f.first, f.why = pod.Name, err.Error()
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			f.why = status.Status().Message
		}
	}
}

// tellRefusals notes that the API server refuses to update pods, or that it does not any more. While none was tried, what was noted holds.
func (r *run) tellRefusals(owner ledger.Owner, f *refusals) {
	switch {
	case f.now > 0:
		h := &stowage.Hindrance{Reason: stowage.HindranceUpdateRefused, Pod: f.first, Message: f.why}
		if f.unseated {
			h.Count = f.now + f.waiting
		}
		r.noteUnwritten(owner, h)
		// A process that may not update pods may not be allowed to store that, either.
		r.Log.Info("the API server refuses to update pods", "namespace", owner.Namespace, "kind", owner.Kind, "name", owner.Name, "pod", f.first, "pods", f.now, "message", bounded.Text(f.why, mostForeign))
	case f.waiting == 0:
		r.noteUnwritten(owner, nil)
	}
}

// refuses reports whether an error says that the API server refuses an update, and not that it could not be asked. The code is 500 where a webhook
// fails that is to allow the update.
func refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsServerTimeout(err) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusInternalServerError:
		return true
	}
	return false
}

// remove evicts the pod that a plan removes, if the budget of the workload and the evictor allow it now.
// Room for its successor is looked for only then, because that costs requests. Where the pod must stay, others are tried.
func (r *run) remove(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *planner.State, plan *planner.Plan, tries int) (reconcile.Result, error) {
	removal := plan.Remove
	pod := &pods[removal.Pod]
	now, cooldown := observation{distance: plan.Distance() + plan.DomainSurplus, claimed: claimedOf(pods, state), reached: state.Reached}, r.Timing.Cooldown
	if removal.BeforePolicy {
		cooldown = 0 // the evictor's rate is enough
	}
	ok, wait, err := r.mayRemove(ctx, owner, now)
	if err != nil || !ok {
		r.hinderBy(owner, wait)
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if removal.NeedsRoom && state.Pods[removal.Pod].Volume && !r.Room.MayLook(owner.Namespace) {
		return reconcile.Result{RequeueAfter: r.Timing.Resync}, nil // its claims and their volumes would be read
	}
	whole, err := r.whole(ctx, pod, removal)
	if whole == nil || err != nil {
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, err
	}
	room, err := r.roomFor(ctx, owner, p, whole, state, plan)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !room.ok { // another pod may go, or this one to another pool
		r.noteNoRoom(owner, p, pods, state, plan, room.held)
		if next := planner.Make(*state); next.Remove != nil {
			if tries == 1 {
				return reconcile.Result{RequeueAfter: r.Timing.Resync}, nil // a look lists all pods; those that were tried are known by then
			}
			return r.remove(ctx, owner, p, pods, state, &next, tries-1)
		}
		if room.held == "" {
			why := r.whyNoRoom(ctx, p, whole, removal.To, removal.Domain)
			r.hinder(owner, &stowage.Hindrance{Reason: stowage.HindranceNoRoom, Pod: pod.Name, Pool: fromPool(p, &state.Pods[removal.Pod]), Objects: []string{p.Pool(removal.To).Name}, Message: why})
		}
		if plan.Unseated == 0 { // what the cache shows has no pod without a seat
			r.foundNoRoom(owner.Key())
		}
		return reconcile.Result{}, nil
	}
	r.foundRoom(owner.Key())
	result, wait, err := r.Evictor.Evict(ctx, whole)
	switch result {
	case evict.Waits:
		return reconcile.Result{RequeueAfter: wait}, nil
	case evict.Refused:
		h := r.refusal(ctx, whole, err)
		h.Pool = fromPool(p, &state.Pods[removal.Pod])
		r.hinder(owner, h)
		return reconcile.Result{RequeueAfter: r.refused(owner.Key())}, nil
	case evict.Gone:
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, nil
	case evict.Failed:
		return reconcile.Result{}, fmt.Errorf("evict pod %s: %w", pod.Name, err)
	}
	r.hinder(owner, nil)
	now.date = r.Time.Now() // the eviction's answer has just told it
	r.removed(owner.Key(), cooldown, room.proven, now)
	r.setReplacing(owner.Key(), removal.BeforePolicy, removal.BeforePolicy && state.Young)
	r.Metrics.repairs.WithLabelValues(string(removal.Reason)).Inc()
	r.Log.Info("pod evicted, so that its owner recreates it", "namespace", owner.Namespace, "kind", owner.Kind, "name", owner.Name, "pod", pod.Name, "action", removal.Reason, "distance", now.distance)
	r.removalEvent(owner, removal, pod.Name, &state.Pods[removal.Pod])
	return reconcile.Result{RequeueAfter: max(cooldown, r.Timing.Quiet/4)}, nil
}

// whole returns a pod that is to go as it is now, because its successor is as large as it is, and has its volumes. It returns nil if the pod has gone or
// is protected since the look. Where the successor needs no room, what is known of the pod is enough.
func (r *run) whole(ctx context.Context, pod *corev1.Pod, removal *planner.Removal) (*corev1.Pod, error) {
	if !removal.NeedsRoom {
		return pod, nil
	}
	whole := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, client.ObjectKeyFromObject(pod), whole); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if whole.UID != pod.UID || protection(whole) != "" {
		return nil, nil
	}
	return whole, nil
}

// noteNoRoom notes in a state that the successor of the pod that a plan removes finds no room where it would go. Held says that the pod's volume is why.
func (r *run) noteNoRoom(owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *planner.State, plan *planner.Plan, held string) {
	removal := plan.Remove
	switch pod := &state.Pods[removal.Pod]; {
	case held != "":
		r.holdByVolume(owner.Key(), pods[removal.Pod].UID, p, held)
		pod.Held = held
		r.noteHeld(owner, state, pods, plan)
	case pod.OwnRank > 0:
		state.NoRoom = append(state.NoRoom, sequence.Cell{Pool: removal.To, Domain: removal.Domain})
	default:
		state.Available[removal.To] = false
	}
}

// removalEvent says why a pod was evicted.
func (r *run) removalEvent(owner ledger.Owner, removal *planner.Removal, name string, pod *planner.Pod) {
	where := "pool"
	if removal.To == pod.Seat.Pool {
		where = "domain"
	}
	switch {
	case removal.BeforePolicy:
		r.event(owner, stowage.EventPodRecreated, "pod %s was created before its policy; it was evicted, so that its owner recreates it", name)
	case removal.Reason == planner.Unseated && pod.Running:
		r.event(owner, stowage.EventPodRecreated, "pod %s had no seat and ran in no pool; it was evicted, so that its owner recreates it", name)
	case removal.Reason == planner.Unseated:
		r.event(owner, stowage.EventPodRecreated, "pod %s had no seat and waited for a node; it was evicted, so that its owner recreates it", name)
	case pod.Foreign:
		r.event(owner, stowage.EventPodEvicted, "pod %s had its seat in a pool that the strategy no longer has; it was evicted, so that another pool gets one", name)
	case pod.OwnRank > 0:
		r.event(owner, stowage.EventPodEvicted, "pod %s was in another pool or domain than its ordinal's; it was evicted, so that it comes back there", name)
	default:
		r.event(owner, stowage.EventPodEvicted, "its %s has too many pods, so %s was evicted and another %s gets one", where, name, where)
	}
}

// writesCost reports whether Stowage writes a pod's deletion cost. It does not where the pod is removed by an ordinal
// of its own, or where somebody else wrote a cost.
func writesCost(view *planner.Pod, pod *corev1.Pod) bool {
	return view.OwnRank == 0 && (pod.Annotations[corev1.PodDeletionCost] == "" || view.Rank != 0)
}

// seat writes a seat into a pod that exists, and its deletion cost if withCost is set. It returns false if the
// pod has changed or gone since.
func (r *run) seat(ctx context.Context, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, m planner.Move, action string, withCost bool) (bool, error) {
	patch, err := seatPatch(r.Seats.Pods().Key, owner, p, pod, m, withCost)
	if err != nil {
		return false, err
	}
	err = r.Uncached.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // its change brings us back
	}
	if err != nil {
		return false, fmt.Errorf("give pod %s/%s a seat: %w", pod.Namespace, pod.Name, err)
	}
	r.Metrics.repairs.WithLabelValues(action).Inc()
	return true, nil
}

// seatPatch is the patch that gives a pod a seat. It holds the pod's resource version:
// nothing is known of a pod that has changed since.
func seatPatch(key ledger.Key, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, m planner.Move, withCost bool) ([]byte, error) {
	seat := ledger.Seat{Pool: p.PoolKey(m.Seat.Pool), Ordinal: m.Seat.Ordinal}
	origin, id, source := ledger.OriginAdopted, "", p.From
	if c, ok := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
		origin, id = c.Origin, c.ID // a ledger may still have the claim
		source.Selector = c.Source.Selector
	}
	given := placement.Seat{Seat: m.Seat, Strategy: p.Strategy, Exists: true, OwnOrdinal: !withCost}
	if p.Domains() != nil {
		given.Domain, seat.Domain = m.Domain, p.DomainName(m.Domain)
	}
	if id == "" && (withCost || m.Position != 0) {
		id = ledger.NewID()
	}
	if withCost {
		id, given.Rewrite = ledger.WithCostRank(id, m.Rank), m.Rank
	}
	id = ledger.WithPosition(id, m.Position)
	given.Claim = key.Sign(origin, ledger.WithSource(id, seat.Pool, source), ledger.Holder{Namespace: pod.Namespace, Owner: string(owner.UID)}, seat)
	before := podpatch.FromPod(pod)
	after := before.Clone()
	given.Apply(after)
	return podpatch.Merge(before, after, pod.ResourceVersion)
}

func aboutOwner(owner ledger.Owner) *corev1.ObjectReference {
	return (world.Object{Namespace: owner.Namespace, Ref: seats.Ref(owner)}).Reference()
}

func (r *run) event(owner ledger.Owner, reason stowage.EventReason, format string, args ...any) {
	r.Events.Normal(aboutOwner(owner), reason, events.Repair, format, args...)
}

func (r *run) warn(owner ledger.Owner, reason stowage.EventReason, format string, args ...any) {
	r.Events.Warn(aboutOwner(owner), reason, events.Repair, format, args...)
}
