package repair

import (
	"context"
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// yieldingPools reports for each pool whether it has no room and a newer revision needs the places of this owner's pods; nil
// is no pool.
func (r *run) yieldingPools(ctx context.Context, owner ledger.Owner, p *policy.Policy) ([]bool, error) {
	if p.State == nil || p.Spill == nil {
		return nil, nil
	}
	newer, err := r.hasNewerRevision(ctx, owner)
	if err != nil || !newer {
		return nil, err
	}
	pools := spill.MergeCells(spill.FromPoolState(p.State, p.Whole()), p.Cells())
	out := make([]bool, len(pools))
	for i := range pools {
		out[i] = pools[i].Phase != spill.Available && p.Spill[i].After > 0
	}
	return out, nil
}

// hasNewerRevision reports whether a newer revision of an owner's workload asks for pods.
func (r *run) hasNewerRevision(ctx context.Context, owner ledger.Owner) (bool, error) {
	w, others, err := r.revisions(ctx, owner)
	return slices.ContainsFunc(others, func(m *world.Workload) bool { return m.Replicas > 0 && world.Newer(m, w) }), err
}

// yield gives the lowest deletion cost to the pods of an older revision in pools without room. So a rollout removes
// them first and the new pods can take their places. It returns after what time to go on, or 0.
func (r *run) yield(ctx context.Context, owner ledger.Owner, w *world.Workload) (again time.Duration, err error) {
	if w == nil || w.Controller == nil {
		return 0, nil
	}
	p, err := r.Policies.FindFor(ctx, owner.Namespace, seats.Ref(owner), w)
	if err != nil || p == nil || p.Layout == nil || p.Repair == stowage.RepairOff {
		return 0, err
	}
	yields, err := r.yieldingPools(ctx, owner, p)
	if err != nil || yields == nil {
		return 0, err
	}
	// What the cache shows is enough to see that there is nothing to do.
	shown := fromRecords(p, liveRecords(r.Seats.Pods().Of(owner.Key())), w.Replicas)
	if shown.Yields = yields; len(shown.Yield()) == 0 {
		return 0, nil
	}
	state, pods, _, err := r.look(ctx, &turn{owner: owner, policy: p, workload: w})
	if err != nil || state == nil {
		return 0, err
	}
	if moves := state.Yield(); len(moves) > 0 {
		var done []planner.Move
		if done, again, err = r.seatAll(ctx, owner, p, pods, state, moves, repairRenumber); len(done) == 0 {
			again = 0 // another writer contests the others; the rest does not wait for that
		}
	}
	return again, err
}
