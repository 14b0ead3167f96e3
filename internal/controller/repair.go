package controller

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/stowage-dev/stowage/internal/podpatch"
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
	if s.moving(owner.UID) {
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
	if p == nil || p.Err != nil {
		s.Metrics.gone(owner)
		return 0, nil
	}

	// 2. What the cache knows is enough where all is well.
	records := liveRecords(s.Ledger.Pods().Of(owner.UID))
	if w != nil && w.Replicas >= 0 {
		if int64(len(records)) == w.Replicas && w.Current == w.Replicas {
			if plan := repair.Make(fromRecords(p, records, w.Replicas)); plan.Balanced() && len(plan.Renumber) == 0 {
				s.Metrics.observe(owner, &plan)
				return 0, nil
			}
		}
		if w.Current != w.Replicas {
			return 0, nil // it is not settled; the change that settles it brings us back
		}
	}

	// 3. Otherwise look closely.
	state, pods, err := s.look(ctx, owner, p)
	if err != nil || state == nil {
		return 0, err
	}
	plan := repair.Make(*state)
	s.Metrics.observe(owner, &plan)
	return s.carryOut(ctx, owner, p, pods, state, &plan)
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
	records := s.Ledger.Pods().Of(owner.UID)
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
		state.Pods = append(state.Pods, pod)
	}
	return state
}

// place fills in a pod's seat. A seat in a pool that the strategy does not have any more
// is none.
func place(pod *repair.Pod, p *policy.Policy, seat ledger.Seat, kind ledger.Kind, cost string) {
	pool, ok := p.Pool(seat.Pool)
	if !ok {
		pod.Seat.Pool = -1
		return
	}
	pod.Seat = spread.Seat{Pool: pool, Ordinal: seat.Ordinal}
	pod.Claimed = kind == ledger.KindClaimed || kind == ledger.KindUnshared
	pod.Fixed = kind == ledger.KindOrdinal
	pod.Rank = rankOf(cost)
}

// maxOwnRank is the highest rank whose deletion cost is taken for ours.
const maxOwnRank = 10_000_000

// rankOf returns the rank that a deletion cost stands for, or 0 if the cost is not ours.
func rankOf(cost string) int64 {
	n, err := strconv.ParseInt(cost, 10, 64)
	if rank := math.MaxInt32 - n; err == nil && rank > 0 && rank <= maxOwnRank {
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
	}
	nodes := map[string]*corev1.Node{}
	var called func(*corev1.Pod) bool
	var pods []corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		c := metav1.GetControllerOfNoCopy(pod)
		if c == nil || c.UID != owner.UID || !ledger.Live(pod) {
			continue
		}
		view := repair.Pod{Name: pod.Name, Created: pod.CreationTimestamp.Time, Ready: ledger.Ready(pod), NodePool: repair.NoNode, Ours: true}
		view.Seat.Pool = -1
		if seat, kind, _, ok := ledger.SeatOf(s.Ledger.Pods().Key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
			place(&view, p, seat, kind, pod.Annotations[corev1.PodDeletionCost])
		}
		if view.Seat.Pool < 0 {
			if called == nil {
				if called, err = s.called(ctx, owner.Namespace); err != nil {
					return nil, nil, err
				}
			}
			if view.Ours, err = s.ours(ctx, p, pod, called); err != nil {
				return nil, nil, err
			}
			if view.NodePool, err = s.nodePool(ctx, p, pod, nodes); err != nil {
				return nil, nil, err
			}
		}
		state.Pods, pods = append(state.Pods, view), append(pods, *pod)
	}
	state.Settled = state.Settled && int64(len(pods)) == scale.Replicas
	if state.Evict && state.Settled {
		if state.RollingOut, err = s.rollingOut(ctx, owner); err != nil {
			return nil, nil, err
		}
		if state.Available, err = s.available(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	return state, pods, nil
}

// ours reports whether a pod without a seat should have come through us: it is in the
// registration's selectors, and chooses its nodes neither by name nor by a pool's labels.
func (s *Spread) ours(ctx context.Context, p *policy.Policy, pod *corev1.Pod, called func(*corev1.Pod) bool) (bool, error) {
	if !called(pod) {
		return false, nil
	}
	created := pod.DeepCopy()
	created.Spec.NodeName = "" // the scheduler's, unless the pod was created with it: then no later pod of its owner has a seat
	data, err := json.Marshal(created)
	if err != nil {
		return false, err
	}
	view, err := podpatch.Decode(data)
	if err != nil {
		return false, err
	}
	_, pinned := admission.Pinned(view, p.Strategy)
	return !pinned && s.Pipeline.Enforces(ctx, pod.Namespace, view), nil
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
		return ns != nil && slices.ContainsFunc(reg.Webhooks, func(h admissionregistrationv1.MutatingWebhook) bool {
			return selects(h.NamespaceSelector, ns.Labels) && selects(h.ObjectSelector, pod.Labels)
		})
	}, nil
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
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

// carryOut does what a plan says, and returns when to look again if that is not when
// something changes.
func (s *Spread) carryOut(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *repair.State, plan *repair.Plan) (time.Duration, error) {
	for _, m := range plan.Adopt {
		if err := s.seat(ctx, owner, p, &pods[m.Pod], m, repairAdopt); err != nil {
			return 0, err
		}
	}
	if n := len(plan.Adopt); n > 0 {
		s.event(owner, ReasonAdopted, "%d pod(s) came without a seat, because the webhook was not reached, and were given those of the pools they run in", n)
	}
	for _, m := range plan.Renumber {
		if err := s.seat(ctx, owner, p, &pods[m.Pod], m, repairRenumber); err != nil {
			return 0, err
		}
	}
	victim, action := plan.Recreate, repairRecreate
	if victim < 0 {
		victim, action = plan.Evict, repairEvict
	}
	if victim < 0 {
		return 0, nil
	}
	h, now := s.historyOf(owner.UID), s.Clock.Now()
	if ok, wait := h.mayRemove(now, plan.Distance(), &s.Timing); !ok {
		return wait, nil
	}
	pod := &pods[victim]
	err := s.Live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case apierrors.IsTooManyRequests(err):
		return s.Timing.Backoff, nil // a PodDisruptionBudget forbids it now
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return s.Timing.Quiet, nil
	case err != nil:
		return 0, err
	}
	h.remove(now, plan.Distance())
	s.Metrics.repairs.WithLabelValues(action).Inc()
	s.Log.Info("pod removed, so that its owner makes it anew", "owner", owner, "pod", pod.Name, "action", action, "distance", plan.Distance())
	if action == repairRecreate {
		s.event(owner, ReasonRecreated, "pod %s came without a seat and runs in no pool; it was evicted, so that its owner makes it anew", pod.Name)
	} else {
		pool := p.Strategy.Pool(state.Pods[victim].Seat.Pool).Name
		s.event(owner, ReasonRebalanced, "pool %s has too many pods; %s was evicted, so that another pool gets it", pool, pod.Name)
	}
	return s.Timing.Cooldown, nil
}

// seat writes a seat into a pod that exists.
func (s *Spread) seat(ctx context.Context, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, m repair.Move, action string) error {
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
	if cost, set := pod.Annotations[corev1.PodDeletionCost]; (!set || rankOf(cost) != 0) && owner.Kind != "StatefulSet" {
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

func (m *Metrics) observe(owner ledger.Owner, plan *repair.Plan) {
	if d := plan.Distance(); d > 0 {
		m.distance.WithLabelValues(owner.Namespace, owner.Kind, owner.Name).Set(float64(d))
		return
	}
	m.gone(owner)
}

func (m *Metrics) gone(owner ledger.Owner) {
	m.distance.DeleteLabelValues(owner.Namespace, owner.Kind, owner.Name)
}
