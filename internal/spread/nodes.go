package spread

import (
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// A list of nodes is reused for nodesFor by all pods of a burst, because each list copies the nodes. All lists together take nodeBytes at most.
const (
	nodesFor  = time.Second
	nodeBytes = 16 << 20
)

// recentNodes returns a function that lists nodes and reuses each list for nodesFor.
func recentNodes(list func(nodeset.Set) []corev1.Node, clock, date bounded.Clock) nodefit.Lister {
	recent := bounded.New[string, nodefit.Cell](nodeBytes, clock)
	return func(of nodeset.Set) nodefit.Cell {
		key := of.String()
		if cell, ok := recent.Get(key); ok {
			return cell
		}
		nodes := list(of)
		cell := nodefit.Cell{Set: of, Nodes: nodes, Growing: karpenter.Made(nodes), Now: date.Now()}
		recent.Add(key, cell, int64(len(key))+int64(len(nodes))*int64(unsafe.Sizeof(corev1.Node{})), nodesFor)
		return cell
	}
}
