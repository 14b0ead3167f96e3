package preview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/cluster"
)

// Workload is a pod, or what makes pods from a template.
type Workload struct {
	schema.GroupVersionKind
	Namespace string
	Name      string

	meta     metav1.ObjectMeta
	template corev1.PodTemplateSpec
	source   source
	specPath *field.Path // of the template's pod spec, for messages

	replicas     int32 // as the manifest says; of no meaning for a DaemonSet
	replicasPath *field.Path
	indexed      bool // pods of a Job carry their completion index
	// Of a StatefulSet:
	firstOrdinal int64
	serviceName  string
	volumeClaims []string // names of the claim templates
}

// MaxPods bounds the pods of one workload: a preview is for people, and a typed
// zero too many should not eat the machine's memory.
const MaxPods = 100_000

func (w Workload) String() string { return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name) }

// newWorkload returns the workload that an object is, if it is one.
func newWorkload(obj runtime.Object) (Workload, bool) {
	w := Workload{replicas: 1, replicasPath: field.NewPath("spec", "replicas")}
	templatePath := field.NewPath("spec", "template", "spec")
	switch o := obj.(type) {
	case *corev1.Pod:
		w.meta, w.template, w.specPath = o.ObjectMeta, corev1.PodTemplateSpec{Spec: o.Spec}, field.NewPath("spec")
	case *appsv1.Deployment:
		w.meta, w.template, w.replicas = o.ObjectMeta, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1)
	case *appsv1.ReplicaSet:
		w.meta, w.template, w.replicas = o.ObjectMeta, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1)
	case *corev1.ReplicationController:
		w.meta, w.replicas = o.ObjectMeta, ptr.Deref(o.Spec.Replicas, 1)
		if o.Spec.Template != nil {
			w.template = *o.Spec.Template
		}
	case *appsv1.StatefulSet:
		w.meta, w.template, w.replicas = o.ObjectMeta, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1)
		w.serviceName = o.Spec.ServiceName
		if o.Spec.Ordinals != nil {
			w.firstOrdinal = int64(o.Spec.Ordinals.Start)
		}
		for i := range o.Spec.VolumeClaimTemplates {
			w.volumeClaims = append(w.volumeClaims, o.Spec.VolumeClaimTemplates[i].Name)
		}
	case *appsv1.DaemonSet:
		w.meta, w.template = o.ObjectMeta, o.Spec.Template
	case *batchv1.Job:
		w.fromJob(o.ObjectMeta, &o.Spec, field.NewPath("spec"))
	case *batchv1.CronJob:
		w.fromJob(o.ObjectMeta, &o.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))
		if ptr.Deref(o.Spec.Suspend, false) {
			w.replicas = 0
		}
		templatePath = field.NewPath("spec", "jobTemplate", "spec", "template", "spec")
	default:
		return Workload{}, false
	}
	if w.specPath == nil {
		w.specPath = templatePath
	}
	w.GroupVersionKind = obj.GetObjectKind().GroupVersionKind()
	w.Namespace, w.Name = w.meta.Namespace, cmp.Or(w.meta.Name, w.meta.GenerateName)
	return w, true
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

func (w *Workload) fromJob(m metav1.ObjectMeta, spec *batchv1.JobSpec, path *field.Path) {
	w.meta, w.template = m, spec.Template
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

// pods returns the pods that controllers would make for the workload, in order of
// creation. A DaemonSet has one for each node that it may run on.
func (w *Workload) pods(replicas int32, nodes []corev1.Node) []*corev1.Pod {
	if w.Kind == "Pod" {
		pod := &corev1.Pod{ObjectMeta: w.meta, Spec: w.template.Spec}
		pod.TypeMeta = podType
		pod.Namespace = w.Namespace
		if pod.Name == "" {
			pod.Name = nameSet{}.generate(pod.GenerateName, w.source.String(), 0)
		}
		return []*corev1.Pod{pod.DeepCopy()}
	}
	names := nameSet{}
	owner, ownerName := w.owner()
	if w.Kind == "DaemonSet" {
		var pods []*corev1.Pod
		for i := range nodes {
			pod := w.newPod(owner)
			tolerateAsDaemon(&pod.Spec)
			if !runsOn(&pod.Spec, &nodes[i]) {
				continue
			}
			pin(&pod.Spec, nodes[i].Name)
			pod.GenerateName = ownerName + "-"
			pod.Name = names.generate(pod.GenerateName, w.String()+nodes[i].Name, 0)
			pods = append(pods, pod)
		}
		return pods
	}
	pods := make([]*corev1.Pod, 0, replicas)
	for i := range replicas {
		pod := w.newPod(owner)
		switch {
		case w.Kind == "StatefulSet":
			w.identify(pod, strconv.FormatInt(w.firstOrdinal+int64(i), 10))
		case w.indexed:
			index := strconv.Itoa(int(i))
			pod.GenerateName = ownerName[:min(len(ownerName), maxGenerated-len(index)-2)] + "-" + index + "-"
			pod.Name = names.generate(pod.GenerateName, w.String(), i)
			metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, index)
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, index)
			pod.Spec.Hostname = ownerName + "-" + index
		default:
			pod.GenerateName = ownerName + "-"
			pod.Name = names.generate(pod.GenerateName, w.String(), i)
		}
		pods = append(pods, pod)
	}
	return pods
}

var podType = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}

// newPod makes a pod from the template.
func (w *Workload) newPod(owner metav1.OwnerReference) *corev1.Pod {
	t := w.template.DeepCopy()
	pod := &corev1.Pod{TypeMeta: podType, ObjectMeta: metav1.ObjectMeta{
		Namespace: w.Namespace, Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
		OwnerReferences: []metav1.OwnerReference{owner},
	}, Spec: t.Spec}
	switch w.Kind {
	case "Deployment":
		metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, w.templateHash())
	case "Job", "CronJob":
		for _, prefix := range []string{"", "batch.kubernetes.io/"} { // the first is the older form
			metav1.SetMetaDataLabel(&pod.ObjectMeta, prefix+"job-name", owner.Name)
			metav1.SetMetaDataLabel(&pod.ObjectMeta, prefix+"controller-uid", string(owner.UID))
		}
	}
	return pod
}

// identify gives a StatefulSet's pod its stable name, network and storage.
func (w *Workload) identify(pod *corev1.Pod, ordinal string) {
	pod.Name = w.Name + "-" + ordinal
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, ordinal)
	pod.GenerateName = w.Name + "-"
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, w.serviceName
	for _, claim := range w.volumeClaims {
		volume := corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim + "-" + pod.Name},
		}}
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == claim })
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	}
}

// owner returns the reference to the pods' controller and the name that theirs
// begin with. A Deployment's pods belong to a ReplicaSet, a CronJob's to a Job.
func (w *Workload) owner() (metav1.OwnerReference, string) {
	gvk, name := w.GroupVersionKind, w.Name
	switch w.Kind {
	case "Deployment":
		gvk, name = appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), w.Name+"-"+w.templateHash()
	case "CronJob":
		gvk, name = batchv1.SchemeGroupVersion.WithKind("Job"), fmt.Sprintf("%s-%d", w.Name, 20_000_000+hash32(w.String())%10_000_000)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: kind, Name: name, UID: uid(kind + "/" + w.Namespace + "/" + name),
		Controller: new(true), BlockOwnerDeletion: new(true),
	}, name
}

// objects returns the objects that decisions look up for the workload's pods: itself,
// and what stands between it and them.
func (w *Workload) objects(obj runtime.Object) []cluster.Workload {
	meta, ok := obj.(client.Object)
	if !ok || w.Kind == "Pod" {
		return nil
	}
	top := cluster.NewWorkload(w.GroupVersionKind, meta)
	top.Namespace, top.UID = w.Namespace, uid(w.Kind+"/"+w.Namespace+"/"+w.Name)
	out := []cluster.Workload{top}
	if owner, name := w.owner(); name != w.Name {
		out = append(out, cluster.Workload{Ref: cluster.RefOf(&owner), Namespace: w.Namespace, Controller: &top.Ref})
	}
	return out
}

// templateHash stands for the pod-template-hash: it looks like one and depends on
// nothing but the template. A cluster shows another, because the Deployment
// controller hashes the template with all of its defaults.
func (w *Workload) templateHash() string {
	data, err := json.Marshal(w.template)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash32(string(data))), 10))
}

func hash32(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return h.Sum32()
}

const (
	suffixLength = 5
	// maxGenerated is the longest name that the API server generates.
	maxGenerated = 63 - suffixLength
)

// nameSet is the generated names of a workload's pods.
type nameSet map[string]bool

// generate returns a name as the API server generates one, with five characters that
// depend on nothing but the arguments where it takes random ones.
func (n nameSet) generate(prefix, seed string, i int32) string {
	prefix = prefix[:min(len(prefix), maxGenerated)]
	for try := 0; ; try++ {
		digits := fmt.Sprintf("%010d", hash32(fmt.Sprintf("%s#%d#%d", seed, i, try)))
		name := prefix + rand.SafeEncodeString(digits[len(digits)-suffixLength:])
		if !n[name] {
			n[name] = true
			return name
		}
	}
}

// uid makes a stable UID, in the form of one.
func uid(seed string) types.UID {
	h := fnv.New128a()
	_, _ = h.Write([]byte(seed))
	x := fmt.Sprintf("%x", h.Sum(nil))
	return types.UID(strings.Join([]string{x[:8], x[8:12], x[12:16], x[16:20], x[20:32]}, "-"))
}

// tolerateAsDaemon adds the tolerations that the DaemonSet controller gives its
// pods (documentation of DaemonSet, "Taints and tolerations").
func tolerateAsDaemon(spec *corev1.PodSpec) {
	taints := []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodePIDPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
	}
	if spec.HostNetwork {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, t := range taints {
		spec.Tolerations = appendMissing(spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect})
	}
}

// appendMissing adds a toleration that the list does not have yet.
func appendMissing(list []corev1.Toleration, t corev1.Toleration) []corev1.Toleration {
	if slices.ContainsFunc(list, func(have corev1.Toleration) bool { return have.MatchToleration(&t) }) {
		return list
	}
	return append(list, t)
}

// runsOn reports whether the DaemonSet controller would make a pod for the node.
func runsOn(spec *corev1.PodSpec, node *corev1.Node) bool {
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false
	}
	// A term that does not parse matches nothing, as in the controller.
	if fits, _ := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity).Match(node); !fits {
		return false
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule
	}, false)
	return !untolerated
}

// pin ties a pod to its node as the DaemonSet controller does.
func pin(spec *corev1.PodSpec, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}},
	}
}
