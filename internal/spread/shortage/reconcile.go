package shortage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// reconcile looks at one workload, stores what becomes of its pools, and evicts pods that other pools take.
func (r *run) reconcile(ctx context.Context, w world.Object) (reconcile.Result, error) {
	m := r.memoryOf(w)
	if err := r.correct(ctx, w, m); err != nil {
		return reconcile.Result{}, err
	}
	v, err := r.see(ctx, w, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v == nil {
		return reconcile.Result{}, r.end(ctx, w, m)
	}
	if v.stays {
		return reconcile.Result{}, nil
	}
	looks, err := r.lookForRoom(ctx, v, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	found := r.judge(ctx, v, m)
	next := spill.Next(v.View, v.pools, r.Timing.Probes)
	for i := range next {
		m.waited[spill.PlaceOf(v.policy.Whole(), v.policy.Cells().At(i))] = next[i].Waited
	}
	r.publish(v, m, next)
	r.askToYield(v, next)
	is := stowage.PoolState{Pools: spill.ToPoolRooms(next, v.policy.Whole()), Unsuitable: found.unsuitable, Proven: found.proven, Soft: found.soft, Ordinals: ordinalsOf(v, next)}
	result, err := r.store(ctx, w, v, m, is)
	if err != nil {
		return reconcile.Result{}, err
	}
	if result != behind {
		maps.Copy(m.looked, looks)
	}
	switch result {
	case stored: // its change brings us back, when the replicas of the webhook have most likely seen it, too
		r.transitions(w, v, next)
		r.tellUnsuitable(w, v, found)
		return reconcile.Result{}, nil
	case behind: // what the cache will show brings us back
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, r.move(ctx, w, v, m, next)
}

// end forgets a workload of whose policy there is nothing to record, and removes its state.
func (r *run) end(ctx context.Context, w world.Object, m *memory) error {
	if stays, err := r.staysUnsuitable(ctx, w); stays || err != nil {
		return err
	}
	if len(m.outdated) == 0 && r.Clock.Since(m.correctedAt) > correctedFor {
		r.forget(w.UID)
	}
	return r.remove(ctx, w)
}

// askToYield has the pods of older revisions in pools without room looked at, while they have an ordinary deletion cost.
func (r *run) askToYield(v *picture, next []spill.Pool) {
	lowest := sequence.DeletionCost(sequence.NoRank)
	pools := spill.MergeCells(next, v.policy.Cells())
	for _, one := range v.members {
		newer := slices.ContainsFunc(v.members, func(m *member) bool { return m.replicas > 0 && world.Newer(m.Workload, one.Workload) })
		if newer && slices.ContainsFunc(one.Pods, func(rec observed.Pod) bool {
			pool, ok := v.policy.PoolKeyed(rec.Pool)
			return ok && pools[pool].Phase != spill.Available && v.Rules[pool].After > 0 && rec.Cost != "" && rec.Cost != lowest
		}) {
			r.Yielding.Tell(seats.OwnerOf(one.Workload))
		}
	}
}

// publish sets the metrics of a workload's pools.
func (r *run) publish(v *picture, m *memory, next []spill.Pool) {
	waiting, of := make([]int64, len(next)), v.policy.Cells()
	for i := range v.Pods {
		if pod := &v.Pods[i]; pod.Waits > 0 {
			waiting[of.Index(sequence.Cell{Pool: pod.Seat.Pool, Domain: pod.Domain})]++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[m.workload.UID] != m {
		return // it was forgotten meanwhile
	}
	former := m.pools
	m.pools = map[place]bool{}
	for i := range next {
		if cell := of.At(i); v.Rules[cell.Pool].After > 0 {
			at := place{v.policy.Pool(cell.Pool).Name, v.policy.DomainName(cell.Domain)}
			m.pools[at] = true
			delete(former, at)
			r.Metrics.set(m.workload, at, next[i].Phase, waiting[i])
		}
	}
	for at := range former {
		r.Metrics.gone(m.workload, at)
	}
}

// storeResult is what became of a state.
type storeResult int

const (
	unchanged storeResult = iota
	stored
	behind // the cache shows an older state than the API server has
)

// store writes the state of a workload's pools, if it differs from the one that was seen.
func (r *run) store(ctx context.Context, w world.Object, v *picture, m *memory, is stowage.PoolState) (storeResult, error) {
	empty := saysTheSame(&stowage.PoolState{}, &is)
	if v.state == nil && empty {
		return unchanged, nil
	}
	var err error
	wanted := is.DeepCopy()
	owners := w.OwnerReferences()
	switch {
	case v.state == nil:
		is.ObjectMeta = metav1.ObjectMeta{Namespace: w.Namespace, Name: string(w.UID), OwnerReferences: owners}
		err = r.Uncached.Create(ctx, &is)
	case empty && r.unused(v.state):
		err = r.delete(ctx, v.state)
	case saysTheSame(v.state, &is):
		return unchanged, nil
	default:
		is.ObjectMeta = *v.state.ObjectMeta.DeepCopy()
		is.OwnerReferences = owners
		err = r.Uncached.Update(ctx, &is)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return behind, nil
	}
	if err != nil {
		return unchanged, fmt.Errorf("write the PoolState of %s %s: %w", w.Kind, w.Name, err)
	}
	if !empty && !saysTheSame(wanted, &is) {
		m.pruned = v.Now
		r.Log.Info("the API server does not store all of what is known of pools. Apply the CustomResourceDefinition of PoolStates of this version")
		return unchanged, nil
	}
	return stored, nil
}

// saysTheSame reports whether two states differ in their metadata alone.
func saysTheSame(a, b *stowage.PoolState) bool {
	content := func(s *stowage.PoolState) stowage.PoolState {
		return stowage.PoolState{Pools: s.Pools, Unsuitable: s.Unsuitable, Proven: s.Proven, Soft: s.Soft, Ordinals: s.Ordinals}
	}
	return equality.Semantic.DeepEqual(content(a), content(b))
}

// remove removes the state of a workload that has no policy, or one for which nothing is recorded.
func (r *run) remove(ctx context.Context, w world.Object) error {
	state, err := r.World.PoolState(ctx, w.Namespace, w.UID)
	if err != nil || state == nil || !r.unused(state) {
		return err
	}
	if err := r.delete(ctx, state); !apierrors.IsConflict(err) {
		return client.IgnoreNotFound(err)
	}
	return nil
}

// unusedAfter is how long a PoolState stays that was created for what repair is about to write into its status.
const unusedAfter = 10 * time.Second

// unused reports whether nobody but this controller needs a PoolState.
func (r *run) unused(state *stowage.PoolState) bool {
	return len(state.Status.Hindrances) == 0 && (len(state.Pools)+len(state.Unsuitable)+len(state.Ordinals) > 0 || r.Clock.Since(state.CreationTimestamp.Time) > unusedAfter)
}

func (r *run) delete(ctx context.Context, state *stowage.PoolState) error {
	gone := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: state.Namespace, Name: state.Name}}
	return r.Uncached.Delete(ctx, gone, client.Preconditions{UID: &state.UID, ResourceVersion: &state.ResourceVersion})
}

// transitions says what has become of pools.
func (r *run) transitions(w world.Object, v *picture, next []spill.Pool) {
	about, takers := w.Reference(), "other pools take the others"
	if v.Layout.Homes() != nil {
		takers = "other domains of the pool take the others, or other pools if none has room"
	}
	if why := division.Untaken(v.Layout, spill.Gaps(spill.MergeCells(next, v.policy.Cells())), v.Replicas); why != "" {
		takers = "no other pool takes more of the others: " + why
	}
	for i := range next {
		name, was, is := spill.PlaceOf(v.policy.Whole(), v.policy.Cells().At(i)), &v.pools[i], &next[i]
		switch {
		case is.Epoch > was.Epoch && was.Phase != spill.Probing:
			r.Events.Warn(about, stowage.EventPoolExhausted, events.Spill, "pool %s has no room for the pods that wait: it keeps %d pod(s), and %s", name, is.Max, takers)
		case is.Phase == spill.Probing && was.Phase == spill.Exhausted:
			r.Events.Normal(about, stowage.EventPoolProbed, events.Spill, "pool %s is tried again with %d pod(s)", name, is.Step)
		case is.Phase == spill.Available && was.Phase != spill.Available && v.Now.Sub(was.Waited) >= r.Timing.Probes.Forget:
			r.Events.Normal(about, stowage.EventPoolAvailable, events.Spill, "no pod has waited for pool %s for %s, so it counts as available", name, r.Timing.Probes.Forget)
		case is.Phase == spill.Available && was.Phase != spill.Available:
			r.Events.Normal(about, stowage.EventPoolAvailable, events.Spill, "pool %s has room again", name)
		default:
			continue
		}
		r.Log.Info("the state of a pool changed", "namespace", w.Namespace, "kind", w.Kind, "name", w.Name, "pool", name, "phase", is.Phase, "max", is.Max, "epoch", is.Epoch)
	}
}

// move evicts pods that wait and whose successors other pools take, as fast as the rates allow.
func (r *run) move(ctx context.Context, w world.Object, v *picture, m *memory, next []spill.Pool) error {
	for _, one := range v.members {
		for _, i := range r.movesOf(v, one, next) {
			now := r.Clock.Now()
			seatless := v.policy.Nowhere() // the successor gets no seat, so that it proves nothing
			if !seatless && !r.unproven.MayEvict(r.Seats.Pods().Given(), now) {
				return nil
			}
			if !r.takeTurn(w, m, now) {
				return nil // the next look goes on
			}
			rec := &one.Pods[i]
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: rec.Namespace, Name: rec.Name, UID: rec.UID, ResourceVersion: strconv.FormatUint(rec.Version, 10),
			}}
			result, err := r.Evictor.EvictUnchanged(ctx, pod)
			if result == evict.Failed {
				return fmt.Errorf("evict pod %s: %w", rec.Name, err)
			}
			if result == evict.Evicted {
				if !seatless {
					r.unproven.Note(now)
				}
				r.Metrics.spilled.Inc()
				r.Log.V(1).Info("pod evicted, so that another pool takes its successor", "namespace", rec.Namespace, "pod", rec.Name, "kind", w.Kind, "name", w.Name, "pool", ledger.PoolName(rec.Pool))
			}
		}
	}
	return nil
}

// takeTurn takes an eviction from the rates of a workload and of all of them, and returns false if there is none left now.
func (r *run) takeTurn(w world.Object, m *memory, now time.Time) bool {
	return m.limit.TokensAt(now) >= 1 && r.limit.Allow(w.Namespace, now) && m.limit.AllowN(now, 1)
}

// movesOf returns the pods of an owner to evict.
func (r *run) movesOf(v *picture, one *member, next []spill.Pool) []int {
	if out := unsuitableMoves(v, one); out != nil || v.policy.Nowhere() {
		return out
	}
	if !one.ordinals {
		return spill.Moves(one.policy.Strategy, one.policy.Domains(), next, one.spillPods, one.replicas)
	}
	if v.state == nil {
		return nil
	}
	var out []int
	for i := range one.spillPods {
		pod := &one.spillPods[i]
		to, elsewhere := v.Layout.CellOf(v.state.Ordinals[placement.OrdinalInName(one.Pods[i].Name)])
		// A pod that returns to its own cell has waited for After, too: a webhook that does not know yet of the try gives it the same cell again.
		after := v.Rules[pod.Seat.Pool].After
		waited := after > 0 && pod.Waits >= after
		returns := waited && !elsewhere && !pod.Misfit && v.policy.Away(one.rank(i), pod.Cell())
		if pod.Waits > 0 && (returns || elsewhere && to != pod.Cell()) {
			out = append(out, i)
		}
	}
	return out
}

// ordinalsOf returns the pods of a StatefulSet that have a seat in another pool than the strategy's, as the API has them.
func ordinalsOf(v *picture, next []spill.Pool) map[string]string {
	var out map[string]string
	of := v.policy.Cells()
	for _, one := range v.members {
		if !one.ordinals {
			continue
		}
		now := map[int64]int{}
		if v.state != nil {
			for text, name := range v.state.Ordinals {
				n, err := strconv.ParseInt(text, 10, 64)
				if at, known := v.Layout.CellOf(name); err == nil && known {
					now[n-one.FirstOrdinal] = of.Index(at)
				}
			}
		}
		ordinals := make([]int64, len(one.spillPods))
		for i := range one.Pods {
			ordinals[i] = one.rank(i) - 1
		}
		for n, at := range spill.Ordinals(v.View, next, one.spillPods, ordinals, one.replicas, now) {
			if out == nil {
				out = map[string]string{}
			}
			out[strconv.FormatInt(n+one.FirstOrdinal, 10)] = v.Layout.CellName(of.At(at))
		}
	}
	return out
}
