package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/events"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/placement"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/repair"
)

// maxMoves is how many pods are given seats before the workload is looked at again.
const maxMoves = 50

// carryOut does what a plan says, and returns when to look again if that is not when
// something changes.
func (r *run) carryOut(ctx context.Context, owner ledger.Owner, p *policy.Policy, pods []corev1.Pod, state *repair.State, plan *repair.Plan) (reconcile.Result, error) {
	moves, action := plan.Adopt, repairAdopt
	if len(moves) == 0 {
		moves, action = plan.Renumber, repairRenumber
	}
	if len(moves) > 0 {
		for _, m := range moves[:min(len(moves), maxMoves)] {
			if err := r.seat(ctx, owner, p, &pods[m.Pod], m, action, state.Pods[m.Pod].OwnRank == 0); err != nil {
				return reconcile.Result{}, err
			}
		}
		if action == repairAdopt {
			r.event(owner, stowage.EventPodsAdopted, "%d pod(s) came without a seat, because the webhook was not reached, and are given those of the pools they run in", len(moves))
		}
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, nil // and nothing else before that is seen
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
	if ok, wait := r.mayRemove(owner.Key(), plan.Distance(), claimed); !ok {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pod := &pods[victim]
	err := r.Live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case apierrors.IsTooManyRequests(err):
		return reconcile.Result{RequeueAfter: r.refused(owner.Key())}, nil // a PodDisruptionBudget forbids it now
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: r.Timing.Quiet}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	r.removed(owner.Key(), plan.Distance(), claimed)
	r.Metrics.repairs.WithLabelValues(action).Inc()
	r.Log.Info("pod removed, so that its owner makes it anew", "owner", owner, "pod", pod.Name, "action", action, "distance", plan.Distance())
	if action == repairRecreate {
		r.event(owner, stowage.EventPodRecreated, "pod %s came without a seat and runs in no pool; it was evicted, so that its owner makes it anew", pod.Name)
	} else {
		r.event(owner, stowage.EventPodEvicted, "its pool has too many pods, so %s was evicted and another pool gets one", pod.Name)
	}
	return reconcile.Result{RequeueAfter: r.Timing.Cooldown}, nil
}

// seat writes a seat into a pod that exists, with its deletion cost unless the pod is
// removed by an ordinal of its own.
func (r *run) seat(ctx context.Context, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, m repair.Move, action string, withCost bool) error {
	if err := r.Writes.Wait(ctx); err != nil {
		return err
	}
	key := r.Seats.Pods().Key
	seat := ledger.Seat{Pool: p.Strategy.Pool(m.Seat.Pool).Name, Ordinal: m.Seat.Ordinal}
	kind, id := ledger.KindAdopted, ""
	if _, k, i, ok := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
		kind, id = k, i // it stays who it is
	}
	annotations := map[string]string{
		stowage.ClaimAnnotation: key.Sign(kind, id, ledger.Holder{Namespace: pod.Namespace, Owner: string(owner.UID)}, seat),
	}
	if cost, set := pod.Annotations[corev1.PodDeletionCost]; withCost && (!set || placement.RankOf(cost, repair.NoRank) != 0) {
		annotations[corev1.PodDeletionCost] = placement.DeletionCost(m.Rank)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pod.ResourceVersion, // nothing is known of a pod that has changed since
		"labels":          map[string]string{stowage.PoolLabel: seat.Pool, stowage.SeatLabel: strconv.FormatInt(seat.Ordinal, 10)},
		"annotations":     annotations,
	}})
	if err != nil {
		return err
	}
	err = r.Live.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change brings us back
	}
	if err != nil {
		return fmt.Errorf("give pod %s/%s a seat: %w", pod.Namespace, pod.Name, err)
	}
	r.Metrics.repairs.WithLabelValues(action).Inc()
	return nil
}

func (r *run) event(owner ledger.Owner, reason stowage.EventReason, format string, args ...any) {
	about := &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}
	r.Events.Normal(about, reason, events.Repair, format, args...)
}
