package workload

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/fit"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/repair"
	"github.com/stowage-dev/stowage/internal/room"
)

// roomFor looks for room for the successor of the pod that a plan removes. It returns false if the pod is to stay.
// Then no node of the pool has room, and no node autoscaler makes the nodes of that pool. The only pod of a workload
// goes only into room that a node has. Proven says that a node has room.
func (r *run) roomFor(ctx context.Context, p *policy.Policy, pods []corev1.Pod, state *repair.State, plan *repair.Plan) (ok, proven bool, err error) {
	if plan.To < 0 {
		return true, true, nil // the pod has no node to lose
	}
	nodes, err := r.Room.Nodes(ctx, p.Strategy.Pool(plan.To).Labels)
	if err != nil {
		return false, false, err
	}
	index := max(plan.Recreate, plan.Evict)
	former := state.Pods[index].Foreign
	count, err := r.Room.Count(ctx, nodes, successor(&pods[index], p, plan.To, former), 1)
	found := count > 0
	return found || room.Autoscaled(nodes) && state.Replicas > 1, found && !former, err
}

// successor returns the pod that the owner of a pod creates in its place, with a seat in a pool.
func successor(pod *corev1.Pod, p *policy.Policy, pool int, former bool) *corev1.Pod {
	return fit.Successor(pod, p.Strategy, pool, p.TolerationsOf(pool), former)
}

// available reports for each pool whether it has a node that takes pods such as those of the workload, if it is empty.
func (r *run) available(ctx context.Context, p *policy.Policy, pods []corev1.Pod, views []repair.Pod) ([]bool, error) {
	out := make([]bool, p.Strategy.Len())
	if len(pods) == 0 {
		return out, nil
	}
	example := max(0, slices.IndexFunc(views, func(v repair.Pod) bool { return !v.Foreign }))
	for i := range out {
		nodes, err := r.Room.Nodes(ctx, p.Strategy.Pool(i).Labels)
		if err != nil {
			return nil, err
		}
		pod := successor(&pods[example], p, i, views[example].Foreign)
		for j := range nodes {
			if fit.Allows(&nodes[j], pod) && fit.Count(&nodes[j], nil, pod) > 0 {
				out[i] = true
				break
			}
		}
	}
	return out, nil
}
