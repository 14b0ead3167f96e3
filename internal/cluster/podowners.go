package cluster

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodOwners returns the ReplicaSets and StatefulSets, of one namespace or of all: the
// workloads that make pods themselves and are watched.
func (c *Cache) PodOwners(ctx context.Context, namespace string) ([]*Workload, error) {
	var sets appsv1.ReplicaSetList
	if err := c.cached.List(ctx, &sets, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var stateful appsv1.StatefulSetList
	if err := c.cached.List(ctx, &stateful, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := make([]*Workload, 0, len(sets.Items)+len(stateful.Items))
	for i := range sets.Items {
		out = append(out, fromReplicaSet(&sets.Items[i]))
	}
	for i := range stateful.Items {
		out = append(out, fromStatefulSet(&stateful.Items[i]))
	}
	return out, nil
}

// byController is the index of ReplicaSets by the UID of their controller.
const byController = "metadata.controller.uid"

// AddIndexes adds the index that [Cache.Siblings] reads. It has to be called before the cache starts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &appsv1.ReplicaSet{}, byController, func(obj client.Object) []string {
		owner := metav1.GetControllerOfNoCopy(obj)
		if owner == nil {
			return nil
		}
		return []string{string(owner.UID)}
	})
}

// Siblings implements [Reader].
func (c *Cache) Siblings(ctx context.Context, w *Workload) ([]*Workload, error) {
	if w.Controller == nil {
		return nil, nil
	}
	var sets appsv1.ReplicaSetList
	if err := c.cached.List(ctx, &sets, client.InNamespace(w.Namespace), client.MatchingFields{byController: string(w.Controller.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var out []*Workload
	for i := range sets.Items {
		if sets.Items[i].UID != w.UID {
			out = append(out, fromReplicaSet(&sets.Items[i]))
		}
	}
	return out, nil
}
