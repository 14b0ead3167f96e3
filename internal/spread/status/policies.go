package status

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/readable"
)

// Policies is the controller of the status of SpreadPolicies and ClusterSpreadPolicies. One pass over all workloads counts for all
// policies, because each workload may concern several of them.
type Policies struct {
	*Controller
	// Registrations reads the webhook's registration.
	Registrations *selection.Reader
	Room          *poolroom.Reader
	Kinds         *readable.Kinds
	Metrics       *Metrics
}

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterspreadpolicies/status;spreadpolicies/status,verbs=patch,roleName=stowage-spread-controllers

// How often policies are counted while something changes, and how many workloads of policies in Audit are looked at in a second.
const (
	countEvery = 5 * time.Second
	auditEvery = 500 * time.Millisecond
	// auditAgain is after how long a workload is looked at again though nothing changed.
	auditAgain = 10 * time.Minute
)

var _ leader.Controller = &Policies{}

// Name implements [leader.Controller].
func (*Policies) Name() string { return "policy-status" }

// policyRun is the controller in one term. Only its ticker uses it.
type policyRun struct {
	*Policies
	changes chan struct{}       // has an entry after a change
	counted time.Time           // when all was counted last
	seen    map[types.UID]int64 // the generations of all policies
	// audits are what was seen of workloads of policies in Audit, and due are those to look at.
	audits map[ledger.OwnerKey]*audit
	due    map[ledger.OwnerKey]*world.Workload
	looked map[ledger.OwnerKey]time.Time // when somebody last tried
	// uncounted are the workloads that could not be counted, and have a line in the log.
	uncounted map[ledger.OwnerKey]bool
	logs      *fair.Limiter[string] // of such lines, by namespace
}

// Register implements [leader.Controller].
func (c *Policies) Register(t *leader.Term) error {
	r := &policyRun{Policies: c, changes: make(chan struct{}, 1), audits: map[ledger.OwnerKey]*audit{}, due: map[ledger.OwnerKey]*world.Workload{}, looked: map[ledger.OwnerKey]time.Time{},
		uncounted: map[ledger.OwnerKey]bool{}, logs: fair.NewLimiter[string](1, 20)}
	t.AtEnd(c.Seats.Changes.Add(func(seats.Change) { r.changed() }))
	t.AtEnd(func() { c.Metrics.set(nil) })
	// The pods of a node that is gone are not ready, before they are deleted.
	if err := t.Watch(c.Informers, &corev1.Node{}, toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { r.changed() }}); err != nil {
		return err
	}
	t.Go(func(ctx context.Context) {
		if !toolscache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			return
		}
		last := time.Time{}
		t.Every(auditEvery, func(ctx context.Context) {
			r.audit(ctx)
			if now := r.Clock.Now(); now.Sub(last) >= countEvery {
				last = now
				r.count(ctx)
			}
		})
	})
	return nil
}

func (r *policyRun) changed() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// count counts for all policies, and writes each status that is not as it should be. Without policies it does nothing.
func (r *policyRun) count(ctx context.Context) {
	all := r.World.AllPolicies()
	if r.Kinds.Look(ctx, all) {
		r.changed()
	}
	generations := map[types.UID]int64{}
	for _, p := range all.Namespaced {
		generations[p.UID] = p.Generation
	}
	for _, p := range all.Cluster {
		generations[p.UID] = p.Generation
	}
	edited := !maps.Equal(generations, r.seen)
	if r.seen = generations; len(generations) == 0 {
		if edited {
			r.Metrics.set(nil)
		}
		return
	}
	now := r.Clock.Now()
	select {
	case <-r.changes:
	default:
		if !edited && now.Sub(r.counted) < r.Timing.All/4 { // labels and nodes change, too
			return
		}
	}
	r.counted = now
	if err := r.countAll(ctx, all); err != nil {
		r.Log.Error(err, "the workloads of policies were not counted")
	}
}

func (r *policyRun) countAll(ctx context.Context, all *world.Policies) error {
	// 1. What there is to count. The set of policies does not follow their statuses, but the cache does.
	tallies := map[types.UID]*tally{}
	for _, p := range all.Namespaced {
		was := &stowage.SpreadPolicy{}
		if r.Cached.Get(ctx, client.ObjectKeyFromObject(p), was) == nil && was.UID == p.UID {
			of, is := r.Find.OfSpreadPolicy(p), was.DeepCopy()
			tallies[p.UID] = newTally(of, r.Find.CompiledPolicy(of), was, is, &is.Status, &p.Spec)
		}
	}
	for _, p := range all.Cluster {
		was := &stowage.ClusterSpreadPolicy{}
		if r.Cached.Get(ctx, client.ObjectKeyFromObject(p), was) == nil && was.UID == p.UID {
			of, is := r.Find.OfClusterSpreadPolicy(p), was.DeepCopy()
			tallies[p.UID] = newTally(of, r.Find.CompiledPolicy(of), was, is, &is.Status, &p.Spec)
		}
	}

	// 2. Count.
	if err := r.countWorkloads(ctx, tallies); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := r.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for _, t := range tallies {
		t.status.Unreadable = r.Kinds.Unreadable(t.of.Namespace, t.of.Spec.Kinds)
		t.describe(nodes.Items)
	}

	// 3. Publish.
	r.Metrics.set(tallies)
	for _, t := range tallies {
		r.write(ctx, t.was, t.is)
	}
	for _, name := range r.World.PoliciesBeyond() {
		r.writeBeyond(ctx, name)
	}
	return nil
}

// writeBeyond writes the status of a SpreadPolicy that does not count.
func (r *policyRun) writeBeyond(ctx context.Context, name types.NamespacedName) {
	was := &stowage.SpreadPolicy{}
	if r.Cached.Get(ctx, name, was) != nil {
		return
	}
	is := was.DeepCopy()
	is.Status = stowage.SpreadPolicyStatus{Conditions: is.Status.Conditions, ObservedGeneration: is.Generation}
	// The text has no number that changes with other policies: it would be written again for all.
	text := fmt.Sprintf("the policy has no effect: of a namespace, the first %d SpreadPolicies count, of %d KiB together, and others come before this one; remove some, or give this one a higher priority",
		world.MostPolicies, world.MostPolicyBytes>>10)
	for kind, status := range map[string]metav1.ConditionStatus{stowage.ConditionReady: metav1.ConditionFalse, stowage.ConditionStalled: metav1.ConditionTrue} {
		meta.SetStatusCondition(&is.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: string(stowage.ReasonTooMany), Message: text, ObservedGeneration: is.Generation})
	}
	r.write(ctx, was, is)
}

// write writes a status that has changed. One that has to wait for its turn is written by a later pass.
func (r *policyRun) write(ctx context.Context, was, is client.Object) {
	if equality.Semantic.DeepEqual(was, is) {
		return
	}
	if r.Writes.Take(is.GetNamespace(), r.Clock.Now()) > 0 {
		r.changed()
		return
	}
	// The patch has what differs from what the cache shows, so it is for that version alone.
	err := r.Uncached.Status().Patch(ctx, is, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		r.changed()
		return
	}
	if client.IgnoreNotFound(err) != nil {
		r.Log.Error(err, "the status of a policy was not written", "namespace", is.GetNamespace(), "name", is.GetName())
	}
}

// countWorkloads counts the pods of all workloads for the policies that select them.
func (r *policyRun) countWorkloads(ctx context.Context, tallies map[types.UID]*tally) error {
	owners, err := r.World.PodOwnersIn(ctx, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	for _, o := range r.Seats.Pods().Owners() {
		if !seats.Ref(o).MakesPods() {
			owners = append(owners, &world.Workload{Ref: seats.Ref(o), Namespace: o.Namespace, Replicas: -1, Current: -1})
		}
	}
	registration, err := r.Registrations.Read(ctx)
	if err != nil {
		return err
	}
	clear(r.due)
	there := map[ledger.OwnerKey]bool{}
	for _, w := range owners {
		if w.Replicas == 0 && w.Current == 0 {
			continue
		}
		there[seats.OwnerOf(w).Key()] = true
		r.noteCounted(w, r.countWorkload(ctx, w, registration, tallies)) // the others are counted, too
	}
	maps.DeleteFunc(r.uncounted, func(key ledger.OwnerKey, _ bool) bool { return !there[key] })
	maps.DeleteFunc(r.audits, func(key ledger.OwnerKey, _ *audit) bool { return !there[key] })
	maps.DeleteFunc(r.looked, func(key ledger.OwnerKey, _ time.Time) bool { return !there[key] })
	return nil
}

// noteCounted logs that a workload could not be counted, once until it can be counted again. Tenants decide how many workloads there are, so
// namespaces share a rate of such lines.
func (r *policyRun) noteCounted(w *world.Workload, err error) {
	key := seats.OwnerOf(w).Key()
	switch {
	case err == nil:
		delete(r.uncounted, key)
	case !r.uncounted[key] && r.logs.Allow(w.Namespace, r.Clock.Now()):
		r.uncounted[key] = true
		r.Log.Error(err, "a workload was not counted for the status of policies", (world.Object{Namespace: w.Namespace, Ref: w.Ref}).LogKeys()...)
	}
}

// countWorkload counts the pods of one owner.
func (r *policyRun) countWorkload(ctx context.Context, w *world.Workload, registration *selection.Registration, tallies map[types.UID]*tally) error {
	chain, err := world.Owners(ctx, r.World, w.Namespace, w.Ref)
	if err != nil {
		return err
	}
	selecting, err := r.Find.Selecting(ctx, w.Namespace, chain)
	if len(selecting) == 0 || err != nil {
		return err
	}
	p, err := r.Find.FindForSelected(ctx, w.Namespace, w.Ref, w)
	if err != nil {
		return err
	}
	reached, err := r.reaches(ctx, w, chain.Bottom(), registration)
	if err != nil {
		return err
	}
	for _, s := range selecting {
		if t := tallies[s.UID]; t != nil { // else it was made just now
			if err := r.countFor(ctx, t, w, chain, p, reached); err != nil {
				return err
			}
		}
	}
	return nil
}

// countFor counts the pods of an owner for one of the policies that select it. P is what divides it, or nil. Reached says that the webhook is
// asked about its pods.
func (r *policyRun) countFor(ctx context.Context, t *tally, w *world.Workload, chain world.Chain, p *policy.Policy, reached bool) error {
	top, audits := world.Object{Namespace: w.Namespace, Ref: chain.Root()}, t.of.Spec.Mode == stowage.PolicyAudit
	divides := p != nil && p.Policy != nil && p.Policy.UID == t.of.UID
	switch {
	case !reached:
		t.notReached[top] = true
	case divides && p.Layout == nil: // it is invalid, as its conditions say
	case divides:
		t.noteUnsuitable(top, p.Unsuitable())
		if p.Keeping() || r.anyElsewhere(w) {
			t.keptInPlace[top] = true
		}
		if !p.Nowhere() {
			return r.divideFor(ctx, t, p, w, top)
		}
	case audits && (p == nil || p.Policy != nil && t.of.Before(p.Policy)):
		return r.auditFor(ctx, t, w, chain, top)
	case p != nil:
		t.noteShadowed(top, p.Source)
	}
	return nil
}

// anyElsewhere reports whether pods of an owner have volumes that reach no place for a seat.
func (r *policyRun) anyElsewhere(w *world.Workload) bool {
	e := r.Progress.Elsewhere(seats.OwnerOf(w).Key())
	return e.Any()
}

// reaches reports whether the webhook is asked about the pods of an owner, and may change them.
func (r *policyRun) reaches(ctx context.Context, w, bottom *world.Workload, registration *selection.Registration) (bool, error) {
	if alone, err := r.leftAlone(ctx, bottom); alone != "" || err != nil {
		return false, err
	}
	ns, err := r.World.Namespace(ctx, w.Namespace)
	if err != nil {
		return false, err
	}
	return ns != nil && registration.SentByLabels(ns.Labels, bottom.TemplateLabels), nil
}

// divideFor counts the pods of an owner that a policy divides.
func (r *policyRun) divideFor(ctx context.Context, t *tally, p *policy.Policy, w *world.Workload, top world.Object) error {
	d, _, err := r.divide(ctx, []owner{{w, p}})
	if err != nil {
		return err
	}
	if whole := t.divided[top]; whole != nil {
		whole.Merge(&d)
	} else {
		t.divided[top] = &d
	}
	return nil
}
