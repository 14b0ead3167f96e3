package capacity

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// isDaemonSet reports whether a DaemonSet makes VMs. It is in the namespace that an administrator named. It has the labels of
// cloud-api-adaptor's, uses the node's network as that does, and has pods or had some.
func (r *run) isDaemonSet(d *appsv1.DaemonSet, had bool) bool {
	if r.DaemonNamespace == "" || d.Namespace != r.DaemonNamespace {
		return false
	}
	if d.Spec.Selector == nil || !r.Daemons.Matches(labels.Set(d.Spec.Selector.MatchLabels)) {
		return false
	}
	return d.Spec.Template.Spec.HostNetwork && (had || d.Status.CurrentNumberScheduled > 0)
}

// daemonSetSeen notes a DaemonSet, or that it is gone.
func (r *run) daemonSetSeen(d *appsv1.DaemonSet, exists bool) {
	r.mu.Lock()
	was := r.daemonSets[d.UID]
	is := exists && r.isDaemonSet(d, was)
	if is {
		r.daemonSets[d.UID] = true
	} else {
		delete(r.daemonSets, d.UID)
	}
	r.mu.Unlock()
	if was != is {
		r.enqueueAll()
	}
}

// daemonIndexers index the daemons' pods by their node.
func daemonIndexers() toolscache.Indexers {
	return toolscache.Indexers{byNode: func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil }}
}

// watchDaemons follows the DaemonSets that make VMs, and their pods, of which little is kept.
func (r *run) watchDaemons(t *leader.Term) error {
	if r.Mode == peerpod.CapacityAlways || r.DaemonNamespace == "" {
		return nil
	}
	r.daemons = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(r.Clientset.CoreV1().RESTClient(), "pods", r.DaemonNamespace, func(o *metav1.ListOptions) {
			o.LabelSelector = r.Daemons.String()
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: daemonIndexers()})
	if err := r.daemons.SetTransform(keepDaemon); err != nil {
		return err
	}
	if _, err := r.daemons.AddEventHandler(worldcache.Handler(func(was, is *corev1.Pod, _ bool) {
		pod := cmp.Or(is, was)
		if (was == nil || is == nil || !sameDaemon(was, is)) && pod.Spec.NodeName != "" {
			r.nodes.Add(pod.Spec.NodeName)
		}
	})); err != nil {
		return err
	}
	t.Inform(r.daemons)
	if !toolscache.WaitForNamedCacheSyncWithContext(t.Context(), r.daemons.HasSynced) {
		return nil // the term has ended
	}
	return r.watchDaemonSets(t)
}

// keepDaemon keeps what this controller reads of a daemon's pod.
func keepDaemon(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		DeletionTimestamp: pod.DeletionTimestamp,
	}}
	if c := metav1.GetControllerOfNoCopy(pod); c != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{UID: c.UID, Controller: c.Controller}}
	}
	kept.Spec.NodeName = pod.Spec.NodeName
	kept.Status.Phase = pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return kept, nil
}

// sameDaemon reports whether a node is the same by two versions of its daemon's pod.
func sameDaemon(old, now *corev1.Pod) bool {
	return works(old) == works(now) && old.Spec.NodeName == now.Spec.NodeName && controllerOf(old) == controllerOf(now)
}

// watchDaemonSets follows the DaemonSets that make VMs. Those that there are come before the first node is reconciled.
func (r *run) watchDaemonSets(t *leader.Term) error {
	var list appsv1.DaemonSetList
	if err := r.Informers.List(t.Context(), &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range list.Items {
		if r.isDaemonSet(&list.Items[i], false) {
			r.daemonSets[list.Items[i].UID] = true
		}
	}
	return t.Watch(r.Informers, &appsv1.DaemonSet{}, worldcache.Handler(func(was, is *appsv1.DaemonSet, _ bool) {
		if is == nil || was != nil && was.UID != is.UID { // a relist shows a deletion and a re-creation as one update
			r.daemonSetSeen(was, false)
		}
		if is != nil {
			r.daemonSetSeen(is, true)
		}
	}))
}

// works reports whether a daemon's pod can make VMs. One that is being deleted ends now.
func works(pod *corev1.Pod) bool { return podstatus.Active(pod) && podstatus.Ready(pod) }

// byDaemon reports whether a node advertises VMs only while its daemon is Ready.
func (r *run) byDaemon() bool {
	if r.Mode != peerpod.CapacityAuto {
		return r.Mode == peerpod.CapacityWhenReady
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.daemonSets) > 0
}

// daemonReady reports whether a node has a daemon that is Ready.
func (r *run) daemonReady(node string) bool {
	if r.daemons == nil {
		return false // no namespace was named
	}
	pods, err := r.daemons.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		r.Log.Error(err, "the daemon of a node was not found", "kind", "Node", "name", node)
		return false
	}
	return slices.ContainsFunc(pods, func(obj any) bool {
		pod := obj.(*corev1.Pod)
		return r.makesVMs(controllerOf(pod)) && works(pod)
	})
}

// controllerOf returns the UID of a pod's controller, or "".
func controllerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
	}
	return ""
}

func (r *run) makesVMs(daemonSet types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.daemonSets[daemonSet]
}
