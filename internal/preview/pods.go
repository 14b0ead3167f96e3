package preview

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/stowage-dev/stowage/internal/nodefit"
)

// maker makes the pods of a workload, as its controller does.
type maker struct {
	*Workload
	owner     metav1.OwnerReference
	ownerName string
	hash      string // see [Workload.templateHash]
	names     nameSet
}

// pods returns the pods that controllers would make for the workload, in order of
// creation. A DaemonSet has one for each node that it may run on. They are made one by one, because there may be many.
func (w *Workload) pods(replicas int32, nodes []corev1.Node) iter.Seq[*corev1.Pod] {
	if w.Kind == "Pod" {
		return func(yield func(*corev1.Pod) bool) { yield(w.itself()) }
	}
	return func(yield func(*corev1.Pod) bool) {
		m := maker{Workload: w, hash: w.templateHash(), names: nameSet{}}
		m.owner, m.ownerName = w.owner()
		if w.Kind == "DaemonSet" {
			m.forNodes(nodes, yield)
			return
		}
		for i := range replicas {
			if !yield(m.pod(i)) {
				return
			}
		}
	}
}

// firstPod returns the first of some pods, or nil if there is none.
func firstPod(pods iter.Seq[*corev1.Pod]) *corev1.Pod {
	for pod := range pods {
		return pod
	}
	return nil
}

// itself is the pod of a workload that is one.
func (w *Workload) itself() *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: podType, ObjectMeta: w.meta, Spec: w.template.Spec}
	pod.Namespace = w.Namespace
	if pod.Name == "" {
		pod.Name = nameSet{}.generate(pod.GenerateName, w.source.String(), 0)
	}
	return pod.DeepCopy()
}

// forNodes makes the pods of a DaemonSet.
func (m *maker) forNodes(nodes []corev1.Node, yield func(*corev1.Pod) bool) {
	for i := range nodes {
		pod := m.newPod()
		tolerateAsDaemon(&pod.Spec)
		if !runsOn(&pod.Spec, &nodes[i]) {
			continue
		}
		pin(&pod.Spec, nodes[i].Name)
		pod.GenerateName = m.ownerName + "-"
		pod.Name = m.names.generate(pod.GenerateName, m.String()+nodes[i].Name, 0)
		if !yield(pod) {
			return
		}
	}
}

// pod makes one of the pods of a workload with a replica count.
func (m *maker) pod(i int32) *corev1.Pod {
	pod := m.newPod()
	switch {
	case m.Kind == "StatefulSet":
		m.identify(pod, strconv.FormatInt(m.firstOrdinal+int64(i), 10))
	case m.indexed:
		index := strconv.Itoa(int(i))
		pod.GenerateName = m.ownerName[:min(len(m.ownerName), maxGenerated-len(index)-2)] + "-" + index + "-"
		pod.Name = m.names.generate(pod.GenerateName, m.String(), i)
		metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, index)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, index)
		pod.Spec.Hostname = m.ownerName + "-" + index
	default:
		pod.GenerateName = m.ownerName + "-"
		pod.Name = m.names.generate(pod.GenerateName, m.String(), i)
	}
	return pod
}

var podType = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}

// newPod makes a pod from the template.
func (m *maker) newPod() *corev1.Pod {
	t := m.template.DeepCopy()
	pod := &corev1.Pod{TypeMeta: podType, ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
		OwnerReferences: []metav1.OwnerReference{m.owner},
	}, Spec: t.Spec}
	switch m.Kind {
	case "Deployment":
		metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, m.hash)
	case "Rollout":
		metav1.SetMetaDataLabel(&pod.ObjectMeta, rolloutHashLabel, m.hash)
	case "Job", "CronJob":
		for _, prefix := range []string{"", "batch.kubernetes.io/"} { // the first is the older form
			metav1.SetMetaDataLabel(&pod.ObjectMeta, prefix+"job-name", m.owner.Name)
			metav1.SetMetaDataLabel(&pod.ObjectMeta, prefix+"controller-uid", string(m.owner.UID))
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
// begin with. The pods of a Deployment or
// Rollout belong to a ReplicaSet, those of a CronJob to a Job.
func (w *Workload) owner() (metav1.OwnerReference, string) {
	gvk, name := w.GroupVersionKind, w.Name
	switch w.Kind {
	case "Deployment", "Rollout":
		gvk, name = appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), w.Name+"-"+w.templateHash()
	case "CronJob":
		gvk, name = batchv1.SchemeGroupVersion.WithKind("Job"), fmt.Sprintf("%s-%d", w.Name, 20_000_000+hash32(w.String())%10_000_000)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	id := w.uid()
	if name != w.Name { // a workload of another kind may have made one of the same name
		id = uid(string(id) + "/" + kind + "/" + name)
	}
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: kind, Name: name, UID: id,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}, name
}

// templateHash stands for the pod-template-hash: it looks like one and depends on
// nothing but the template and the kind. A cluster shows another, because the Deployment
// controller hashes the template with all of its defaults, and that of Rollouts in another way.
func (w *Workload) templateHash() string {
	data, err := json.Marshal(w.template)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	text := string(data)
	if w.GroupKind() == rollouts {
		text += "#" + w.Kind
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash32(text)), 10))
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

// Short names have some 100,000 suffixes. After enoughTries that are taken, a name gets a longer suffix, and so do all names of a workload from
// enoughNames pods on.
const (
	enoughTries = 20
	enoughNames = 50_000
)

// nameSet is the generated names of a workload's pods.
type nameSet map[string]bool

// generate returns a name as the API server generates one, with five characters that
// depend on nothing but the arguments where it takes random ones.
func (n nameSet) generate(prefix, seed string, i int32) string {
	prefix = prefix[:min(len(prefix), maxGenerated)]
	for try := 0; ; try++ {
		digits := fmt.Sprintf("%010d", hash32(fmt.Sprintf("%s#%d#%d", seed, i, try)))
		suffix := digits[len(digits)-suffixLength:]
		if try >= enoughTries || len(n) >= enoughNames {
			suffix = digits
		}
		name := prefix + rand.SafeEncodeString(suffix)
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
	return (spec.NodeName == "" || spec.NodeName == node.Name) && nodefit.Selects(spec, node)
}

// pin ties a pod to its node as the DaemonSet controller does.
func pin(spec *corev1.PodSpec, node string) {
	*requiredAffinity(spec) = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}},
	}
}

// requiredAffinity returns where a pod spec has its required node affinity, which may be nil.
func requiredAffinity(spec *corev1.PodSpec) **corev1.NodeSelector {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// requiredTerms returns the terms of the required node affinity of a pod spec. It changes nothing.
func requiredTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}
