package status

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Reconcile brings the status of one PodDistributor up to date.
func (r *Run) Reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	r.resume(key)
	before := &versprei.PodDistributor{}
	if err := r.Cached.Get(ctx, key, before); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	d := before.DeepCopy()
	if err := r.describe(ctx, d); err != nil {
		return reconcile.Result{}, err
	}
	if reflect.DeepEqual(before.Status, d.Status) {
		return reconcile.Result{}, nil
	}
	if wait := r.Writes.Take(key.Namespace, r.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: r.postpone(key, wait)}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.Uncached.Status().Patch(ctx, d, client.MergeFrom(before)))
}

// describe fills in a PodDistributor's status.
func (r *Run) describe(ctx context.Context, d *versprei.PodDistributor) error {
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
	if err := policy.Compile(d).Err; err != nil {
		return none(stowage.ReasonInvalid, "the distribution is invalid: %v", err)
	}
	target := world.TargetOf(d)
	chain, err := world.Owners(ctx, r.World, d.Namespace, target.Ref)
	if err != nil {
		return err
	}
	owners, older, err := r.ownersOf(ctx, d, chain)
	switch {
	case err != nil:
		return err
	case older != "":
		return none(stowage.ReasonSuperseded, "PodDistributor %q is older and divides the pods of %s %q", older, target.Kind, target.Name)
	case len(owners) == 0 && chain.Unverified:
		st.Current, st.Desired, st.Ready, st.Pools = "", "", "", nil
		set(versprei.ConditionTargetFound, metav1.ConditionUnknown, stowage.ReasonUnreadable, "Stowage may not get objects of the kind %s of %s, and no pod of %q has a seat; new pods get one", target.Kind, target.APIVersion, target.Name)
		set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonNoPods, "no pod of it has a seat, so none is counted")
		return nil
	case len(owners) == 0 && chain.Bottom() == nil:
		return none(stowage.ReasonNotFound, "there is no %s %q in namespace %q that Stowage can see", target.Kind, target.Name, d.Namespace)
	case len(owners) == 0:
		set(versprei.ConditionTargetFound, metav1.ConditionTrue, stowage.ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)
		st.Current, st.Desired, st.Ready, st.Pools = "", "", "", nil
		set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonNoPods, "no pod of it has a seat, so none is counted; pods that were there before get one when they are created again")
		return nil
	}
	p := owners[0].policy // of the newest revision, which is what the next pods have
	if p.Nowhere() {
		_, why := p.Misfits()
		return none(stowage.ConditionReason(finding.PoolUnsuitable), "the pods of %s %q can run in none of the pools: %s", target.Kind, target.Name, strings.Join(why, "; "))
	}
	set(versprei.ConditionTargetFound, metav1.ConditionTrue, stowage.ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)

	// 2. What there is and what there should be, over all revisions.
	division, said, err := r.divide(ctx, owners)
	if err != nil {
		return err
	}
	division.Shortages = p.Shortages()
	show(st, &division)

	// 3. In words.
	switch short := inWords(division.Shortages); {
	case p.Spill == nil:
		meta.RemoveStatusCondition(&st.Conditions, versprei.ConditionPoolsAvailable)
	case short != "":
		set(versprei.ConditionPoolsAvailable, metav1.ConditionFalse, stowage.ReasonPoolExhausted, "%s", short)
	default:
		set(versprei.ConditionPoolsAvailable, metav1.ConditionTrue, stowage.ReasonAvailable, "no pool is known to lack room")
	}
	for _, o := range owners {
		if alone, err := r.leftAlone(ctx, o.Workload); err != nil {
			return err
		} else if alone != "" { // then the pods of the others cannot be where they should be, either
			set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonLeftAlone, "%s: its pods are left alone on purpose", alone)
			return nil
		}
	}
	status, reason, text := balanced(target, p, &division, said, r.ofRollout(ctx, target, &division))
	set(versprei.ConditionBalanced, status, reason, "%s", text)
	return nil
}

// owner is what makes pods, with the policy that divides them.
type owner struct {
	*world.Workload
	policy *policy.Policy
}

// ownersOf returns the owners of pods that a PodDistributor divides: see [Run.withPods]. The chain is its target with what made it. Where another
// PodDistributor divides all these pods, older is its name.
func (r *Run) ownersOf(ctx context.Context, d *versprei.PodDistributor, chain world.Chain) (owners []owner, older string, err error) {
	winner, err := r.World.PodDistributor(ctx, d.Namespace, chain.Refs)
	if err != nil {
		return nil, "", err
	}
	if winner != nil && winner.Name != d.Name && world.Wins(winner, d) {
		return nil, winner.Name, nil
	}
	all, err := r.Seats.Pods().OwnersUnder(ctx, r.World, world.TargetOf(d))
	if err != nil {
		return nil, "", err
	}
	if w := chain.Bottom(); len(all) == 0 && w != nil && w.Watched() {
		all = []*world.Workload{w} // a Deployment that has no ReplicaSet yet
	}
	for _, w := range r.withPods(all) {
		p, err := r.Find.FindForSelected(ctx, w.Namespace, w.Ref, w)
		switch {
		case err != nil:
			return nil, "", err
		case p == nil || p.Distributor == nil || p.Layout == nil: // the caches are of different times
		case p.Distributor.Name != d.Name:
			older = p.Distributor.Name // it targets this owner alone
		default:
			owners = append(owners, owner{w, p})
		}
	}
	if len(owners) > 0 {
		older = ""
	}
	return owners, older, nil
}

// withPods returns the owners that have pods or ask for some, the newest revision first. Where none does, the newest stands for all.
func (r *Run) withPods(all []*world.Workload) []*world.Workload {
	slices.SortFunc(all, world.NewestFirst)
	busy := slices.DeleteFunc(slices.Clone(all), func(w *world.Workload) bool {
		return w.Replicas == 0 && len(r.Seats.Pods().Observe(w).Pods) == 0
	})
	if len(busy) > 0 {
		return busy
	}
	return all[:min(1, len(all))]
}

// leftAlone returns why Stowage changes none of the pods of an owner, if their mode or that of their namespace says so.
func (c *Controller) leftAlone(ctx context.Context, w *world.Workload) (string, error) {
	pod := &podpatch.Pod{}
	pod.Metadata.Annotations, pod.Metadata.Labels = w.TemplateAnnotations, w.TemplateLabels
	answer, err := c.Scope.Of(ctx, w.Namespace, pod)
	if err != nil || answer.Mode == stowage.ModeEnforce {
		return "", err
	}
	return answer.Text(), nil
}

// said is what repair says of the owners of a workload's pods. One may not reach its count, and some pods cannot move that should.
type said struct {
	stuck      string
	refused    string // why the API server refuses to create more
	pods       int64  // that there are
	hindrances []stowage.Hindrance
}

// divide returns how the pods of some owners are divided.
func (c *Controller) divide(ctx context.Context, owners []owner) (d divisions.Division, say said, err error) {
	nodes := func(name string) map[string]string { return c.World.NodeLabels(ctx, name) }
	gone := func(name string) bool { return c.World.NodeGone(ctx, name) }
	for _, o := range owners {
		p, owner, pods := o.policy, seats.OwnerOf(o.Workload), c.Seats.Pods().Observe(o.Workload)
		view := divisions.View{Layout: p.Layout, Preferred: p.Preferred, Nodes: nodes, Gone: gone, Now: c.Time.Now()}
		seated := d.AddPods(p.Whole(), view.Pods(pods.Pods))
		replicas, current := o.Replicas, o.Current
		if replicas < 0 {
			replicas, current = seated, seated
			if scale, err := worldapi.ReadScale(ctx, c.Uncached, owner.Namespace, seats.Ref(owner)); err != nil {
				return d, say, err
			} else if scale != nil {
				replicas, current = scale.Replicas, scale.Current
			}
		}
		if gaps, some := divisions.Gaps(p.Layout, p.State, p.Spill); some {
			d.Untaken = cmp.Or(d.Untaken, divisions.Untaken(p.Layout, gaps, replicas))
		}
		seats := d.AddTargets(p.Layout, p.Divide(replicas, pods.Indexed(p.Layout), c.Progress.Elsewhere(owner.Key())))
		if c.Progress.Stuck(owner.Key(), current, replicas) {
			d.Stuck = true
			say.stuck = fmt.Sprintf("%s %s asks for %d pods and has had %d for minutes; those are put in order, and none is evicted", o.Kind, o.Name, replicas, current)
		}
		hindrances := c.Progress.Hindrances(owner.Key())
		say.hindrances = append(say.hindrances, hindrances...)
		say.pods += current
		if current < replicas {
			say.refused = cmp.Or(say.refused, o.Failure)
		}
		d.Moving = d.Moving || replicas != current || c.Progress.Moving(owner.Key())
		unseated := max(0, min(seats, current)-seated) // of the pods that there are
		d.Unseated += unseated
		if i := slices.IndexFunc(hindrances, func(h stowage.Hindrance) bool { return h.Reason == stowage.HindrancePinned }); i >= 0 {
			d.Pinned += min(unseated, hindrances[i].Count)
		}
	}
	return d, say, nil
}

// domainsOf adds domains of a pool to what is known of them.
func domainsOf(known []versprei.DomainStatus, domains []divisions.Domain) []versprei.DomainStatus {
	for _, in := range domains {
		i := slices.IndexFunc(known, func(d versprei.DomainStatus) bool { return d.Name == in.Name })
		if i < 0 {
			i = len(known)
			known = append(known, versprei.DomainStatus{Name: in.Name})
		}
		known[i].Current, known[i].Desired = add(known[i].Current, in.Current), add(known[i].Desired, in.Target)
	}
	return known
}

// add returns a count of pods with more of them. Workloads may ask for billions.
func add(count int32, more int64) int32 {
	return int32(min(math.MaxInt32, int64(count)+min(math.MaxInt32, more)))
}

// show writes the counts of all pools, also as they are shown in columns.
func show(st *versprei.PodDistributorStatus, d *divisions.Division) {
	st.Pools = make([]versprei.PoolStatus, len(d.Pools))
	current, desired, ready := make([]string, len(d.Pools)), make([]string, len(d.Pools)), make([]string, len(d.Pools))
	named := map[string]bool{}
	for i, pool := range d.Pools {
		name := pool.Name
		for n := 2; named[name]; n++ { // a pool of a former policy may have the name of one that there is
			name = fmt.Sprintf("%s (former, %d)", pool.Name, n-1)
		}
		named[name] = true
		st.Pools[i] = versprei.PoolStatus{Name: name, Current: add(0, pool.Current), Desired: add(0, pool.Target), Ready: add(0, pool.Ready), Domains: domainsOf(nil, pool.Domains())}
		current[i], desired[i], ready[i] = strconv.FormatInt(pool.Current, 10), strconv.FormatInt(pool.Target, 10), strconv.FormatInt(pool.Ready, 10)
	}
	st.Current, st.Desired, st.Ready = strings.Join(current, "/"), strings.Join(desired, "/"), strings.Join(ready, "/")
}
