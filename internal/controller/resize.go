package controller

import (
	"context"
	"encoding/json"
	"fmt"
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

// judge compares a pod with what its template and its node now say.
func (s *Sizing) judge(ctx context.Context, pod *corev1.Pod) (verdict, error) {
	// 1. Is there anything to compare? What has just gone is not asked for live: a
	// DaemonSet goes before its pods do.
	owner := metav1.GetControllerOfNoCopy(pod)
	_, isPeerPod := pod.Annotations[stowage.OriginalResourcesAnnotation] // its size is that of its VM
	if owner == nil || isPeerPod || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return verdict{}, nil
	}
	var daemonSet appsv1.DaemonSet
	var node corev1.Node
	var template flexdaemonsets.FlexDaemonsetTemplate
	for _, read := range []struct {
		key client.ObjectKey
		to  client.Object
	}{
		{client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &daemonSet},
		{client.ObjectKey{Name: pod.Spec.NodeName}, &node},
	} {
		if err := s.Informers.Get(ctx, read.key, read.to); err != nil {
			return verdict{}, client.IgnoreNotFound(err)
		}
	}
	name := admission.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], daemonSet.Annotations)
	if daemonSet.UID != owner.UID || name == "" {
		return verdict{}, nil
	}
	if err := s.Informers.Get(ctx, client.ObjectKey{Name: name}, &template); err != nil {
		return verdict{}, client.IgnoreNotFound(err)
	}

	// 2. What would the webhook make of it?
	v := verdict{template: &template, now: viewOf(pod)}
	d, err := s.Feature.Decide(ctx, admission.Request{Namespace: pod.Namespace, Pod: v.now, DryRun: true})
	if err != nil || d.Pod == nil {
		return verdict{}, err
	}
	v.want = d.Pod
	v.off = !sizing.SameSize(v.now, v.want)
	if resized, _ := sizing.Resize(v.now, v.want); !sizing.SameSize(v.now, resized) {
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
func (s *Sizing) resize(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	obj, found, err := s.pods.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return 0, err
	}
	return s.follow(ctx, obj.(*corev1.Pod))
}

// follow brings a pod to its size, if its template says that running pods follow. It
// returns when to look again.
func (s *Sizing) follow(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	// 1. Is there anything to do, and may it be done?
	v, err := s.judge(ctx, pod)
	if err != nil || v.template == nil || v.template.Spec.UpdatePolicy != flexdaemonsets.UpdateInPlace {
		return 0, err
	}
	if v.resized == nil || !s.Pipeline.Enforces(ctx, pod.Namespace, v.now) {
		return 0, nil
	}
	patch := resizePatch(pod, v.now, v.resized)
	if wait, ok := s.mayResize(pod, string(patch)); !ok {
		return wait, nil
	}
	if err := s.writes.Wait(ctx); err != nil {
		return 0, err
	}

	// 2. What the pod declared, and whose size it has, comes first: without that, it
	// could not be told later from what we are about to make of it.
	if d := podpatch.Diff(&podpatch.Pod{Metadata: v.now.Metadata}, &podpatch.Pod{Metadata: v.want.Metadata}); len(d) > 0 {
		m, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid":         pod.UID,
			"labels":      map[string]string{stowage.SizedByLabel: v.want.Metadata.Labels[stowage.SizedByLabel]},
			"annotations": map[string]string{stowage.DeclaredResourcesAnnotation: v.want.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]},
		}})
		if err != nil {
			return 0, err
		}
		if err := s.Client.Patch(ctx, bare(pod), client.RawPatch(types.MergePatchType, m)); err != nil {
			return 0, gone(err)
		}
	}

	// 3. Ask. A refusal is kept in mind until there is something else to ask for.
	err = s.Client.SubResource("resize").Patch(ctx, bare(pod), client.RawPatch(types.StrategicMergePatchType, patch))
	forGood := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
	switch {
	case err == nil:
		s.Metrics.resizes.WithLabelValues(resizeAccepted).Inc()
		s.Log.Info("pod resized", "namespace", pod.Namespace, "pod", pod.Name, "node", pod.Spec.NodeName, "template", v.template.Name)
		s.asked(pod.UID, string(patch), "", false)
		return 0, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // by its UID: it is another pod
		return 0, nil
	case forGood, apierrors.IsForbidden(err):
		s.Metrics.resizes.WithLabelValues(resizeRefused).Inc()
		wait := s.asked(pod.UID, string(patch), err.Error(), forGood)
		s.tell(pod, ReasonResizeRefused, fmt.Sprintf("the API server refuses to resize a pod: %v", err))
		s.dirty(pod)
		return wait, nil
	}
	s.Metrics.resizes.WithLabelValues(resizeFailed).Inc()
	return 0, fmt.Errorf("resize pod %s: %w", client.ObjectKeyFromObject(pod), err)
}

func bare(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

// gone drops the error of a write to a pod that is gone, or is another one now.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
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

// mayResize reports whether a pod may be asked to become something, and otherwise when to
// look again; 0 is when something changes.
func (s *Sizing) mayResize(pod *corev1.Pod, patch string) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tries[pod.UID]
	if t == nil {
		return 0, true
	}
	if t.asked == patch && t.forGood {
		return 0, false
	}
	// Something else, or again, is asked for soon only if the last wish came true.
	if t.refused == "" && pendingOf(pod) == nil {
		return 0, true
	}
	left := t.next.Sub(s.Clock.Now())
	return left, left <= 0
}

// asked notes what was asked of a pod and what the API server said, and returns when it
// may be asked again.
func (s *Sizing) asked(pod types.UID, patch, refused string, forGood bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tries[pod]
	if t == nil {
		t = &tries{}
		s.tries[pod] = t
	}
	t.backoff = min(max(2*t.backoff, s.Timing.Backoff), s.Timing.MaxBackoff)
	t.asked, t.refused, t.forGood, t.next = patch, refused, forGood, s.Clock.Now().Add(t.backoff)
	if forGood {
		return 0
	}
	return t.backoff
}

// refusal is why the API server did not resize a pod.
func (s *Sizing) refusal(pod types.UID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tries[pod]; t != nil {
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

// tell publishes an event on a pod's DaemonSet. The name of the pod is not in it: events
// that differ in nothing are counted, not repeated.
func (s *Sizing) tell(pod *corev1.Pod, reason, note string) {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: pod.Namespace, Name: o.Name, UID: o.UID}
	const longest = 1024 // that the API server takes
	s.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, "Resize", "%.*s", longest, note)
}

// unsettled is how many times longer a DaemonSet is left alone whose pods are being made.
const unsettled = 10

// adopt looks for pods of a DaemonSet that have no size though they should: they are older
// than the template, or than Stowage. The counts tell whether there are any.
func (s *Sizing) adopt(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	var d appsv1.DaemonSet
	if err := s.Informers.Get(ctx, key, &d); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	var t flexdaemonsets.FlexDaemonsetTemplate
	name := templateOf(&d)
	if name == "" || len(s.indexed(byOwner, string(d.UID))) >= int(d.Status.CurrentNumberScheduled) {
		return 0, nil
	}
	if d.Status.CurrentNumberScheduled != d.Status.DesiredNumberScheduled {
		return unsettled * s.Timing.Settle, nil // pods are being made
	}
	if err := s.Informers.Get(ctx, client.ObjectKey{Name: name}, &t); err != nil || t.Spec.UpdatePolicy != flexdaemonsets.UpdateInPlace {
		return 0, client.IgnoreNotFound(err)
	}
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
	var again time.Duration
	for i := range list.Items {
		kept, err := keepSizedPod(&list.Items[i])
		if err != nil {
			return 0, err
		}
		if !metav1.IsControlledBy(&list.Items[i], &d) {
			continue
		}
		wait, err := s.follow(ctx, kept.(*corev1.Pod))
		if err != nil {
			return 0, err
		}
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again, nil
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
func (s *Sizing) status(ctx context.Context, label string) (time.Duration, error) {
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
func (s *Sizing) describe(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate) error {
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

	// 2. What are the pods, and what should they be?
	sum := tally{counts: map[string]int32{}, sample: map[string]string{}}
	for _, pod := range s.indexed(byTemplate, sizing.LabelOf(t.Name)) {
		v, err := s.judge(ctx, pod)
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		st.Pods++
		if v.template == nil || v.template.Name != t.Name {
			continue
		}
		pending := pendingOf(pod)
		switch refused := s.refusal(pod.UID); {
		case pending != nil && pending.Reason == corev1.PodReasonInfeasible:
			sum.add(ReasonInfeasible, pod, ": "+pending.Message)
		case pending != nil:
			sum.add(ReasonDeferred, pod, ": "+pending.Message)
		case v.off && v.resized != nil && t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace && refused != "":
			sum.add(ReasonRefused, pod, ": "+refused)
		case v.off && v.resized != nil && t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace,
			resizeCondition(pod, corev1.PodResizeInProgress) != nil:
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
