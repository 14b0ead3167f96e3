package inspect

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// vms adds the peer-pod VMs. Pods count by what they request, as the scheduler counts them.
func (i *Inspector) vms(ctx context.Context, s *snapshot, r *Report) error {
	if s.podsOfNamespace {
		return nil
	}
	vms := &VMs{Resource: i.PeerPods.VMResource, Nodes: []NodeVMs{}}
	used := map[string]int64{}
	for _, pod := range s.pods {
		if pod.Spec.NodeName != "" {
			used[pod.Spec.NodeName] += i.vmsOf(pod)
		}
	}
	var nodes []corev1.Node
	err := each(ctx, i, &corev1.NodeList{}, func(node *corev1.Node) {
		nodes = append(nodes, corev1.Node{ObjectMeta: node.ObjectMeta, Status: corev1.NodeStatus{Capacity: node.Status.Capacity}})
		q := node.Status.Allocatable[corev1.ResourceName(vms.Resource)]
		n := NodeVMs{Name: node.Name, Capacity: q.Value(), Used: used[node.Name]}
		if n.Capacity == 0 && n.Used == 0 {
			return
		}
		n.Free, n.OK = max(0, n.Capacity-n.Used), n.Used <= n.Capacity
		vms.Nodes = append(vms.Nodes, n)
		vms.Capacity, vms.Used, vms.Free = vms.Capacity+n.Capacity, vms.Used+n.Used, vms.Free+n.Free
	})
	if err != nil {
		return err
	}
	r.VMs = vms
	return i.nodeProblems(ctx, nodes, r)
}
