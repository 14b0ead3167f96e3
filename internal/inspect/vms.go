package inspect

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Capacity is how Stowage has nodes advertise VMs.
type Capacity struct {
	// ConfigMap holds the limit of all nodes, and Default is the limit without it.
	ConfigMap types.NamespacedName
	Default   int64
	// Nodes selects the nodes that may have VMs.
	Nodes labels.Selector
	// Mode says when they advertise VMs. Daemons selects the pods of the DaemonSets that make VMs.
	Mode    peerpod.CapacityMode
	Daemons labels.Selector
	// DaemonNamespace is the namespace of the DaemonSets that make VMs; empty lets none count.
	DaemonNamespace string
}

// daemons returns the nodes that have a daemon, with whether it is Ready; nil where no daemon decides.
func (c *Capacity) daemons(pods []*corev1.Pod) map[string]bool {
	if c.Mode == peerpod.CapacityAlways || c.DaemonNamespace == "" {
		return nil
	}
	nodes := map[string]bool{}
	for _, pod := range pods {
		if c.isDaemon(pod) {
			node := sizing.NodeOf(podpatch.FromPod(pod))
			nodes[node] = nodes[node] || podstatus.Active(pod) && podstatus.Ready(pod)
		}
	}
	if len(nodes) == 0 && c.Mode == peerpod.CapacityAuto {
		return nil
	}
	return nodes
}

// isDaemon reports whether a pod makes the VMs of its node.
func (c *Capacity) isDaemon(pod *corev1.Pod) bool {
	selected := pod.Namespace == c.DaemonNamespace && pod.Spec.HostNetwork && c.Daemons.Matches(labels.Set(pod.Labels))
	owner := metav1.GetControllerOfNoCopy(pod)
	return selected && owner != nil && owner.Kind == "DaemonSet"
}

// vms adds the peer-pod VMs. Pods count by what they request, as the scheduler counts them.
func (i *Inspector) vms(ctx context.Context, s *snapshot, r *Report) error {
	if !i.VMs || s.podsOfNamespace {
		return nil
	}
	resource := corev1.ResourceName(i.PeerPods.VMResource)
	vms := &VMs{Resource: i.PeerPods.VMResource, Nodes: []NodeVMs{}}
	used := map[string]int64{}
	for _, pod := range s.pods {
		if pod.Spec.NodeName != "" {
			used[pod.Spec.NodeName] += i.vmsOf(pod)
		}
	}
	limit, known, err := i.limit(ctx, r)
	if err != nil {
		return err
	}
	var daemons map[string]bool
	if known {
		daemons = i.Capacity.daemons(s.pods)
	}
	err = each(ctx, i, &corev1.NodeList{}, func(node *corev1.Node) {
		if known {
			i.nodeProblems(node, limit, daemons, r)
		}
		q := node.Status.Allocatable[resource]
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

// limit returns how many VMs a node may have that has no limit of its own. It is not known where Stowage
// advertises none, and where the ConfigMap is invalid: the nodes keep what they had.
func (i *Inspector) limit(ctx context.Context, r *Report) (limit int64, known bool, err error) {
	if i.Capacity == nil {
		return 0, false, nil
	}
	var cm corev1.ConfigMap
	err = i.Client.Get(ctx, i.Capacity.ConfigMap, &cm)
	switch {
	case apierrors.IsForbidden(err):
		r.hide(fmt.Sprintf("the limit of VMs (taken to be %d)", i.Capacity.Default))
	case client.IgnoreNotFound(err) != nil:
		return 0, false, fmt.Errorf("ConfigMap %s: %w", i.Capacity.ConfigMap, err)
	}
	text, set := cm.Data[stowage.PeerPodsLimitKey]
	if !set {
		return i.Capacity.Default, true, nil
	}
	limit, err = peerpod.ParseLimit(text)
	if err != nil {
		r.problem(finding.Finding{Reason: finding.InvalidLimit, Namespace: cm.Namespace, Kind: "ConfigMap", Name: cm.Name, Values: finding.Values{Text: fmt.Sprint(err)}})
		return 0, false, nil
	}
	return limit, true, nil
}

// nodeProblems adds a node whose number of VMs is not the one that Stowage would set.
func (i *Inspector) nodeProblems(node *corev1.Node, want int64, daemons map[string]bool, r *Report) {
	if !i.Capacity.Nodes.Matches(labels.Set(node.Labels)) {
		return
	}
	problem := func(reason finding.Reason, values finding.Values) {
		r.problem(finding.Finding{Reason: reason, Kind: "Node", Name: node.Name, Values: values})
	}
	if text, ok := node.Annotations[stowage.PeerPodsLimitAnnotation]; ok {
		own, err := peerpod.ParseLimit(text)
		if err != nil {
			problem(finding.InvalidLimit, finding.Values{Text: err.Error()})
		} else {
			want = own
		}
	}
	if daemons != nil {
		if ready, there := daemons[node.Name]; there && !ready && want > 0 {
			problem(finding.DaemonNotReady, finding.Values{})
		}
		return
	}
	now := peerpod.AdvertisedBy(node, i.PeerPods.VMResource)
	if _, conflict := peerpod.Advertise(now, want); conflict {
		problem(finding.ForeignCapacity, finding.Values{Count: now.Capacity, Of: want, Other: i.PeerPods.VMResource})
	}
}

// limitConfigMap names the ConfigMap that holds the limit of all nodes.
func (i *Inspector) limitConfigMap() string {
	name := types.NamespacedName{Namespace: i.Namespace, Name: stowage.PeerPodsConfigMap}
	if i.Capacity != nil {
		name = i.Capacity.ConfigMap
	}
	return fmt.Sprintf("%s of namespace %s", name.Name, name.Namespace)
}
