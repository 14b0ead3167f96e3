package poolroom

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// nodePoolsFor is how long the NodePools that were read last hold, and nodePoolsAbsent how long the cluster is taken to have none.
const (
	nodePoolsFor    = 10 * time.Second
	nodePoolsAbsent = 5 * time.Minute
)

// Question is whether the nodes of a cell take a pod.
type Question struct {
	// Set is the cell's nodes, and the pod selects them: it has a seat there.
	Set     nodeset.Set
	Pod     *corev1.Pod
	Volumes nodefit.Volumes
	Proven  nodefit.Evidence
}

// Judge answers a question by [nodefit.Judge], for the nodes that the cache has, and the node autoscalers. Nothing is read of the pods that are there.
func (r *Reader) Judge(ctx context.Context, q Question) (nodefit.Answer, error) {
	nodes, err := r.Nodes(ctx, q.Set)
	if err != nil {
		return nodefit.Answer{}, err
	}
	answer := q.Of(nodes, nil, r.NodeGroups, r.date.Now())
	if answer.Verdict != nodefit.Never {
		return answer, nil
	}
	nodePools, err := r.readNodePools(ctx)
	if err != nil {
		return nodefit.Answer{}, err
	}
	return q.Of(nodes, nodePools, r.NodeGroups, r.date.Now()), nil
}

// mostWhy limits the bytes of an answer's reason, before escapes. The reason may quote the pod, and goes into the status, the log and Events.
const mostWhy = 512

// Of answers a question for some nodes, which are of its set, and for those that node autoscalers may make.
func (q *Question) Of(nodes []corev1.Node, nodePools []karpenter.NodePool, groups []clusterautoscaler.NodeGroup, now time.Time) nodefit.Answer {
	growing := slices.ContainsFunc(nodePools, func(p karpenter.NodePool) bool { return p.Takes(q.Set, &q.Pod.Spec) }) ||
		slices.ContainsFunc(groups, func(g clusterautoscaler.NodeGroup) bool { return g.Makes(q.Set) })
	answer := nodefit.Judge(q.Pod, q.Volumes, &nodefit.Cell{Set: q.Set, Nodes: nodes, Growing: growing, Proven: q.Proven, Now: now})
	answer.Why = bounded.Printable(bounded.Text(answer.Why, mostWhy))
	return answer
}

// readNodePools returns Karpenter's NodePools. A cluster without Karpenter has none, and so has one in which Stowage may not read
// them: see docs/karpenter.md.
func (r *Reader) readNodePools(ctx context.Context) ([]karpenter.NodePool, error) {
	r.makers.Lock()
	defer r.makers.Unlock()
	now := r.clock.Now()
	if now.Before(r.nodePoolsDue) {
		return r.nodePools, r.nodePoolsErr
	}
	var pools []karpenter.NodePool
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(karpenter.NodePools.GroupVersion().WithKind(karpenter.NodePools.Kind + "List"))
	err := worldapi.Each(ctx, r.uncached, list, func(u *unstructured.Unstructured) error {
		p, err := karpenter.ParseNodePool(u)
		pools = append(pools, p)
		return err
	})
	r.nodePools, r.nodePoolsErr, r.nodePoolsDue = pools, err, now.Add(nodePoolsFor)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		r.nodePools, r.nodePoolsErr, r.nodePoolsDue = nil, nil, now.Add(nodePoolsAbsent)
	}
	return r.nodePools, r.nodePoolsErr // with an error, a part of them would look as if the others could make no node
}
