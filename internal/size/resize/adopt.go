package resize

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// reconcileDaemonSet looks for pods of a DaemonSet that have no size though they should have one. They are older than
// the template, or than Stowage, or bypassed the webhook. The DaemonSet's status shows whether there are any. Each
// such pod gets a record of what it declares, so that reconcilePod resizes it. With updatePolicy OnCreate only pods
// that were created just before their template get a record.
func (r *run) reconcileDaemonSet(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	// 1. Is anything missing?
	var d appsv1.DaemonSet
	if err := r.Informers.Get(ctx, key, &d); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var t flexdaemonsets.FlexDaemonsetTemplate
	name := templateOf(&d)
	if name == "" || d.Spec.Selector == nil {
		return reconcile.Result{}, nil
	}
	if r.watching() != nil && r.countUnsized(ctx, &d, slices.Values(r.indexed(byOwner, string(d.UID)))) == 0 {
		return reconcile.Result{}, nil
	}
	if d.Status.CurrentNumberScheduled != d.Status.DesiredNumberScheduled {
		return reconcile.Result{RequeueAfter: unsettled * r.Timing.Settle}, nil // pods are being made
	}
	if err := r.Informers.Get(ctx, client.ObjectKey{Name: name}, &t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if t.Spec.UpdatePolicy != flexdaemonsets.UpdateInPlace && !r.mayBeEarly(&d, &t) {
		return reconcile.Result{}, nil
	}

	// 2. Which are they? Each gets its record.
	unsized, err := podSelector(&d, metav1.LabelSelectorOpDoesNotExist)
	if err != nil {
		return reconcile.Result{}, err
	}
	list, err := r.list(ctx, client.InNamespace(d.Namespace), client.MatchingLabelsSelector{Selector: unsized})
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.record(ctx, list, &d, &t)
}

// record writes into the pods of a DaemonSet that have no size what they declare. With updatePolicy OnCreate it does so only to those
// that were created just before their template.
func (r *run) record(ctx context.Context, unsized []*corev1.Pod, d *appsv1.DaemonSet, t *flexdaemonsets.FlexDaemonsetTemplate) (result reconcile.Result, err error) {
	all := t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
	var errs []error
	for _, pod := range unsized {
		if !metav1.IsControlledBy(pod, d) {
			continue
		}
		if early := r.noteEarly(pod, d, t); !all && !early {
			continue
		}
		if pod.Spec.NodeName == "" {
			if wait := r.waitForNode(ctx, pod); wait > 0 && (result.RequeueAfter == 0 || wait < result.RequeueAfter) {
				result.RequeueAfter = wait // no event shows when it gets its node
			}
			continue
		}
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
	if err := errors.Join(append(errs, r.adjustWatch(ctx))...); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// mostWait is how long a pod that waits for a node is left alone at most. Each look lists the pods of its DaemonSet.
const mostWait = 10 * time.Minute

// waitForNode returns after how long to look again whether a pod that has no size has its node: the longer, the longer it waits. It returns 0 for a
// pod that gets no size anyway.
func (r *run) waitForNode(ctx context.Context, pod *corev1.Pod) time.Duration {
	_, isPeerPod := pod.Annotations[stowage.OriginalResourcesAnnotation]
	if isPeerPod || !podstatus.Active(pod) || !r.Scope.Enforces(ctx, pod.Namespace, podpatch.FromPod(pod)) {
		return 0
	}
	return min(max(unsettled*r.Timing.Settle, r.Time.Since(pod.CreationTimestamp.Time)/4), mostWait)
}

// podSelector returns the selector of a DaemonSet's pods that have a size, or that have none.
func podSelector(d *appsv1.DaemonSet, have metav1.LabelSelectorOperator) (labels.Selector, error) {
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: stowage.SizedByLabel, Operator: have})
	return metav1.LabelSelectorAsSelector(selector)
}

// countUnsized returns how many pods of a DaemonSet with a template have no size though they should.
func (r *run) countUnsized(ctx context.Context, d *appsv1.DaemonSet, sized iter.Seq[*corev1.Pod]) int32 {
	missing := countWithoutSize(d, sized)
	if missing == 0 || !r.Scope.Enforces(ctx, d.Namespace, podpatch.FromPod(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta})) {
		return 0
	}
	return missing
}
