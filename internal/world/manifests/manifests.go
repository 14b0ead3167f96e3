// Package manifests is a world that does not change: that of files, for decisions that are made offline.
package manifests

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// Snapshot is a world of fixed objects. No two of them have the same group, kind, namespace and name: package preview sees to that, and a
// cluster has no such objects.
type Snapshot struct {
	namespaces      map[string]*corev1.Namespace
	nodes           map[string]*corev1.Node
	templates       map[string]*flexdaemonsets.FlexDaemonsetTemplate
	poolStates      map[namespacedName]*stowage.PoolState
	workloads       map[namespacedName][]*world.Workload
	limitRanges     map[string][]corev1.LimitRange // these three are by namespace
	resourceQuotas  map[string][]corev1.ResourceQuota
	podDistributors map[string][]versprei.PodDistributor
	policies        map[string]*world.Policies // by namespace; those of the cluster have none
	volumes         []corev1.PersistentVolume
	priorityClasses []string
}

type namespacedName struct{ namespace, name string }

// New returns a world of objects, which must not change any more.
func New(o world.Objects) *Snapshot {
	s := &Snapshot{
		namespaces:      byKey(o.Namespaces, func(o *corev1.Namespace) string { return o.Name }),
		nodes:           byKey(o.Nodes, func(o *corev1.Node) string { return o.Name }),
		templates:       byKey(o.Templates, func(o *flexdaemonsets.FlexDaemonsetTemplate) string { return o.Name }),
		poolStates:      byKey(o.PoolStates, func(o *stowage.PoolState) namespacedName { return namespacedName{o.Namespace, o.Name} }),
		workloads:       map[namespacedName][]*world.Workload{},
		limitRanges:     groupBy(o.LimitRanges, func(o *corev1.LimitRange) string { return o.Namespace }),
		resourceQuotas:  groupBy(o.ResourceQuotas, func(o *corev1.ResourceQuota) string { return o.Namespace }),
		policies:        map[string]*world.Policies{},
		volumes:         o.Volumes,
		priorityClasses: o.PriorityClasses,
		podDistributors: groupBy(o.PodDistributors, func(o *versprei.PodDistributor) string { return o.Namespace }),
	}
	for _, p := range o.Policies.Namespaced {
		if s.policies[p.Namespace] == nil {
			s.policies[p.Namespace] = &world.Policies{}
		}
		s.policies[p.Namespace].Namespaced = append(s.policies[p.Namespace].Namespaced, p)
	}
	if len(o.Policies.Cluster) > 0 {
		s.policies[""] = &world.Policies{Cluster: o.Policies.Cluster}
	}
	for _, w := range o.Workloads {
		key := namespacedName{w.Namespace, w.Name}
		s.workloads[key] = append(s.workloads[key], w)
	}
	return s
}

var _ world.Snapshot = &Snapshot{}

// Namespace implements [world.Snapshot].
func (s *Snapshot) Namespace(_ context.Context, name string) (*corev1.Namespace, error) {
	return s.namespaces[name], nil
}

// Node implements [world.Snapshot].
func (s *Snapshot) Node(_ context.Context, name string) (*corev1.Node, error) {
	return s.nodes[name], nil
}

// Template implements [world.Snapshot].
func (s *Snapshot) Template(_ context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	return s.templates[name], nil
}

// LimitRanges implements [world.Snapshot].
func (s *Snapshot) LimitRanges(_ context.Context, namespace string) ([]corev1.LimitRange, error) {
	return s.limitRanges[namespace], nil
}

// ResourceQuotas implements [world.Snapshot].
func (s *Snapshot) ResourceQuotas(_ context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	return s.resourceQuotas[namespace], nil
}

// PodDistributor implements [world.Snapshot].
func (s *Snapshot) PodDistributor(_ context.Context, namespace string, targets []world.Ref) (*versprei.PodDistributor, error) {
	return world.Winner(s.podDistributors[namespace], targets), nil
}

// Policies implements [world.Snapshot].
func (s *Snapshot) Policies(_ context.Context, namespace string) (*world.Policies, error) {
	return s.policies[namespace], nil
}

// Workload implements [world.Snapshot].
func (s *Snapshot) Workload(_ context.Context, namespace string, ref world.Ref) (*world.Workload, error) {
	for _, w := range s.workloads[namespacedName{namespace, ref.Name}] {
		if w.Is(ref) {
			return w, nil
		}
	}
	return nil, nil
}

// PoolState implements [world.Snapshot].
func (s *Snapshot) PoolState(_ context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	return s.poolStates[namespacedName{namespace, string(workload)}], nil
}

// PriorityClass implements [world.Snapshot].
func (s *Snapshot) PriorityClass(_ context.Context, name string) (*world.PriorityClass, error) {
	if len(s.priorityClasses) == 0 || slices.Contains(s.priorityClasses, name) {
		return &world.PriorityClass{}, nil
	}
	return nil, nil
}

// Volumes implements [world.Snapshot].
func (s *Snapshot) Volumes(_ context.Context, namespace string, claims []string) (out []corev1.PersistentVolume, known bool, err error) {
	for i := range s.volumes {
		if ref := s.volumes[i].Spec.ClaimRef; ref != nil && ref.Namespace == namespace && slices.Contains(claims, ref.Name) {
			out = append(out, s.volumes[i])
		}
	}
	return out, true, nil
}

// PodOwners implements [world.Snapshot].
func (s *Snapshot) PodOwners(ctx context.Context, namespace string, top world.Ref) ([]*world.Workload, error) {
	var among []*world.Workload
	for key, list := range s.workloads {
		for _, w := range list {
			if key.namespace == namespace && w.MakesPods() {
				among = append(among, w)
			}
		}
	}
	return world.Under(ctx, s, world.Object{Namespace: namespace, Ref: top}, among)
}

// MayRead implements [world.Snapshot]. Manifests do not hold all there is.
func (s *Snapshot) MayRead(string, world.Ref) bool { return false }

func byKey[K comparable, T any](list []T, key func(*T) K) map[K]*T {
	out := make(map[K]*T, len(list))
	for i := range list {
		out[key(&list[i])] = &list[i]
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
