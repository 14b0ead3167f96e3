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
	d := &descent{c: c, namespace: namespace, found: map[types.UID]bool{}}
	if top.UID == "" || top.MakesPods() {
		w, err := c.Workload(ctx, namespace, top)
		if err != nil {
			return nil, err
		}
		if w != nil {
			top = w.Ref // by its name alone, it had no UID
			d.add(w)
		}
	}
	if top.UID != "" {
		if err := d.under(ctx, top.UID, 1); err != nil {
			return nil, err
		}
	}
	if top.Watched() && !top.IsStatefulSet() { // a StatefulSet's pods may own others
		return d.out, nil
	}
	if err := d.underUnwatched(ctx, top); err != nil {
		return nil, err
	}
	return d.out, nil
}

// descent collects the workloads that make pods, on the way down from an object.
type descent struct {
	c         *Cache
	namespace string
	found     map[types.UID]bool
	out       []*world.Workload
}

// add adds a workload, if it makes pods.
func (d *descent) add(w *world.Workload) {
	if w.MakesPods() && !d.found[w.UID] {
		d.found[w.UID] = true
		d.out = append(d.out, w)
	}
}

// under adds what the index has under an object, down to the greatest depth.
func (d *descent) under(ctx context.Context, parent types.UID, depth int) error {
	made, err := d.c.made(ctx, d.namespace, string(parent))
	if err != nil || depth == world.MaxDepth {
		return err
	}
	for _, w := range made {
		if d.add(w); w.MakesPods() {
			continue // it makes nothing but pods
		}
		if err := d.under(ctx, w.UID, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// underUnwatched adds what is under an object by way of controllers that are not watched.
func (d *descent) underUnwatched(ctx context.Context, top world.Ref) error {
	others, err := d.c.made(ctx, d.namespace, unwatchedParent)
	if err != nil {
		return err
	}
	others = slices.DeleteFunc(others, func(w *world.Workload) bool { // no kind stands above its own
		return d.found[w.UID] || w.Controller.Kind == top.Kind && w.Controller.Group() == top.Group()
	})
	below, err := world.Under(ctx, d.c, world.Object{Namespace: d.namespace, Ref: top}, others)
	if err != nil && len(d.out) == 0 {
		return err
	}
	for _, w := range below {
		d.add(w)
		if err := d.under(ctx, w.UID, 1); err != nil {
			return err
		}
	}
	return nil
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
