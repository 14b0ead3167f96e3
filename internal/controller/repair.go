package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/repair"
	"github.com/stowage-dev/stowage/internal/spread"
)

// The reasons of the controller's events.
const (
	ReasonAdopted    = "PodsAdopted"
	ReasonRecreated  = "PodRecreated"
	ReasonRebalanced = "PodEvicted"
)

// repair looks at one workload and does what its plan says.
func (s *Spread) repair(ctx context.Context, owner ledger.Owner) (time.Duration, error) {
	// 1. Has it a strategy, and is it quiet?
	if s.moving(owner.Key()) {
		return s.Timing.Quiet, nil
	}
	w, err := s.Cluster.Workload(ctx, owner.Namespace, refOf(owner))
	if err != nil {
		return 0, err
	}
	p, err := s.policyOf(ctx, owner, w)
	if err != nil {
		return 0, err
	}
	if p == nil || p.Strategy == nil {
		s.report(owner, 0)
		return 0, nil
	}

	// 2. What the cache knows is enough where all is well, and where a close look has
	// found nothing to do.
	records := liveRecords(s.Ledger.Pods().Of(owner.Key()))
	shown := shownOf(p, records)
	if w != nil && w.Replicas >= 0 {
		if w.Current != w.Replicas {
			return 0, nil // it is not settled; the change that settles it brings us back
		}
		if int64(len(records)) == w.Replicas {
			if plan := repair.Make(fromRecords(p, records, w.Replicas)); plan.Balanced() && len(plan.Renumber) == 0 {
				s.report(owner, 0)
				return 0, nil
			}
		}
		shown += fmt.Sprint(w.Replicas)
	}
	if p.Repair == stowage.RepairOff {
		if w != nil && w.Replicas >= 0 {
			plan := repair.Make(fromRecords(p, records, w.Replicas))
			missing := min(w.Replicas, p.Strategy.Capacity()) - int64(len(records))
			s.report(owner, plan.Distance()+max(0, missing))
		}
		return 0, nil
	}
	if s.skip(owner.Key(), shown) {
		return 0, nil
	}

	// 3. Otherwise look closely.
	state, pods, err := s.look(ctx, owner, p)
	if err != nil {
		return 0, err
	}
	if state == nil { // what says so is not in what the cache shows
		s.report(owner, 0)
		return 0, nil
	}
	plan := repair.Make(*state)
	s.report(owner, plan.Distance())
	if len(plan.Adopt) == 0 && len(plan.Renumber) == 0 && plan.Recreate < 0 && plan.Evict < 0 {
		// Pods without a seat, and evictions, depend on more than the cache shows.
		if state.Settled && plan.Unseated == 0 && !p.Evict {
			s.foundNothing(owner.Key(), shown)
		}
		return 0, nil
	}
	return s.carryOut(ctx, owner, p, pods, state, &plan)
}

// shownOf sums up what the cache shows of a workload: its policy and its pods.
func shownOf(p *policy.Policy, records []ledger.Record) string {
	h := fnv.New64a()
	var sum uint64
	for i := range records {
		h.Reset()
		_, _ = fmt.Fprint(h, records[i].UID, records[i].Seat, records[i].Ready, records[i].Cost)
		sum += h.Sum64() // in any order
	}
	return fmt.Sprintf("%p %t %s %d %x ", p.Strategy, p.Evict, p.Repair, len(records), sum)
}

func ownerOf(w *cluster.Workload) ledger.Owner {
	return ledger.Owner{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, UID: w.UID}
}

func refOf(o ledger.Owner) cluster.Ref {
	return cluster.Ref{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}
}

// policyOf finds the policy of an owner, by its template where that is known and
// otherwise by one of its pods.
func (s *Spread) policyOf(ctx context.Context, owner ledger.Owner, w *cluster.Workload) (*policy.Policy, error) {
	pod := policy.Pod{Namespace: owner.Namespace, Owner: refOf(owner)}
	if w != nil {
		pod.Annotations = w.TemplateAnnotations
	}
	p, err := s.Policies.Find(ctx, pod)
	if p != nil || err != nil || w != nil && w.Replicas >= 0 {
		return p, err
	}
	records := liveRecords(s.Ledger.Pods().Of(owner.Key()))
	if len(records) == 0 {
		return nil, nil
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := s.Live.Get(ctx, client.ObjectKey{Namespace: records[0].Namespace, Name: records[0].Name}, m); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	pod.Annotations = m.Annotations
	return s.Policies.Find(ctx, pod)
}

func liveRecords(records []ledger.Record) []ledger.Record {
	return slices.DeleteFunc(records, func(r ledger.Record) bool { return !r.Live })
}

// fromRecords is a workload whose pods all have a seat.
func fromRecords(p *policy.Policy, records []ledger.Record, replicas int64) repair.State {
	state := repair.State{Strategy: p.Strategy, Replicas: replicas, Settled: true, Mode: p.Repair}
	for i := range records {
		r := &records[i]
		pod := repair.Pod{Name: r.Name, Created: time.Unix(r.Created, 0), Ready: r.Ready, Ours: true, NodePool: repair.NoNode}
		place(&pod, p, r.Seat, r.Kind, r.Cost)
		if r.Kind == ledger.KindOrdinal {
			pod.OwnRank, _ = p.Strategy.Rank(pod.Seat) // that it is right is looked at closely
		}
		state.Pods = append(state.Pods, pod)
	}
	return state
}

// place fills in a pod's seat. A seat in a pool that the strategy does not have any more
// is none.
func place(pod *repair.Pod, p *policy.Policy, seat ledger.Seat, kind ledger.Kind, cost string) {
	pool, ok := p.Pool(seat.Pool)
	if !ok {
		pod.Seat.Pool, pod.Foreign = -1, true
		return
	}
	pod.Seat = spread.Seat{Pool: pool, Ordinal: seat.Ordinal}
	pod.Claimed = kind == ledger.KindClaimed || kind == ledger.KindUnshared || kind == ledger.KindOrdinal
	pod.Rank = rankOf(cost)
}

// rankOf returns the rank that a deletion cost stands for, or 0 if the cost is not ours.
func rankOf(cost string) int64 {
	n, err := strconv.ParseInt(cost, 10, 64)
	if rank := math.MaxInt32 - n; err == nil && rank > 0 && rank <= repair.NoRank {
		return rank
	}
	return 0
}

// look reads the pods of a workload, with those that have no seat. It returns nil if the
// workload moves or is not ours to repair.
func (s *Spread) look(ctx context.Context, owner ledger.Owner, p *policy.Policy) (*repair.State, []corev1.Pod, error) {
	scale, err := s.Ledger.Scale(ctx, owner)
	if err != nil || scale == nil || scale.Selector == "" {
		return nil, nil, err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil {
		return nil, nil, err
	}
	var list corev1.PodList
	if err := s.Live.List(ctx, &list, client.InNamespace(owner.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, nil, err
	}
	state := &repair.State{
		Strategy: p.Strategy, Replicas: scale.Replicas, Mode: p.Repair, Evict: p.Evict, Settled: scale.Current == scale.Replicas,
		Keep: owner.Kind == "Job",
	}
	called, err := s.called(ctx, owner.Namespace)
	if err != nil {
		return nil, nil, err
	}
	nodes := map[string]*corev1.Node{}
	var pods []corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		c := metav1.GetControllerOfNoCopy(pod)
		if c == nil || c.UID != owner.UID || !ledger.Live(pod) {
			continue
		}
		created, err := admission.AsCreated(pod, p.Strategy)
		if err != nil {
			return nil, nil, err
		}
		if !called(pod) || !s.Pipeline.Enforces(ctx, pod.Namespace, created) {
			return nil, nil, nil // nobody wants us to touch this workload
		}
		view := repair.Pod{Name: pod.Name, Created: pod.CreationTimestamp.Time, Ready: ledger.Ready(pod), NodePool: repair.NoNode, Ours: true}
		view.Seat.Pool = -1
		if rank, ok := admission.OwnRank(created, owner, p.FirstOrdinal); ok {
			view.OwnRank = rank
		}
		if seat, kind, _, ok := ledger.SeatOf(s.Ledger.Pods().Key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
			place(&view, p, seat, kind, pod.Annotations[corev1.PodDeletionCost])
		}
		if view.Seat.Pool < 0 {
			_, pinned := admission.Pinned(created, p.Strategy)
			view.Ours = !pinned
			if view.NodePool, err = s.nodePool(ctx, p, pod, nodes); err != nil {
				return nil, nil, err
			}
		}
		state.Pods, pods = append(state.Pods, view), append(pods, *pod)
	}
	state.Settled = state.Settled && int64(len(pods)) == scale.Replicas
	if state.RollingOut, err = s.rollingOut(ctx, owner); err != nil {
		return nil, nil, err
	}
	if state.Available, err = s.available(ctx, p); err != nil {
		return nil, nil, err
	}
	return state, pods, nil
}

// called returns whether the API server calls our webhook for a pod, as far as the live
// registration's selectors say so.
func (s *Spread) called(ctx context.Context, namespace string) (func(*corev1.Pod) bool, error) {
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	if err := s.Live.Get(ctx, client.ObjectKey{Name: s.Registration}, &reg); err != nil {
		if apierrors.IsNotFound(err) {
			return func(*corev1.Pod) bool { return false }, nil
		}
		return nil, err
	}
	ns, err := s.Cluster.Namespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return func(pod *corev1.Pod) bool {
		return ns != nil && admission.Called(&reg, ns.Labels, pod.Labels)
	}, nil
}

// nodePool returns the pool that a pod's node is in.
func (s *Spread) nodePool(ctx context.Context, p *policy.Policy, pod *corev1.Pod, nodes map[string]*corev1.Node) (int, error) {
	name := pod.Spec.NodeName
	if name == "" {
		return repair.NoNode, nil
	}
	node, ok := nodes[name]
	if !ok {
		node = &corev1.Node{}
		if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			if !apierrors.IsNotFound(err) {
				return 0, err
			}
			node = &corev1.Node{}
		}
		nodes[name] = node
	}
	for i := range p.Strategy.Len() {
		if labels.SelectorFromSet(p.Strategy.Pool(i).Labels).Matches(labels.Set(node.Labels)) {
			return i, nil
		}
	}
	return repair.OtherNode, nil
}

// rollingOut reports whether another revision of what made the owner has pods.
func (s *Spread) rollingOut(ctx context.Context, owner ledger.Owner) (bool, error) {
	w, err := s.Cluster.Workload(ctx, owner.Namespace, refOf(owner))
	if err != nil || w == nil || w.Controller == nil {
		return false, err
	}
	makers, err := s.Cluster.Makers(ctx, owner.Namespace)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(makers, func(m *cluster.Workload) bool {
		return m.UID != owner.UID && m.Controller != nil && m.Controller.UID == w.Controller.UID && (m.Replicas > 0 || m.Current > 0)
	}), nil
}

// available returns of each pool whether it has a node that takes pods.
func (s *Spread) available(ctx context.Context, p *policy.Policy) ([]bool, error) {
	out := make([]bool, p.Strategy.Len())
	for i := range out {
		var nodes corev1.NodeList
		if err := s.Client.List(ctx, &nodes, client.MatchingLabels(p.Strategy.Pool(i).Labels), client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
		out[i] = slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
			return !n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
		})
	}
	return out, nil
}

// maxMoves is how many pods are given seats before the workload is looked at again.
const maxMoves = 50

// carryOut does what a plan says, and returns when to look again if that is not when
// something changes.
func (s *Spread) carryOut(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *repair.State, plan *repair.Plan) (time.Duration, error) {
	moves, action := plan.Adopt, repairAdopt
	if len(moves) == 0 {
		moves, action = plan.Renumber, repairRenumber
	}
	if len(moves) > 0 {
		for _, m := range moves[:min(len(moves), maxMoves)] {
			if err := s.seat(ctx, owner, p, &pods[m.Pod], m, action, state.Pods[m.Pod].OwnRank == 0); err != nil {
				return 0, err
			}
		}
		if action == repairAdopt {
			s.event(owner, ReasonAdopted, "%d pod(s) came without a seat, because the webhook was not reached, and are given those of the pools they run in", len(moves))
		}
		return s.Timing.Quiet, nil // and nothing else before that is seen
	}
	victim, action := plan.Recreate, repairRecreate
	if victim < 0 {
		victim, action = plan.Evict, repairEvict
	}
	claimed := map[types.UID]bool{}
	for i := range state.Pods {
		if state.Pods[i].Claimed {
			claimed[pods[i].UID] = true
		}
	}
	if ok, wait := s.mayRemove(owner.Key(), plan.Distance(), claimed); !ok {
		return wait, nil
	}
	pod := &pods[victim]
	err := s.Live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case apierrors.IsTooManyRequests(err):
		return s.refused(owner.Key()), nil // a PodDisruptionBudget forbids it now
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return s.Timing.Quiet, nil
	case err != nil:
		return 0, err
	}
	s.removed(owner.Key(), plan.Distance(), claimed)
	s.Metrics.repairs.WithLabelValues(action).Inc()
	s.Log.Info("pod removed, so that its owner makes it anew", "owner", owner, "pod", pod.Name, "action", action, "distance", plan.Distance())
	if action == repairRecreate {
		s.event(owner, ReasonRecreated, "pod %s came without a seat and runs in no pool; it was evicted, so that its owner makes it anew", pod.Name)
	} else {
		s.event(owner, ReasonRebalanced, "its pool has too many pods, so %s was evicted and another pool gets one", pod.Name)
	}
	return s.Timing.Cooldown, nil
}

// seat writes a seat into a pod that exists, with its deletion cost unless the pod is
// removed by an ordinal of its own.
func (s *Spread) seat(ctx context.Context, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, m repair.Move, action string, withCost bool) error {
	if err := s.Writes.Wait(ctx); err != nil {
		return err
	}
	key := s.Ledger.Pods().Key
	seat := ledger.Seat{Pool: p.Strategy.Pool(m.Seat.Pool).Name, Ordinal: m.Seat.Ordinal}
	kind, id := ledger.KindAdopted, ""
	if _, k, i, ok := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
		kind, id = k, i // it stays who it is
	}
	annotations := map[string]string{
		stowage.ClaimAnnotation: key.Sign(kind, id, ledger.Holder{Namespace: pod.Namespace, Owner: string(owner.UID)}, seat),
	}
	if cost, set := pod.Annotations[corev1.PodDeletionCost]; withCost && (!set || rankOf(cost) != 0) {
		annotations[corev1.PodDeletionCost] = admission.DeletionCost(m.Rank)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pod.ResourceVersion, // nothing is known of a pod that has changed since
		"labels":          map[string]string{stowage.PoolLabel: seat.Pool, stowage.SeatLabel: strconv.FormatInt(seat.Ordinal, 10)},
		"annotations":     annotations,
	}})
	if err != nil {
		return err
	}
	err = s.Live.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change brings us back
	}
	if err != nil {
		return fmt.Errorf("give pod %s/%s a seat: %w", pod.Namespace, pod.Name, err)
	}
	s.Metrics.repairs.WithLabelValues(action).Inc()
	return nil
}

func (s *Spread) event(owner ledger.Owner, reason, format string, args ...any) {
	about := &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}
	s.Events.Eventf(about, nil, corev1.EventTypeNormal, reason, "Repair", format, args...)
}

func (m *Metrics) gone(owner ledger.Owner) {
	m.distance.DeleteLabelValues(owner.Namespace, owner.Kind, owner.Name)
}
