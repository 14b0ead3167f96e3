// Package karpenter reads what Karpenter's NodePools and NodeClaims (karpenter.sh/v1) say about the nodes to come of a pool.
//
// The package is pure: it takes objects and returns answers. It knows the few fields that it needs, so that Stowage does not
// depend on Karpenter's module.
package karpenter

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
)

// The kinds that are read.
var (
	NodePools  = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"}
	NodeClaims = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodeClaim"}
)

// NodePoolLabel is the label with the name of the NodePool.
const NodePoolLabel = "karpenter.sh/nodepool"

// Made reports whether Karpenter makes some nodes.
func Made(nodes []corev1.Node) bool {
	return slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Labels[NodePoolLabel] != "" })
}

// requirement is what an object demands of a label of its nodes.
type requirement struct {
	Key      string                      `json:"key"`
	Operator corev1.NodeSelectorOperator `json:"operator"`
	Values   []string                    `json:"values"`
}

// NodePool is what is read of a NodePool.
type NodePool struct {
	Name string
	spec nodePoolSpec
	used corev1.ResourceList
}

type nodePoolSpec struct {
	Limits   corev1.ResourceList `json:"limits"`
	Template struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Requirements []requirement  `json:"requirements"`
			Taints       []corev1.Taint `json:"taints"`
		} `json:"spec"`
	} `json:"template"`
}

// ParseNodePool reads a NodePool.
func ParseNodePool(u *unstructured.Unstructured) (NodePool, error) {
	var o struct {
		Spec   nodePoolSpec `json:"spec"`
		Status struct {
			Resources corev1.ResourceList `json:"resources"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return NodePool{}, fmt.Errorf("NodePool %s: %w", u.GetName(), err)
	}
	return NodePool{Name: u.GetName(), spec: o.Spec, used: o.Status.Resources}, nil
}

// Makes reports whether the NodePool can make nodes of a set. A label that it does not name is absent from its nodes, unless a provider sets
// it: then it may have any value, and is never absent.
func (p *NodePool) Makes(nodes nodeset.Set) bool {
	for _, key := range nodes.Keys() {
		on := nodes.Of(key)
		value, has := p.spec.Template.Metadata.Labels[key]
		if key == NodePoolLabel {
			value, has = p.Name, true
		}
		demanded := demands(p.spec.Template.Spec.Requirements, key)
		switch {
		case has:
			on = append(on, equal(key, value))
		case wellKnown(key):
			on = append(append(on, demanded...), corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists})
		case len(demanded) > 0:
			on = append(on, demanded...)
		default:
			on = append(on, absent(key))
		}
		if !nodeset.Satisfiable(on) {
			return false
		}
	}
	return true
}

// Takes reports whether a pod may run on nodes of a set that the NodePool makes, whatever its size. It tolerates their
// taints, and selects no others. A required node affinity is taken to allow them.
func (p *NodePool) Takes(nodes nodeset.Set, spec *corev1.PodSpec) bool {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: p.spec.Template.Spec.Taints}}
	return p.Makes(nodes) && p.Makes(nodeset.Set{Labels: spec.NodeSelector}) && nodefit.Selects(&corev1.PodSpec{Tolerations: spec.Tolerations}, node)
}

// AtLimit reports whether the NodePool's limits leave no room for one more pod that requests so much.
func (p *NodePool) AtLimit(requests corev1.ResourceList) bool {
	for name, limit := range p.spec.Limits {
		used := p.used[name]
		sum := used.DeepCopy()
		sum.Add(requests[name])
		if sum.Cmp(limit) > 0 || used.Cmp(limit) >= 0 {
			return true
		}
	}
	return false
}

// NodeClaim is what is read of a NodeClaim: a node that Karpenter makes.
type NodeClaim struct {
	Name, NodePool string
	// Coming says that the node is not ready yet, and not about to go.
	Coming       bool
	labels       map[string]string
	requirements []requirement
}

// ParseNodeClaim reads a NodeClaim.
func ParseNodeClaim(u *unstructured.Unstructured) (NodeClaim, error) {
	var o struct {
		Spec struct {
			Requirements []requirement `json:"requirements"`
		} `json:"spec"`
		Status struct {
			Conditions []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return NodeClaim{}, fmt.Errorf("NodeClaim %s: %w", u.GetName(), err)
	}
	c := NodeClaim{Name: u.GetName(), NodePool: u.GetLabels()[NodePoolLabel], Coming: u.GetDeletionTimestamp() == nil, labels: u.GetLabels(), requirements: o.Spec.Requirements}
	for _, condition := range o.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			c.Coming = false
		}
	}
	return c, nil
}

// Of reports whether the node is, or will be, one of a set. Of a label that a provider sets and that the claim does not name, nobody knows the
// value.
func (c *NodeClaim) Of(nodes nodeset.Set) bool {
	for _, key := range nodes.Keys() {
		on, demanded := nodes.Of(key), demands(c.requirements, key)
		value, has := c.labels[key]
		switch {
		case has:
			on = append(on, equal(key, value))
		case len(demanded) > 0:
			on = append(on, demanded...)
		case wellKnown(key):
			if slices.ContainsFunc(on, func(r corev1.NodeSelectorRequirement) bool { return r.Operator != corev1.NodeSelectorOpNotIn }) {
				return false
			}
		default:
			on = append(on, absent(key))
		}
		if !nodeset.Satisfiable(on) {
			return false
		}
	}
	return true
}

func equal(key, value string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
}

func absent(key string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
}

// demands are the requirements on a label, as far as this version knows their operators. With any other operator the label is there.
func demands(requirements []requirement, key string) (out []corev1.NodeSelectorRequirement) {
	for _, r := range requirements {
		if r.Key != key {
			continue
		}
		of := corev1.NodeSelectorRequirement{Key: key, Operator: r.Operator, Values: r.Values}
		if nodeset.Check(&of) != nil {
			of = corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists}
		}
		out = append(out, of)
	}
	return out
}

// wellKnown reports whether a provider sets a label by itself, so that a NodePool need not name it.
func wellKnown(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == "kubernetes.io" || strings.HasSuffix(prefix, ".kubernetes.io") || strings.HasPrefix(prefix, "karpenter.")
}
