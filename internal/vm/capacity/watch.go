package capacity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// byNode is the index of pods by their node.
const byNode = "node"

// watchNodes follows the nodes until the term ends.
func (r *run) watchNodes(t *leader.Term) error {
	return t.Watch(r.Informers, &corev1.Node{}, worldcache.Handler(func(was, is *corev1.Node, _ bool) {
		switch {
		case was == nil:
			r.nodes.Add(is.Name)
		case is == nil || was.UID != is.UID: // a list may show one that was made anew as an update
			r.restored.Forget(was.Name)
			r.forget(was.Name)
			r.nodes.Add(was.Name)
		case !r.sameNode(was, is):
			r.nodes.Add(is.Name)
		}
	}))
}

// sameNode reports whether a node should advertise the same by two of its versions, and does.
func (r *run) sameNode(was, is *corev1.Node) bool {
	return peerpod.AdvertisedBy(was, string(r.Resource)) == peerpod.AdvertisedBy(is, string(r.Resource)) &&
		r.Nodes.Matches(labels.Set(was.Labels)) == r.Nodes.Matches(labels.Set(is.Labels)) &&
		was.Annotations[stowage.PeerPodsLimitAnnotation] == is.Annotations[stowage.PeerPodsLimitAnnotation]
}

// podIndexers index peer pods by the node on which they take a VM.
func podIndexers() toolscache.Indexers {
	return toolscache.Indexers{byNode: func(obj any) ([]string, error) { return []string{nodeOfVM(obj.(*corev1.Pod))}, nil }}
}

// keepPeerPod keeps where a peer pod is, and how many VMs it takes.
func (r *run) keepPeerPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	kept.Spec.NodeName, kept.Status.Phase = pod.Spec.NodeName, pod.Status.Phase
	vms := corev1.ResourceList{r.Resource: *resource.NewQuantity(peerpod.VMsOf(pod, string(r.Resource)), resource.DecimalSI)}
	kept.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: vms}}}
	return kept, nil
}

// watchPods follows the peer pods, of which only the node and the VMs are kept.
func (r *run) watchPods(t *leader.Term) error {
	r.pods = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(r.Clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.PeerPodLabel
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: podIndexers()})
	if err := r.pods.SetTransform(r.keepPeerPod); err != nil {
		return err
	}
	_, err := r.pods.AddEventHandler(worldcache.Handler(func(was, is *corev1.Pod, _ bool) {
		if was != nil && is != nil && nodeOfVM(was) == nodeOfVM(is) && was.UID == is.UID {
			return
		}
		for _, pod := range []*corev1.Pod{was, is} {
			if pod != nil && nodeOfVM(pod) != "" {
				r.nodes.Add(nodeOfVM(pod))
			}
		}
	}))
	if err == nil {
		t.Inform(r.pods)
	}
	return err
}

// nodeOfVM is the node on which a peer pod takes a VM, or "". The scheduler counts a pod
// until it has ended.
func nodeOfVM(pod *corev1.Pod) string {
	if podstatus.Ended(pod) {
		return ""
	}
	return pod.Spec.NodeName
}

// forget forgets what is known of a node that is gone.
func (r *run) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.others, node)
	delete(r.missing, node)
}
