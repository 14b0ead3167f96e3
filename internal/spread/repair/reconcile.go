package repair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
)

// turn is one round of a workload, with what the cache shows.
type turn struct {
	owner    ledger.Owner
	workload *world.Workload // nil if it is not known
	policy   *policy.Policy
	records  []observed.Pod // of its pods with a seat
	outside  int64          // pods that are not in the pool of their seat
	shown    string         // all of this as one text, to compare
	stuck    bool           // it has the same pods for minutes, and not as many as it asks for
	again    reconcile.Result
	example  *corev1.Pod // one of its pods, after a close look
}

// reconcile looks at one workload and does what its plan says.
func (r *run) reconcile(ctx context.Context, owner ledger.Owner) (reconcile.Result, error) {
	// 1. Has it a strategy, and is it quiet?
	t, wait, err := r.begin(ctx, owner)
	if t == nil || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	// 2. What the cache knows is enough where all is well, and where a close look has found nothing to do.
	if r.knowsEnough(t) {
		return t.again, nil
	}
	// 3. Otherwise look closely.
	return r.lookClosely(ctx, t)
}

// begin returns the turn of a workload. It returns nil if the workload is not ours or not quiet; then wait is after how long to come back, or 0 if
// something else brings it back.
func (r *run) begin(ctx context.Context, owner ledger.Owner) (t *turn, wait time.Duration, err error) {
	if r.Gated != nil && r.Gated(owner.Key()) {
		return nil, r.Timing.Quiet, nil
	}
	if r.Scope.Paused(ctx, owner.Namespace) {
		return nil, scope.PausedWait, nil
	}
	w, err := r.World.Workload(ctx, owner.Namespace, seats.Ref(owner))
	if err != nil {
		return nil, 0, err
	}
	if wait, err := r.yield(ctx, owner, w); err != nil || wait > 0 {
		return nil, wait, err
	}
	t = &turn{owner: owner, workload: w}
	// A workload whose early pods are replaced is not in use yet, but may be soon. So it is reconciled
	// without a wait for quiet, and again while it moves.
	if r.replacing(owner.Key()) {
		t.again.RequeueAfter = r.Timing.Quiet / 4
	} else if !r.mayLook(owner.Key()) {
		return nil, r.Timing.Quiet, nil
	}
	if t.policy, err = r.Policies.FindFor(ctx, owner.Namespace, seats.Ref(owner), w); err != nil {
		return nil, 0, err
	}
	p := t.policy
	if p == nil || p.Layout == nil {
		r.leaveAlone(owner, p)
		return nil, 0, nil
	}
	if p.Policy != nil && r.adoptions.waits(owner) {
		return nil, 0, nil // its turn of adoptions brings it back
	}
	t.records = liveRecords(r.Seats.Pods().Of(owner.Key()))
	t.outside = r.outside(ctx, p, t.records)
	t.shown = shownOf(p, t.records)
	if w != nil && w.Replicas >= 0 {
		t.stuck = r.stuck(owner.Key(), w.Current, w.Replicas)
		if w.Current == w.Replicas || t.stuck {
			t.shown += fmt.Sprint(w.Replicas, w.Current)
		}
	}
	return t, 0, nil
}

// leaveAlone forgets and reports that nothing is to be done about a workload.
func (r *run) leaveAlone(owner ledger.Owner, p *policy.Policy) {
	r.forgetHeld(owner.Key())
	r.report(owner, p, 0, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaceCounts(owner.Key(), nil)
}

// knowsEnough reports whether what the cache shows needs no close look. Then t.again is when to come back.
func (r *run) knowsEnough(t *turn) bool {
	owner, p, w := t.owner, t.policy, t.workload
	var plan *planner.Plan // by what the cache shows, where it shows how many pods there should be
	if w != nil && w.Replicas >= 0 {
		made := planner.Make(fromRecords(p, t.records, w.Replicas))
		plan = &made
		r.countPools(owner, p, plan.Targets, t.records)
		if r.inOrder(t, plan) {
			return true
		}
	}
	if p.Repair == stowage.RepairOff {
		r.forgetHeld(owner.Key())
		if plan != nil {
			r.reportPlan(t, plan, max(0, min(w.Replicas, p.Seats())-int64(len(t.records))))
		}
		t.again = reconcile.Result{}
		return true
	}
	if r.skip(owner.Key(), t.shown) || r.lacksRoom(owner.Key(), t.shown) {
		t.again = reconcile.Result{}
		return true
	}
	return false
}

// inOrder reports whether the cache shows that nothing is to be done about a workload now. The plan is that for the pods that it asks for.
func (r *run) inOrder(t *turn, plan *planner.Plan) bool {
	p, w := t.policy, t.workload
	if w.Current != w.Replicas && !t.stuck {
		r.reportPlan(t, plan, 0)
		return true // it is not settled; a change of its pods or the next resync brings it back
	}
	if int64(len(t.records)) != w.Current {
		return false
	}
	if t.stuck {
		made := planner.Make(fromRecords(p, t.records, w.Current))
		plan = &made
	}
	right := plan.Balanced() && (plan.DomainSurplus == 0 || !p.Evict)
	if len(plan.Renumber) > 0 || !t.stuck && !right {
		return false
	}
	r.reportPlan(t, plan, 0)
	if !t.stuck {
		r.balanced(t.owner.Key(), t.records)
	}
	t.again = reconcile.Result{}
	return true
}

// reportPlan publishes how far the pods of a workload are from a plan. Missing are those that have no seat.
func (r *run) reportPlan(t *turn, plan *planner.Plan, missing int64) {
	distance := plan.Distance()
	if seats.Ref(t.owner).IsJob() { // where its pods ended that are not counted any more, nobody knows, and nothing is to be done
		distance = int64(plan.Unseated)
	}
	r.report(t.owner, t.policy, distance+missing+t.outside, plan.DomainSurplus)
}

// noteClosely notes that the pods of an owner were read.
func (r *run) noteClosely(owner ledger.Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.historyOf(owner.Key())
	h.owner, h.closely = owner, true
}

// lookClosely reads the workload's pods from the API server, plans, and does what the plan says.
func (r *run) lookClosely(ctx context.Context, t *turn) (reconcile.Result, error) {
	owner, p := t.owner, t.policy
	r.beginCheck(owner.Key(), p, t.shown)
	state, pods, soon, err := r.look(ctx, t)
	if err != nil {
		return reconcile.Result{}, err
	}
	if state == nil { // what says so is not in what the cache shows
		r.leaveAlone(owner, p)
		return reconcile.Result{}, nil
	}
	plan := planner.Make(*state)
	r.noteHeld(owner, state, pods, &plan)
	if plan.Remove == nil {
		r.hinder(owner, r.noRemoval(ctx, p, state, &plan, t.example))
	}
	r.noteClosely(owner)
	r.reportPlan(t, &plan, 0)
	again := t.again
	if state.Settled && (plan.Remove == nil || !plan.Remove.BeforePolicy) {
		r.setReplacing(owner.Key(), false, false)
		again = reconcile.Result{}
	}
	if len(plan.Adopt)+len(plan.Renumber) == 0 {
		r.noteUnwritten(owner, nil)
	}
	if len(plan.Adopt)+len(plan.Renumber) > 0 || plan.Remove != nil {
		return r.carryOut(ctx, owner, p, pods, state, &plan)
	}
	// Pods without a seat, and evictions, depend on more than the cache shows.
	switch {
	case soon > 0:
		return reconcile.Result{RequeueAfter: soon}, nil
	case state.Settled && (t.stuck || plan.Unseated == 0 && !p.Evict):
		r.foundNothing(owner.Key(), t.shown)
	case r.Held(owner.Key()) != "" && plan.Unseated == 0:
		r.foundNoRoom(owner.Key()) // it is looked at again less and less often
	}
	return again, nil
}
