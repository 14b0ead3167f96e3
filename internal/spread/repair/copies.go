package repair

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
)

// dropCopies has pods count as ones without a seat that have the claim of an older pod of their owner: somebody copied it into them. A claim
// proves the owner and the seat, and is for one pod. The pods are those of a state, in its order.
func (r *run) dropCopies(ctx context.Context, p *policy.Policy, state *planner.State, pods []corev1.Pod, nodes map[string]*corev1.Node) error {
	first := map[string]int{}
	for i := range pods {
		id := ledger.BaseID(ledger.UnverifiedID(pods[i].Annotations[stowage.ClaimAnnotation]))
		if id == "" || state.Pods[i].Seat.Pool < 0 {
			continue
		}
		copied, known := first[id]
		if !known || state.Pods[i].Created.Before(state.Pods[copied].Created) {
			first[id] = i
		} else {
			copied = i
		}
		if !known {
			continue
		}
		view := &state.Pods[copied]
		view.Seat.Pool, view.Claimed, view.Rank = -1, false, 0
		delete(pods[copied].Annotations, stowage.ClaimAnnotation)
		var err error
		if view.NodePool, view.NodeDomain, err = r.nodePool(ctx, p, &pods[copied], nodes); err != nil {
			return err
		}
	}
	return nil
}
