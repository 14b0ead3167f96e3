package repair

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
)

// room is what was found of the room for the successor of a pod.
type room struct {
	ok     bool   // the pod may go
	proven bool   // a node has room
	held   string // why the pod stays, if its volume holds it
}

// roomFor looks for room for the successor of the pod that a plan removes. The pod is to stay where no node of the pool has room, and no node
// autoscaler makes the nodes of that pool. The only pod of a workload goes only into room that a node has.
func (r *run) roomFor(ctx context.Context, owner ledger.Owner, p *policy.Policy, pod *corev1.Pod, state *planner.State, plan *planner.Plan) (room, error) {
	removal := plan.Remove
	if !removal.NeedsRoom {
		return room{ok: true, proven: true}, nil // the pod has no node to lose
	}
	// 1. Where do its volumes let it go?
	volumes, held, err := r.volumesOf(ctx, pod)
	if err == nil && held == "" {
		b := policy.BoundPod(pod)
		b.Siblings = func() []observed.Pod { return r.Seats.Pods().Of(owner.Key()) }
		held, err = r.redirect(ctx, p, b, state, plan, volumes)
	}
	if err != nil || held != "" {
		return room{held: held}, err
	}
	selected := p.Nodes(removal.To, removal.Domain)
	nodes, err := r.Room.Nodes(ctx, selected)
	if err != nil {
		return room{}, err
	}
	former := state.Pods[removal.Pod].Foreign
	next := successor(pod, p, removal.To, removal.Domain, former)
	if held := boundTo(next, volumes, nodes, placeOf(p, removal)); held != "" {
		return room{held: held}, nil
	}

	// 2. Is there room? A node that somebody makes may be where the volume cannot be.
	counted, made := nodefit.Counted(next), len(volumes) == 0 && karpenter.Made(nodes) && state.Replicas > 1
	if !counted && !removal.BeforePolicy {
		return room{ok: made && !state.Short[removal.To]}, nil // it is in use, and its size alone proves no room
	}
	count, err := r.Room.Count(ctx, selected, next, 1)
	found := count > 0
	if err != nil || !found && !made {
		return room{}, err
	}
	held, err = r.sharedVolume(ctx, pod)
	return room{ok: held == "" && err == nil, proven: found && counted && !former, held: held}, err
}

// boundTo has a successor ask for nodes that reach its volumes. It returns why none of the nodes of a place does.
func boundTo(next *corev1.Pod, volumes [][]corev1.NodeSelectorTerm, nodes []corev1.Node, place string) string {
	for _, terms := range volumes {
		if !nodefit.WithVolume(next, terms) {
			return "where its volumes can be is not known"
		}
	}
	if len(volumes) > 0 && !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return nodefit.Selects(&next.Spec, &n) }) {
		return "no node of " + place + " reaches its volume"
	}
	return ""
}

// placeOf names the pool, and the domain, of the seat of a successor.
func placeOf(p *policy.Policy, removal *planner.Removal) string {
	where := "pool " + p.Strategy.Pool(removal.To).Name
	if p.Domains() != nil {
		where += " in " + p.DomainName(removal.Domain)
	}
	return where
}

// successor returns the pod that the owner of a pod creates in its place, with a seat in a pool and domain.
func successor(pod *corev1.Pod, p *policy.Policy, pool, domain int, former bool) *corev1.Pod {
	return placement.Successor(pod, p.Strategy, pool, domain, p.TolerationsOf(pool), former)
}

// available reports for each pool whether it has a node that takes pods such as an example, if the node is empty.
func (r *run) available(ctx context.Context, p *policy.Policy, example *corev1.Pod, foreign bool) ([]bool, error) {
	out := make([]bool, p.Len())
	if example == nil {
		return out, nil
	}
	for i := range out {
		nodes, err := r.Room.Nodes(ctx, p.Nodes(i, -1))
		if err != nil {
			return nil, err
		}
		pod := successor(example, p, i, -1, foreign)
		for j := range nodes {
			if p.HasNode(i, nodes[j].Labels) && nodefit.Allows(&nodes[j], pod) && nodefit.Count(&nodes[j], nil, pod) > 0 {
				out[i] = true
				break
			}
		}
	}
	return out, nil
}

// nodePool returns the pool that a pod's node is in, and the domain.
func (r *run) nodePool(ctx context.Context, p *policy.Policy, pod *corev1.Pod, nodes map[string]*corev1.Node) (pool, domain int, err error) {
	name := pod.Spec.NodeName
	if name == "" {
		return planner.NoNode, 0, nil
	}
	node, ok := nodes[name]
	if !ok {
		node = &corev1.Node{}
		if err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			if !apierrors.IsNotFound(err) {
				return 0, 0, err
			}
			node = &corev1.Node{}
		}
		nodes[name] = node
	}
	if i := p.PoolOfNode(node.Labels); i >= 0 {
		return i, p.DomainOfNode(node.Labels), nil
	}
	return planner.OtherNode, 0, nil
}
