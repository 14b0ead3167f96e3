package supply

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
)

// Peer is what is kept of a peer pod.
type Peer struct {
	metav1.ObjectMeta
	RuntimeClass string
	Active       bool                   // it counts for its owner
	Node         string                 // where it is, or ""
	Owner        *metav1.OwnerReference // its controller, or nil
	peerpod.Machine
	// Began and Made are those of [catalog.Pod].
	Began, Made time.Time
	// VCPUs and Memory, in bytes, are what the annotations ask for.
	VCPUs, Memory int64
}

// The longest name of a type, and of a model of GPUs or a zone, that a catalog may have.
const (
	mostType  = 128
	mostModel = 63
)

// PeerOf returns what is kept of a pod. A record that cannot be read leaves a pod without a type.
func PeerOf(config *peerpod.Config, pod *corev1.Pod) *Peer {
	p := &Peer{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		},
		Active: podstatus.Active(pod), Node: pod.Spec.NodeName, Machine: peerpod.Machine{Need: &catalog.Need{}},
	}
	if pod.Spec.RuntimeClassName != nil {
		p.RuntimeClass = *pod.Spec.RuntimeClassName
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && world.Plausible(owner) {
		p.Owner = owner
	}
	if m, err := config.Machine(podpatch.FromPod(pod)); err == nil && m != nil {
		p.Machine = *m
	}
	if len(p.Type) > mostType { // no type of a catalog, and tenants write it
		p.Type, p.Ours = "", false
	}
	p.Need.Model = bounded.Text(p.Need.Model, mostModel)
	for i := range p.Need.Zones {
		p.Need.Zones[i] = bounded.Text(p.Need.Zones[i], mostModel)
	}
	p.VCPUs, p.Memory = peerpod.SizeOf(pod.Annotations)
	if p.Node != "" {
		p.Began, p.Made = began(pod), made(pod)
	}
	return p
}

// began returns when a pod got its node.
func began(pod *corev1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// made returns when the VM of a pod was there, or zero. The kubelet says so of a pod's sandbox (KEP-3085), which is the VM. A container that has
// started says so, too.
func made(pod *corev1.Pod) (at time.Time) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	for _, of := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range of {
			switch s := &of[i]; {
			case s.State.Running != nil && !s.State.Running.StartedAt.IsZero():
				return s.State.Running.StartedAt.Time
			case s.State.Terminated != nil && !s.State.Terminated.StartedAt.IsZero():
				return s.State.Terminated.StartedAt.Time
			case s.RestartCount > 0 || s.State.Running != nil:
				at = pod.CreationTimestamp.Time
			}
		}
	}
	if ran := pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodSucceeded; ran && at.IsZero() { // one that failed may never have had a VM
		at = pod.CreationTimestamp.Time
	}
	return at
}

// shows reports whether the pod shows that a type cannot be made, or can: it has a node, and a type that Stowage chose.
func (p *Peer) shows() bool { return p.Node != "" && p.Ours }

// pod is the pod as package catalog has it, on a node in a zone.
func (p *Peer) pod(zone string) catalog.Pod {
	return catalog.Pod{Key: catalog.Key{Type: p.Type, Namespace: p.Namespace, Zone: zone}, Began: p.Began, Made: p.Made}
}

// amounts are the vCPUs and the memory of the pod's VM, in bytes: those of its type, or else what its annotations ask for.
func (p *Peer) amounts(t *catalog.Type) (vcpus, memory int64) {
	if t != nil {
		return t.VCPUs, t.Memory
	}
	return p.VCPUs, p.Memory
}

// ByCatalog returns the pods of each catalog. Those of a RuntimeClass for which no catalog holds are left out.
func ByCatalog(all []*catalog.Catalog, peers []*Peer) map[*catalog.Catalog][]*Peer {
	of := map[*catalog.Catalog][]*Peer{}
	for _, p := range peers {
		if c := catalog.For(all, p.RuntimeClass); c != nil {
			of[c] = append(of[c], p)
		}
	}
	return of
}

// newPeers returns an informer of the peer pods, of which it keeps [Peer]s.
func newPeers(config *peerpod.Config, clientset kubernetes.Interface) (toolscache.SharedIndexInformer, error) {
	informer := toolscache.NewSharedIndexInformer(
		toolscache.NewFilteredListWatchFromClient(clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.PeerPodLabel
		}), &corev1.Pod{}, 0, toolscache.Indexers{})
	return informer, informer.SetTransform(func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return PeerOf(config, pod), nil
		}
		return obj, nil
	})
}
