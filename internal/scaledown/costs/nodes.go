package costs

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// nodeLabels counts the nodes, and for each key of their labels how many have each value.
type nodeLabels struct {
	nodes int
	keys  map[string]*keyValues
}

// keyValues are the nodes with a label of one key: all of them, and by its value.
type keyValues struct {
	nodes int
	of    map[string]int
}

// add adds a node to the counts, or takes it from them with -1.
func (n *nodeLabels) add(labels map[string]string, by int) {
	n.nodes += by
	if n.keys == nil {
		n.keys = map[string]*keyValues{}
	}
	for key, value := range labels {
		v := n.keys[key]
		if v == nil {
			v = &keyValues{of: map[string]int{}}
			n.keys[key] = v
		}
		v.nodes += by
		if v.of[value] += by; v.of[value] == 0 {
			delete(v.of, value)
		}
		if v.nodes == 0 {
			delete(n.keys, key)
		}
	}
}

// count returns how many values the nodes have for a key. All nodes without the label count as one.
func (n *nodeLabels) count(key string) int {
	switch v := n.keys[key]; {
	case v == nil:
		return min(1, n.nodes)
	case v.nodes < n.nodes:
		return len(v.of) + 1
	default:
		return len(v.of)
	}
}

// nodeSeen notes one version of a node in the place of another. Either may be nil.
func (r *run) nodeSeen(was, is *corev1.Node) {
	if was != nil && is != nil && maps.Equal(was.Labels, is.Labels) {
		return
	}
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	if was != nil {
		r.nodes.add(was.Labels, -1)
	}
	if is != nil {
		r.nodes.add(is.Labels, 1)
	}
	if r.watching.Load() {
		r.news.tell(func(all *told) {
			all.nodes = true
			if was != nil && is != nil {
				all.relabelled[is.Name] = true
			}
		})
	}
}

// anyOn reports whether a pod of the owner is on one of some nodes.
func (o *owner) anyOn(nodes map[string]bool) bool {
	if len(nodes) == 0 {
		return false
	}
	for _, p := range o.pods {
		if nodes[p.node] {
			return true
		}
	}
	return false
}
