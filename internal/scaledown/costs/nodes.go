package costs

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// nodeLabels counts the nodes, and for each key of their labels how many have each value.
type nodeLabels struct {
	nodes  int
	values map[string]map[string]int
}

// add adds a node to the counts, or takes it from them with -1.
func (n *nodeLabels) add(labels map[string]string, by int) {
	n.nodes += by
	if n.values == nil {
		n.values = map[string]map[string]int{}
	}
	for key, value := range labels {
		of := n.values[key]
		if of == nil {
			of = map[string]int{}
			n.values[key] = of
		}
		if of[value] += by; of[value] == 0 {
			delete(of, value)
		}
		if len(of) == 0 {
			delete(n.values, key)
		}
	}
}

// count returns how many values the nodes have for a key. All nodes without the label count as one.
func (n *nodeLabels) count(key string) int {
	of, with := n.values[key], 0
	for _, nodes := range of {
		with += nodes
	}
	if with < n.nodes {
		return len(of) + 1
	}
	return len(of)
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
