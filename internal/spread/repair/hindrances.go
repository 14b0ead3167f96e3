package repair

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
)

// A hindrance is what keeps a pod that is to move from moving. A view cannot compute it. So the leader stores those that last in the status of the
// workload's PoolState, where `kubectl stowage status` reads them. A PodDistributor has them in its condition.

// +kubebuilder:rbac:groups=stowage.dev,resources=poolstates/status,verbs=patch,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list,roleName=stowage-spread-controllers

const (
	// hindersAfter is how long a hindrance must have lasted before it is told.
	hindersAfter = 15 * time.Second
	// confirmHindrances is how often the date is renewed of what is stored.
	confirmHindrances = 90 * time.Second
	// inheritedFor is how long a leader keeps what an earlier one has stored, before it knows better.
	inheritedFor = 2 * time.Minute
	// mostHindrances is how many are stored of one workload, mostNamed how many objects one names, and mostForeign how many bytes it has of what
	// somebody else says. Of the PodDisruptionBudgets of a namespace, which tenants create, mostListed are looked at.
	mostHindrances = 16
	mostNamed      = 4
	mostForeign    = 1024
	mostListed     = 500
	// mostMissing is how many writes in a row must have found nothing until the API server counts as one that has no status of PoolStates.
	mostMissing = 5
	// unservedFor is how long nothing is stored after the API server did not know the status of PoolStates.
	unservedFor = 5 * time.Minute
)

// HindranceRate is how many PoolStates are written in a second because of hindrances.
const HindranceRate = 5

// hinder notes what keeps the pods of an owner from being evicted, or that nothing does, which is nil.
func (r *run) hinder(owner ledger.Owner, is *stowage.Hindrance) {
	r.noteHindrance(owner, is, func(h *history) **stowage.Hindrance { return &h.hindrance })
}

// notePinned notes that pods of an owner get no seat because they choose their nodes themselves, or that there are none, which is nil.
func (r *run) notePinned(owner ledger.Owner, is *stowage.Hindrance) {
	r.noteHindrance(owner, is, func(h *history) **stowage.Hindrance { return &h.pinned })
}

// noteUnwritten notes that the API server refuses to update pods of an owner, or that it does not, which is nil.
func (r *run) noteUnwritten(owner ledger.Owner, is *stowage.Hindrance) {
	r.noteHindrance(owner, is, func(h *history) **stowage.Hindrance { return &h.unwritten })
}

func (r *run) noteHindrance(owner ledger.Owner, is *stowage.Hindrance, at func(*history) **stowage.Hindrance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner.Key()]
	if h == nil && is == nil {
		return
	}
	h = r.historyOf(owner.Key())
	h.owner = owner
	was := *at(h)
	if is != nil {
		is.Since, is.Message = metav1.NewTime(r.Time.Now().Truncate(time.Second)), bounded.Text(strings.ToValidUTF8(is.Message, "?"), mostForeign)
		if was != nil && was.Reason == is.Reason && slices.Equal(was.Objects, is.Objects) {
			is.Since = was.Since
		}
	}
	*at(h) = is
}

// hinderBy notes that the back-off of evictions holds, unless what it is for is known.
func (r *run) hinderBy(owner ledger.Owner, wait time.Duration) {
	r.mu.Lock()
	h := r.historyOf(owner.Key())
	known, inVain := h.hindrance != nil && h.hindrance.Reason != stowage.HindranceInVain, h.budget.settled && h.budget.backoff > 0
	r.mu.Unlock()
	if !known && inVain {
		r.hinder(owner, &stowage.Hindrance{Reason: stowage.HindranceInVain, Message: r.Time.Now().Add(wait).UTC().Format(time.RFC3339)})
	}
}

// noRemoval is why a plan evicts no pod of a workload that is settled and whose pods are not divided as they should be, or nil. The example is one of
// its pods, and may be nil.
func (r *run) noRemoval(ctx context.Context, p *policy.Policy, state *planner.State, plan *planner.Plan, example *corev1.Pod) *stowage.Hindrance {
	if !state.Settled || state.Keep || plan.Distance() == 0 {
		return nil
	}
	if pods, first := state.Unproven(); min(pods, int64(plan.Unseated)) > 0 { // those beyond all maxima need no seat
		return &stowage.Hindrance{Reason: stowage.HindranceUnproven, Pod: first, Count: min(pods, int64(plan.Unseated))}
	}
	if !wouldRemove(state, plan) {
		return nil
	}
	if state.RollingOut {
		return &stowage.Hindrance{Reason: stowage.HindranceRollout}
	}
	if pod := unready(state); pod != "" {
		return &stowage.Hindrance{Reason: stowage.HindranceNotReady, Pod: pod}
	}
	none := &stowage.Hindrance{Reason: stowage.HindranceNoRoom}
	for i, target := range plan.Targets {
		if plan.Counts[i] < target && !state.Available[i] && len(none.Objects) < mostNamed {
			none.Objects = append(none.Objects, p.Pool(i).Name)
			none.Message = cmp.Or(none.Message, r.whyNoRoom(ctx, p, example, i, -1))
		}
	}
	if len(none.Objects) == 0 {
		return nil
	}
	return none
}

// wouldRemove reports whether a pod that nothing holds would go in time: because eviction was asked for, or because it has no seat and runs outside
// the pools, so that its owner is to recreate it.
func wouldRemove(state *planner.State, plan *planner.Plan) bool {
	return slices.ContainsFunc(state.Pods, func(pod planner.Pod) bool {
		return pod.Held == "" && (state.Evict || pod.Seat.Pool < 0) && state.Misplaced(plan, &pod)
	})
}

// unready returns the first pod by name that is not ready, or "". The same pod is named each time.
func unready(state *planner.State) (name string) {
	for i := range state.Pods {
		if pod := &state.Pods[i]; !pod.Ready && (name == "" || pod.Name < name) {
			name = pod.Name
		}
	}
	return name
}

// fromPool names the pool of a pod's seat, or is "" where it has none.
func fromPool(p *policy.Policy, pod *planner.Pod) string {
	if pod.Seat.Pool < 0 {
		return ""
	}
	return p.Pool(pod.Seat.Pool).Name
}

// whyNoRoom says why nodes of a pool, or of a domain of it, take no pod such as this one, if they would take none when they are empty.
func (r *run) whyNoRoom(ctx context.Context, p *policy.Policy, pod *corev1.Pod, pool, domain int) string {
	selected := p.Nodes(pool, domain)
	nodes, err := r.Room.Nodes(ctx, selected)
	if err != nil || pod == nil {
		return ""
	}
	if len(nodes) == 0 {
		return "no node has its labels"
	}
	next := successor(pod, p, pool, domain, false)
	answer := nodefit.Judge(next, nodefit.Volumes{Unknown: len(podstatus.VolumeClaims(&pod.Spec)) > 0}, &nodefit.Cell{Set: selected, Nodes: nodes, Now: r.Clock.Now()})
	if answer.Verdict == nodefit.Never {
		return answer.Why
	}
	if nodefit.NodesOf(nodes) == nodefit.NodesCordoned {
		return "its nodes are cordoned"
	}
	return ""
}

// refusal is why the API server refused to evict a pod. It lists PodDisruptionBudgets, and is not asked otherwise.
func (r *run) refusal(ctx context.Context, pod *corev1.Pod, why error) *stowage.Hindrance {
	h := &stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: pod.Name}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.Uncached.List(ctx, &budgets, client.InNamespace(pod.Namespace), client.Limit(mostListed)); err != nil {
		r.Log.Error(err, "which PodDisruptionBudgets refuse an eviction is not known", "namespace", pod.Namespace, "pod", pod.Name)
	}
	for i := range budgets.Items {
		s, err := metav1.LabelSelectorAsSelector(budgets.Items[i].Spec.Selector)
		if err == nil && s.Matches(labels.Set(pod.Labels)) && len(h.Objects) < mostNamed {
			h.Objects = append(h.Objects, budgets.Items[i].Name)
		}
	}
	slices.Sort(h.Objects)
	two := len(h.Objects) > 1 && !apierrors.IsForbidden(why) // the API server evicts no such pod
	if one := len(h.Objects) == 1 && apierrors.HasStatusCause(why, policyv1.DisruptionBudgetCause); !one && !two {
		h.Objects, h.Message = nil, why.Error()
	}
	return h
}

// Hindrances implements [status.Progress]. Nothing is known outside of a term.
func (c *Controller) Hindrances(owner ledger.OwnerKey) []stowage.Hindrance {
	r := c.term.Load()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history[owner].hindrances(r.Time.Now())
}

// hindrances returns those of an owner that have lasted.
func (h *history) hindrances(now time.Time) (out []stowage.Hindrance) {
	if h == nil {
		return nil
	}
	for _, one := range []*stowage.Hindrance{h.hindrance, h.pinned, h.unwritten} {
		if one != nil {
			out = append(out, *one)
		}
	}
	if len(h.held) > 0 {
		out = append(out, stowage.Hindrance{Reason: stowage.HindrancePodHeld, Since: metav1.NewTime(h.heldSince.Truncate(time.Second)), Message: bounded.Text(sayHeld(slices.Collect(maps.Values(h.held))), mostForeign)})
	}
	return slices.DeleteFunc(out, func(h stowage.Hindrance) bool {
		return h.Reason != stowage.HindrancePinned && now.Sub(h.Since.Time) < hindersAfter // what a pod chooses does not change
	})
}

// tellHindrances stores the hindrances of workloads in their PoolStates, and takes away those that are over.
func (r *run) tellHindrances(ctx context.Context) {
	now := r.Time.Now()
	if r.Clock.Now().Before(r.unserved) {
		return
	}
	// 1. What there is, by workload.
	r.mu.Lock()
	by := map[ledger.Owner][]stowage.Hindrance{}
	for _, h := range r.history {
		if found := h.hindrances(now); len(found) > 0 {
			by[h.owner] = found
		}
	}
	r.mu.Unlock()
	is := map[world.Object][]stowage.Hindrance{}
	for owner, found := range by {
		if of, ok := r.workloadOf(ctx, owner); ok {
			is[of] = append(is[of], found...)
		}
	}
	// 2. What is stored.
	stored := map[types.UID]*stowage.PoolState{}
	var states stowage.PoolStateList
	if err := r.Cached.List(ctx, &states, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "PoolStates were not listed")
		return
	}
	for i := range states.Items {
		if state := &states.Items[i]; len(state.Status.Hindrances) > 0 {
			stored[types.UID(state.Name)] = state
		}
	}
	// 3. The difference. A namespace with many of them gets its share of the writes.
	for of, found := range is {
		slices.SortFunc(found, func(a, b stowage.Hindrance) int {
			return cmp.Or(cmp.Compare(a.Reason, b.Reason), slices.Compare(a.Objects, b.Objects), a.Since.Compare(b.Since.Time))
		})
		found = slices.CompactFunc(found, func(a, b stowage.Hindrance) bool { return sameHindrance(&a, &b) })
		was := stored[of.UID]
		delete(stored, of.UID)
		r.storeHindrances(ctx, of, was, found[:min(len(found), mostHindrances)])
	}
	r.takeAway(ctx, stored)
}

// takeAway takes away hindrances that are over. A leader whose term is young knows that only of the workloads that it has looked at closely.
func (r *run) takeAway(ctx context.Context, stored map[types.UID]*stowage.PoolState) {
	if len(stored) > 0 && r.Clock.Since(r.since) < inheritedFor {
		looked := r.lookedAtClosely(ctx)
		maps.DeleteFunc(stored, func(uid types.UID, _ *stowage.PoolState) bool { return !looked[uid] })
	}
	for _, state := range stored {
		if r.hindranceWrites.Take(state.Namespace, r.Clock.Now()) == 0 {
			r.patchHindrances(ctx, state.Namespace, state.Name, nil)
		}
	}
}

// lookedAtClosely returns the workloads of the owners that this leader has looked at closely.
func (r *run) lookedAtClosely(ctx context.Context) map[types.UID]bool {
	r.mu.Lock()
	var owners []ledger.Owner
	for _, h := range r.history {
		if h.closely {
			owners = append(owners, h.owner)
		}
	}
	r.mu.Unlock()
	out := map[types.UID]bool{}
	for _, owner := range owners {
		if of, ok := r.workloadOf(ctx, owner); ok {
			out[of.UID] = true
		}
	}
	return out
}

// workloadOf returns the workload that an owner of pods belongs to, and false where that is not known.
func (r *run) workloadOf(ctx context.Context, owner ledger.Owner) (world.Object, bool) {
	chain, err := world.Owners(ctx, r.World, owner.Namespace, seats.Ref(owner))
	top := chain.Top()
	if err != nil || top == nil {
		return world.Object{}, false
	}
	return world.Object{Namespace: owner.Namespace, Ref: top.Ref}, true
}

func sameHindrance(a, b *stowage.Hindrance) bool {
	return a.Reason == b.Reason && a.Message == b.Message && slices.Equal(a.Objects, b.Objects)
}

// storeHindrances stores the hindrances of a workload, if they differ from what is stored, or if that is old.
func (r *run) storeHindrances(ctx context.Context, of world.Object, was *stowage.PoolState, is []stowage.Hindrance) {
	if was != nil {
		same := equality.Semantic.DeepEqual(was.Status.Hindrances, is) && was.Status.ObservedBy == r.Replica
		if at := was.Status.ObservedAt; same && at != nil && r.Time.Since(at.Time) < confirmHindrances {
			return
		}
	}
	if r.hindranceWrites.Take(of.Namespace, r.Clock.Now()) > 0 {
		return // the next round goes on
	}
	name := string(of.UID)
	if state, err := r.World.PoolState(ctx, of.Namespace, of.UID); err != nil || state == nil {
		made := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: name, OwnerReferences: of.OwnerReferences()}}
		if err := r.Uncached.Create(ctx, made); err != nil && !apierrors.IsAlreadyExists(err) {
			r.Log.Error(err, "a PoolState was not created", of.LogKeys()...)
			return
		}
	}
	if !r.patchHindrances(ctx, of.Namespace, name, is) {
		return
	}
	for i := range is {
		if h := &is[i]; was == nil || !slices.ContainsFunc(was.Status.Hindrances, func(old stowage.Hindrance) bool { return sameHindrance(&old, h) }) {
			r.sayHindrance(of, h)
		}
	}
}

// patchHindrances writes the status of a PoolState. It returns false if that was not written.
func (r *run) patchHindrances(ctx context.Context, namespace, name string, is []stowage.Hindrance) bool {
	before := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	before.Status = stowage.PoolStateStatus{Hindrances: []stowage.Hindrance{{}}, ObservedAt: &metav1.Time{}, ObservedBy: "-"}
	after := before.DeepCopy()
	after.Status = stowage.PoolStateStatus{}
	if len(is) > 0 {
		at := metav1.NewTime(r.Time.Now().Truncate(time.Second))
		after.Status = stowage.PoolStateStatus{Hindrances: is, ObservedAt: &at, ObservedBy: r.Replica}
	}
	err := r.Uncached.Status().Patch(ctx, after, client.MergeFrom(before))
	switch {
	case err == nil:
		r.missing = 0
	case apierrors.IsNotFound(err) && len(is) > 0:
		if r.missing++; r.missing < mostMissing {
			return false // somebody has deleted the object
		}
		r.missing, r.unserved = 0, r.Clock.Now().Add(unservedFor)
		r.Log.Info("the API server does not store what keeps pods from moving. Apply the CustomResourceDefinition of PoolStates of this version")
	case apierrors.IsForbidden(err):
		r.unserved = r.Clock.Now().Add(unservedFor)
		r.Log.Error(err, "what keeps pods from moving is not stored; apply the ClusterRoles of this version", "namespace", namespace)
	case client.IgnoreNotFound(err) != nil:
		r.Log.Error(err, "what keeps pods from moving was not stored", "namespace", namespace, "poolState", name)
	}
	return err == nil
}

// sayHindrance publishes the event of a hindrance. Some have one of their own already.
func (r *run) sayHindrance(of world.Object, h *stowage.Hindrance) {
	reason, ok := map[stowage.HindranceReason]stowage.EventReason{
		stowage.HindranceEvictionRefused: stowage.EventEvictionRefused, stowage.HindranceNoRoom: stowage.EventNoRoomForRebalance,
		stowage.HindranceUpdateRefused: stowage.EventPodUpdateRefused,
	}[h.Reason]
	if ok {
		f := finding.OfHindrance(h)
		f.Namespace, f.Kind, f.Name = of.Namespace, of.Kind, of.Name
		r.Events.Warn(of.Reference(), reason, events.Repair, "%s", f.String())
	}
}
