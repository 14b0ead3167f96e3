package workload

import (
	"context"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/fit"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/repair"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// nodesTried is on how many nodes of a pool room is looked for at a time. The pods of each cost one request.
const nodesTried = 10

// plan returns the plan for a workload. A pod that has a node is removed only if a node of the pool that gets its
// successor has room, which proven reports, or if a node autoscaler makes the nodes of that pool.
func (r *run) plan(ctx context.Context, p *policy.Policy, pods []corev1.Pod, state *repair.State) (plan repair.Plan, proven bool, err error) {
	for {
		plan = repair.Make(*state)
		index := max(plan.Recreate, plan.Evict)
		if index < 0 || plan.To < 0 || len(plan.Adopt) > 0 || len(plan.Renumber) > 0 {
			return plan, false, nil // no running pod is removed
		}
		nodes, err := r.nodesOf(ctx, p, plan.To)
		if err != nil {
			return plan, false, err
		}
		if proven, err = r.room(ctx, nodes, successor(&pods[index], p, plan.To)); proven || err != nil {
			return plan, proven, err
		}
		if autoscaled(nodes) {
			return plan, false, nil
		}
		state.Available[plan.To] = false
	}
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
func successor(pod *corev1.Pod, p *policy.Policy, pool int) *corev1.Pod {
	var tolerations []corev1.Toleration
	if pool < len(p.Tolerations) {
		tolerations = p.Tolerations[pool]
	}
	return fit.Successor(pod, p.Strategy, pool, tolerations)
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
		var running corev1.PodList
		if err := r.Live.List(ctx, &running, client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("spec.nodeName", node.Name)}); err != nil {
			return false, err
		}
		if fit.Count(node, running.Items, pod) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// available reports for each pool whether it has a node that takes pods such as those of the workload, if it is empty.
func (r *run) available(ctx context.Context, p *policy.Policy, pods []corev1.Pod) ([]bool, error) {
	out := make([]bool, p.Strategy.Len())
	if len(pods) == 0 {
		return out, nil
	}
	for i := range out {
		nodes, err := r.nodesOf(ctx, p, i)
		if err != nil {
			return nil, err
		}
		pod := successor(&pods[0], p, i)
		for j := range nodes {
			if fit.Allows(&nodes[j], pod) && fit.Count(&nodes[j], nil, pod) > 0 {
				out[i] = true
				break
			}
		}
	}
	return out, nil
}
