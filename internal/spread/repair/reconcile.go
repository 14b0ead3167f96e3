package repair

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// reconcile looks at one workload and does what its plan says.
func (r *run) reconcile(ctx context.Context, owner ledger.Owner) (reconcile.Result, error) {
	// 1. Has it a strategy, and is it quiet?
	if r.Gated != nil && r.Gated(owner.Key()) {
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, nil
	}
	w, err := r.World.Workload(ctx, owner.Namespace, seats.Ref(owner))
	if err != nil {
		return reconcile.Result{}, err
	}
	if wait, err := r.yield(ctx, owner, w); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	// A workload whose early pods are replaced is not in use yet, but may be soon. So it is reconciled
	// without a wait for quiet, and again while it moves.
	var again reconcile.Result
	if r.replacing(owner.Key()) {
		again.RequeueAfter = r.Timing.Quiet / 4
	} else if !r.mayLook(owner.Key()) {
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, nil
	}
	p, err := r.Policies.FindFor(ctx, owner.Namespace, seats.Ref(owner), w)
	if err != nil {
		return reconcile.Result{}, err
	}
	if p == nil || p.Strategy == nil {
		r.forgetHeld(owner.Key())
		r.report(owner, p, 0, 0)
		return reconcile.Result{}, nil
	}

	if p.Policy != nil && r.adoptions.waits(owner) {
		return reconcile.Result{}, nil // its turn brings us back
	}

	// 2. What the cache knows is enough where all is well, and where a close look has
	// found nothing to do.
	records := liveRecords(r.Seats.Pods().Of(owner.Key()))
	outside := r.outside(ctx, p, records)
	shown := shownOf(p, records)
	stuck := false
	if w != nil && w.Replicas >= 0 {
		if stuck = r.stuck(owner.Key(), w.Current, w.Replicas); w.Current != w.Replicas && !stuck {
			plan := planner.Make(fromRecords(p, records, w.Replicas))
			r.report(owner, p, plan.Distance()+outside, plan.DomainSurplus)
			return again, nil // it is not settled; a change of its pods or the next resync brings us back
		}
		if int64(len(records)) == w.Current {
			plan := planner.Make(fromRecords(p, records, w.Current))
			if len(plan.Renumber) == 0 && (stuck || plan.Balanced() && (plan.DomainSurplus == 0 || !p.Evict)) {
				r.report(owner, p, plan.Distance()+outside, plan.DomainSurplus)
				if !stuck {
					r.balanced(owner.Key(), records)
				}
				return reconcile.Result{}, nil
			}
		}
		shown += fmt.Sprint(w.Replicas, w.Current)
	}
	if p.Repair == stowage.RepairOff {
		r.forgetHeld(owner.Key())
		if w != nil && w.Replicas >= 0 {
			plan := planner.Make(fromRecords(p, records, w.Replicas))
			missing := min(w.Replicas, p.Strategy.Seats()) - int64(len(records))
			r.report(owner, p, plan.Distance()+max(0, missing)+outside, plan.DomainSurplus)
		}
		return reconcile.Result{}, nil
	}
	if r.skip(owner.Key(), shown) || r.lacksRoom(owner.Key(), shown) {
		return reconcile.Result{}, nil
	}
	r.beginCheck(owner.Key(), p, shown)

	// 3. Otherwise look closely.
	templateNode := ""
	if w != nil {
		templateNode = w.TemplateNode
	}
	state, pods, soon, err := r.look(ctx, owner, p, templateNode)
	if err != nil {
		return reconcile.Result{}, err
	}
	if state == nil { // what says so is not in what the cache shows
		r.forgetHeld(owner.Key())
		r.report(owner, p, 0, 0)
		return reconcile.Result{}, nil
	}
	plan := planner.Make(*state)
	r.noteHeld(owner, state, pods, &plan)
	r.report(owner, p, plan.Distance()+outside, plan.DomainSurplus)
	if state.Settled && (plan.Remove == nil || !plan.Remove.BeforePolicy) {
		r.setReplacing(owner.Key(), false)
		again = reconcile.Result{}
	}
	if len(plan.Adopt) == 0 && len(plan.Renumber) == 0 && plan.Remove == nil {
		// Pods without a seat, and evictions, depend on more than the cache shows.
		if soon > 0 {
			return reconcile.Result{RequeueAfter: soon}, nil
		}
		switch {
		case state.Settled && (stuck || plan.Unseated == 0 && !p.Evict):
			r.foundNothing(owner.Key(), shown)
		case r.Held(owner.Key()) != "" && plan.Unseated == 0:
			r.foundNoRoom(owner.Key()) // it is looked at again less and less often
		}
		return again, nil
	}
	return r.carryOut(ctx, owner, p, pods, state, &plan)
}
