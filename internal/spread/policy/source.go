package policy

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// CompileSpec returns what the spec of a PodDistributor, a SpreadPolicy or a ClusterSpreadPolicy says, as somebody writes it. It returns false for
// another kind, and for a spec that is none.
func CompileSpec(group, kind string, spec []byte) (c Compiled, known bool) {
	var err error
	switch {
	case group == versprei.GroupVersion.Group && kind == "PodDistributor":
		d := &versprei.PodDistributor{}
		err = json.Unmarshal(spec, &d.Spec)
		c = Compile(d)
	case group == stowage.GroupVersion.Group && kind == "SpreadPolicy":
		p := &stowage.SpreadPolicy{}
		err = json.Unmarshal(spec, &p.Spec)
		c = CompilePolicy(FromSpreadPolicy(p))
	case group == stowage.GroupVersion.Group && kind == "ClusterSpreadPolicy":
		p := &stowage.ClusterSpreadPolicy{}
		err = json.Unmarshal(spec, &p.Spec)
		c = CompilePolicy(FromClusterSpreadPolicy(p))
	default:
		return c, false
	}
	return c, err == nil
}

// Overlap says of a node that it is one of several pools, and to which it belongs. It is empty if no node is. See [sequence.Strategy.PoolOfNode].
func Overlap(s *sequence.Strategy, nodes []corev1.Node) string {
	node, in := "", []string(nil) // of the first by name, so that it is the same each time
	for i := range nodes {
		if node != "" && nodes[i].Name > node {
			continue
		}
		var of []string
		for pool := range s.Len() {
			if s.HasNode(pool, nodes[i].Labels) {
				of = append(of, s.Pool(pool).Name)
			}
		}
		if len(of) > 1 {
			node, in = nodes[i].Name, of
		}
	}
	if node == "" {
		return ""
	}
	more := ""
	if len(in) > 2 {
		more = fmt.Sprintf(" (and of %d more)", len(in)-2)
	}
	return fmt.Sprintf("node %s has the labels of the pools %s and %s%s, and belongs to %s, which comes first; give the pools labels, or expressions, that no node has of both", node, in[0], in[1], more, in[0])
}
