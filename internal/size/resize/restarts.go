package resize

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// A container with resizePolicy RestartContainer restarts when it is resized (KEP-1287). Pods of one DaemonSet with such containers are
// resized like pods of a rolling update: as many of them may restart at a time as spec.updateStrategy allows to be unavailable.
//
// A pod that restarts moves through these states:
//
//	          reserve                 the watch has the new size          the kubelet is done, and the pod is ready
//	 (free) ───────────▶ reserved ───────────────────────────▶ restarting ─────────────────────────────────────────▶ (free)
//	    ▲                   │
//	    └───────────────────┘ release: the API server refused, or nothing was seen for reservedFor
//
// The first state is in memory, because the watch is behind what was just asked. The second is read from the pod alone, so a new
// leader knows it. A resize that its node has put off, or failed to do, counts in neither: it would keep all other nodes from theirs.

// reservation is a pod that was asked to become a size, and restarts for that.
type reservation struct {
	size *podpatch.Pod
	at   time.Time
}

// reservedFor is for how long a resize that the watch does not show counts as a restart.
const reservedFor = time.Minute

// restarts reports whether a container of a pod restarts on the way to another size. The two have the same containers.
func restarts(pod *corev1.Pod, now, resized *podpatch.Pod) bool {
	among := func(list []corev1.Container, now, resized []podpatch.Container) bool {
		for i := range list {
			for _, p := range list[i].ResizePolicy {
				if p.RestartPolicy == corev1.RestartContainer && sizing.Changes(now[i].Resources, resized[i].Resources, p.ResourceName) {
					return true
				}
			}
		}
		return false
	}
	return among(pod.Spec.Containers, now.Spec.Containers, resized.Spec.Containers) || among(pod.Spec.InitContainers, now.Spec.InitContainers, resized.Spec.InitContainers)
}

// mayRestart reports whether a pod has a container that restarts when it is resized.
func mayRestart(pod *corev1.Pod) bool { return restartsFor(pod, nil) }

// restartsFor reports whether a pod has a container that restarts when a template resizes it. A template that is nil sizes everything.
func restartsFor(pod *corev1.Pod, t *sizing.Template) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, p := range list[i].ResizePolicy {
				if p.RestartPolicy == corev1.RestartContainer && (t == nil || t.Sizes(list[i].Name, p.ResourceName)) {
					return true
				}
			}
		}
	}
	return false
}

// reserve has a pod that restarts for its resize count as unavailable, and returns 0, or returns after how long to try again because
// other pods of its DaemonSet are unavailable. A pod that does not restart, or is not ready anyway, needs no reservation.
func (r *run) reserve(ctx context.Context, pod *corev1.Pod, v *comparison) (wait time.Duration, err error) {
	if !restarts(pod, v.now, v.resized) || !podstatus.Ready(pod) {
		return 0, nil
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	var d appsv1.DaemonSet
	if err := r.Informers.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &d); err != nil {
		return 0, fmt.Errorf("find how many pods of DaemonSet %s may restart: %w", owner.Name, err)
	}
	siblings := r.indexed(byOwner, string(owner.UID))
	most := maxUnavailable(&d)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sibling := range siblings {
		if sibling.UID != pod.UID && r.isRestarting(sibling) {
			most--
		}
	}
	if most <= 0 {
		return r.Timing.Settle + time.Duration(len(siblings))*perListedPod, nil // one of them comes soon after a pod is ready
	}
	r.restarts[pod.UID] = reservation{v.resized, r.Clock.Now()}
	return 0, nil
}

// release forgets that a pod was asked to become a size.
func (r *run) release(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.restarts, pod)
}

// isRestarting reports whether a watched pod restarts for a resize or is not ready. r.mu is held.
func (r *run) isRestarting(pod *corev1.Pod) bool {
	if asked, ok := r.restarts[pod.UID]; ok {
		if r.Clock.Since(asked.at) < reservedFor && !sizing.SameSize(podpatch.FromPod(pod), asked.size) {
			return true
		}
		delete(r.restarts, pod.UID)
	}
	switch {
	case !mayRestart(pod): // nor is it known whether it is ready; see keepSizedPod
		return false
	case pendingOf(pod) != nil, failedOn(pod) != nil:
		return !podstatus.Ready(pod)
	}
	return !podstatus.Ready(pod) || resizeCondition(pod, corev1.PodResizeInProgress) != nil || len(pod.Status.ContainerStatuses) > 0
}

// maxUnavailable returns how many pods of a DaemonSet may be unavailable at a time: what its rolling update allows, and at least one.
func maxUnavailable(d *appsv1.DaemonSet) int {
	update := d.Spec.UpdateStrategy.RollingUpdate
	if update == nil || update.MaxUnavailable == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(update.MaxUnavailable, int(d.Status.DesiredNumberScheduled), true)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// restartNote says which pods of a template restart when they are resized, or is "". It names the first DaemonSet by name, so that it
// stays the same.
func restartNote(t *sizing.Template, pods []*corev1.Pod) string {
	if !t.InPlace {
		return ""
	}
	first := ""
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || !restartsFor(pod, t) {
			continue
		}
		if name := pod.Namespace + "/" + owner.Name; first == "" || name < first {
			first = name
		}
	}
	if first == "" {
		return ""
	}
	return fmt.Sprintf("a resize restarts containers of DaemonSet %s (resizePolicy RestartContainer), of as many pods at a time as its maxUnavailable allows", first)
}

// awaits says why a pod that follows its template was not asked to yet, or is "".
func (r *run) awaits(pod *corev1.Pod, v *comparison) string {
	if !restarts(pod, v.now, v.resized) {
		return ""
	}
	return ": its containers restart for that, so it may wait until other pods of its DaemonSet are ready"
}
