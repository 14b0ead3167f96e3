package api

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups=*,resources=*/scale,verbs=get,roleName=stowage-spread
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get,roleName=stowage-spread

// Scale is the size of an object that makes pods.
type Scale struct {
	Replicas int64 // that it asks for
	Current  int64 // that its controller sees
	Selector string
}

// ReadScale reads how many pods an object of a namespace asks for and has, or nil if its kind does
// not say. It asks the scale subresource, which every kind has that an autoscaler can scale. A Job
// has none; it asks for its parallelism, or for what is left to do.
//
// The client must read from the API server and not from a cache.
func ReadScale(ctx context.Context, c client.Client, namespace string, owner world.Ref) (*Scale, error) {
	if owner.IsJob() {
		return readJob(ctx, c, namespace, owner)
	}
	obj, scale := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	obj.SetAPIVersion(owner.APIVersion)
	obj.SetKind(owner.Kind)
	obj.SetNamespace(namespace)
	obj.SetName(owner.Name)
	scale.SetAPIVersion("autoscaling/v1")
	scale.SetKind("Scale")
	err := c.SubResource("scale").Get(ctx, obj, scale)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil // no such kind, no such subresource, or gone
	case err != nil:
		return nil, err
	case scale.GetUID() != "" && scale.GetUID() != owner.UID:
		return nil, nil // another one of the same name
	}
	out := &Scale{}
	// What is absent is zero, or no selector.
	out.Replicas, _, err = unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err == nil {
		out.Current, _, err = unstructured.NestedInt64(scale.Object, "status", "replicas")
	}
	if err == nil {
		out.Selector, _, err = unstructured.NestedString(scale.Object, "status", "selector")
	}
	return out, err
}

// readJob reads how many pods a Job asks for and has, or nil if it does not say.
func readJob(ctx context.Context, c client.Client, namespace string, owner world.Ref) (*Scale, error) {
	var job batchv1.Job
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &job); err != nil || job.UID != owner.UID || job.Spec.Parallelism == nil {
		return nil, client.IgnoreNotFound(err)
	}
	s := &Scale{Replicas: int64(*job.Spec.Parallelism), Current: int64(job.Status.Active)}
	if job.Spec.Completions != nil {
		s.Replicas = min(s.Replicas, int64(*job.Spec.Completions)-int64(job.Status.Succeeded))
	}
	if job.Status.CompletionTime != nil || job.Spec.Suspend != nil && *job.Spec.Suspend {
		s.Replicas = 0
	}
	s.Selector = metav1.FormatLabelSelector(job.Spec.Selector)
	return s, nil
}
