// Package nodefit decides whether pods can run on nodes, by what the filters of kube-scheduler read. [Judge] answers for a pod and the nodes of
// a cell, by a table with a row for each filter. [Count] says how many pods of one size a node has room for.
//
// The package is pure: it takes pods and nodes and returns numbers.
package nodefit

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// Allows reports whether a node takes new pods such as this one, whatever their size. The node is ready and not
// cordoned, the pod selects the node, and the pod tolerates its taints.
func Allows(node *corev1.Node, pod *corev1.Pod) bool {
	return !node.Spec.Unschedulable && Ready(node) && Selects(&pod.Spec, node)
}

// lacks reports whether a node has nothing at all of a resource that a pod asks for, as before its device plugins have started.
func lacks(node *corev1.Node, requests corev1.ResourceList) bool {
	for name, q := range requests {
		if has := node.Status.Allocatable[name]; q.Sign() > 0 && has.Sign() <= 0 {
			return true
		}
	}
	return false
}

// withCapacity returns a node on which all of a resource is allocatable if none of it is now: its device plugin restarts, or has found its devices
// unhealthy.
func withCapacity(node *corev1.Node) *corev1.Node {
	allocatable := corev1.ResourceList{}
	maps.Copy(allocatable, node.Status.Allocatable)
	for name, q := range node.Status.Capacity {
		if has := allocatable[name]; has.Sign() <= 0 {
			allocatable[name] = q
		}
	}
	return &corev1.Node{ObjectMeta: node.ObjectMeta, Status: corev1.NodeStatus{Allocatable: allocatable}}
}

// Alike reports whether a pod asks for as much of each resource as another one, and selects nodes as that one does.
func Alike(pod, other *corev1.Pod) bool {
	requests := func(p *corev1.Pod) corev1.ResourceList {
		return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	}
	return Covers(requests(pod), requests(other)) && maps.Equal(pod.Spec.NodeSelector, other.Spec.NodeSelector) &&
		apiequality.Semantic.DeepEqual(nodeset.RequiredOf(pod.Spec.Affinity), nodeset.RequiredOf(other.Spec.Affinity))
}

// Covers reports whether requests are as large as others, of each resource.
func Covers(requests, others corev1.ResourceList) bool {
	for name, q := range others {
		if has := requests[name]; has.Cmp(q) < 0 {
			return false
		}
	}
	return true
}

// Shape returns what [Judge] and [Allows] read of a pod. Its size is that of one container.
func Shape(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Labels: pod.Labels}}
	was, is := &pod.Spec, &out.Spec
	is.NodeSelector, is.Affinity, is.Tolerations = was.NodeSelector, was.Affinity, was.Tolerations
	is.SchedulerName, is.ResourceClaims, is.TopologySpreadConstraints = was.SchedulerName, was.ResourceClaims, was.TopologySpreadConstraints
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	is.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}, Ports: hostPorts(pod)}}
	return out
}

// passing reports whether a taint says what a node is going through: a cordon, pressure, its start or its removal.
func passing(key string) bool {
	for _, prefix := range []string{
		"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler",
		// See https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md, "startup taints".
		"startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/",
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return strings.HasSuffix(key, "/agent-not-ready") // of Cilium, and of CSI drivers
}

// Selects reports whether a pod selects a node and tolerates its taints. A term of affinity that does not parse matches
// nothing, as for the scheduler and the DaemonSet controller.
func Selects(spec *corev1.PodSpec, node *corev1.Node) bool {
	if selected, _ := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity).Match(node); !selected {
		return false
	}
	_, refuses := untolerated(spec, node.Spec.Taints, repels)
	return !refuses
}

// untolerated returns one of some taints that keeps a pod from a node, of those that count.
func untolerated(spec *corev1.PodSpec, taints []corev1.Taint, counts func(*corev1.Taint) bool) (corev1.Taint, bool) {
	return corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, spec.Tolerations, counts, false)
}

// repels reports whether a taint keeps pods from a node.
func repels(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// Ready reports whether a node has the condition Ready.
func Ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Count returns how many pods of the size of this one the node has room for beside those that run on it. The list may
// hold pods of other nodes.
func Count(node *corev1.Node, running []corev1.Pod, pod *corev1.Pod) int64 {
	return count(node, running, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
}

// count is [Count] for a pod that requests so much.
func count(node *corev1.Node, running []corev1.Pod, requests corev1.ResourceList) int64 {
	pods, taken := int64(0), map[corev1.ResourceName]int64{}
	for i := range running {
		if other := &running[i]; other.Spec.NodeName == node.Name && !podstatus.Ended(other) {
			pods++
			for name, q := range resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{UseStatusResources: true}) {
				taken[name] += amount(name, q)
			}
		}
	}
	fits := int64(math.MaxInt64)
	if q, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
		fits = q.Value() - pods
	}
	for name, q := range requests {
		if q.Sign() <= 0 {
			continue
		}
		fits = min(fits, (amount(name, node.Status.Allocatable[name])-taken[name])/amount(name, q))
	}
	return max(0, fits)
}

// amount is a quantity as the scheduler counts it: rounded up for each pod.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Counted reports whether [Count] knows all that decides how many such pods a node takes. It does not where host ports,
// required affinity to other pods, topology spread or devices decide, too.
func Counted(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 || slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable != corev1.ScheduleAnyway
	}) {
		return false
	}
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
			a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return false
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 }) {
			return false
		}
	}
	return true
}
