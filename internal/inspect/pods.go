package inspect

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// listPods lists the active pods of all namespaces, because nodes have VMs for all of them. Where the user may not, it
// lists those of the report's namespace.
func (i *Inspector) listPods(ctx context.Context, s *snapshot, namespace string, r *Report) error {
	keep := func(pod *corev1.Pod) {
		switch {
		case !podstatus.Ended(pod):
			s.pods = append(s.pods, slim(pod))
		case i.overdue(pod):
			s.ended = append(s.ended, slim(pod))
		}
	}
	err := each(ctx, i, &corev1.PodList{}, keep)
	if apierrors.IsForbidden(err) && namespace != "" {
		r.hide("the VMs of nodes")
		r.hide("the nodes that templates cover")
		s.podsOfNamespace, s.pods, s.ended = true, nil, nil
		return each(ctx, i, &corev1.PodList{}, keep, client.InNamespace(namespace))
	}
	return err
}

// slim keeps of a pod what the report reads: there may be many.
func slim(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Finalizers: pod.Finalizers,
	}}
	for k, v := range pod.Annotations {
		if k != corev1.LastAppliedConfigAnnotation {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, k, v)
		}
	}
	kept.Spec.NodeName, kept.Spec.RuntimeClassName, kept.Spec.HostNetwork = pod.Spec.NodeName, pod.Spec.RuntimeClassName, pod.Spec.HostNetwork
	kept.Spec.SchedulingGates = pod.Spec.SchedulingGates
	kept.Spec.PriorityClassName, kept.Spec.SchedulingGroup, kept.Spec.TerminationGracePeriodSeconds = pod.Spec.PriorityClassName, pod.Spec.SchedulingGroup, pod.Spec.TerminationGracePeriodSeconds
	kept.Spec.NodeSelector, kept.Spec.Affinity = pod.Spec.NodeSelector, pod.Spec.Affinity
	kept.Spec.Tolerations, kept.Spec.TopologySpreadConstraints, kept.Spec.SchedulerName, kept.Spec.Overhead = pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints, pod.Spec.SchedulerName, pod.Spec.Overhead
	kept.Spec.Resources, kept.Spec.ResourceClaims = pod.Spec.Resources, pod.Spec.ResourceClaims
	for _, c := range pod.Spec.Containers {
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: c.Name, Resources: c.Resources, Ports: hostPorts(c.Ports)})
	}
	for _, c := range pod.Spec.InitContainers {
		kept.Spec.InitContainers = append(kept.Spec.InitContainers, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: c.Resources})
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			kept.Spec.Volumes = append(kept.Spec.Volumes, v)
		}
	}
	if writer := costWriter(pod); writer != "" {
		kept.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: writer}}
	}
	kept.Status.Phase, kept.Status.Conditions = pod.Status.Phase, pod.Status.Conditions
	return kept
}

// costWriter returns who wrote the pod's deletion cost, if it was not written as the pod was created, nor by Stowage.
func costWriter(pod *corev1.Pod) string {
	for _, f := range pod.ManagedFields {
		created := f.Manager == "kube-controller-manager" || f.Manager == "stowage"
		if !created && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:`+corev1.PodDeletionCost+`"`) {
			return f.Manager
		}
	}
	return ""
}

// hostPorts are those of some ports that are of the node.
func hostPorts(ports []corev1.ContainerPort) []corev1.ContainerPort {
	return slices.DeleteFunc(slices.Clone(ports), func(p corev1.ContainerPort) bool { return p.HostPort == 0 })
}

// stays reports whether a pod runs and has what may keep it where it runs: a claim, or an annotation.
func stays(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && (podstatus.Protected(pod) != "" || len(podstatus.VolumeClaims(&pod.Spec)) > 0)
}

// nodeLabels are the labels of nodes, by name. It is nil where nodes may not be listed.
type nodeLabels map[string]map[string]string

// nodeLabels lists the labels of all nodes.
func (i *Inspector) nodeLabels(ctx context.Context) (nodeLabels, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	out := nodeLabels{}
	err := each(ctx, i, list, func(node *metav1.PartialObjectMetadata) { out[node.Name] = node.Labels })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// have reports whether there is a node of a set.
func (n nodeLabels) have(want nodeset.Set) bool {
	for _, has := range n {
		if want.Has(has) {
			return true
		}
	}
	return false
}

// fit reports whether a node is as a pod's node selector and affinity ask, or the nodes are not known.
func (n nodeLabels) fit(pod *corev1.Pod) bool {
	if n == nil {
		return true
	}
	asks := nodeaffinity.GetRequiredNodeAffinity(pod)
	for name, has := range n {
		if ok, err := asks.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: has}}); ok && err == nil {
			return true
		}
	}
	return false
}

func runtimeClass(pod *corev1.Pod) string { return ptr.Deref(pod.Spec.RuntimeClassName, "") }

// vmsOf returns how many peer-pod VMs a pod takes.
func (i *Inspector) vmsOf(pod *corev1.Pod) int64 { return peerpod.VMsOf(pod, i.PeerPods.VMResource) }

// daemonSetOf returns the DaemonSet that made a pod, or nil.
func (s *snapshot) daemonSetOf(pod *corev1.Pod) *appsv1.DaemonSet {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return s.daemonSets[owner.UID]
	}
	return nil
}
