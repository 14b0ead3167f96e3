package liveness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// The kinds of sources.
const (
	clusterPolicy  = "ClusterSpreadPolicy"
	policy         = "SpreadPolicy"
	podDistributor = "PodDistributor"
	annotations    = "annotations"
)

// pool is a pool of a source.
type pool struct {
	name         string
	labels       map[string]string
	base, weight int32
	tolerations  []versprei.Toleration
	// byAffinity has the pool ask for the absence of a label, too, which no node has. So its pods are held by their affinity.
	byAffinity bool
}

// noNodeHas is a label that no node has.
const noNodeHas = "liveness-test/no-node-has"

// expressions are what the pool asks for beside its labels.
func (p *pool) expressions() []versprei.NodeRequirement {
	if !p.byAffinity {
		return nil
	}
	return []versprei.NodeRequirement{{Key: noNodeHas, Operator: corev1.NodeSelectorOpDoesNotExist}}
}

// source says how pods are divided: for all workloads of a namespace, or, with a PodDistributor or annotations, for each by itself.
type source struct {
	kind   string
	pools  []pool
	across []string // zones
	spill  bool     // after 10 s, of all pools
}

// knows reports whether the author of the pools is the author of the workload.
func (s *source) knows() bool { return s.kind == podDistributor || s.kind == annotations }

// divided is the label of the pods that a policy selects.
var divided = map[string]string{"divided": "true"}

// cell is a pool of a source, or a zone of it.
type cell struct{ pool, zone string }

func (c cell) String() string { return strings.TrimSuffix(c.pool+"/"+c.zone, "/") }

// cellOf returns the cell by which a pod is pinned, and false if it is not.
func cellOf(p *corev1.Pod) (cell, bool) {
	c := cell{p.Labels[stowage.PoolLabel], p.Labels[stowage.DomainLabel]}
	return c, c.pool != ""
}

// labelsOf returns the node labels of a cell, and false if the source has no such cell.
func (s *source) labelsOf(c cell) (map[string]string, bool) {
	i := slices.IndexFunc(s.pools, func(p pool) bool { return p.name == c.pool })
	if n, err := strconv.Atoi(c.pool); err == nil && s.kind == annotations && n < len(s.pools) { // its pools have no names
		i = n
	}
	if i < 0 {
		return nil, false
	}
	out := maps.Clone(s.pools[i].labels)
	if c.zone != "" {
		out[corev1.LabelTopologyZone] = c.zone
	}
	return out, true
}

// cells returns the node labels of all cells.
func (s *source) cells() (out []map[string]string) {
	for i := range s.pools {
		if len(s.across) == 0 {
			out = append(out, s.pools[i].labels)
		}
		for _, zone := range s.across {
			of := maps.Clone(s.pools[i].labels)
			of[corev1.LabelTopologyZone] = zone
			out = append(out, of)
		}
	}
	return out
}

// other reports whether a node is in a cell of the source that has other labels than these.
func (s *source) other(node *corev1.Node, than map[string]string) bool {
	return !in(node, than) && slices.ContainsFunc(s.cells(), func(c map[string]string) bool { return in(node, c) })
}

// in reports whether a node has the labels of a cell.
func in(node *corev1.Node, c map[string]string) bool {
	return labels.SelectorFromSet(c).Matches(labels.Set(node.Labels))
}

func (s *source) acrossSpec() *versprei.Across {
	if len(s.across) == 0 {
		return nil
	}
	out := &versprei.Across{TopologyKey: corev1.LabelTopologyZone}
	for _, zone := range s.across {
		out.Domains = append(out.Domains, versprei.Domain{Value: versprei.LabelValue(zone)})
	}
	return out
}

func (s *source) spillSpec() *versprei.Spill {
	if !s.spill {
		return nil
	}
	return &versprei.Spill{After: "10s"}
}

// values are labels as the API's types have them.
func values(of map[string]string) map[string]versprei.LabelValue {
	out := map[string]versprei.LabelValue{}
	for k, v := range of {
		out[k] = versprei.LabelValue(v)
	}
	return out
}

// policySpec is the source as a policy has it.
func (s *source) policySpec() stowage.SpreadPolicySpec {
	spec := stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: values(divided)}, Across: s.acrossSpec(),
		Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}},
	}
	for _, p := range s.pools {
		spec.Pools = append(spec.Pools, stowage.PolicyPool{
			Name: p.name, NodeSelector: values(p.labels), MatchExpressions: p.expressions(), Base: p.base, Weight: p.weight, Spill: s.spillSpec(), Tolerations: p.tolerations,
		})
	}
	return spec
}

// apply creates the policy, if the source is one, and waits until all replicas follow it.
func (s *source) apply(t *testing.T, n *suite.Tenant) client.Object {
	t.Helper()
	var out client.Object
	switch s.kind {
	case clusterPolicy:
		p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}}
		p.Spec.SpreadPolicySpec = s.policySpec()
		p.Spec.NamespaceSelector.MatchLabels = values(map[string]string{corev1.LabelMetadataName: n.Namespace})
		out = p
	case policy:
		out = &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: s.policySpec()}
	default:
		return nil
	}
	suite.Must(t, n.Create(t.Context(), out))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), out) })
	n.Follows(t, divided, out.GetUID(), out.GetGeneration())
	return out
}

// distribute writes the source for one workload, if it has that form: into the workload, or as a PodDistributor.
func (s *source) distribute(t *testing.T, n *suite.Tenant, w client.Object, kind string) client.Object {
	t.Helper()
	switch s.kind {
	case annotations:
		w.SetAnnotations(s.annotations())
	case podDistributor:
		pd := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: w.GetName()}}
		pd.Spec.Across = s.acrossSpec()
		pd.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: kind, Name: w.GetName()}
		if kind == "Job" {
			pd.Spec.Target.APIVersion = "batch/v1"
		}
		for _, p := range s.pools {
			pd.Spec.Distribution = append(pd.Spec.Distribution, versprei.Pool{
				Name: p.name, NodeLabel: values(p.labels), MatchExpressions: p.expressions(), Base: p.base, Weight: p.weight, Spill: s.spillSpec(), Tolerations: p.tolerations,
			})
		}
		suite.Must(t, n.Create(t.Context(), pd))
		return pd
	}
	return nil
}

func (s *source) annotations() map[string]string {
	var parts []string
	for _, p := range s.pools {
		part := fmt.Sprintf("base=%d,weight=%d", p.base, p.weight)
		for _, key := range slices.Sorted(maps.Keys(p.labels)) {
			part = key + "=" + p.labels[key] + "," + part
		}
		if p.byAffinity {
			part = "!" + noNodeHas + "," + part
		}
		parts = append(parts, part)
	}
	out := suite.Annotated(strings.Join(parts, ":"))
	if s.spill {
		out[stowage.SpillAnnotation] = "10s"
	}
	if len(s.across) > 0 {
		out[stowage.AcrossAnnotation] = corev1.LabelTopologyZone + ": " + strings.Join(s.across, ", ")
	}
	return out
}

// patch changes an object.
func patch(t *testing.T, n *suite.Tenant, o client.Object, format string, args ...any) {
	t.Helper()
	suite.Must(t, n.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))))
}
