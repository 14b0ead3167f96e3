package world

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
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

// IsStatefulSet reports whether it names a StatefulSet of Kubernetes itself.
func (r Ref) IsStatefulSet() bool { return r.Kind == "StatefulSet" && r.Group() == appsv1.GroupName }

// IsJob reports whether it names a Job.
func (r Ref) IsJob() bool { return r.Kind == "Job" && r.Group() == batchv1.GroupName }

// recreating are the kinds whose controllers create a pod in the place of one that was evicted. They are named one by one: a controller of workflows,
// runners or batches takes such a pod for one that has failed, and its work is lost.
var recreating = map[schema.GroupKind]bool{
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}: true, {Group: appsv1.GroupName, Kind: "StatefulSet"}: true, {Group: appsv1.GroupName, Kind: "DaemonSet"}: true,
	{Group: corev1.GroupName, Kind: "ReplicationController"}: true,
	{Group: "apps.kruise.io", Kind: "CloneSet"}:              true, {Group: "apps.kruise.io", Kind: "StatefulSet"}: true, {Group: "apps.kruise.io", Kind: "DaemonSet"}: true,
}

// Recreates reports whether it names an owner that creates a pod in the place of one that was evicted. Of a Job, [IgnoresEvictions] says it.
func (r Ref) Recreates() bool { return recreating[schema.GroupKind{Group: r.Group(), Kind: r.Kind}] }

// SameObject reports whether two references name one object, in whatever version.
func (r Ref) SameObject(other Ref) bool {
	return r.Name == other.Name && r.Kind == other.Kind && r.Group() == other.Group()
}

// GroupVersionKind returns the kind of a reference, or false if no kind can have such a name. Its parts go into the paths of requests.
func (r Ref) GroupVersionKind() (schema.GroupVersionKind, bool) {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	gvk := gv.WithKind(r.Kind)
	return gvk, err == nil && wellNamed(gvk)
}

// wellNamed reports whether the API server may serve a kind of such a name.
func wellNamed(gvk schema.GroupVersionKind) bool {
	if gvk.Group != "" && len(validation.IsDNS1123Subdomain(gvk.Group)) > 0 {
		return false
	}
	return len(validation.IsDNS1035Label(gvk.Version))+len(validation.IsDNS1035Label(strings.ToLower(gvk.Kind))) == 0
}

// Plausible reports whether an owner reference can be of an object. The API server does not check its length.
func Plausible(o *metav1.OwnerReference) bool {
	return max(len(o.APIVersion), len(o.Kind), len(o.Name), len(o.UID)) <= validation.DNS1123SubdomainMaxLength
}

// Object names an object.
type Object struct {
	Namespace string
	Ref
}

// Reference returns the reference that events take.
func (o Object) Reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// OwnerReferences has an object deleted with this one.
func (o Object) OwnerReferences() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}}
}

// LogKeys are the pairs by which a log line names the object.
func (o Object) LogKeys() []any {
	return []any{"namespace", o.Namespace, "kind", o.Kind, "name", o.Name}
}
