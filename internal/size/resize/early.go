package resize

import (
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// earlyFor is how long after its creation a pod that was created before its template is resized for
// that. An older pod with updatePolicy OnCreate keeps its size.
const earlyFor = 10 * time.Minute

// noteEarly reports whether a pod was created just before its template, or before its DaemonSet named
// the template, and not long ago. Such pods are remembered.
func (r *run) noteEarly(pod *corev1.Pod, d *appsv1.DaemonSet, t *flexdaemonsets.FlexDaemonsetTemplate) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.templateSince(d, t)
	created := pod.CreationTimestamp.Time
	if !podstatus.CreatedBefore(created, since) || r.Time.Since(created) >= earlyFor {
		return false
	}
	r.beforeTemplate[pod.UID] = r.Clock.Now()
	return true
}

// templateSince returns since when a DaemonSet has its template. r.mu is held.
func (r *run) templateSince(d *appsv1.DaemonSet, t *flexdaemonsets.FlexDaemonsetTemplate) time.Time {
	since := t.CreationTimestamp.Time
	if set := r.templateSet[d.UID]; set.After(since) {
		since = set
	}
	return since
}

// mayBeEarly reports whether noteEarly can find a pod of a DaemonSet at all.
func (r *run) mayBeEarly(d *appsv1.DaemonSet, t *flexdaemonsets.FlexDaemonsetTemplate) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Time.Since(r.templateSince(d, t)) < earlyFor
}

// forgetEarly forgets early pods that are gone: a watch that began later has not seen them go. A pod that was found a
// moment ago may not have the label of the watch yet.
func (r *run) forgetEarly() {
	w := r.watching()
	if w == nil {
		return
	}
	there := map[types.UID]bool{}
	for _, obj := range w.GetStore().List() {
		there[obj.(*corev1.Pod).UID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.beforeTemplate, func(pod types.UID, found time.Time) bool { return !there[pod] && r.Clock.Since(found) >= earlyFor })
}

// noteTemplateSet notes that a DaemonSet names another template from now on.
func (r *run) noteTemplateSet(daemonSet types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Time.Now() // it is compared with dates of pods
	maps.DeleteFunc(r.templateSet, func(_ types.UID, at time.Time) bool { return now.Sub(at) > earlyFor })
	r.templateSet[daemonSet] = now
}

// isEarly reports whether noteEarly found a pod to be created just before its template.
func (r *run) isEarly(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, early := r.beforeTemplate[pod]
	return early
}

// recreate evicts a pod that was created before its template and cannot be resized in place, so that its DaemonSet
// recreates it. It does so one at a time, if the pod is not ready or its DaemonSet is young.
func (r *run) recreate(ctx context.Context, cached *corev1.Pod, v *comparison) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := r.Uncached.Get(ctx, client.ObjectKeyFromObject(cached), &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if pod.UID != cached.UID || pod.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if podstatus.Ready(&pod) && !v.young || podstatus.Grouped(&pod) || podstatus.Protected(&pod) != "" {
		r.forget(pod.UID) // it is in use, goes only with others, or is protected; its template's status reports it
		return reconcile.Result{}, nil
	}
	owner := metav1.GetControllerOfNoCopy(&pod)
	for _, sibling := range r.indexed(byOwner, string(owner.UID)) {
		if sibling.DeletionTimestamp != nil {
			return reconcile.Result{RequeueAfter: r.Timing.Settle}, nil
		}
	}
	result, wait, err := r.Evictor.Evict(ctx, &pod)
	switch result {
	case evict.Waits:
		return reconcile.Result{RequeueAfter: wait}, nil
	case evict.Refused:
		return reconcile.Result{RequeueAfter: r.Timing.Backoff}, nil
	case evict.Gone:
		return reconcile.Result{}, nil
	case evict.Failed:
		return reconcile.Result{}, fmt.Errorf("evict pod %s: %w", pod.Name, err)
	}
	r.Log.Info("pod evicted, so that its owner recreates it", "namespace", pod.Namespace, "kind", "Pod", "name", pod.Name, "template", v.template.Name)
	about := &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: pod.Namespace, Name: owner.Name, UID: owner.UID}
	r.Events.Normal(about, stowage.EventPodRecreated, events.Resize,
		"pod %s was created before FlexDaemonsetTemplate %s and cannot be resized in place; it was evicted, so that its owner recreates it", pod.Name, v.template.Name)
	return reconcile.Result{}, nil
}
