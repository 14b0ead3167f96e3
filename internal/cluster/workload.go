package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Ref names an object of a known namespace.
type Ref struct {
	APIVersion, Kind, Name string
	UID                    types.UID // empty where only the name is known
}

// RefOf returns the reference that an owner reference is.
func RefOf(o *metav1.OwnerReference) Ref {
	return Ref{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}
}

// Group is the reference's API group.
func (r Ref) Group() string {
	group, _, found := strings.Cut(r.APIVersion, "/")
	if !found {
		return ""
	}
	return group
}

// Object returns the reference that events take.
func (r Ref) Object(namespace string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: r.APIVersion, Kind: r.Kind, Namespace: namespace, Name: r.Name, UID: r.UID}
}

// IsStatefulSet reports whether it names a StatefulSet of Kubernetes itself.
func (r Ref) IsStatefulSet() bool { return r.Kind == "StatefulSet" && r.Group() == appsv1.GroupName }

// IsJob reports whether it names a Job.
func (r Ref) IsJob() bool { return r.Kind == "Job" && r.Group() == batchv1.GroupName }

// SameObject reports whether two references name one object, in whatever version.
func (r Ref) SameObject(other Ref) bool {
	return r.Name == other.Name && r.Kind == other.Kind && r.Group() == other.Group()
}

// Workload is what decisions read of an object that makes pods.
type Workload struct {
	Ref
	Namespace string
	// Created is when it was created, in whole seconds.
	Created time.Time
	// Annotations are those of its metadata that Stowage reads.
	Annotations map[string]string
	// Controller is what made it, if anything did.
	Controller *Ref
	// TemplateAnnotations are those of its pod template that Stowage reads, of a
	// ReplicaSet, a StatefulSet or a DaemonSet.
	TemplateAnnotations map[string]string
	// TemplateNode is the node that its pod template names, of a ReplicaSet or a StatefulSet.
	TemplateNode string
	// FirstOrdinal is the ordinal of a StatefulSet's first pod.
	FirstOrdinal int64
	// Replicas is how many pods it asks for and Current how many its controller sees,
	// of a ReplicaSet or a StatefulSet. They are -1 for other kinds.
	Replicas, Current int64
	// Failure says why its controller creates no pods, of a ReplicaSet for which that is known.
	Failure string
}

// Is reports whether a reference is to this workload.
func (w *Workload) Is(ref Ref) bool {
	return w.SameObject(ref) && (ref.UID == "" || ref.UID == w.UID)
}

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	return m
}

// The annotations in which Deployments and Argo Rollouts count the revisions of their ReplicaSets.
const (
	deploymentRevision = "deployment.kubernetes.io/revision"
	rolloutRevision    = "rollout.argoproj.io/revision"
)

// Revision returns which revision of its controller a ReplicaSet is, or 0 if that is not known. A rollback makes an old
// ReplicaSet the newest revision.
func (w *Workload) Revision() int64 {
	n, _ := strconv.ParseInt(cmp.Or(w.Annotations[deploymentRevision], w.Annotations[rolloutRevision]), 10, 64)
	return n
}

// Newer reports whether one workload is a later revision of another one's controller.
func Newer(a, b *Workload) bool {
	return a.UID != b.UID && a.Controller != nil && b.Controller != nil && a.Controller.UID == b.Controller.UID && a.Revision() > b.Revision()
}

// newWorkload returns the workload that an object is.
func newWorkload(ref Ref, m *metav1.ObjectMeta) *Workload {
	w := &Workload{Ref: ref, Namespace: m.Namespace, Created: m.CreationTimestamp.Time, Annotations: m.Annotations, Replicas: -1, Current: -1}
	w.UID = m.UID
	if c := metav1.GetControllerOfNoCopy(m); c != nil {
		controller := RefOf(c)
		w.Controller = &controller
	}
	return w
}

// NewWorkload returns the workload that an object of the given kind is.
func NewWorkload(gvk schema.GroupVersionKind, obj client.Object) Workload {
	m := workloadIdentity(metav1.ObjectMeta{
		Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(), CreationTimestamp: obj.GetCreationTimestamp(),
		Annotations: obj.GetAnnotations(), OwnerReferences: obj.GetOwnerReferences(),
	})
	ref := Ref{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: obj.GetName()}
	w := newWorkload(ref, &m)
	switch o := obj.(type) {
	case *appsv1.StatefulSet:
		if o.Spec.Ordinals != nil {
			w.FirstOrdinal = int64(o.Spec.Ordinals.Start)
		}
		w.TemplateAnnotations = ofTemplate(o.Spec.Template.Annotations)
	case *appsv1.DaemonSet:
		w.TemplateAnnotations = ofTemplate(o.Spec.Template.Annotations)
	case *appsv1.ReplicaSet:
		w.TemplateAnnotations = ofTemplate(o.Spec.Template.Annotations)
	}
	return *w
}

func fromReplicaSet(rs *appsv1.ReplicaSet) *Workload {
	w := newWorkload(Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: rs.Name}, &rs.ObjectMeta)
	w.TemplateAnnotations, w.TemplateNode = rs.Spec.Template.Annotations, rs.Spec.Template.Spec.NodeName
	w.Replicas, w.Current = int64(ptr.Deref(rs.Spec.Replicas, 1)), int64(rs.Status.Replicas)
	w.Failure = failureOf(rs)
	return w
}

func fromStatefulSet(s *appsv1.StatefulSet) *Workload {
	w := newWorkload(Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet", Name: s.Name}, &s.ObjectMeta)
	w.TemplateAnnotations, w.TemplateNode = s.Spec.Template.Annotations, s.Spec.Template.Spec.NodeName
	w.Replicas, w.Current = int64(ptr.Deref(s.Spec.Replicas, 1)), int64(s.Status.Replicas)
	if s.Spec.Ordinals != nil {
		w.FirstOrdinal = int64(s.Spec.Ordinals.Start)
	}
	return w
}

func fromDaemonSet(d *appsv1.DaemonSet) *Workload {
	w := newWorkload(Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet", Name: d.Name}, &d.ObjectMeta)
	w.TemplateAnnotations = d.Spec.Template.Annotations
	return w
}

// watched reports whether a kind of workload is in the cache.
func watched(ref Ref) bool {
	return ref.Group() == appsv1.GroupName && slices.Contains([]string{"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}, ref.Kind)
}

// HasTemplate reports whether workloads of a kind have TemplateAnnotations.
func HasTemplate(ref Ref) bool { return watched(ref) && ref.Kind != "Deployment" }

// Workload implements [Reader]. Deployments and other workloads of apps/v1 come from the cache, or from the API server where they
// are younger than it. Others are read from the API server and remembered for a minute.
func (c *Cache) Workload(ctx context.Context, namespace string, ref Ref) (*Workload, error) {
	if !possible(namespace) || !possible(ref.Name) {
		return nil, nil
	}
	if !watched(ref) {
		return c.unwatchedWorkload(ctx, namespace, ref)
	}
	w, err := readWorkload(ctx, c.cached, namespace, ref)
	if apierrors.IsNotFound(err) || err == nil && !w.Is(ref) {
		k := readKey{what: "workload", namespace: namespace, ref: ref}
		// Nobody knows the UID of an object before it exists, so one that did not exist never
		// will. By name alone it may.
		if _, missing := c.missing.Get(k); missing {
			return nil, nil
		}
		w, err = readUncached(ctx, c, c.objects, c.Asker(ctx, namespace), k, func(ctx context.Context) (*Workload, error) {
			return readWorkload(ctx, c.uncached, namespace, ref)
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

// readWorkload reads a workload of a kind that is watched.
func readWorkload(ctx context.Context, from client.Reader, namespace string, ref Ref) (*Workload, error) {
	key := client.ObjectKey{Namespace: namespace, Name: ref.Name}
	switch ref.Kind {
	case "StatefulSet":
		var s appsv1.StatefulSet
		if err := from.Get(ctx, key, &s); err != nil {
			return nil, err
		}
		return fromStatefulSet(&s), nil
	case "ReplicaSet":
		var rs appsv1.ReplicaSet
		if err := from.Get(ctx, key, &rs); err != nil {
			return nil, err
		}
		return fromReplicaSet(&rs), nil
	case "DaemonSet":
		var d appsv1.DaemonSet
		if err := from.Get(ctx, key, &d); err != nil {
			return nil, err
		}
		return fromDaemonSet(&d), nil
	}
	m := metadataOf(appsv1.SchemeGroupVersion.WithKind(ref.Kind))
	if err := from.Get(ctx, key, m); err != nil {
		return nil, err
	}
	return newWorkload(ref, &m.ObjectMeta), nil
}
