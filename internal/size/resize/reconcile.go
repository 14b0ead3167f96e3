package resize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// reconcilePod brings one pod to its size, if its template has updatePolicy InPlace.
func (r *run) reconcilePod(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	watched := r.pods.Load()
	if watched == nil {
		return reconcile.Result{}, nil // no pod is resized
	}
	if !watched.synced() { // the pods of the same DaemonSet are not all known
		return reconcile.Result{RequeueAfter: r.Timing.Status}, nil
	}
	obj, found, err := watched.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return reconcile.Result{}, err
	}
	pod := obj.(*corev1.Pod)

	// 1. Is there anything to do, and may it be done?
	if r.Scope.Paused(ctx, pod.Namespace) {
		return reconcile.Result{RequeueAfter: scope.PausedWait}, nil
	}
	v, err := r.findTemplate(ctx, pod)
	if err != nil || !v.follows() {
		return reconcile.Result{}, err
	}
	if err := r.compareSize(ctx, pod, &v); err != nil {
		return reconcile.Result{}, err
	}
	if v.resized == nil {
		return r.withoutResize(ctx, pod, &v)
	}
	if can, err := r.canResize(); err != nil || !can {
		if err == nil && v.early {
			return r.recreate(ctx, pod, &v)
		}
		return reconcile.Result{}, err // the template's status reports it
	}
	patch := sizing.ResizePatch(pod.UID, v.now, v.resized)
	if wait := r.waitFor(pod, string(patch)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if wait, err := r.reserve(ctx, pod, &v); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if err := r.writes.Wait(ctx); err != nil {
		r.release(pod.UID)
		return reconcile.Result{}, err
	}

	// 2. Ask for it.
	return r.resize(ctx, pod, &v, patch)
}

// follows reports whether a running pod gets the size that its template gives it.
func (v *comparison) follows() bool {
	return v.template != nil && (v.template.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace || v.early)
}

// withoutResize is for a pod that no resize brings nearer to its size.
func (r *run) withoutResize(ctx context.Context, pod *corev1.Pod, v *comparison) (reconcile.Result, error) {
	if v.off && v.early {
		return r.recreate(ctx, pod, v)
	}
	if pendingOf(pod) == nil {
		r.forget(pod.UID)
	}
	return reconcile.Result{}, nil
}

// resize has a pod resized by a patch, and notes the answer.
func (r *run) resize(ctx context.Context, pod *corev1.Pod, v *comparison, patch []byte) (reconcile.Result, error) {
	// 1. What the pod declared, and whose size it has, comes first. Without that, nobody could tell it later from the
	// size that the pod gets now.
	if err := r.mark(ctx, pod, v); err != nil {
		r.release(pod.UID)
		return reconcile.Result{}, err
	}

	// 2. Ask, and look again when the store has the answer: the size may have changed meanwhile.
	err := r.Uncached.SubResource("resize").Patch(ctx, bare(pod), client.RawPatch(types.StrategicMergePatchType, patch))
	switch {
	case err == nil:
		r.Metrics.resizes.WithLabelValues(resizeAccepted).Inc()
		r.Log.Info("pod resized", "namespace", pod.Namespace, "kind", "Pod", "name", pod.Name, "node", pod.Spec.NodeName, "template", v.template.Name)
		r.asked(pod, string(patch), "", false)
		return reconcile.Result{RequeueAfter: r.Timing.Settle}, nil
	case !refuses(err) && !apierrors.IsNotFound(err): // it may have been done all the same
		r.Metrics.resizes.WithLabelValues(resizeFailed).Inc()
		return reconcile.Result{}, fmt.Errorf("resize pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	r.release(pod.UID)
	switch {
	case isGone(err, pod.Name):
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("it does not serve pods/resize (on by default since Kubernetes 1.33): %w", err)
	}
	r.Metrics.resizes.WithLabelValues(resizeRefused).Inc()
	r.warn(pod, stowage.EventResizeRefused, fmt.Sprintf("the API server refuses to resize a pod: %v", err))
	r.enqueueTemplateOf(ctx, pod)
	if v.early {
		if result, err := r.recreate(ctx, pod, v); err != nil || result.RequeueAfter > 0 {
			return result, err
		}
	}
	// What is invalid stays so until the pod should have another size, almost always.
	return reconcile.Result{RequeueAfter: r.asked(pod, string(patch), err.Error(), !apierrors.IsForbidden(err))}, nil
}

// isGone reports whether an error says that a pod is gone.
func isGone(err error, pod string) bool {
	var status apierrors.APIStatus
	named := errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == pod
	return apierrors.IsNotFound(err) && named
}

// refuses reports whether an error says that the API server does not resize the pod so.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

// mark writes into a pod what it declared, and whose size it has, unless that is there.
func (r *run) mark(ctx context.Context, pod *corev1.Pod, v *comparison) error {
	label, record := v.want.Metadata.Labels[stowage.SizedByLabel], v.want.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]
	if record == "" || label == pod.Labels[stowage.SizedByLabel] && record == pod.Annotations[stowage.DeclaredResourcesAnnotation] {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "labels": map[string]string{stowage.SizedByLabel: label}, "annotations": map[string]string{stowage.DeclaredResourcesAnnotation: record},
	}})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(r.Uncached.Patch(ctx, bare(pod), client.RawPatch(types.MergePatchType, patch)))
}

func bare(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}
