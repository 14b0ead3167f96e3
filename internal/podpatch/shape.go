package podpatch

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Shape returns what decides which nodes take a pod, as far as the pod's own fields do: its node selector, node affinity, tolerations, resources and
// the labels over which it is spread. It shares lists with the pod.
func (p *Pod) Shape() *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Metadata.Namespace}, Spec: corev1.PodSpec{
		NodeSelector: p.Spec.NodeSelector, Tolerations: p.Spec.Tolerations,
		InitContainers: toContainers(p.Spec.InitContainers), Containers: toContainers(p.Spec.Containers),
	}}
	if r := p.Spec.Resources; r != nil {
		out.Spec.Resources = &corev1.ResourceRequirements{Requests: r.Requests.toList()}
	}
	if a := p.Spec.Affinity; a != nil {
		out.Spec.Affinity = &corev1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		out.Spec.TopologySpreadConstraints = append(out.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable})
	}
	return out
}

func toContainers(list []Container) (out []corev1.Container) {
	for i := range list {
		c := corev1.Container{}
		if policy := list[i].RestartPolicy; policy != "" {
			c.RestartPolicy = &policy
		}
		if r := list[i].Resources; r != nil {
			c.Resources.Requests = r.Requests.toList()
		}
		out = append(out, c)
	}
	return out
}

// toList returns those quantities that can be parsed. The API server refuses a pod with others.
func (l ResourceList) toList() corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, text := range l {
		if q, err := text.Parse(); err == nil {
			out[name] = q
		}
	}
	return out
}
