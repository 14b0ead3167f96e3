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
	compiled := policy.Compile(d)
	p := compiled.Unbound()
	if p.Err != nil {
		return none(stowage.ReasonInvalid, "the distribution is invalid: %v", p.Err)
	}
	target := world.TargetOf(d)
	switch winner, err := r.World.PodDistributor(ctx, d.Namespace, []world.Ref{target.Ref}); {
	case err != nil:
		return err
	case winner != nil && winner.Name != d.Name && world.Wins(winner, d):
		return none(stowage.ReasonSuperseded, "PodDistributor %q is older and divides the pods of %s %q", winner.Name, target.Kind, target.Name)
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
		} else if !w.Watched() {
			set(versprei.ConditionTargetFound, metav1.ConditionTrue, stowage.ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)
			st.Current, st.Desired, st.Ready, st.Pools = "", "", "", nil
			set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonNoPods, "no pod of it has a seat, so none is counted; pods that were there before get one when they are created again")
			return nil
		}
	}
	set(versprei.ConditionTargetFound, metav1.ConditionTrue, stowage.ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)

	if len(owners) > 0 {
		if p, err = r.bind(ctx, compiled, owners[0]); err != nil {
			return err
		}
	}

	// 2. What there is and what there should be, over all revisions.
	division, said, err := r.divide(ctx, p, owners)
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
	alone, err := r.leftAlone(ctx, d.Namespace, owners)
	if err != nil {
		return err
	}
	if alone != "" {
		set(versprei.ConditionBalanced, metav1.ConditionUnknown, stowage.ReasonLeftAlone, "%s: its pods are left alone on purpose", alone)
		return nil
	}
	status, reason, text := balanced(target, p, &division, said, r.ofRollout(ctx, target, &division))
	set(versprei.ConditionBalanced, status, reason, "%s", text)
	return nil
}

// bind returns what holds for the workload of some pods' owner now.
func (c *Controller) bind(ctx context.Context, compiled policy.Compiled, owner *world.Workload) (*policy.Policy, error) {
	chain, err := world.Owners(ctx, c.World, owner.Namespace, owner.Ref)
	if err != nil {
		return nil, err
	}
	var state *stowage.PoolState
	if top := chain.Top(); top != nil && (compiled.Spill != nil || compiled.Across() != nil) {
		if state, err = c.World.PoolState(ctx, owner.Namespace, top.UID); err != nil {
			return nil, err
		}
	}
	return compiled.Bound(owner.Namespace, chain, state), nil
}

// leftAlone returns why Stowage changes none of the pods of some owners, if their modes or that of their namespace say so.
func (c *Controller) leftAlone(ctx context.Context, namespace string, owners []*world.Workload) (string, error) {
	if len(owners) == 0 {
		owners = []*world.Workload{{}} // the namespace alone says it
	}
	text := ""
	for _, w := range owners {
		pod := &podpatch.Pod{}
		pod.Metadata.Annotations, pod.Metadata.Labels = w.TemplateAnnotations, w.TemplateLabels
		answer, err := c.Scope.Of(ctx, namespace, pod)
		if err != nil || answer.Mode == stowage.ModeEnforce {
			return "", err
		}
		text = answer.Text()
	}
	return text, nil
}

// said is what repair says of the owners of a workload's pods. One may not reach its count, and some pods cannot move that should.
type said struct {
	stuck      string
	refused    string // why the API server refuses to create more
	pods       int64  // that there are
	hindrances []stowage.Hindrance
}

// divide returns how the pods of a policy are divided, over all owners.
func (c *Controller) divide(ctx context.Context, p *policy.Policy, owners []*world.Workload) (d divisions.Division, say said, err error) {
	d.AddPods(p.Whole(), nil) // the pools, also of a target without pods
	nodes := func(name string) map[string]string { return c.World.NodeLabels(ctx, name) }
	view := divisions.View{Layout: p.Layout, Preferred: p.Preferred, Nodes: nodes, Now: c.Time.Now()}
	for _, o := range owners {
		owner, pods := seats.OwnerOf(o), c.Seats.Pods().Observe(o)
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
		of := c.Find.Holding(ctx, p.Of(o), o)
		if gaps, some := divisions.Gaps(p.Layout, p.State, p.Spill); some {
			d.Untaken = cmp.Or(d.Untaken, divisions.Untaken(p.Layout, gaps, replicas))
		}
		seats := d.AddTargets(of.Layout, of.Divide(replicas, pods.Indexed(p.Layout), c.Progress.Elsewhere(owner.Key())))
		if c.Progress.Stuck(owner.Key(), current, replicas) {
			d.Stuck = true
			say.stuck = fmt.Sprintf("%s %s asks for %d pods and has had %d for minutes; those are put in order, and none is evicted", o.Kind, o.Name, replicas, current)
		}
		say.hindrances = append(say.hindrances, c.Progress.Hindrances(owner.Key())...)
		say.pods += current
		if current < replicas {
			say.refused = cmp.Or(say.refused, o.Failure)
		}
		d.Moving = d.Moving || replicas != current || c.Progress.Moving(owner.Key())
		d.Unseated += max(0, min(seats, current)-seated) // of the pods that there are
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
		if named[name] { // a pool of a former policy may have the name of one that there is
			name = pool.Key
		}
		named[name] = true
		st.Pools[i] = versprei.PoolStatus{Name: name, Current: add(0, pool.Current), Desired: add(0, pool.Target), Ready: add(0, pool.Ready), Domains: domainsOf(nil, pool.Domains())}
		current[i], desired[i], ready[i] = strconv.FormatInt(pool.Current, 10), strconv.FormatInt(pool.Target, 10), strconv.FormatInt(pool.Ready, 10)
	}
	st.Current, st.Desired, st.Ready = strings.Join(current, "/"), strings.Join(desired, "/"), strings.Join(ready, "/")
}
