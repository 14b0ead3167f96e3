package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// Objects are what a [Static] reads.
type Objects struct {
	Namespaces      []corev1.Namespace
	LimitRanges     []corev1.LimitRange
	ResourceQuotas  []corev1.ResourceQuota
	Workloads       []Workload
	PodDistributors []versprei.PodDistributor
	Nodes           []corev1.Node
	Templates       []flexdaemonsets.FlexDaemonsetTemplate
	PoolStates      []stowage.PoolState
}

// Static reads from fixed objects. Where several have one name, the first counts.
type Static struct {
	namespaces      map[string]*corev1.Namespace
	nodes           map[string]*corev1.Node
	templates       map[string]*flexdaemonsets.FlexDaemonsetTemplate
	poolStates      map[namespacedName]*stowage.PoolState
	workloads       map[namespacedName][]*Workload
	limitRanges     map[string][]corev1.LimitRange // these three are by namespace
	resourceQuotas  map[string][]corev1.ResourceQuota
	podDistributors map[string][]versprei.PodDistributor
}

type namespacedName struct{ namespace, name string }

// NewStatic returns a reader of objects, which must not change any more.
func NewStatic(o Objects) *Static {
	s := &Static{
		namespaces:      firstOf(o.Namespaces, func(o *corev1.Namespace) string { return o.Name }),
		nodes:           firstOf(o.Nodes, func(o *corev1.Node) string { return o.Name }),
		templates:       firstOf(o.Templates, func(o *flexdaemonsets.FlexDaemonsetTemplate) string { return o.Name }),
		poolStates:      firstOf(o.PoolStates, func(o *stowage.PoolState) namespacedName { return namespacedName{o.Namespace, o.Name} }),
		workloads:       map[namespacedName][]*Workload{},
		limitRanges:     groupBy(o.LimitRanges, func(o *corev1.LimitRange) string { return o.Namespace }),
		resourceQuotas:  groupBy(o.ResourceQuotas, func(o *corev1.ResourceQuota) string { return o.Namespace }),
		podDistributors: groupBy(o.PodDistributors, func(o *versprei.PodDistributor) string { return o.Namespace }),
	}
	for i := range o.Workloads {
		w := &o.Workloads[i]
		key := namespacedName{w.Namespace, w.Name}
		s.workloads[key] = append(s.workloads[key], w)
	}
	return s
}

var _ Reader = &Static{}

// Namespace implements [Reader].
func (s *Static) Namespace(_ context.Context, name string) (*corev1.Namespace, error) {
	return s.namespaces[name], nil
}

// Node implements [Reader].
func (s *Static) Node(_ context.Context, name string) (*corev1.Node, error) {
	return s.nodes[name], nil
}

// Template implements [Reader].
func (s *Static) Template(_ context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	return s.templates[name], nil
}

// LimitRanges implements [Reader].
func (s *Static) LimitRanges(_ context.Context, namespace string) ([]corev1.LimitRange, error) {
	return s.limitRanges[namespace], nil
}

// ResourceQuotas implements [Reader].
func (s *Static) ResourceQuotas(_ context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	return s.resourceQuotas[namespace], nil
}

// PodDistributors implements [Reader].
func (s *Static) PodDistributors(_ context.Context, namespace string) ([]versprei.PodDistributor, error) {
	return s.podDistributors[namespace], nil
}

// Workload implements [Reader].
func (s *Static) Workload(_ context.Context, namespace string, ref Ref) (*Workload, error) {
	for _, w := range s.workloads[namespacedName{namespace, ref.Name}] {
		if w.Is(ref) {
			return w, nil
		}
	}
	return nil, nil
}

// PoolState implements [Reader].
func (s *Static) PoolState(_ context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	return s.poolStates[namespacedName{namespace, string(workload)}], nil
}

// Siblings implements [Reader]. Manifests have one revision of a workload.
func (s *Static) Siblings(context.Context, *Workload) ([]*Workload, error) { return nil, nil }

// MayRead implements [Reader]. Manifests do not hold all there is.
func (s *Static) MayRead(Ref) bool { return false }

func firstOf[K comparable, T any](list []T, key func(*T) K) map[K]*T {
	out := make(map[K]*T, len(list))
	for i := range list {
		if k := key(&list[i]); out[k] == nil {
			out[k] = &list[i]
		}
	}
	return out
}

func groupBy[T any](list []T, key func(*T) string) map[string][]T {
	out := map[string][]T{}
	for i := range list {
		k := key(&list[i])
		out[k] = append(out[k], list[i])
	}
	return out
}
