// Package poolroom finds out how many more pods the nodes of a pool have room for. Package nodefit decides; this package reads
// the nodes from the cache and the pods of a few nodes from the API server.
package poolroom

import (
	"context"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// nodesTried is on how many nodes of a pool room is looked for at a time. The pods of each cost one request.
const nodesTried = 10

// Reader reads nodes and their pods.
type Reader struct {
	// Cached reads nodes from the cache, and Uncached reads pods from the API server.
	Cached, Uncached client.Reader
}

// Nodes returns the nodes with some labels. They are the cache's own.
func (r *Reader) Nodes(ctx context.Context, labels map[string]string) ([]corev1.Node, error) {
	var nodes corev1.NodeList
	err := r.Cached.List(ctx, &nodes, client.MatchingLabels(labels), client.UnsafeDisableDeepCopy)
	return nodes.Items, err
}

// Count returns for how many pods such as this one some nodes have room beside those that run there now, at most so many.
func (r *Reader) Count(ctx context.Context, nodes []corev1.Node, pod *corev1.Pod, most int64) (int64, error) {
	tried, sum := 0, int64(0)
	for _, i := range rand.Perm(len(nodes)) { // so that full nodes do not hide the others every time
		node := &nodes[i]
		if !nodefit.Allows(node, pod) || nodefit.Count(node, nil, pod) == 0 {
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
			running, err := worldapi.PodsOn(ctx, r.Uncached, node.Name, cached)
			if err != nil {
				return 0, err
			}
			count = nodefit.Count(node, running, pod)
		}
		if sum += count; sum >= most {
			return most, nil
		}
	}
	return sum, nil
}

// Autoscaled reports whether Karpenter makes some nodes.
func Autoscaled(nodes []corev1.Node) bool {
	for i := range nodes {
		if nodes[i].Labels[karpenter.NodePoolLabel] != "" {
			return true
		}
	}
	return false
}
