package resize

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// podWatch is a watch of the pods that have a size. Most of its cost is the decoding of their events, so it runs only
// while a pod may be resized. Without it the controller lists pods for the status of a template.
type podWatch struct {
	toolscache.SharedIndexInformer
	synced func() bool
	stop   context.CancelFunc
}

// needsWatch reports whether a pod may be resized: a template has InPlace, or a pod was created just before its
// template.
func (r *run) needsWatch(ctx context.Context) (bool, error) {
	r.mu.Lock()
	early := len(r.beforeTemplate)
	r.mu.Unlock()
	if early > 0 {
		return true, nil
	}
	var list flexdaemonsets.FlexDaemonsetTemplateList
	if err := r.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(t flexdaemonsets.FlexDaemonsetTemplate) bool {
		return t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
	}), nil
}

// adjustWatch starts the watch of pods if it is needed, and stops it if it is not.
func (r *run) adjustWatch(ctx context.Context) error {
	r.watchMu.Lock()
	defer r.watchMu.Unlock()
	needed, err := r.needsWatch(ctx)
	if err != nil {
		return err
	}
	switch w := r.pods.Load(); {
	case needed && w == nil:
		w, err := r.newWatch()
		if err != nil {
			return err
		}
		r.pods.Store(w)
	case !needed && w != nil:
		w.stop()
		r.pods.Store(nil)
		r.enqueueTemplates(ctx) // it may not have shown the last changes, and shows no more
		r.mu.Lock()
		clear(r.tries)
		clear(r.restarts)
		r.mu.Unlock()
	}
	return nil
}

// watchIfNeeded is adjustWatch for callers that go on without the watch; the next of them tries again.
func (r *run) watchIfNeeded(ctx context.Context) {
	if err := r.adjustWatch(ctx); err != nil {
		r.Log.Error(err, "the watch of pods with a size was not started or stopped")
	}
}

// newWatch starts a watch of the pods that have a size.
func (r *run) newWatch() (*podWatch, error) {
	informer := toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(r.Clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.SizedByLabel
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: indexers()})
	if err := informer.SetTransform(keepSizedPod); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(r.term.Context())
	if _, err := informer.AddEventHandler(worldcache.Handler(func(was, is *corev1.Pod, _ bool) {
		if is == nil {
			r.podGone(ctx, was)
			return
		}
		r.podSeen(ctx, was, is)
	})); err != nil {
		stop()
		return nil, err
	}
	r.term.Go(func(context.Context) { informer.RunWithContext(ctx) })
	return &podWatch{SharedIndexInformer: informer, synced: informer.HasSynced, stop: stop}, nil
}

// watching returns the watch of pods if it runs and knows all of them, or nil.
func (r *run) watching() *podWatch {
	if w := r.pods.Load(); w != nil && w.synced() {
		return w
	}
	return nil
}

// indexed returns the watched pods of an index; none without a watch.
func (r *run) indexed(index, value string) []*corev1.Pod {
	w := r.watching()
	if w == nil {
		return nil
	}
	objects, err := w.GetIndexer().ByIndex(index, value)
	if err != nil {
		r.Log.Error(err, "pods were not found", "index", index)
	}
	out := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		out = append(out, obj.(*corev1.Pod))
	}
	return out
}

// sizedPods returns the pods that a template sized, and those of its DaemonSets that another template sized. The
// latter count as soon as their DaemonSet names this one.
func (r *run) sizedPods(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, daemonSets []appsv1.DaemonSet) (map[types.UID]*corev1.Pod, error) {
	pods := map[types.UID]*corev1.Pod{}
	add := func(list []*corev1.Pod) {
		for _, pod := range list {
			pods[pod.UID] = pod
		}
	}
	label := sizing.LabelOf(t.Name)
	if r.watching() != nil {
		add(r.indexed(byTemplate, label))
		for i := range daemonSets {
			if templateOf(&daemonSets[i]) == t.Name {
				add(r.indexed(byOwner, string(daemonSets[i].UID)))
			}
		}
		return pods, nil
	}
	list, err := r.list(ctx, client.MatchingLabels{stowage.SizedByLabel: label})
	if err != nil {
		return nil, err
	}
	add(list)
	for i := range daemonSets {
		d := &daemonSets[i]
		if templateOf(d) != t.Name || d.Spec.Selector == nil || countWithoutSize(d, maps.Values(pods)) == 0 {
			continue // few DaemonSets have pods that another template sized
		}
		selector, err := podSelector(d, metav1.LabelSelectorOpExists)
		if err != nil {
			return nil, err
		}
		list, err := r.list(ctx, client.InNamespace(d.Namespace), client.MatchingLabelsSelector{Selector: selector})
		if err != nil {
			return nil, err
		}
		add(slices.DeleteFunc(list, func(p *corev1.Pod) bool { return !metav1.IsControlledBy(p, d) }))
	}
	return pods, nil
}

// list returns pods as the watch keeps them.
func (r *run) list(ctx context.Context, opts ...client.ListOption) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	err := worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		kept, err := keepSizedPod(pod)
		if err == nil {
			out = append(out, kept.(*corev1.Pod))
		}
		return err
	}, opts...)
	return out, err
}

// pause returns how long the controller collects changes of a template's pods before it looks at them all. It grows
// with their number: as many as at the last look, and at least as many as the caller knows of.
func (r *run) pause(label string, atLeast int32) time.Duration {
	r.mu.Lock()
	pods := time.Duration(max(r.counted[label], int(atLeast)))
	r.mu.Unlock()
	if r.watching() == nil {
		return min(r.Timing.Status+pods*perListedPod, maxPause)
	}
	return r.Timing.Status + pods*perPod
}

// What each pod adds to the time between two updates of a status. It is about a hundred times what it takes to
// compare one, or to list and compare one.
const (
	perPod       = 5 * time.Millisecond
	perListedPod = 20 * time.Millisecond
)

// maxPause bounds how old a status is whose pods are listed.
const maxPause = time.Minute

// podGone forgets a pod. The pod that takes its place may have bypassed the webhook.
func (r *run) podGone(ctx context.Context, pod *corev1.Pod) {
	r.forget(pod.UID)
	r.enqueueTemplateOf(ctx, pod)
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		r.daemonSets.AddAfter(client.ObjectKey{Namespace: pod.Namespace, Name: o.Name}, r.Timing.Settle)
	}
}

// countWithoutSize returns how many pods of a DaemonSet are not among pods that have a size, by the DaemonSet's status.
func countWithoutSize(d *appsv1.DaemonSet, sized iter.Seq[*corev1.Pod]) int32 {
	nodes := map[string]bool{} // a pod that waits is the only one of its node
	for pod := range sized {
		if metav1.IsControlledBy(pod, d) && podstatus.Active(pod) {
			nodes[cmp.Or(pod.Spec.NodeName, string(pod.UID))] = true
		}
	}
	return max(0, d.Status.CurrentNumberScheduled-int32(len(nodes)))
}
