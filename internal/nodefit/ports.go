package nodefit

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// anyIP is the address of a host port that is for all addresses.
const anyIP = "0.0.0.0"

// hostPorts returns the host ports of a pod's containers and sidecars.
func hostPorts(pod *corev1.Pod) (out []corev1.ContainerPort) {
	sidecars := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	})
	for _, c := range slices.Concat(sidecars, pod.Spec.Containers) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				p.Protocol, p.HostIP = cmp.Or(p.Protocol, corev1.ProtocolTCP), cmp.Or(p.HostIP, anyIP)
				out = append(out, p)
			}
		}
	}
	return out
}

// conflict reports whether two host ports cannot be on one node.
func conflict(a, b corev1.ContainerPort) bool {
	return a.HostPort == b.HostPort && a.Protocol == b.Protocol && (a.HostIP == b.HostIP || a.HostIP == anyIP || b.HostIP == anyIP)
}
