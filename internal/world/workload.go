package world

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Workload is what decisions read of an object that makes pods.
type Workload struct {
	Ref
	Namespace string
	// Created is when it was created, in whole seconds.
	Created time.Time
	// Deleting says that it has a deletion timestamp. It creates no more pods, even if a finalizer keeps it and its pods for long.
	Deleting bool
	// Annotations are those of its metadata that Stowage reads.
	Annotations map[string]string
	// Controller is what made it, if anything did.
	Controller *Ref
	// TemplateAnnotations are those of its pod template that Stowage reads, of a
	// ReplicaSet, a StatefulSet or a DaemonSet.
	TemplateAnnotations map[string]string
	// TemplateLabels are the labels of its pod template, of a ReplicaSet or a StatefulSet: at most 64 labels of 4 KiB. Of a DaemonSet
	// it is the one of the mode.
	TemplateLabels map[string]string
	// Labelled says that TemplateLabels are all that policies select by.
	Labelled bool
	// SelectorKeys are the keys of the labels that its selector names, of a ReplicaSet or a StatefulSet. It is nil where they are not known.
	SelectorKeys []string
	// TemplateNode is the node that its pod template names, of a ReplicaSet or a StatefulSet.
	TemplateNode string
	// Volumes says that each pod has volumes of its own, of a StatefulSet with volume claim templates.
	Volumes bool
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
	if a.Controller == nil || b.Controller == nil || a.Controller.UID != b.Controller.UID {
		return false
	}
	return a.UID != b.UID && a.Revision() > b.Revision()
}

// NewestFirst orders what makes a workload's pods, the latest revision first. In whatever order they were listed, that is the same.
func NewestFirst(a, b *Workload) int {
	return cmp.Or(cmp.Compare(b.Revision(), a.Revision()), b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// New returns the workload that an object of a kind is.
func New(gvk schema.GroupVersionKind, obj metav1.Object) *Workload {
	ref := Ref{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: obj.GetName()}
	return FromKept(ref, Keep(obj))
}

// FromKept returns the workload of an object that [Keep] has cut. Its version is that of the object, which may not
// be the one that the reference asks for.
func FromKept(ref Ref, kept metav1.Object) *Workload {
	switch kept.(type) {
	case *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet:
		ref.APIVersion = appsv1.SchemeGroupVersion.String()
	}
	switch o := kept.(type) {
	case *appsv1.ReplicaSet:
		w := newWorkload(ref, &o.ObjectMeta)
		w.fillIn(&o.Spec.Template, o.Spec.Replicas, o.Status.Replicas)
		w.SelectorKeys = SelectorKeys(o.Spec.Selector)
		w.Failure = failureOf(o)
		return w
	case *appsv1.StatefulSet:
		w := newWorkload(ref, &o.ObjectMeta)
		w.fillIn(&o.Spec.Template, o.Spec.Replicas, o.Status.Replicas)
		w.SelectorKeys = SelectorKeys(o.Spec.Selector)
		w.Volumes = len(o.Spec.VolumeClaimTemplates) > 0
		if o.Spec.Ordinals != nil {
			w.FirstOrdinal = int64(o.Spec.Ordinals.Start)
		}
		return w
	case *appsv1.DaemonSet:
		w := newWorkload(ref, &o.ObjectMeta)
		w.TemplateAnnotations, w.TemplateLabels = o.Spec.Template.Annotations, o.Spec.Template.Labels
		return w
	case *metav1.PartialObjectMetadata:
		return newWorkload(ref, &o.ObjectMeta)
	}
	return nil // Keep returns no other kind
}

// fillIn fills in what ReplicaSets and StatefulSets say alike.
func (w *Workload) fillIn(template *corev1.PodTemplateSpec, replicas *int32, current int32) {
	w.TemplateAnnotations, w.TemplateLabels, w.TemplateNode, w.Labelled = template.Annotations, template.Labels, template.Spec.NodeName, true
	w.Replicas, w.Current = int64(ptr.Deref(replicas, 1)), int64(current)
}

func newWorkload(ref Ref, m *metav1.ObjectMeta) *Workload {
	w := &Workload{Ref: ref, Namespace: m.Namespace, Created: m.CreationTimestamp.Time, Deleting: m.DeletionTimestamp != nil, Annotations: m.Annotations, Replicas: -1, Current: -1}
	w.UID = m.UID
	if c := metav1.GetControllerOfNoCopy(m); c != nil {
		controller := RefOf(c)
		w.Controller = &controller
	}
	return w
}

// Bytes is about what a workload takes in memory.
func (w *Workload) Bytes() int64 {
	if w == nil {
		return 0
	}
	n := int64(1 << 10)
	for k, v := range w.Annotations {
		n += int64(len(k) + len(v))
	}
	return n
}

// Watched reports whether the workloads of a kind are in the caches of Stowage.
func (r Ref) Watched() bool {
	return r.Group() == appsv1.GroupName && slices.Contains([]string{"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}, r.Kind)
}

// MakesPods reports whether a reference is to a workload that makes pods itself and whose size is watched.
func (r Ref) MakesPods() bool {
	return r.Group() == appsv1.GroupName && (r.Kind == "ReplicaSet" || r.Kind == "StatefulSet")
}

// KeepsTemplate reports whether an object of the kind has one pod template, whose revisions it makes itself. What stands above it may
// have others.
func (r Ref) KeepsTemplate() bool {
	switch r.Group() {
	case appsv1.GroupName:
		return slices.Contains([]string{"DaemonSet", "Deployment", "StatefulSet"}, r.Kind)
	case "argoproj.io":
		return r.Kind == "Rollout"
	case "apps.kruise.io":
		return slices.Contains([]string{"CloneSet", "DaemonSet", "StatefulSet"}, r.Kind)
	}
	return false
}

// HasTemplate reports whether workloads of a kind have TemplateAnnotations.
func (r Ref) HasTemplate() bool { return r.Watched() && r.Kind != "Deployment" }
