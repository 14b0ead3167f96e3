package podpatch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// A pod's shape asks for as much as the pod, by the rules of Kubernetes, and for the same nodes.
func TestShape(t *testing.T) {
	asks := func(cpu string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	}
	sidecar := asks("2")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	for name, edit := range map[string]func(*corev1.PodSpec){
		"one container":        func(*corev1.PodSpec) {},
		"two":                  func(s *corev1.PodSpec) { s.Containers = append(s.Containers, asks("500m")) },
		"a large init":         func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{asks("9")} },
		"a sidecar":            func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{sidecar, asks("9")} },
		"resources of the pod": func(s *corev1.PodSpec) { r := asks("20").Resources; s.Resources = &r },
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{
				Containers: []corev1.Container{asks("1")}, NodeSelector: map[string]string{"os": "linux"}, Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}},
				}}}}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: "host", WhenUnsatisfiable: corev1.DoNotSchedule}},
			}}
			edit(&pod.Spec)
			got := FromPod(pod).Shape()
			requests := func(p *corev1.Pod) corev1.ResourceList {
				return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
			}
			if diff := cmp.Diff(requests(pod), requests(got)); diff != "" {
				t.Errorf("requests (-pod +shape):\n%s", diff)
			}
			nodes := func(p *corev1.Pod) []any {
				return []any{p.Spec.NodeSelector, p.Spec.Tolerations, p.Spec.Affinity, p.Spec.TopologySpreadConstraints}
			}
			if diff := cmp.Diff(nodes(pod), nodes(got)); diff != "" {
				t.Errorf("nodes (-pod +shape):\n%s", diff)
			}
		})
	}
}
