package gate

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// outcome is what became of a pod in a turn.
type outcome int

const (
	waitsLater outcome = iota // it is tried again soon
	waitsAgain                // it is tried again after a longer while
	gone                      // it waits no more
)

// undecidableFor is how long a pod waits about which nobody can decide as things are, or whose seat the API server refuses. It counts from
// the first verdict, also of an earlier leader. No pod is let through within settleFor of the beginning of a term: what a new leader
// sees may be behind.
const (
	undecidableFor = time.Minute
	settleFor      = 15 * time.Second
)

// patchTimeout bounds one patch.
const patchTimeout = 5 * time.Second

// Why a try left a pod at the gate, and what became of one that left it. They are metric labels.
const (
	leftUndecided   = "undecided"   // nobody could decide now
	leftUndecidable = "undecidable" // nobody can decide as things are
	leftLate        = "late"        // the claim was too old to be used
	leftConflict    = "conflict"    // the pod had changed or was gone
	leftRefused     = "refused"     // the API server refused the patch
	leftFailed      = "failed"      // the patch may have been applied or not

	openedSeated   = "seated"
	openedNothing  = "nothing"
	openedUnseated = "unseated"
)

// carryOut writes what was decided about a pod.
func (r *run) carryOut(ctx context.Context, d *decision) {
	for _, e := range d.events {
		if d.undecidable.IsZero() && r.events.Allow(d.namespace, r.Clock.Now()) { // it was not said yet
			r.Events.WarnRelated(d.about(), e.Related, e.Reason, events.Admit, e.Note)
		}
	}
	switch d.verdict {
	case undecided:
		r.left(d, leftUndecided, waitsLater)
	case undecidable:
		r.giveBack(d)
		if !r.waitsTooLong(d.waiting, r.Clock.Now()) {
			r.left(d, leftUndecidable, waitsAgain)
			return
		}
		r.letThrough(ctx, d)
	case free:
		if r.patch(ctx, d, d.after) {
			r.opened(d, openedNothing)
		}
	case seated:
		if r.patch(ctx, d, d.after) {
			r.opened(d, openedSeated)
		}
	}
}

// waitsTooLong reports whether a pod has been undecidable for so long that it waits no more.
func (r *run) waitsTooLong(w *waiting, now time.Time) bool {
	if w.undecidable.IsZero() {
		w.undecidable = now
	}
	return now.Sub(r.verdicts.began(w)) >= undecidableFor && now.Sub(r.began) >= settleFor
}

// noteVerdict notes what was decided about a pod, for its siblings.
func (r *run) noteVerdict(d *decision) {
	switch d.verdict {
	case undecidable:
		r.verdicts.note(d.ownerKey(), r.Clock.Now())
	case free, seated, undecided:
		r.verdicts.clear(d.ownerKey())
	}
}

// letThrough removes the gate from a pod that nobody could seat.
func (r *run) letThrough(ctx context.Context, d *decision) {
	why := d.why
	d.verdict = free
	if !r.patch(ctx, d, podpatch.FromPod(d.pod)) {
		return
	}
	r.opened(d, openedUnseated)
	if r.events.Allow(d.namespace, r.Clock.Now()) {
		r.Events.Warn(d.about(), stowage.EventPodUngatedWithoutSeat, events.Admit, "pod %s waited for a minute at the gate %s and was let through without a seat: %v", d.name, stowage.SeatGate, why)
	}
}

// patch turns a pod into another one without the gate, in one request. It reports whether that was done.
func (r *run) patch(ctx context.Context, d *decision, after *podpatch.Pod) bool {
	if d.id != "" && !r.Clock.Now().Before(d.until) {
		r.giveBack(d)
		r.left(d, leftLate, waitsLater)
		return false
	}
	after = after.Clone()
	after.Ungate(stowage.SeatGate)
	data, err := podpatch.Strategic(podpatch.FromPod(d.pod), after, d.uid, d.pod.ResourceVersion)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, patchTimeout)
		defer cancel()
		err = r.API.Patch(ctx, d.namespace, d.name, data)
	}
	switch {
	case err == nil:
		d.id = "" // the pod has it
		return true
	case apierrors.IsNotFound(err):
		r.giveBack(d)
		r.left(d, leftConflict, gone)
	case apierrors.IsConflict(err):
		r.giveBack(d)
		r.waiting.forget(d.waiting)
		r.left(d, leftConflict, waitsLater)
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err): // it was not applied
		r.giveBack(d)
		d.why = err
		r.left(d, leftFailed, waitsLater)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		r.giveBack(d)
		d.why = err
		if r.waitsTooLong(d.waiting, r.Clock.Now()) && d.verdict == seated {
			r.letThrough(ctx, d)
			return false
		}
		r.left(d, leftRefused, waitsAgain)
	default: // the claim counts until it is presumed dead, as that of a replica that is gone
		r.waiting.forget(d.waiting)
		d.why, d.id = err, ""
		r.left(d, leftFailed, waitsLater)
	}
	return false
}

// opened notes that a pod waits no more.
func (r *run) opened(d *decision, result string) {
	d.outcome = gone
	r.Metrics.opened.WithLabelValues(result).Inc()
	r.waiting.written(d.waiting)
	if log := r.Log.V(1); log.Enabled() {
		log.Info("gate removed", "namespace", d.namespace, "pod", d.name, "result", result)
	}
}

// left notes that a pod still waits.
func (r *run) left(d *decision, reason string, o outcome) {
	if d.outcome = o; o == waitsLater {
		d.undecidable = time.Time{}
	}
	r.Metrics.left.WithLabelValues(reason).Inc()
	if d.why != nil && r.logs.Allow(d.namespace, r.Clock.Now()) {
		r.Log.Error(d.why, "pod left at the gate", "namespace", d.namespace, "pod", d.name, "reason", reason)
	}
}
