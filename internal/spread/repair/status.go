package repair

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// resyncStatuses looks at the PodDistributors that were edited, and at those in whose namespace pods have changed,
// until some time after that. Once in a resync it looks at all.
func (r *run) resyncStatuses(ctx context.Context) {
	list, err := r.World.PodDistributors(ctx, metav1.NamespaceAll)
	if err != nil {
		r.Log.Error(err, "PodDistributors were not listed")
		return
	}
	now := r.Clock.Now()
	r.mu.Lock()
	all := now.Sub(r.allStatuses) >= r.Timing.Resync
	if all {
		r.allStatuses = now
	}
	changed := map[string]bool{}
	for namespace, t := range r.podChanges {
		changed[namespace] = true
		if now.Sub(t) > r.Timing.Quiet+2*r.Timing.Status {
			delete(r.podChanges, namespace)
		}
	}
	r.mu.Unlock()
	for i := range list {
		if d := &list[i]; all || changed[d.Namespace] || d.Status.ObservedGeneration != d.Generation {
			r.statuses.AddUnlessFailing(client.ObjectKeyFromObject(d))
		}
	}
}

// reconcileStatus brings the status of one PodDistributor up to date.
func (r *run) reconcileStatus(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	list, err := r.World.PodDistributors(ctx, key.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	i := slices.IndexFunc(list, func(d versprei.PodDistributor) bool { return d.Name == key.Name })
	if i < 0 {
		return reconcile.Result{}, nil
	}
	d := list[i].DeepCopy()
	before := d.DeepCopy()
	if err := r.describe(ctx, d, list); err != nil {
		return reconcile.Result{}, err
	}
	if reflect.DeepEqual(before.Status, d.Status) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.Uncached.Status().Patch(ctx, d, client.MergeFrom(before)))
}

// describe fills in a PodDistributor's status.
func (r *run) describe(ctx context.Context, d *versprei.PodDistributor, siblings []versprei.PodDistributor) error {
	st := &d.Status
	st.ObservedGeneration = d.Generation
	set := func(kind string, status metav1.ConditionStatus, reason stowage.ConditionReason, format string, args ...any) {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: string(reason), Message: fmt.Sprintf(format, args...), ObservedGeneration: d.Generation,
		})
	}
	none := func(reason stowage.ConditionReason, format string, args ...any) error {
		st.Current, st.Desired, st.Ready, st.Pools = "", "", "", nil
		set(versprei.ConditionTargetFound, metav1.ConditionFalse, reason, format, args...)
		set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonNoTarget, "this object divides no pods")
		return nil
	}

	// 1. Does it divide the pods of something?
	p := policy.Compile(d).Unbound()
	if p.Err != nil {
		return none(stowage.ReasonInvalid, "the distribution is invalid: %v", p.Err)
	}
	target := policy.TargetOf(d)
	for i := range siblings {
		if o := &siblings[i]; o.Name != d.Name && policy.TargetOf(o).SameObject(target.Ref) && policy.Older(o, d) {
			return none(stowage.ReasonSuperseded, "PodDistributor %q is older and divides the pods of %s %q", o.Name, target.Kind, target.Name)
		}
	}
	owners, err := r.Seats.Pods().OwnersUnder(ctx, r.World, target)
	if err != nil {
		return err
	}
	if len(owners) == 0 {
		if w, err := r.World.Workload(ctx, d.Namespace, target.Ref); err != nil {
			return err
		} else if w == nil {
			return none(stowage.ReasonNotFound, "there is no %s %q in namespace %q that Stowage can see", target.Kind, target.Name, d.Namespace)
		}
	}
	set(versprei.ConditionTargetFound, metav1.ConditionTrue, stowage.ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)

	// 2. What there is and what there should be, over all revisions.
	sum, err := r.count(ctx, st, p, owners)
	if err != nil {
		return err
	}
	over := sumUp(st)
	short, err := r.shortages(ctx, d.Namespace, p, owners)
	if err != nil {
		return err
	}

	// 3. In words.
	switch {
	case p.Spill == nil:
		meta.RemoveStatusCondition(&st.Conditions, versprei.ConditionCapacityAvailable)
	case len(short) > 0:
		set(versprei.ConditionCapacityAvailable, metav1.ConditionFalse, stowage.ReasonPoolExhausted, "%s", strings.Join(short, "; "))
	default:
		set(versprei.ConditionCapacityAvailable, metav1.ConditionTrue, stowage.ReasonAvailable, "no pool is known to lack room")
	}
	balanced := func(reason stowage.ConditionReason, format string, args ...any) {
		status := metav1.ConditionFalse
		if reason == stowage.ReasonBalanced {
			status = metav1.ConditionTrue
		}
		if sum.foreign > 0 {
			format, args = format+"; %d pod(s) have a deletion cost that Stowage did not write, and scale-downs follow it", append(args, sum.foreign)
		}
		set(versprei.ConditionBalanced, status, reason, format, args...)
	}
	equal := st.Current == st.Desired
	switch {
	case equal && sum.starting == 0 && len(sum.pending) == 0:
		balanced(stowage.ReasonBalanced, "each pool has the pods that it should have")
	case len(sum.pending) > 0:
		var parts []string
		for i := range st.Pools {
			if n := sum.pending[i]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d pod(s) of pool %s", n, st.Pools[i].Name))
			}
		}
		balanced(stowage.ReasonPodsPending, "%s wait for a node", strings.Join(parts, " and "))
	case len(short) > 0:
		balanced(stowage.ReasonSpilled, "other pools have taken pods of a pool without room: %s", strings.Join(short, "; "))
	case sum.stuck != "":
		balanced(stowage.ReasonNotReached, "%s", sum.stuck)
	case sum.moving || equal || over == "" && sum.former == 0 && sum.unseated == 0:
		balanced(stowage.ReasonProgressing, "pods are being created or removed")
	case over != "":
		hint := "; scale up, roll out, or set rebalance to Evict"
		if p.Evict {
			hint = "; pods are evicted one at a time, into nodes that have room"
		}
		balanced(stowage.ReasonOverTarget, "pool %s has too many pods%s", over, hint)
	case sum.former > 0:
		text := fmt.Sprintf("%d pod(s) have their seat in a pool that was removed from the distribution", sum.former)
		if others := sum.unseated - sum.former; others > 0 {
			text += fmt.Sprintf("; %d more have no seat", others)
		}
		balanced(stowage.ReasonWithoutSeat, "%s", text)
	default:
		balanced(stowage.ReasonWithoutSeat, "%d pod(s) have no seat: they bypassed the webhook, choose their nodes themselves, or have no room for more annotations", sum.unseated)
	}
	return nil
}

// shortages says which pools have no room for the pods of a policy, since when, and how many pods they keep.
func (r *run) shortages(ctx context.Context, namespace string, p *policy.Policy, owners []*world.Workload) ([]string, error) {
	if p.Spill == nil || len(owners) == 0 {
		return nil, nil
	}
	chain, err := world.Owners(ctx, r.World, namespace, owners[0].Ref)
	if err != nil || chain.Top() == nil {
		return nil, err
	}
	if p.State, err = r.World.PoolState(ctx, namespace, chain.Top().UID); err != nil {
		return nil, err
	}
	var out []string
	for _, short := range p.Shortages() {
		out = append(out, short.String())
	}
	return out, nil
}

// pendingAfter is how long a pod may wait for a node before the status says so. A node autoscaler needs longer, but until
// its node is there the pod waits all the same.
const pendingAfter = 30 * time.Second

// tally sums up the pods of a policy, over all owners of pods.
type tally struct {
	moving   bool          // an owner of them moves
	unseated int64         // pods without a seat
	former   int64         // of these, pods with a seat in a pool that the strategy does not have
	foreign  int64         // pods with a deletion cost that Stowage did not write
	stuck    string        // why an owner does not reach its count
	starting int64         // pods that have not waited for long for a node
	pending  map[int]int64 // pods that have, by their pool
}

// count fills in the pools of a status, over all owners of pods, and sums up what is not as it should be.
func (r *run) count(ctx context.Context, st *versprei.PodDistributorStatus, p *policy.Policy, owners []*world.Workload) (tally, error) {
	sum := tally{pending: map[int]int64{}}
	st.Pools = make([]versprei.PoolStatus, p.Strategy.Len())
	for i := range st.Pools {
		st.Pools[i].Name = p.Strategy.Pool(i).Name
	}
	for _, o := range owners {
		owner := seats.OwnerOf(o)
		records := liveRecords(r.Seats.Pods().Of(owner.Key()))
		seated := int64(0)
		for i := range records {
			pool, ok := p.Pool(records[i].Pool)
			if !ok {
				sum.former++
				continue
			}
			seated++
			var view planner.Pod
			place(&view, p, records[i].Seat, records[i].Origin, records[i].ID, records[i].Cost)
			if records[i].Cost != "" && view.Rank == 0 && records[i].Origin != ledger.OriginOrdinal {
				sum.foreign++
			}
			st.Pools[pool].Current++
			if records[i].Ready {
				st.Pools[pool].Ready++
			}
			switch age := r.Clock.Since(time.Unix(records[i].Created, 0)); {
			case records[i].Node != "":
			case age < pendingAfter:
				sum.starting++
			default:
				sum.pending[pool]++
			}
		}
		replicas, current := o.Replicas, o.Current
		if replicas < 0 {
			replicas, current = seated, seated
			if scale, err := worldapi.ReadScale(ctx, r.Uncached, owner.Namespace, seats.Ref(owner)); err != nil {
				return tally{}, err
			} else if scale != nil {
				replicas, current = scale.Replicas, scale.Current
			}
		}
		for i := range st.Pools {
			st.Pools[i].Desired += int32(p.Strategy.Target(i, replicas))
		}
		if r.stuck(owner.Key(), current, replicas) {
			sum.stuck = fmt.Sprintf("%s %s asks for %d pods and has had %d for minutes; those are put in order, and none is evicted", o.Kind, o.Name, replicas, current)
			if o.Failure != "" {
				sum.stuck += ": " + o.Failure
			}
		}
		sum.moving = sum.moving || replicas != current || r.moving(owner.Key())
		sum.unseated += max(0, min(replicas, p.Strategy.Capacity())-seated)
	}
	return sum, nil
}

// sumUp writes the counts of all pools as they are shown in columns, and returns the first pool that
// has too many pods, or "".
func sumUp(st *versprei.PodDistributorStatus) (over string) {
	current, desired, ready := make([]string, len(st.Pools)), make([]string, len(st.Pools)), make([]string, len(st.Pools))
	for i, pool := range st.Pools {
		current[i], desired[i], ready[i] = strconv.Itoa(int(pool.Current)), strconv.Itoa(int(pool.Desired)), strconv.Itoa(int(pool.Ready))
		if pool.Current > pool.Desired && over == "" {
			over = pool.Name
		}
	}
	st.Current, st.Desired, st.Ready = strings.Join(current, "/"), strings.Join(desired, "/"), strings.Join(ready, "/")
	return over
}
