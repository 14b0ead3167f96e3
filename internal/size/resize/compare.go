package resize

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// comparison is what a pod is, beside what it should be.
type comparison struct {
	template *flexdaemonsets.FlexDaemonsetTemplate // nil if nothing is said of the pod
	// early says that the pod has no size because it was created just before its template.
	early bool
	young bool // whether the DaemonSet is younger than the grace for such pods
	now   *podpatch.Pod
	want  *podpatch.Pod
	off   bool // whether want has another size
	// resized is what now can become without a restart, if that differs from it.
	resized *podpatch.Pod
}

// compare compares a pod with the size that its template and its node give it.
func (r *run) compare(ctx context.Context, pod *corev1.Pod) (comparison, error) {
	v, err := r.findTemplate(ctx, pod)
	if err == nil && v.template != nil {
		err = r.compareSize(ctx, pod, &v)
	}
	return v, err
}

// findTemplate finds the template of a pod. It reads the cache alone: a DaemonSet goes before its pods do.
func (r *run) findTemplate(ctx context.Context, pod *corev1.Pod) (comparison, error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !podstatus.Active(pod) {
		return comparison{}, nil
	}
	var daemonSet appsv1.DaemonSet
	if err := r.Informers.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &daemonSet); err != nil {
		return comparison{}, client.IgnoreNotFound(err)
	}
	name := sizing.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], daemonSet.Annotations)
	if daemonSet.UID != owner.UID || name == "" {
		return comparison{}, nil
	}
	var template flexdaemonsets.FlexDaemonsetTemplate
	if err := r.Informers.Get(ctx, client.ObjectKey{Name: name}, &template); err != nil {
		return comparison{}, client.IgnoreNotFound(err)
	}
	return comparison{
		template: &template, early: r.isEarly(pod.UID), young: r.Time.Since(daemonSet.CreationTimestamp.Time) < podstatus.PolicyGrace,
	}, nil
}

// compareSize adds to v what a pod's template and node give the pod.
func (r *run) compareSize(ctx context.Context, pod *corev1.Pod, v *comparison) error {
	// 1. Can its size be compared? That of a peer pod is that of its VM.
	v.now = podpatch.FromPod(pod)
	if _, isPeerPod := pod.Annotations[stowage.OriginalResourcesAnnotation]; isPeerPod || pod.Spec.NodeName == "" {
		return nil
	}
	var node corev1.Node
	if err := r.Informers.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !r.Scope.Enforces(ctx, pod.Namespace, v.now) {
		return nil
	}

	// 2. What would the webhook make of it?
	d, err := r.Feature.Decide(ctx, feature.Request{Namespace: pod.Namespace, Pod: v.now, DryRun: true})
	if err != nil || d.Pod == nil {
		return err
	}
	v.want = d.Pod
	v.off = !sizing.SameSize(v.now, v.want)
	resized := sizing.Resize(v.now, v.want)
	if r.lowersNoMemory() {
		sizing.KeepMemory(v.now, resized)
	}
	if !sizing.SameSize(v.now, resized) {
		v.resized = resized
	}
	return nil
}

// lowersNoMemory reports whether the API server is known not to lower memory limits of running pods.
func (r *run) lowersNoMemory() bool {
	if can, err := r.canResize(); !can || err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keepsMemory
}

// pendingOf returns the condition that a node cannot resize a pod now, or nil.
func pendingOf(pod *corev1.Pod) *corev1.PodCondition {
	return resizeCondition(pod, corev1.PodResizePending)
}

// failedOn returns the condition that the kubelet tried to resize a pod and failed, or nil.
func failedOn(pod *corev1.Pod) *corev1.PodCondition {
	if c := resizeCondition(pod, corev1.PodResizeInProgress); c != nil && c.Reason == corev1.PodReasonError {
		return c
	}
	return nil
}

func resizeCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	if pod == nil {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
