package filters

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// cluster has a node in each of two zones; that of zone b has a taint.
func cluster() []runtime.Object {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10")}
	node := func(zone string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: zone, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelHostname: zone}},
			Spec:       corev1.NodeSpec{Taints: taints},
			Status:     corev1.NodeStatus{Allocatable: size, Capacity: size},
		}
	}
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		node("a"), node("b", corev1.Taint{Key: "arm", Effect: corev1.TaintEffectNoSchedule}),
	}
}

// pod returns a pod that tolerates the taint of zone b.
func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u", Labels: map[string]string{"app": "web"}}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "arm", Operator: corev1.TolerationOpExists}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	if change != nil {
		change(p)
	}
	return p
}

func on(node string, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

func TestPasses(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	claim.Spec.StorageClassName, claim.Spec.VolumeName, claim.Status.Phase = new("late"), "v", corev1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: "late", ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
		}}}},
	}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "p", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	withClaim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	unbound := claim.DeepCopy()
	unbound.Spec.VolumeName, unbound.Status.Phase, unbound.Annotations = "", corev1.ClaimPending, nil
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	for name, tc := range map[string]struct {
		only   []string
		there  []runtime.Object
		change func(*corev1.Pod)
		want   map[string]string // the plugin that refuses, by node
	}{
		"both take it":              {want: map[string]string{"a": "", "b": ""}},
		"a pod whose node is gone":  {there: []runtime.Object{on("gone", pod("x", nil))}, want: map[string]string{"a": "", "b": ""}},
		"a selector":                {change: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "a"} }, want: map[string]string{"a": "", "b": names.NodeAffinity}},
		"a taint":                   {change: func(p *corev1.Pod) { p.Spec.Tolerations = nil }, want: map[string]string{"a": "", "b": names.TaintToleration}},
		"a taint, and ports alone":  {only: []string{names.NodePorts}, change: func(p *corev1.Pod) { p.Spec.Tolerations = nil }, want: map[string]string{"a": "", "b": ""}},
		"a size":                    {there: []runtime.Object{on("a", pod("x", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("4") }))}, want: map[string]string{"a": names.NodeResourcesFit, "b": ""}},
		"a port":                    {there: []runtime.Object{on("a", pod("x", port))}, change: port, want: map[string]string{"a": names.NodePorts, "b": ""}},
		"a bound volume":            {there: []runtime.Object{class, claim, volume}, change: withClaim, want: map[string]string{"a": names.VolumeBinding, "b": ""}},
		"a volume that may be made": {there: []runtime.Object{class, unbound}, change: withClaim, want: map[string]string{"a": "", "b": ""}},
		"a claim that is missing":   {there: []runtime.Object{class}, change: withClaim, want: map[string]string{"a": names.VolumeRestrictions, "b": names.VolumeRestrictions}},
		"a constraint": {there: []runtime.Object{on("a", pod("x", nil))}, change: func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: web}}
		}, want: map[string]string{"a": names.PodTopologySpread, "b": ""}},
		"a constraint of more domains": {there: []runtime.Object{on("a", pod("x", nil)), on("b", pod("y", nil))}, change: func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, MinDomains: new(int32(3)), TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: web}}
		}, want: map[string]string{"a": names.PodTopologySpread, "b": names.PodTopologySpread}},
		"pods that must be beside": {there: []runtime.Object{on("a", pod("x", nil))}, change: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: web, TopologyKey: corev1.LabelHostname}}}}
		}, want: map[string]string{"a": "", "b": names.InterPodAffinity}},
		"pods that must be elsewhere": {there: []runtime.Object{on("a", pod("x", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: web, TopologyKey: corev1.LabelHostname}}}}
		}))}, want: map[string]string{"a": names.InterPodAffinity, "b": ""}},
		"a gate": {change: func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, want: map[string]string{"a": names.SchedulingGates, "b": names.SchedulingGates}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Only(tc.only, append(cluster(), tc.there...)...)
			if err != nil {
				t.Fatal(err)
			}
			answers, err := f.Passes(t.Context(), pod("web", tc.change))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for node, a := range answers {
				got[node] = a.Plugin
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, answers)
			}
		})
	}
}

// How long 1,000 pairs of pod and node take.
func BenchmarkPasses(b *testing.B) {
	objects := cluster()[:2]
	for i := range 31 {
		n := objects[1].(*corev1.Node).DeepCopy()
		n.Name = fmt.Sprint("n", i)
		objects = append(objects, n)
	}
	for b.Loop() {
		f, err := New(objects...)
		if err != nil {
			b.Fatal(err)
		}
		for range 31 {
			if _, err := f.Passes(b.Context(), pod("web", nil)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
