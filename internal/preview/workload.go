package preview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/world"
)

// Workload is a pod, or what makes pods from a template.
type Workload struct {
	schema.GroupVersionKind
	Namespace string
	Name      string

	meta     metav1.ObjectMeta
	template corev1.PodTemplateSpec
	source   source
	// templatePath is where the template is, and specPath where its pod spec is, for messages.
	templatePath, specPath *field.Path

	replicas     int32 // as the manifest says; of no meaning for a DaemonSet
	unsized      bool  // the manifest does not say it
	replicasPath *field.Path
	indexed      bool              // pods of a Job carry their completion index
	daemonSet    *appsv1.DaemonSet // the object itself, of a DaemonSet of Kubernetes
	// Of a StatefulSet:
	firstOrdinal int64
	serviceName  string
	volumeClaims []string // names of the claim templates

	selector  *metav1.LabelSelector // of a Deployment
	qualified bool                  // a workload of another group has the same kind and name

	// holds is why a restart would not replace all pods, for people.
	holds string

	made []*world.Workload // itself, and what stands between it and its pods
}

// object is an object of the API with its metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// MaxPods bounds the pods of one workload: a preview is for people, and a typed
// zero too many should not eat the machine's memory.
const MaxPods = 100_000

func (w Workload) String() string {
	kind := w.Kind
	if w.qualified {
		kind += "." + w.Group
	}
	return kind + " " + w.key()
}

// key names a workload within its kind. The name may be one that is refused.
func (w Workload) key() string { return line(w.Namespace + "/" + w.Name) }

// own are the settings of the object itself.
func (w *Workload) own() feature.Metadata {
	return feature.Metadata{Annotations: w.meta.Annotations, Labels: w.meta.Labels}
}

// ofTemplate are the settings of its pod template; nil for a pod.
func (w *Workload) ofTemplate() *feature.Metadata {
	if w.Kind == "Pod" {
		return nil
	}
	return &feature.Metadata{Annotations: w.template.Annotations, Labels: w.template.Labels}
}

// newWorkload returns the workload that an object is, if it is one.
func newWorkload(obj runtime.Object) (Workload, bool) {
	w := Workload{replicas: 1, replicasPath: field.NewPath("spec", "replicas"), templatePath: field.NewPath("spec", "template")}
	switch o := obj.(type) {
	case *corev1.Pod:
		w.meta, w.template, w.specPath = o.ObjectMeta, corev1.PodTemplateSpec{Spec: o.Spec}, field.NewPath("spec")
	case *appsv1.Deployment:
		w.meta, w.template, w.selector = o.ObjectMeta, o.Spec.Template, o.Spec.Selector
		w.asks(o.Spec.Replicas)
		if o.Spec.Paused {
			w.holds = "it is paused, so that nothing replaces its pods"
		}
	case *appsv1.ReplicaSet:
		w.meta, w.template, w.holds = o.ObjectMeta, o.Spec.Template, onlyNewPods
		w.asks(o.Spec.Replicas)
	case *corev1.ReplicationController:
		w.meta, w.holds = o.ObjectMeta, onlyNewPods
		w.asks(o.Spec.Replicas)
		if o.Spec.Template != nil {
			w.template = *o.Spec.Template
		}
	case *appsv1.StatefulSet:
		w.fromStatefulSet(o.ObjectMeta, &o.Spec)
	case *appsv1.DaemonSet:
		w.meta, w.template, w.daemonSet = o.ObjectMeta, o.Spec.Template, o
	case *batchv1.Job:
		w.fromJob(o.ObjectMeta, &o.Spec, field.NewPath("spec"))
	case *batchv1.CronJob:
		w.fromJob(o.ObjectMeta, &o.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))
		if ptr.Deref(o.Spec.Suspend, false) {
			w.replicas = 0
		}
		w.templatePath = field.NewPath("spec", "jobTemplate", "spec", "template")
	default:
		return Workload{}, false
	}
	if w.specPath == nil {
		w.specPath = w.templatePath.Child("spec")
	}
	w.GroupVersionKind = obj.GetObjectKind().GroupVersionKind()
	w.Namespace, w.Name = w.meta.Namespace, cmp.Or(w.meta.Name, w.meta.GenerateName)
	return w, true
}

// onlyNewPods is why a restart replaces no pods of some kinds.
const onlyNewPods = "nothing replaces its pods, so that only new ones follow"

// asks notes how many pods a manifest asks for.
func (w *Workload) asks(replicas *int32) {
	w.replicas, w.unsized = ptr.Deref(replicas, 1), replicas == nil
}

// workloadVersion returns the version in which a preview reads a kind of workload, or
// "" for a kind that has only had one.
func workloadVersion(kind string) string {
	switch kind {
	case "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet":
		return appsv1.SchemeGroupVersion.String()
	case "Job", "CronJob":
		return batchv1.SchemeGroupVersion.String()
	}
	return ""
}

// fromStatefulSet notes what a StatefulSet says.
func (w *Workload) fromStatefulSet(m metav1.ObjectMeta, spec *appsv1.StatefulSetSpec) {
	w.meta, w.template, w.serviceName = m, spec.Template, spec.ServiceName
	w.asks(spec.Replicas)
	switch rolling := spec.UpdateStrategy.RollingUpdate; {
	case spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType:
		w.holds = "its updateStrategy is OnDelete, so that nothing replaces its pods"
	case rolling != nil && ptr.Deref(rolling.Partition, 0) > 0:
		w.holds = fmt.Sprintf("its partition is %d, so that a restart replaces some pods only", *rolling.Partition)
	}
	if spec.Ordinals != nil {
		w.firstOrdinal = int64(spec.Ordinals.Start)
	}
	for i := range spec.VolumeClaimTemplates {
		w.volumeClaims = append(w.volumeClaims, spec.VolumeClaimTemplates[i].Name)
	}
}

// fromJob notes what a Job says, or the template of a CronJob's Jobs.
func (w *Workload) fromJob(m metav1.ObjectMeta, spec *batchv1.JobSpec, path *field.Path) {
	w.meta, w.template, w.holds = m, spec.Template, onlyNewPods
	w.replicas, w.replicasPath = ptr.Deref(spec.Parallelism, 1), path.Child("parallelism")
	if spec.Completions != nil && *spec.Completions < w.replicas {
		w.replicas, w.replicasPath = *spec.Completions, path.Child("completions")
	}
	if ptr.Deref(spec.Suspend, false) {
		w.replicas = 0
	}
	w.indexed = ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// validate reports what the API server would refuse about the parts that matter
// here.
func (w *Workload) validate() field.ErrorList {
	var errs field.ErrorList
	if w.Name == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "name"), ""))
	}
	if w.replicas < 0 || w.replicas > MaxPods {
		errs = append(errs, field.Invalid(w.replicasPath, w.replicas, fmt.Sprintf("must be between 0 and %d here", MaxPods)))
	}
	if len(w.template.Spec.Containers) == 0 {
		errs = append(errs, field.Required(w.specPath.Child("containers"), ""))
	}
	names := map[string]bool{}
	for _, list := range []struct {
		path  *field.Path
		items []corev1.Container
	}{
		{w.specPath.Child("initContainers"), w.template.Spec.InitContainers},
		{w.specPath.Child("containers"), w.template.Spec.Containers},
	} {
		for i := range list.items {
			c, path := &list.items[i], list.path.Index(i)
			switch {
			case c.Name == "":
				errs = append(errs, field.Required(path.Child("name"), ""))
			case names[c.Name]:
				errs = append(errs, field.Duplicate(path.Child("name"), c.Name))
			}
			names[c.Name] = true
			errs = append(errs, validateResources(path.Child("resources"), &c.Resources)...)
		}
	}
	if w.template.Spec.Resources != nil {
		errs = append(errs, validateResources(w.specPath.Child("resources"), w.template.Spec.Resources)...)
	}
	return errs
}

func validateResources(path *field.Path, r *corev1.ResourceRequirements) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		if q := r.Limits[name]; q.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Child("limits").Key(string(name)), q.String(), "must not be negative"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		q := r.Requests[name]
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), q.String(), "must not be negative"))
		}
		if limit, ok := r.Limits[name]; ok && q.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), q.String(), fmt.Sprintf("must not exceed the limit of %s", limit.String())))
		}
	}
	return errs
}

// objects returns the objects that decisions look up for the workload's pods: itself,
// and what stands between it and them.
func (w *Workload) objects(obj object) []*world.Workload {
	if w.Kind == "Pod" {
		return nil
	}
	top := world.New(w.GroupVersionKind, obj)
	top.Namespace, top.UID = w.Namespace, w.uid()
	out := []*world.Workload{top}
	if owner, name := w.owner(); name != w.Name {
		out = append(out, &world.Workload{Ref: world.RefOf(&owner), Namespace: w.Namespace, Controller: &top.Ref, TemplateAnnotations: w.template.Annotations})
	}
	bottom := out[len(out)-1]
	bottom.TemplateLabels, bottom.Labelled = world.TemplateLabels(w.template.Labels), true
	if bottom != top {
		bottom.SelectorKeys = world.SelectorKeys(w.selector)
	}
	return out
}

// replicasOr returns how many pods a workload is to have: so many, or what its manifest says if that is negative.
func (w *Workload) replicasOr(replicas int32) int32 {
	if replicas >= 0 {
		return replicas
	}
	return w.replicas
}

// Replicas is how many pods the workload asks for; of no meaning for a DaemonSet.
func (w *Workload) Replicas() int64 { return int64(w.replicas) }

// Template is that of its pods. It must not be changed.
func (w *Workload) Template() *corev1.PodTemplateSpec { return &w.template }

// UID is that of the object, or one that follows from its name.
func (w *Workload) UID() types.UID { return w.uid() }

// Volumes reports whether its pods have claims of volumes: their own, or those of the template.
func (w *Workload) Volumes() bool {
	return len(w.volumeClaims) > 0 || len(podstatus.VolumeClaims(&w.template.Spec)) > 0
}

// Holds says why a restart would not replace all pods of the workload, for people. It returns "" if it would.
func (w *Workload) Holds() string { return w.holds }

// FirstPod returns the workload's first pod as its controller makes it, before admission. Of a DaemonSet it is that of the first node that
// it runs on; without such a node, or without replicas, it is nil.
func (w *Workload) FirstPod(nodes []corev1.Node) *corev1.Pod {
	pod := firstPod(w.pods(min(1, w.replicas), nodes))
	if w.Kind != "DaemonSet" && pod == nil {
		pod = firstPod(w.pods(1, nil))
	}
	return pod
}

// FirstOrdinal is the ordinal of the first pod of a StatefulSet.
func (w *Workload) FirstOrdinal() int64 { return w.firstOrdinal }
