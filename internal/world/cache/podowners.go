package cache

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// The index of workloads by the UID of their controller, and the entry of those whose controller is of a kind that is not watched.
const (
	byController    = "metadata.controller.uid"
	unwatchedParent = "-"
)

// AddIndexes adds the index that [Cache.PodOwners] reads. It has to be called before the cache starts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, obj := range []client.Object{&appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, metadataOf(appsv1.SchemeGroupVersion.WithKind("Deployment"))} {
		if err := indexer.IndexField(ctx, obj, byController, func(obj client.Object) []string {
			owner := metav1.GetControllerOfNoCopy(obj)
			if owner == nil {
				return nil
			}
			keys := []string{string(owner.UID)}
			if !world.RefOf(owner).Watched() {
				keys = append(keys, unwatchedParent)
			}
			return keys
		}); err != nil {
			return err
		}
	}
	return nil
}

// PodOwners implements [world.Snapshot]. It goes down from the workload by the index. What stands between, if it is not
// watched, is known from below only. So the workloads of such controllers are asked for the way up.
func (c *Cache) PodOwners(ctx context.Context, namespace string, top world.Ref) ([]*world.Workload, error) {
	var w *world.Workload
	if top.UID == "" || top.MakesPods() {
		var err error
		if w, err = c.Workload(ctx, namespace, top); err != nil {
			return nil, err
		}
		if w != nil {
			top = w.Ref // by its name alone, it had no UID
		}
	}
	var out []*world.Workload
	found := map[types.UID]bool{}
	add := func(w *world.Workload) {
		if w.MakesPods() && !found[w.UID] {
			found[w.UID] = true
			out = append(out, w)
		}
	}
	var under func(parent types.UID, depth int) error
	under = func(parent types.UID, depth int) error {
		made, err := c.made(ctx, namespace, string(parent))
		if err != nil || depth == world.MaxDepth {
			return err
		}
		for _, w := range made {
			if add(w); w.MakesPods() {
				continue // it makes nothing but pods
			}
			if err := under(w.UID, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if w != nil {
		add(w)
	}
	if top.UID != "" {
		if err := under(top.UID, 1); err != nil {
			return nil, err
		}
	}
	if top.Watched() && top.Kind != "StatefulSet" { // a StatefulSet's pods may own others
		return out, nil
	}
	others, err := c.made(ctx, namespace, unwatchedParent)
	if err != nil {
		return nil, err
	}
	others = slices.DeleteFunc(others, func(w *world.Workload) bool { // no kind stands above its own
		return found[w.UID] || w.Controller.Kind == top.Kind && w.Controller.Group() == top.Group()
	})
	below, err := world.Under(ctx, c, world.Object{Namespace: namespace, Ref: top}, others)
	if err != nil && len(out) == 0 {
		return nil, err
	}
	for _, w := range below {
		add(w)
		if err := under(w.UID, 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// made returns the watched workloads that have an entry in the index.
func (c *Cache) made(ctx context.Context, namespace, key string) (out []*world.Workload, err error) {
	deployments := &metav1.PartialObjectMetadataList{}
	deployments.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DeploymentList"))
	return c.list(ctx, deployments, client.InNamespace(namespace), client.MatchingFields{byController: key})
}

// PodOwnersIn returns the ReplicaSets and StatefulSets of a namespace, or of all of them if it is empty.
func (c *Cache) PodOwnersIn(ctx context.Context, namespace string) ([]*world.Workload, error) {
	return c.list(ctx, nil, client.InNamespace(namespace))
}

// list returns the ReplicaSets and StatefulSets that options select, and the Deployments, if there is a list for them.
func (c *Cache) list(ctx context.Context, deployments *metav1.PartialObjectMetadataList, options ...client.ListOption) ([]*world.Workload, error) {
	options = append(options, client.UnsafeDisableDeepCopy)
	var sets appsv1.ReplicaSetList
	var stateful appsv1.StatefulSetList
	lists := []client.ObjectList{&sets, &stateful}
	if deployments != nil {
		lists = append(lists, deployments)
	}
	for _, list := range lists {
		if err := c.cached.List(ctx, list, options...); err != nil {
			return nil, fmt.Errorf("read what makes pods: %w", err)
		}
	}
	named := func(kind, name string) world.Ref {
		return world.Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kind, Name: name}
	}
	out := make([]*world.Workload, 0, len(sets.Items)+len(stateful.Items))
	for i := range sets.Items {
		out = append(out, world.FromKept(named("ReplicaSet", sets.Items[i].Name), &sets.Items[i]))
	}
	for i := range stateful.Items {
		out = append(out, world.FromKept(named("StatefulSet", stateful.Items[i].Name), &stateful.Items[i]))
	}
	if deployments != nil {
		for i := range deployments.Items {
			out = append(out, world.FromKept(named("Deployment", deployments.Items[i].Name), &deployments.Items[i]))
		}
	}
	return out, nil
}
