package resize

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// unsettled is how many times longer a DaemonSet is left alone whose pods are being made.
const unsettled = 10

// reconcileDaemonSet looks for pods of a DaemonSet that have no size though they should have one: they
// are older than the template, or than Stowage, or bypassed the webhook. The DaemonSet's status shows
// whether there are any. Each such pod gets a record of what it declares, so that reconcilePod resizes
// it. With updatePolicy OnCreate only pods that were created just before their template get a record.
func (r *run) reconcileDaemonSet(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	// 1. Is anything missing?
	var d appsv1.DaemonSet
	if err := r.Informers.Get(ctx, key, &d); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var t flexdaemonsets.FlexDaemonsetTemplate
	name := templateOf(&d)
	if name == "" {
		return reconcile.Result{}, nil
	}
	if r.countUnsized(ctx, &d) == 0 {
		return reconcile.Result{}, nil
	}
	if d.Status.CurrentNumberScheduled != d.Status.DesiredNumberScheduled {
		return reconcile.Result{RequeueAfter: unsettled * r.Timing.Settle}, nil // pods are being made
	}
	if err := r.Informers.Get(ctx, client.ObjectKey{Name: name}, &t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	all := t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
	if !all && r.Timing.PolicyGrace <= 0 {
		return reconcile.Result{}, nil
	}

	// 2. Which are they?
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: stowage.SizedByLabel, Operator: metav1.LabelSelectorOpDoesNotExist})
	unsized, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return reconcile.Result{}, err
	}
	var list corev1.PodList
	if err := r.Client.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingLabelsSelector{Selector: unsized}); err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], &d) {
			continue
		}
		if early := r.noteEarly(&list.Items[i], &d, &t); !all && !early {
			continue
		}
		kept, err := keepSizedPod(&list.Items[i])
		if err != nil {
			return reconcile.Result{}, err
		}
		pod := kept.(*corev1.Pod)
		v, err := r.compare(ctx, pod)
		if err == nil && v.want != nil {
			if err := r.labels.Wait(ctx); err != nil {
				return reconcile.Result{}, err
			}
			err = r.mark(ctx, pod, &v)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// countUnsized returns how many pods of a DaemonSet with a template have no size though they should, by its
// status: pods without a size are not watched.
func (r *run) countUnsized(ctx context.Context, d *appsv1.DaemonSet) int32 {
	nodes := map[string]bool{}
	for _, pod := range r.indexed(byOwner, string(d.UID)) {
		if podstatus.Live(pod) {
			nodes[pod.Spec.NodeName] = true
		}
	}
	missing := d.Status.CurrentNumberScheduled - int32(len(nodes))
	if missing <= 0 || !r.Scope.Enforces(ctx, d.Namespace, podpatch.FromPod(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta})) {
		return 0
	}
	return missing
}
