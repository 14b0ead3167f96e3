package liveness

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// workload is one of a world.
type workload struct {
	name     string
	kind     string
	object   client.Object
	template corev1.PodTemplateSpec
	traits   []string // what is special
	rule     bool     // a Job that does not count disruptions as failures
}

// workload makes one of many kinds, with what keeps its pods from some nodes.
func (w *world) workload() {
	w.serial++
	of := &workload{name: fmt.Sprintf("app-%d", w.serial)}
	of.template = suite.PodTemplate(of.name)
	maps.Copy(of.template.Labels, divided)
	spec := &of.template.Spec
	spec.NodeSelector = map[string]string{ownLabel: w.Namespace}
	spec.Containers[0].Resources.Requests = testkit.ResourceList(fmt.Sprintf("cpu=%dm", 100*(1+w.IntN(10))))
	w.trait(of, 10, "large", func() {
		spec.Containers[0].Resources.Requests = testkit.ResourceList(fmt.Sprintf("cpu=%d", 3+w.IntN(5)))
	})
	w.trait(of, 30, "arm", func() { spec.Tolerations = append(spec.Tolerations, tolerates(arm)) })
	w.trait(of, 20, "gpu", func() { spec.Tolerations = append(spec.Tolerations, tolerates(gpu)) })
	w.trait(of, 10, "port", func() {
		spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8000 + int32(w.serial)}}
	})
	w.trait(of, 12, "zone", func() { spec.Affinity = w.nodeAffinity() })
	w.trait(of, 25, "spread", func() { w.constrain(of) })
	w.trait(of, 15, "pods", func() { w.podAffinity(of) })
	w.kind(of, 1+w.IntN(9))
	of.object.SetNamespace(w.Namespace)
	of.object.SetName(of.name)
	if made := w.source.distribute(w.t, w.Tenant, of.object, of.kind); made != nil {
		w.made = append(w.made, made)
	}
	suite.Must(w.t, w.Create(w.t.Context(), of.object))
	w.workloads = append(w.workloads, of)
}

// trait gives a workload something special, so many times of a hundred.
func (w *world) trait(of *workload, percent int, name string, give func()) {
	if w.chance(percent) {
		give()
		of.traits = append(of.traits, name)
	}
}

// kind makes the object of a random kind.
func (w *world) kind(of *workload, replicas int) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": of.name}}
	switch kind := w.IntN(100); {
	case kind < 45:
		of.kind = "Deployment"
		w.trait(of, 15, "one claim for all", func() { w.claim(of, "") })
		w.trait(of, 10, "one volume for all", func() { w.claim(of, pick(w, w.zones...)) })
		of.object = &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(replicas)), Selector: selector, Template: of.template}}
	case kind < 75:
		of.kind = "StatefulSet"
		s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(replicas)), Selector: selector, Template: of.template}}
		w.trait(of, 60, "parallel", func() { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement })
		w.trait(of, 50, "claims", func() {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: suite.ClaimSpec(w.class, corev1.ReadWriteOnce)}}
		})
		of.object = s
	case kind < 85:
		of.kind = "ReplicaSet"
		of.object = &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(replicas)), Selector: selector, Template: of.template}}
	default:
		of.kind = "Job"
		j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: new(int32(replicas)), Completions: new(int32(replicas)), BackoffLimit: new(int32(100)), Template: of.template}}
		w.trait(of, 50, "indexed", func() { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) })
		w.trait(of, 50, "rule", func() {
			of.rule = true
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:          batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			}}}
		})
		j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		of.object = j
	}
}

// nodeAffinity leaves some zones.
func (w *world) nodeAffinity() *corev1.Affinity {
	r := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: pick(w, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{pick(w, w.zones...)}}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}},
	}}}
}

// constrain has the scheduler spread pods over zones or nodes.
func (w *world) constrain(of *workload) {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: 1 + w.Int32N(2), TopologyKey: pick(w, corev1.LabelTopologyZone, corev1.LabelTopologyZone, corev1.LabelHostname),
		WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": of.name}},
	}
	w.trait(of, 60, "minDomains", func() { c.MinDomains = new(2 + w.Int32N(2)) })
	of.template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c}
}

// podAffinity keeps pods from their siblings, or has them run beside these or another workload's.
func (w *world) podAffinity(of *workload) {
	if of.template.Spec.Affinity == nil {
		of.template.Spec.Affinity = &corev1.Affinity{}
	}
	term := func(app string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{
			TopologyKey: pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}
	}
	switch a := of.template.Spec.Affinity; {
	case w.chance(50):
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(of.name)}
	case w.chance(50) && len(w.workloads) > 0:
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(pick(w, w.workloads...).name)}
	default:
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(of.name)}
	}
}

// claim gives all pods of a workload one volume: one that is there, in a zone, or one that is made for the first of them if no zone is named.
func (w *world) claim(of *workload, zone string) {
	there := zone != ""
	spec, name := suite.ClaimSpec(w.class, corev1.ReadWriteMany), "data-"+of.name
	if there {
		name = "volume-" + of.name // a workload may have one of each
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-" + of.name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: spec.Resources.Requests, AccessModes: spec.AccessModes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:               &corev1.ObjectReference{Namespace: w.Namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		}}
		suite.Must(w.t, w.Create(w.t.Context(), volume))
		w.t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), volume) })
		spec.StorageClassName, spec.VolumeName = new(""), volume.Name
	}
	w.WithClaim(w.t, &of.template, name, spec)
	if there {
		suite.Eventually(w.t, "the claim has its volume", func() (bool, error) {
			claim := &corev1.PersistentVolumeClaim{}
			err := w.Get(w.t.Context(), w.Key(name), claim)
			return claim.Status.Phase == corev1.ClaimBound, err
		})
	}
}
