package testkit

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ReplicaSetScale answers for the scale of ReplicaSets in a fake store, which has none of
// unstructured objects. The selector is app=web.
func ReplicaSetScale(ctx context.Context, c client.Client, _ string, obj, into client.Object, _ ...client.SubResourceGetOption) error {
	var rs appsv1.ReplicaSet
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), &rs); err != nil {
		return err
	}
	scale := into.(*unstructured.Unstructured)
	scale.SetUID(rs.UID)
	for _, f := range []struct {
		value any
		path  []string
	}{{int64(*rs.Spec.Replicas), []string{"spec", "replicas"}}, {int64(rs.Status.Replicas), []string{"status", "replicas"}}, {"app=web", []string{"status", "selector"}}} {
		if err := unstructured.SetNestedField(scale.Object, f.value, f.path...); err != nil {
			return err
		}
	}
	return nil
}
