package podpatch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// FromPod returns the part of a pod that Stowage reads, as [Decode] would read it from the pod's
// JSON. It shares maps and lists with the pod.
func FromPod(pod *corev1.Pod) *Pod {
	out := &Pod{
		Metadata: Metadata{
			Name: pod.Name, GenerateName: pod.GenerateName, Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
		},
		Spec: Spec{
			NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations, SchedulingGates: pod.Spec.SchedulingGates,
			PriorityClassName: pod.Spec.PriorityClassName, Priority: pod.Spec.Priority, PreemptionPolicy: pod.Spec.PreemptionPolicy,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			Resources:                     fromResources(pod.Spec.Resources), InitContainers: fromContainers(pod.Spec.InitContainers), Containers: fromContainers(pod.Spec.Containers),
		},
	}
	for i := range pod.OwnerReferences {
		o := &pod.OwnerReferences[i]
		out.Metadata.OwnerReferences = append(out.Metadata.OwnerReferences, Owner{
			APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: string(o.UID), Controller: o.Controller != nil && *o.Controller,
		})
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		read := SpreadConstraint{TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable, MinDomains: c.MinDomains}
		if c.NodeAffinityPolicy != nil {
			read.NodeAffinityPolicy = *c.NodeAffinityPolicy
		}
		out.Spec.TopologySpreadConstraints = append(out.Spec.TopologySpreadConstraints, read)
	}
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			out.Spec.Volumes = append(out.Spec.Volumes, Volume{Name: pod.Spec.Volumes[i].Name, PersistentVolumeClaim: &ClaimVolume{claim.ClaimName}})
		}
		if inFiles(&pod.Spec.Volumes[i]) {
			out.Spec.Volumes = append(out.Spec.Volumes, Volume{Name: pod.Spec.Volumes[i].Name, DownwardAPI: true})
		}
	}
	if pod.Spec.RuntimeClassName != nil {
		out.Spec.RuntimeClassName = *pod.Spec.RuntimeClassName
	}
	if pod.Spec.SchedulingGroup != nil {
		out.Spec.SchedulingGroup = &struct{}{}
	}
	if a := pod.Spec.Affinity; a != nil {
		out.Spec.Affinity = &Affinity{NodeAffinity: a.NodeAffinity}
		if a.PodAffinity != nil {
			out.Spec.Affinity.Together = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
	}
	return out
}

// inFiles reports whether files of a volume have resources of a container.
func inFiles(v *corev1.Volume) bool {
	has := func(f corev1.DownwardAPIVolumeFile) bool { return f.ResourceFieldRef != nil }
	if v.DownwardAPI != nil && slices.ContainsFunc(v.DownwardAPI.Items, has) {
		return true
	}
	return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
		return p.DownwardAPI != nil && slices.ContainsFunc(p.DownwardAPI.Items, has)
	})
}

func fromContainers(list []corev1.Container) []Container {
	var out []Container
	for i := range list {
		c := Container{Name: list[i].Name, Resources: fromResources(&list[i].Resources)}
		if list[i].RestartPolicy != nil {
			c.RestartPolicy = *list[i].RestartPolicy
		}
		for j := range list[i].Env {
			if from := list[i].Env[j].ValueFrom; from != nil && from.ResourceFieldRef != nil {
				ref := from.ResourceFieldRef
				c.Env = append(c.Env, EnvVar{Index: j, Name: list[i].Env[j].Name, Ref: ResourceRef{ref.ContainerName, ref.Resource, Quantity(ref.Divisor.String())}})
			}
		}
		out = append(out, c)
	}
	return out
}

func fromResources(r *corev1.ResourceRequirements) *Resources {
	if r == nil {
		return nil
	}
	out := &Resources{Requests: fromList(r.Requests), Limits: fromList(r.Limits)}
	for _, c := range r.Claims {
		out.Claims = append(out.Claims, Claim{Name: c.Name})
	}
	return out
}

func fromList(list corev1.ResourceList) ResourceList {
	if len(list) == 0 {
		return nil
	}
	out := make(ResourceList, len(list))
	for name, q := range list {
		out[name] = Quantity(q.String())
	}
	return out
}
