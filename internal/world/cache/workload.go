package cache

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// Workload implements [world.Snapshot]. Deployments and other workloads of apps/v1 come from the cache, or from the API server where they
// are younger than it. Others are read from the API server and remembered for a minute.
func (c *Cache) Workload(ctx context.Context, namespace string, ref world.Ref) (*world.Workload, error) {
	if !possible(namespace) || !possible(ref.Name) {
		return nil, nil
	}
	if !ref.Watched() {
		return c.unwatchedWorkload(ctx, namespace, ref)
	}
	var w *world.Workload
	kept, err := readObject(ctx, c.cached, namespace, ref)
	if err == nil {
		w = world.FromKept(ref, kept)
	}
	if apierrors.IsNotFound(err) || err == nil && !w.Is(ref) {
		k := readKey{what: "workload", namespace: namespace, ref: ref}
		// Nobody knows the UID of an object before it exists, so one that did not exist never
		// will. By name alone it may.
		if _, missing := c.missing.Get(k); missing {
			return nil, nil
		}
		w, err = readUncached(ctx, c, c.objects, c.Asker(ctx, namespace), k, func(ctx context.Context) (*world.Workload, error) {
			obj, err := readObject(ctx, c.uncached, namespace, ref)
			if err != nil {
				return nil, err
			}
			return world.FromKept(ref, world.Keep(obj)), nil
		})
		if apierrors.IsNotFound(err) || err == nil && !w.Is(ref) {
			if ref.UID != "" {
				c.missing.Add(k, true, absentTTL)
			}
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %q: %w", ref.Kind, ref.Name, err)
	}
	return w, nil
}

// readObject reads an object of a kind that is watched.
func readObject(ctx context.Context, from client.Reader, namespace string, ref world.Ref) (client.Object, error) {
	var obj client.Object
	switch ref.Kind {
	case "StatefulSet":
		obj = &appsv1.StatefulSet{}
	case "ReplicaSet":
		obj = &appsv1.ReplicaSet{}
	case "DaemonSet":
		obj = &appsv1.DaemonSet{}
	default:
		obj = metadataOf(appsv1.SchemeGroupVersion.WithKind(ref.Kind))
	}
	return obj, from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, obj)
}
