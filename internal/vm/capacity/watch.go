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
	gone := func(node *corev1.Node) {
		r.restored.Forget(node.Name)
		r.forget(node.Name)
		r.nodes.Add(node.Name)
	}
	return t.Watch(r.Informers, &corev1.Node{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { r.nodes.Add(obj.(*corev1.Node).Name) },
		UpdateFunc: func(was, obj any) {
			old, now := was.(*corev1.Node), obj.(*corev1.Node)
			if old.UID != now.UID { // a list may show one that was made anew as an update
				gone(old)
			} else if peerpod.AdvertisedBy(old, string(r.Resource)) != peerpod.AdvertisedBy(now, string(r.Resource)) ||
				r.Nodes.Matches(labels.Set(old.Labels)) != r.Nodes.Matches(labels.Set(now.Labels)) ||
				old.Annotations[stowage.PeerPodsLimitAnnotation] != now.Annotations[stowage.PeerPodsLimitAnnotation] {
				r.nodes.Add(now.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := worldcache.Deleted(obj).(*corev1.Node); ok {
				gone(node)
			}
		},
	})
}

// podIndexers index peer pods by the node on which they take a VM.
func podIndexers() toolscache.Indexers {
	return toolscache.Indexers{byNode: func(obj any) ([]string, error) { return []string{nodeOfVM(obj.(*corev1.Pod))}, nil }}
}

// watchPods follows the peer pods, of which only the node and the VMs are kept.
func (r *run) watchPods(t *leader.Term) error {
	r.pods = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(r.Clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.PeerPodLabel
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: podIndexers()})
	err := r.pods.SetTransform(func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
		kept.Spec.NodeName, kept.Status.Phase = pod.Spec.NodeName, pod.Status.Phase
		vms := corev1.ResourceList{r.Resource: *resource.NewQuantity(peerpod.VMsOf(pod, string(r.Resource)), resource.DecimalSI)}
		kept.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: vms}}}
		return kept, nil
	})
	if err != nil {
		return err
	}
	seen := func(pods ...*corev1.Pod) {
		for _, pod := range pods {
			if node := nodeOfVM(pod); node != "" {
				r.nodes.Add(node)
			}
		}
	}
	_, err = r.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj.(*corev1.Pod)) },
		UpdateFunc: func(was, obj any) {
			if old, now := was.(*corev1.Pod), obj.(*corev1.Pod); nodeOfVM(old) != nodeOfVM(now) || old.UID != now.UID {
				seen(old, now)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := worldcache.Deleted(obj).(*corev1.Pod); ok {
				seen(pod)
			}
		},
	})
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
