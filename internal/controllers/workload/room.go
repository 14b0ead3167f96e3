package workload

import (
	"context"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/fit"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/repair"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// nodesTried is on how many nodes of a pool room is looked for at a time. The pods of each cost one request.
const nodesTried = 10

// roomFor looks for room for the successor of the pod that a plan removes. It returns false if the pod is to stay: no node
// of the pool has room, and no node autoscaler makes the nodes of that pool. Proven says that a node has room.
func (r *run) roomFor(ctx context.Context, p *policy.Policy, pods []corev1.Pod, state *repair.State, plan *repair.Plan) (ok, proven bool, err error) {
	if plan.To < 0 {
		return true, true, nil // the pod has no node to lose
	}
	nodes, err := r.nodesOf(ctx, p, plan.To)
	if err != nil {
		return false, false, err
	}
	index := max(plan.Recreate, plan.Evict)
	former := state.Pods[index].Foreign
	found, err := r.room(ctx, nodes, successor(&pods[index], p, plan.To, former))
	return found || autoscaled(nodes), found && !former, err
}

// autoscaled reports whether Karpenter makes the nodes of a pool.
func autoscaled(nodes []corev1.Node) bool {
	for i := range nodes {
		if nodes[i].Labels[sizing.NodePoolLabel] != "" {
			return true
		}
	}
	return false
}

// successor returns the pod that the owner of a pod creates in its place, with a seat in a pool.
func successor(pod *corev1.Pod, p *policy.Policy, pool int, former bool) *corev1.Pod {
	var tolerations []corev1.Toleration
	if pool < len(p.Tolerations) {
		tolerations = p.Tolerations[pool]
	}
	return fit.Successor(pod, p.Strategy, pool, tolerations, former)
}

// nodesOf returns the nodes of a pool. They are the cache's own.
func (r *run) nodesOf(ctx context.Context, p *policy.Policy, pool int) ([]corev1.Node, error) {
	var nodes corev1.NodeList
	err := r.Client.List(ctx, &nodes, client.MatchingLabels(p.Strategy.Pool(pool).Labels), client.UnsafeDisableDeepCopy)
	return nodes.Items, err
}

// room reports whether one of some nodes has room for a pod beside those that run on it now.
func (r *run) room(ctx context.Context, nodes []corev1.Node, pod *corev1.Pod) (bool, error) {
	tried := 0
	for _, i := range rand.Perm(len(nodes)) { // so that full nodes do not hide the others every time
		node := &nodes[i]
		if !fit.Allows(node, pod) || fit.Count(node, nil, pod) == 0 {
			continue
		}
		if tried++; tried > nodesTried {
			break
		}
		// The watch cache may be behind, so a node that seems to have room is looked at once more.
		count := int64(1)
		for _, cached := range []bool{true, false} {
			if count == 0 {
				break
			}
			running, err := cluster.PodsOn(ctx, r.Live, node.Name, cached)
			if err != nil {
				return false, err
			}
			count = fit.Count(node, running, pod)
		}
		if count > 0 {
			return true, nil
		}
	}
	return false, nil
}

// available reports for each pool whether it has a node that takes pods such as those of the workload, if it is empty.
func (r *run) available(ctx context.Context, p *policy.Policy, pods []corev1.Pod, views []repair.Pod) ([]bool, error) {
	out := make([]bool, p.Strategy.Len())
	if len(pods) == 0 {
		return out, nil
	}
	example := max(0, slices.IndexFunc(views, func(v repair.Pod) bool { return !v.Foreign }))
	for i := range out {
		nodes, err := r.nodesOf(ctx, p, i)
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
