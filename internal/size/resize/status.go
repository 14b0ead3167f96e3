package resize

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// tally is what the pods of one template are, beside what they should be.
type tally struct {
	pods   int32
	off    int32 // of another size
	counts map[stowage.ConditionReason]int32
	sample map[stowage.ConditionReason]string // a pod
	why    map[stowage.ConditionReason]string // and why
}

func (t *tally) add(reason stowage.ConditionReason, pod *corev1.Pod, why string) {
	t.off++
	t.counts[reason]++
	if t.sample[reason] == "" {
		t.sample[reason] = fmt.Sprintf("pod %s on node %s", client.ObjectKeyFromObject(pod), pod.Spec.NodeName)
		t.why[reason] = why
	}
}

// addUnsized adds the pods of a DaemonSet that have no size.
func (t *tally) addUnsized(d *appsv1.DaemonSet, pods int32) {
	if pods == 0 {
		return
	}
	t.pods += pods
	t.off += pods
	t.counts[stowage.ReasonUnsized] += pods
	if t.sample[stowage.ReasonUnsized] == "" {
		t.sample[stowage.ReasonUnsized] = "pods of DaemonSet " + client.ObjectKeyFromObject(d).String()
	}
}

// reconcileStatus brings the status of the templates of a label up to date; almost always it is one.
func (r *run) reconcileStatus(ctx context.Context, label string) (result reconcile.Result, err error) {
	var list flexdaemonsets.FlexDaemonsetTemplateList
	if err := r.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	var daemonSets appsv1.DaemonSetList
	if err := r.Informers.List(ctx, &daemonSets, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	var all []*corev1.Pod // of the label
	for i := range list.Items {
		if sizing.LabelOf(list.Items[i].Name) != label {
			continue
		}
		pods, err := r.sizedPods(ctx, &list.Items[i], daemonSets.Items)
		if err != nil {
			return reconcile.Result{}, err
		}
		for _, pod := range pods {
			if pod.Labels[stowage.SizedByLabel] == label {
				all = append(all, pod)
			}
		}
		changing, err := r.updateStatus(ctx, list.Items[i].DeepCopy(), daemonSets.Items, pods)
		if err != nil {
			return reconcile.Result{}, err
		}
		if changing && r.watching() == nil { // no event shows when it ends
			result.RequeueAfter = unsettled * r.pause(label, 0)
		}
	}
	r.noteCount(label, len(all))
	r.reportPlans(ctx, label, all)
	return result, nil
}

// updateStatus writes a template's status, if it changes, and reports whether kubelets resize its pods.
func (r *run) updateStatus(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, daemonSets []appsv1.DaemonSet, pods map[types.UID]*corev1.Pod) (changing bool, err error) {
	before := t.DeepCopy()
	sum := r.describe(ctx, t, daemonSets, pods)
	for _, reason := range []stowage.ConditionReason{stowage.ReasonResizing, stowage.ReasonDeferred, stowage.ReasonFailed} {
		changing = changing || sum.counts[reason] > 0
	}
	if equality.Semantic.DeepEqual(before.Status, t.Status) {
		return changing, nil
	}
	// The counts are in every patch: kubectl shows one that was never written as blank, not as 0.
	before.Status.DaemonSets, before.Status.Pods, before.Status.OffSize = -1, -1, -1
	return changing, client.IgnoreNotFound(r.Uncached.Status().Patch(ctx, t, client.MergeFrom(before)))
}

// noteCount notes how many pods the templates of a label have sized.
func (r *run) noteCount(label string, pods int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counted[label] = pods; pods == 0 {
		delete(r.counted, label)
	}
}

// reportPlans compares the pods of a template's label with what Karpenter plans for them.
func (r *run) reportPlans(ctx context.Context, label string, pods []*corev1.Pod) {
	for _, series := range r.planned[label] {
		r.Metrics.planned.Set(0, series...)
	}
	delete(r.planned, label) // anybody can write a label
	for _, p := range sizing.NodePlans(pods, func(name string) string {
		var node corev1.Node
		if err := r.Informers.Get(ctx, client.ObjectKey{Name: name}, &node, client.UnsafeDisableDeepCopy); err != nil {
			return ""
		}
		return sizing.NodeClass(&node)
	}) {
		for _, of := range []struct {
			resource      corev1.ResourceName
			size, planned int64
		}{{corev1.ResourceCPU, p.CPU, p.PlannedCPU}, {corev1.ResourceMemory, p.Memory, p.PlannedMemory}} {
			if of.planned > 0 {
				series := []string{p.Namespace, p.DaemonSet, p.Class, string(of.resource)}
				r.planned[label] = append(r.planned[label], series)
				r.Metrics.planned.Set(float64(of.size)/float64(of.planned), series...)
			}
		}
	}
}

// describe fills in a template's status.
func (r *run) describe(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, daemonSets []appsv1.DaemonSet, pods map[types.UID]*corev1.Pod) tally {
	st := &t.Status
	st.ObservedGeneration, st.DaemonSets, st.Pods, st.OffSize = t.Generation, 0, 0, 0
	kubelet := "" // what a kubelet says at the end of the message
	set := func(kind string, status metav1.ConditionStatus, reason stowage.ConditionReason, format string, args ...any) {
		setCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: string(reason), Message: fmt.Sprintf(format, args...) + kubelet, ObservedGeneration: t.Generation,
		}, kubelet)
	}

	// 1. Which DaemonSets use it, what are their pods, and what should they be?
	sum := r.tally(ctx, t, pods)
	for i := range daemonSets {
		if d := &daemonSets[i]; templateOf(d) == t.Name {
			st.DaemonSets++
			sum.addUnsized(d, r.countUnsized(ctx, d, maps.Values(pods)))
		}
	}
	st.Pods, st.OffSize = sum.pods, sum.off

	// 2. In words.
	compiled, err := sizing.Compile(t)
	if err != nil {
		set(flexdaemonsets.ConditionValid, metav1.ConditionFalse, stowage.ReasonInvalid, "pods keep the size that they declare: %v", err)
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionUnknown, stowage.ReasonInvalid, "the template is invalid")
		return sum
	}
	notes := append([]string{"the template gives pods a size"}, compiled.Warnings...)
	if note := restartNote(compiled, slices.Collect(maps.Values(pods))); note != "" {
		notes = append(notes, note)
	}
	set(flexdaemonsets.ConditionValid, metav1.ConditionTrue, stowage.ReasonValid, "%s", strings.Join(notes, "; "))
	switch {
	case st.Pods == 0 && st.DaemonSets == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, stowage.ReasonNoPods, "no DaemonSet names the template in its annotation %s", flexdaemonsets.TemplateAnnotation)
	case st.Pods == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, stowage.ReasonNoPods, "no pod has a size from the template yet")
	case sum.off == 0:
		set(flexdaemonsets.ConditionUpToDate, metav1.ConditionTrue, stowage.ReasonUpToDate, "every pod has the size that the template and its node give it")
	default:
		for _, r := range []struct {
			reason stowage.ConditionReason
			hint   string
		}{
			{stowage.ReasonUnsupported, "get their new size when they are recreated (kubectl rollout restart), because this Kubernetes does not resize running pods"},
			{stowage.ReasonRefused, "were refused by the API server"},
			{stowage.ReasonInfeasible, "do not fit their node at their new size"},
			{stowage.ReasonFailed, "could not be resized by their kubelet, which tries again"},
			{stowage.ReasonDeferred, "wait for room on their node"},
			{stowage.ReasonUnclear, "cannot be judged"},
			{stowage.ReasonResizing, "are being resized"},
			{stowage.ReasonUnsized, "have no size, because they were created before the template, bypassed the webhook, or a LimitRange refuses the size (kubectl rollout restart)"},
			{stowage.ReasonAwaitsNewPods, "get their new size when they are recreated (kubectl rollout restart)"},
		} {
			if n := sum.counts[r.reason]; n > 0 {
				kubelet = sum.why[r.reason]
				set(flexdaemonsets.ConditionUpToDate, metav1.ConditionFalse, r.reason, "%d of %d pods %s, such as %s", n, st.Pods, r.hint, sum.sample[r.reason])
				break
			}
		}
	}
	return sum
}

// tally compares pods with what a template makes of them.
func (r *run) tally(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, pods map[types.UID]*corev1.Pod) tally {
	can, err := r.canResize()
	inPlace := err == nil && t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
	waits := stowage.ReasonAwaitsNewPods // why a pod that is not resized has another size
	if inPlace && !can {
		waits = stowage.ReasonUnsupported
	}
	sum := tally{counts: map[stowage.ConditionReason]int32{}, sample: map[stowage.ConditionReason]string{}, why: map[stowage.ConditionReason]string{}}
	for _, pod := range slices.SortedFunc(maps.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		v, err := r.compare(ctx, pod)
		if v.template == nil || v.template.Name != t.Name {
			continue
		}
		sum.pods++
		follows := inPlace && can && v.resized != nil
		reason, why := r.outcome(pod, &v, follows)
		switch {
		case err != nil:
			sum.add(stowage.ReasonUnclear, pod, ": "+err.Error())
		case v.want == nil: // a peer pod, say
		case reason != "":
			sum.add(reason, pod, ": "+why)
		case follows: // what it depends on may have changed without an event, such as a namespace's mode
			sum.add(stowage.ReasonResizing, pod, r.awaits(pod, &v))
			r.work.AddUnlessFailing(client.ObjectKeyFromObject(pod))
		case resizeCondition(pod, corev1.PodResizeInProgress) != nil:
			sum.add(stowage.ReasonResizing, pod, "")
		case v.off:
			sum.add(waits, pod, "")
		}
	}
	return sum
}

// outcome returns what the API server or its kubelet says of a pod's resize, or no reason if they say nothing. A pod that follows its
// template is asked to become what it can.
func (r *run) outcome(pod *corev1.Pod, v *comparison, follows bool) (reason stowage.ConditionReason, why string) {
	if follows {
		if refused := r.refusal(pod.UID, string(sizing.ResizePatch(pod.UID, v.now, v.resized))); refused != "" {
			return stowage.ReasonRefused, refused
		}
	}
	pending, inProgress := pendingOf(pod), resizeCondition(pod, corev1.PodResizeInProgress)
	switch {
	case pending != nil && pending.Reason == corev1.PodReasonInfeasible:
		return stowage.ReasonInfeasible, pending.Message
	case pending != nil:
		return stowage.ReasonDeferred, pending.Message
	case failedOn(pod) != nil:
		return stowage.ReasonFailed, inProgress.Message
	case inProgress != nil && inProgress.Message != "":
		return stowage.ReasonResizing, inProgress.Message
	case len(pod.Status.ContainerStatuses) > 0: // see keepSizedPod
		return stowage.ReasonResizing, "its kubelet has not changed container " + pod.Status.ContainerStatuses[0].Name + " yet"
	}
	return "", ""
}

// digits are what a kubelet's message may change every few seconds, such as a container's usage.
var digits = regexp.MustCompile(`[0-9]+`)

// setCondition sets a condition whose message ends with what kubelets say. If only numbers in that
// part have changed, the condition stays as it is: a status must not be written for each of them.
func setCondition(conditions *[]metav1.Condition, c metav1.Condition, kubelet string) {
	have := meta.FindStatusCondition(*conditions, c.Type)
	if have != nil && have.Status == c.Status && have.Reason == c.Reason && have.ObservedGeneration == c.ObservedGeneration {
		rest, ok := strings.CutPrefix(have.Message, strings.TrimSuffix(c.Message, kubelet))
		if ok && digits.ReplaceAllString(rest, "0") == digits.ReplaceAllString(kubelet, "0") {
			return
		}
	}
	meta.SetStatusCondition(conditions, c)
}
