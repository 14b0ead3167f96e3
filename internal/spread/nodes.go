package spread

import (
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// A list of nodes is reused for nodesFor by all pods of a burst, because each list copies the nodes. All lists together take nodeBytes at most.
const (
	nodesFor  = time.Second
	nodeBytes = 16 << 20
)

// listed has the nodes of a set. Grows says that there may be others soon.
type listed struct {
	nodes []corev1.Node
	grows bool
}

// recentNodes returns a function that lists nodes and reuses each list for nodesFor.
func recentNodes(list func(nodeset.Set) []corev1.Node, clock bounded.Clock) policy.NodesWith {
	known := bounded.New[string, listed](nodeBytes, clock)
	return func(of nodeset.Set) ([]corev1.Node, bool) {
		key := of.String()
		if l, ok := known.Get(key); ok {
			return l.nodes, l.grows
		}
		nodes := list(of)
		l := listed{nodes, karpenter.Made(nodes)}
		known.Add(key, l, int64(len(key))+int64(len(nodes))*int64(unsafe.Sizeof(corev1.Node{})), nodesFor)
		return l.nodes, l.grows
	}
}
