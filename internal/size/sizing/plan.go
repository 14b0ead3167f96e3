package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
)

// NodePlan compares the size that Karpenter plans for a DaemonSet's pod with the sizes of the pods on one class
// of nodes. For all instance types, Karpenter plans with the DaemonSet's newest pod (GetDaemonSetPod in
// pkg/controllers/state/cluster.go of sigs.k8s.io/karpenter v1.15.0).
type NodePlan struct {
	Namespace, DaemonSet string
	// Class is the instance type of the nodes.
	Class string
	Nodes int
	// PlannedCPU and CPU are in thousandths, PlannedMemory and Memory in bytes. CPU and Memory are the largest on
	// a node of the class.
	PlannedCPU, PlannedMemory int64
	CPU, Memory               int64
}

// NodeClass returns the instance type of a node that Karpenter has made, or "" for other nodes.
func NodeClass(node *corev1.Node) string {
	if node.Labels[karpenter.NodePoolLabel] == "" {
		return ""
	}
	return node.Labels[corev1.LabelInstanceTypeStable]
}

// tolerated is by how many percent a size may differ from the plan.
const tolerated = 10

// Differs reports whether a size differs from the plan by more than a tenth.
func (p *NodePlan) Differs() bool {
	return differs(p.PlannedCPU, p.CPU) || differs(p.PlannedMemory, p.Memory)
}

// Differ reports whether what is planned for one pod is wrong for another by more than a tenth.
func Differ(a, b *corev1.Pod) bool {
	var p NodePlan
	p.PlannedCPU, p.PlannedMemory = PodSize(a)
	p.CPU, p.Memory = PodSize(b)
	return p.Differs()
}

func differs(planned, size int64) bool {
	return max(planned-size, size-planned)*100 > planned*tolerated
}

// NodePlans returns the plans for the DaemonSets of some sized pods, by namespace, name and class. The function
// classOf returns the [NodeClass] of a node.
func NodePlans(pods []*corev1.Pod, classOf func(node string) string) []NodePlan {
	type key struct {
		daemonSet types.UID
		class     string
	}
	newest := map[types.UID]*corev1.Pod{}
	plans := map[key]*NodePlan{}
	nodes := map[key]map[string]bool{}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil {
			continue
		}
		if n := newest[owner.UID]; n == nil || n.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest[owner.UID] = pod
		}
		class := ""
		if pod.Spec.NodeName != "" {
			class = classOf(pod.Spec.NodeName)
		}
		if class == "" {
			continue
		}
		k := key{owner.UID, class}
		p := plans[k]
		if p == nil {
			p = &NodePlan{Namespace: pod.Namespace, DaemonSet: owner.Name, Class: class}
			plans[k], nodes[k] = p, map[string]bool{}
		}
		cpu, memory := PodSize(pod)
		p.CPU, p.Memory = max(p.CPU, cpu), max(p.Memory, memory)
		nodes[k][pod.Spec.NodeName] = true
	}
	var out []NodePlan
	for k, p := range plans {
		p.Nodes = len(nodes[k])
		p.PlannedCPU, p.PlannedMemory = PodSize(newest[k.daemonSet])
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b NodePlan) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.DaemonSet, b.DaemonSet), cmp.Compare(a.Class, b.Class))
	})
	return out
}

// PodSize returns what a pod requests: CPU in thousandths and memory in bytes.
func PodSize(pod *corev1.Pod) (cpu, memory int64) {
	r := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return r.Cpu().MilliValue(), r.Memory().Value()
}

// Overhead returns what the RuntimeClass of a sized pod adds to the resources that its template sized, or "". Its node has to have that
// beside the pod's share. The VM of a peer pod has its own.
func Overhead(pod *corev1.Pod) string {
	if _, isPeerPod := pod.Annotations[stowage.OriginalResourcesAnnotation]; isPeerPod {
		return ""
	}
	var parts []string
	for _, r := range SizedResources(pod.Annotations) {
		if q := pod.Spec.Overhead[r]; q.Sign() > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", r, &q))
		}
	}
	return strings.Join(parts, ", ")
}
