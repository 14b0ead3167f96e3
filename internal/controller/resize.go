package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// The reasons of the events about resizes.
const (
	ReasonResizeRefused    = "ResizeRefused"
	ReasonResizeDeferred   = "ResizeDeferred"
	ReasonResizeInfeasible = "ResizeInfeasible"
)

// verdict is what a pod is, beside what it should be.
type verdict struct {
	template *flexdaemonsets.FlexDaemonsetTemplate // nil if nothing is said of the pod
	now      *podpatch.Pod
	want     *podpatch.Pod
	off      bool // whether want has another size
	// resized is what now can become without a restart, if that differs from it.
	resized *podpatch.Pod
}

// judge compares a pod with what its template and its node now say. What has just gone is
// not asked for live: a DaemonSet goes before its pods do.
func (s *sizer) judge(ctx context.Context, pod *corev1.Pod) (verdict, error) {
	// 1. Whose is it?
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return verdict{}, nil
	}
	var daemonSet appsv1.DaemonSet
	if err := s.Informers.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &daemonSet); err != nil {
		return verdict{}, client.IgnoreNotFound(err)
	}
	name := admission.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], daemonSet.Annotations)
	if daemonSet.UID != owner.UID || name == "" {
		return verdict{}, nil
	}
	var template flexdaemonsets.FlexDaemonsetTemplate
	if err := s.Informers.Get(ctx, client.ObjectKey{Name: name}, &template); err != nil {
		return verdict{}, client.IgnoreNotFound(err)
	}
	v := verdict{template: &template, now: viewOf(pod)}

	// 2. Can its size be compared? That of a peer pod is that of its VM.
	if _, isPeerPod := pod.Annotations[stowage.OriginalResourcesAnnotation]; isPeerPod || pod.Spec.NodeName == "" {
		return v, nil
	}
	var node corev1.Node
	if err := s.Informers.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); err != nil {
		return v, client.IgnoreNotFound(err)
	}
	if !s.Pipeline.Enforces(ctx, pod.Namespace, v.now) {
		return v, nil
	}

	// 3. What would the webhook make of it?
	d, err := s.Feature.Decide(ctx, admission.Request{Namespace: pod.Namespace, Pod: v.now, DryRun: true})
	if err != nil || d.Pod == nil {
		return v, err
	}
	v.want = d.Pod
	v.off = !sizing.SameSize(v.now, v.want)
	if resized := sizing.Resize(v.now, v.want); !sizing.SameSize(v.now, resized) {
		v.resized = resized
	}
	return v, nil
}

// viewOf is a pod as decisions see it, as far as a size depends on it.
func viewOf(pod *corev1.Pod) *podpatch.Pod {
	view := &podpatch.Pod{Metadata: podpatch.Metadata{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
	}, Spec: podpatch.Spec{NodeName: pod.Spec.NodeName}}
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		view.Metadata.OwnerReferences = []podpatch.Owner{{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: string(o.UID), Controller: true}}
	}
	entries := func(r *corev1.ResourceRequirements) *podpatch.Resources {
		if r == nil {
			return nil
		}
		out := &podpatch.Resources{}
		for _, list := range []struct {
			from corev1.ResourceList
			to   *podpatch.ResourceList
		}{{r.Requests, &out.Requests}, {r.Limits, &out.Limits}} {
			for name, q := range list.from {
				if *list.to == nil {
					*list.to = podpatch.ResourceList{}
				}
				(*list.to)[name] = podpatch.Quantity(q.String())
			}
		}
		return out
	}
	containers := func(list []corev1.Container) []podpatch.Container {
		var out []podpatch.Container
		for i := range list {
			c := podpatch.Container{Name: list[i].Name, Resources: entries(&list[i].Resources)}
			if list[i].RestartPolicy != nil {
				c.RestartPolicy = *list[i].RestartPolicy
			}
			out = append(out, c)
		}
		return out
	}
	view.Spec.Resources = entries(pod.Spec.Resources)
	view.Spec.InitContainers, view.Spec.Containers = containers(pod.Spec.InitContainers), containers(pod.Spec.Containers)
	return view
}

// resize brings one pod to its size, if its template says that running pods follow.
func (s *sizer) resize(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	obj, found, err := s.pods.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return 0, err
	}
	pod := obj.(*corev1.Pod)

	// 1. Is there anything to do, and may it be done?
	v, err := s.judge(ctx, pod)
	if err != nil || v.template == nil || v.template.Spec.UpdatePolicy != flexdaemonsets.UpdateInPlace {
		return 0, err
	}
	if v.resized == nil {
		if pendingOf(pod) == nil {
			s.forget(pod.UID)
		}
		return 0, nil
	}
	patch := resizePatch(pod, v.now, v.resized)
	if wait := s.waitFor(pod, string(patch)); wait > 0 {
		return wait, nil
	}
	if err := s.writes.Wait(ctx); err != nil {
		return 0, err
	}

	// 2. What the pod declared, and whose size it has, comes first: without that, it
	// could not be told later from what we are about to make of it.
	if err := s.mark(ctx, pod, &v); err != nil {
		return 0, err
	}

	// 3. Ask, and look again when the store has the answer: the wish may have changed
	// meanwhile.
	err = s.Client.SubResource("resize").Patch(ctx, bare(pod), client.RawPatch(types.StrategicMergePatchType, patch))
	switch status := apierrors.APIStatus(nil); {
	case err == nil:
		s.Metrics.resizes.WithLabelValues(resizeAccepted).Inc()
		s.Log.Info("pod resized", "namespace", pod.Namespace, "pod", pod.Name, "node", pod.Spec.NodeName, "template", v.template.Name)
		s.asked(pod, string(patch), "", false)
		return s.Timing.Settle, nil
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == pod.Name,
		apierrors.IsConflict(err): // by its UID: it is another pod
		return 0, nil
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("it does not know pods/resize, which needs Kubernetes 1.35: %w", err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
	default:
		s.Metrics.resizes.WithLabelValues(resizeFailed).Inc()
		return 0, fmt.Errorf("resize pod %s: %w", key, err)
	}
	s.Metrics.resizes.WithLabelValues(resizeRefused).Inc()
	s.tell(pod, ReasonResizeRefused, fmt.Sprintf("the API server refuses to resize a pod: %v", err))
	s.dirty(pod)
	// What is invalid stays so until something else is wished for, almost always.
	return s.asked(pod, string(patch), err.Error(), !apierrors.IsForbidden(err)), nil
}

// mark writes into a pod what it declared, and whose size it has, unless that is there.
func (s *sizer) mark(ctx context.Context, pod *corev1.Pod, v *verdict) error {
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
	err = s.Client.Patch(ctx, bare(pod), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another one
	}
	return err
}

func bare(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

// resizePatch is the strategic merge patch that resizes a pod. It holds the entries that
// change, and the pod's UID.
func resizePatch(pod *corev1.Pod, now, resized *podpatch.Pod) []byte {
	type entries struct {
		Requests podpatch.ResourceList `json:"requests,omitempty"`
		Limits   podpatch.ResourceList `json:"limits,omitempty"`
	}
	type container struct {
		Name      string  `json:"name"`
		Resources entries `json:"resources"`
	}
	changed := func(before, after podpatch.ResourceList) podpatch.ResourceList {
		out := podpatch.ResourceList{}
		for name, q := range after {
			if before[name] != q {
				out[name] = q
			}
		}
		return out
	}
	change := func(before, after *podpatch.Resources) (entries, bool) {
		if after == nil {
			return entries{}, false
		}
		if before == nil {
			before = &podpatch.Resources{}
		}
		e := entries{changed(before.Requests, after.Requests), changed(before.Limits, after.Limits)}
		return e, len(e.Requests)+len(e.Limits) > 0
	}
	containers := func(before, after []podpatch.Container) (out []container) {
		for i := range after {
			if e, ok := change(before[i].Resources, after[i].Resources); ok {
				out = append(out, container{after[i].Name, e})
			}
		}
		return out
	}
	var patch struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			Resources      *entries    `json:"resources,omitempty"`
			InitContainers []container `json:"initContainers,omitempty"`
			Containers     []container `json:"containers,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.UID = pod.UID
	if e, ok := change(now.Spec.Resources, resized.Spec.Resources); ok {
		patch.Spec.Resources = &e
	}
	patch.Spec.InitContainers = containers(now.Spec.InitContainers, resized.Spec.InitContainers)
	patch.Spec.Containers = containers(now.Spec.Containers, resized.Spec.Containers)
	data, err := json.Marshal(patch)
	if err != nil {
		panic(err) // texts always marshal
	}
	return data
}

// waitFor returns how long to wait before a pod is asked to become something.
func (s *sizer) waitFor(pod *corev1.Pod, patch string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tries[pod.UID]
	var wait time.Duration
	switch {
	case t == nil:
	case t.refused != "" && t.asked != patch:
		wait = s.Timing.Backoff // the next wish may be a better one
	case t.refused != "", pendingOf(pod) != nil:
		wait = t.backoff
	}
	if wait == 0 {
		return 0
	}
	return max(0, wait-s.Clock.Since(t.at))
}

// asked notes what was asked of a pod and what the API server said, and returns when it
// may be asked the same again. The wait doubles as long as wishes do not come true.
func (s *sizer) asked(pod *corev1.Pod, patch, refused string, forLong bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tries[pod.UID]
	if t == nil {
		t = &tries{}
		s.tries[pod.UID] = t
	}
	again := refused != "" && t.refused != "" && t.asked == patch || pendingOf(pod) != nil
	switch {
	case forLong:
		t.backoff = s.Timing.MaxBackoff
	case again:
		t.backoff = min(max(2*t.backoff, s.Timing.Backoff), s.Timing.MaxBackoff)
	default:
		t.backoff = s.Timing.Backoff
	}
	t.asked, t.refused, t.at = patch, refused, s.Clock.Now()
	return t.backoff
}

// refusal is why the API server did not grant a pod's wish, or "".
func (s *sizer) refusal(pod types.UID, patch string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tries[pod]; t != nil && t.asked == patch {
		return t.refused
	}
	return ""
}

// pendingOf returns the condition that a node cannot resize a pod now, or nil.
func pendingOf(pod *corev1.Pod) *corev1.PodCondition {
	return resizeCondition(pod, corev1.PodResizePending)
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

// tell publishes an event on a pod's DaemonSet. Those of one reason are counted under the
// first one's text for some minutes, so there is not one for each pod.
func (s *sizer) tell(pod *corev1.Pod, reason, note string) {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: pod.Namespace, Name: o.Name, UID: o.UID}
	s.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, "Resize", "%s", admission.EventNote(note))
}

// unsettled is how many times longer a DaemonSet is left alone whose pods are being made.
const unsettled = 10

// adopt looks for pods of a DaemonSet that have no size though they should: they are older
// than the template, or than Stowage, or came past the webhook. The counts tell whether
// there are any. They get a record of what they declare, and so become pods that follow.
func (s *sizer) adopt(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	// 1. Is anything missing?
	var d appsv1.DaemonSet
	if err := s.Informers.Get(ctx, key, &d); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	var t flexdaemonsets.FlexDaemonsetTemplate
	name := templateOf(&d)
	if name == "" {
		return 0, nil
	}
	nodes := map[string]bool{}
	for _, pod := range s.indexed(byOwner, string(d.UID)) {
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			nodes[pod.Spec.NodeName] = true
		}
	}
	if len(nodes) >= int(d.Status.CurrentNumberScheduled) || !s.Pipeline.Enforces(ctx, d.Namespace, &podpatch.Pod{}) {
		return 0, nil
	}
	if d.Status.CurrentNumberScheduled != d.Status.DesiredNumberScheduled {
		return unsettled * s.Timing.Settle, nil // pods are being made
	}
	if err := s.Informers.Get(ctx, client.ObjectKey{Name: name}, &t); err != nil || t.Spec.UpdatePolicy != flexdaemonsets.UpdateInPlace {
		return 0, client.IgnoreNotFound(err)
	}

	// 2. Which are they?
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: stowage.SizedByLabel, Operator: metav1.LabelSelectorOpDoesNotExist})
	unsized, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return 0, err
	}
	var list corev1.PodList
	if err := s.Client.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingLabelsSelector{Selector: unsized}); err != nil {
		return 0, err
	}
	var errs []error
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], &d) {
			continue
		}
		kept, err := keepSizedPod(&list.Items[i])
		if err != nil {
			return 0, err
		}
		pod := kept.(*corev1.Pod)
		v, err := s.judge(ctx, pod)
		if err == nil && v.want != nil {
			if err := s.labels.Wait(ctx); err != nil {
				return 0, err
			}
			err = s.mark(ctx, pod, &v)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
	}
	return 0, errors.Join(errs...)
}

// The reasons of the conditions.
const (
	ReasonValid         = "Valid"
	ReasonNoPods        = "NoPods"
	ReasonUpToDate      = "UpToDate"
	ReasonResizing      = "Resizing"
	ReasonAwaitsNewPods = "AwaitsNewPods"
	ReasonDeferred      = "Deferred"
	ReasonInfeasible    = "Infeasible"
	ReasonRefused       = "Refused"
	ReasonUnclear       = "Unclear"
)

// tally is what the pods of one template are, beside what they should be.
type tally struct {
	off    int32
	counts map[string]int32  // by reason
	sample map[string]string // by reason, a pod and why
}

func (t *tally) add(reason string, pod *corev1.Pod, why string) {
	t.off++
	t.counts[reason]++
	if t.sample[reason] == "" {
		t.sample[reason] = fmt.Sprintf("pod %s on node %s%s", client.ObjectKeyFromObject(pod), pod.Spec.NodeName, why)
	}
}

// status brings the status of the templates of a label up to date; almost always it is one.
func (s *sizer) status(ctx context.Context, label string) (time.Duration, error) {
	var list flexdaemonsets.FlexDaemonsetTemplateList
	if err := s.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	for i := range list.Items {
		if sizing.LabelOf(list.Items[i].Name) != label {
			continue
		}
		t := list.Items[i].DeepCopy()
		before := t.DeepCopy()
		if err := s.describe(ctx, t); err != nil {
			return 0, err
		}
		if equality.Semantic.DeepEqual(before.Status, t.Status) {
			continue
		}
		if err := s.Client.Status().Patch(ctx, t, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	return 0, nil
}

// describe fills in a template's status.
func (s *sizer) describe(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate) error {
	st := &t.Status
	st.ObservedGeneration, st.DaemonSets, st.Pods, st.OffSize = t.Generation, 0, 0, 0
	set := func(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...), ObservedGeneration: t.Generation,
		})
	}

	// 1. Who uses it?
	var daemonSets appsv1.DaemonSetList
	if err := s.Informers.List(ctx, &daemonSets, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range daemonSets.Items {
		if templateOf(&daemonSets.Items[i]) == t.Name {
			st.DaemonSets++
		}
	}

	// 2. What are the pods, and what should they be? Those that another template has
	// sized count as soon as their DaemonSet names this one.
	pods := map[types.UID]*corev1.Pod{}
	for _, pod := range s.indexed(byTemplate, sizing.LabelOf(t.Name)) {
		pods[pod.UID] = pod
	}
	for i := range daemonSets.Items {
		if templateOf(&daemonSets.Items[i]) == t.Name {
			for _, pod := range s.indexed(byOwner, string(daemonSets.Items[i].UID)) {
				pods[pod.UID] = pod
			}
		}
	}
	sum := tally{counts: map[string]int32{}, sample: map[string]string{}}
	for _, pod := range slices.SortedFunc(maps.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		v, err := s.judge(ctx, pod)
		if v.template == nil || v.template.Name != t.Name {
			continue
		}
		st.Pods++
		pending, inProgress := pendingOf(pod), resizeCondition(pod, corev1.PodResizeInProgress)
		follows := v.resized != nil && t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
		refused := ""
		if follows {
			refused = s.refusal(pod.UID, string(resizePatch(pod, v.now, v.resized)))
		}
		switch {
		case err != nil:
			sum.add(ReasonUnclear, pod, ": "+err.Error())
		case v.want == nil: // a peer pod, say
		case refused != "":
			sum.add(ReasonRefused, pod, ": "+refused)
		case pending != nil && pending.Reason == corev1.PodReasonInfeasible:
			sum.add(ReasonInfeasible, pod, ": "+pending.Message)
		case pending != nil:
			sum.add(ReasonDeferred, pod, ": "+pending.Message)
		case inProgress != nil && inProgress.Message != "":
			sum.add(ReasonResizing, pod, ": "+inProgress.Message)
		case follows, inProgress != nil:
			sum.add(ReasonResizing, pod, "")
		case v.off:
			sum.add(ReasonAwaitsNewPods, pod, "")
		}
	}
	st.OffSize = sum.off

	// 3. In words.
	if _, err := sizing.Compile(t); err != nil {
		set(flexdaemonsets.ConditionValid, metav1.ConditionFalse, ReasonInvalid, "pods keep the size that they declare: %v", err)
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionUnknown, ReasonInvalid, "the template is invalid")
		return nil
	}
	set(flexdaemonsets.ConditionValid, metav1.ConditionTrue, ReasonValid, "the template gives pods a size")
	switch {
	case st.Pods == 0 && st.DaemonSets == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, ReasonNoPods, "no DaemonSet names the template in its annotation %s", flexdaemonsets.TemplateAnnotation)
	case st.Pods == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, ReasonNoPods, "no pod has a size from the template yet")
	case sum.off == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, ReasonUpToDate, "every pod has the size that the template and its node give it")
	default:
		for _, r := range []struct{ reason, hint string }{
			{ReasonRefused, "were refused by the API server"},
			{ReasonInfeasible, "do not fit their node at their new size"},
			{ReasonDeferred, "wait for room on their node"},
			{ReasonUnclear, "cannot be judged"},
			{ReasonResizing, "are being resized"},
			{ReasonAwaitsNewPods, "get their new size when they are made anew (kubectl rollout restart)"},
		} {
			if n := sum.counts[r.reason]; n > 0 {
				set(flexdaemonsets.ConditionUpToDate, metav1.ConditionFalse, r.reason, "%d of %d pods %s, such as %s", n, st.Pods, r.hint, sum.sample[r.reason])
				break
			}
		}
	}
	return nil
}
