package inspect

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// vms adds the peer-pod VMs.
func (i *Inspector) vms(ctx context.Context, r *Report) error {
	vms := &VMs{Resource: i.PeerPods.VMResource, Nodes: []NodeVMs{}}
	used := map[string]int64{}
	err := each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			used[pod.Spec.NodeName]++
		}
	}, client.HasLabels{stowage.PeerPodLabel})
	if err != nil {
		return err
	}
	err = each(ctx, i, &corev1.NodeList{}, func(node *corev1.Node) {
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
	return nil
}
