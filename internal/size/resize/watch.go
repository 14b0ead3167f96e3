package resize

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// The indexes of pods.
const (
	byNode     = "node"
	byTemplate = "template" // the label's value
	byOwner    = "owner"    // its UID
)

func indexers() toolscache.Indexers {
	return toolscache.Indexers{
		byNode:     func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil },
		byTemplate: func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Labels[stowage.SizedByLabel]}, nil },
		byOwner: func(obj any) ([]string, error) {
			if o := metav1.GetControllerOfNoCopy(obj.(*corev1.Pod)); o != nil {
				return []string{string(o.UID)}, nil
			}
			return nil, nil
		},
	}
}

// watch follows templates, nodes and DaemonSets until the term ends.
func (r *run) watch(t *leader.Term) error {
	ctx := t.Context()
	for _, w := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{
		{&flexdaemonsets.FlexDaemonsetTemplate{}, worldcache.Handler(func(was, is *flexdaemonsets.FlexDaemonsetTemplate, first bool) {
			r.templateChanged(ctx, was, is, first)
		})},
		{&corev1.Node{}, worldcache.Handler(func(was, is *corev1.Node, first bool) { r.nodeChanged(ctx, was, is, first) })},
		{&appsv1.DaemonSet{}, worldcache.Handler(func(was, is *appsv1.DaemonSet, _ bool) { r.daemonSetChanged(was, is) })},
	} {
		if err := t.Watch(r.Informers, w.object, w.handler); err != nil {
			return err
		}
	}
	return nil
}

// templateChanged has what a template is for looked at. Was or is is nil.
func (r *run) templateChanged(ctx context.Context, was, is *flexdaemonsets.FlexDaemonsetTemplate, first bool) {
	if is == nil {
		r.statuses.Add(sizing.LabelOf(was.Name))
		r.watchIfNeeded(ctx)
		return
	}
	r.templateSeen(ctx, is, !first && (was == nil || was.Generation != is.Generation || was.UID != is.UID))
}

// nodeChanged has the pods of a node looked at whose allocatable resources are others.
func (r *run) nodeChanged(ctx context.Context, was, is *corev1.Node, first bool) {
	if is == nil || first || was != nil && equality.Semantic.DeepEqual(was.Status.Allocatable, is.Status.Allocatable) {
		return
	}
	if was != nil && r.watching() == nil { // a new node has no pods yet
		r.enqueueTemplates(ctx)
	}
	r.enqueueSpreadOut(r.indexed(byNode, is.Name))
}

// daemonSetChanged has a DaemonSet looked at, and its pods if it has another template of sizes. Was or is is nil.
func (r *run) daemonSetChanged(was, is *appsv1.DaemonSet) {
	switch {
	case is == nil:
		r.daemonSetsChanged(was)
	case was == nil || templateOf(was) != templateOf(is) || was.Status.CurrentNumberScheduled != is.Status.CurrentNumberScheduled:
		if was != nil && templateOf(was) != templateOf(is) {
			r.noteTemplateSet(is.UID)
			r.daemonSetsChanged(was)
			r.enqueueSpreadOut(r.indexed(byOwner, string(is.UID)))
		}
		r.daemonSetsChanged(is)
		r.daemonSets.AddAfter(client.ObjectKeyFromObject(is), r.Timing.Settle)
	case r.watching() == nil && (was.Status.NumberReady != is.Status.NumberReady || was.Status.UpdatedNumberScheduled != is.Status.UpdatedNumberScheduled):
		r.daemonSetsChanged(is)
	}
}

// templateOf is the name of the template of a DaemonSet's next pods.
func templateOf(d *appsv1.DaemonSet) string {
	return sizing.TemplateName(d.Spec.Template.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
}

// The bounds of what the watch keeps of a pod. A larger pod is left alone.
const (
	maxContainers = 256
	mostOfPod     = 64 << 10
)

// keepSizedPod keeps what this controller reads of a pod.
func keepSizedPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	unsized := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
		CreationTimestamp: pod.CreationTimestamp,
	}}
	c := metav1.GetControllerOfNoCopy(pod)
	if c == nil || c.Kind != "DaemonSet" || !world.Plausible(c) || len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > maxContainers {
		return unsized, nil // anybody can write the label; a pod without an owner is left alone
	}
	kept := unsized.DeepCopy()
	kept.Labels = pick(pod.Labels, stowage.SizedByLabel, stowage.ModeKey)
	kept.Annotations = pick(pod.Annotations, stowage.DeclaredResourcesAnnotation, stowage.ModeKey, flexdaemonsets.TemplateAnnotation)
	if _, ok := pod.Annotations[stowage.OriginalResourcesAnnotation]; ok {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, stowage.OriginalResourcesAnnotation, "") // that it is there is enough
	}
	kept.OwnerReferences = []metav1.OwnerReference{{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID, Controller: c.Controller}}
	kept.Spec.NodeName, kept.Spec.Resources, kept.Spec.PriorityClassName = pod.Spec.NodeName, pod.Spec.Resources, pod.Spec.PriorityClassName
	slim := func(list []corev1.Container) []corev1.Container {
		out := make([]corev1.Container, len(list))
		for i := range list {
			out[i] = corev1.Container{Name: list[i].Name, RestartPolicy: list[i].RestartPolicy, Resources: list[i].Resources, ResizePolicy: restartPolicies(list[i].ResizePolicy)}
		}
		return out
	}
	kept.Spec.InitContainers, kept.Spec.Containers = slim(pod.Spec.InitContainers), slim(pod.Spec.Containers)
	kept.Status.Phase = pod.Status.Phase
	readiness := mayRestart(kept)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress || readiness && c.Type == corev1.PodReady {
			// Kubelets renew the times of a condition that stays.
			kept.Status.Conditions = append(kept.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	if kept.Status.ContainerStatuses = notInForce(pod); kept.Size() > mostOfPod {
		return unsized, nil
	}
	return kept, nil
}

// restartPolicies returns the policies by which a container restarts when it is resized. The others are the default, which each
// container has.
func restartPolicies(list []corev1.ContainerResizePolicy) (out []corev1.ContainerResizePolicy) {
	for _, p := range list {
		if p.RestartPolicy == corev1.RestartContainer {
			out = append(out, p)
		}
	}
	return out
}

// notInForce returns the containers whose kubelet reports another size than their spec has: it has not seen a
// resize yet. Only their names are kept, because almost always there are none.
func notInForce(pod *corev1.Pod) (out []corev1.ContainerStatus) {
	for _, lists := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{{pod.Spec.InitContainers, pod.Status.InitContainerStatuses}, {pod.Spec.Containers, pod.Status.ContainerStatuses}} {
		for i := range lists.containers {
			c := &lists.containers[i]
			at := slices.IndexFunc(lists.statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name && s.State.Running != nil })
			if at < 0 || lists.statuses[at].Resources == nil {
				continue
			}
			have := lists.statuses[at].Resources
			if !inForce(c.Resources.Limits, have.Limits) || !inForce(c.Resources.Requests, have.Requests) {
				out = append(out, corev1.ContainerStatus{Name: c.Name})
			}
		}
	}
	return out
}

// inForce compares what a container asks for with what its kubelet reports. A node rounds memory to pages, which
// are at most 64 KiB, and CPU to shares and periods.
func inForce(want, have corev1.ResourceList) bool {
	if cpu, ok := have[corev1.ResourceCPU]; ok {
		asked := want.Cpu().MilliValue()
		if diff := asked - cpu.MilliValue(); max(diff, -diff) > max(10, asked/100) {
			return false
		}
	}
	if memory, ok := have[corev1.ResourceMemory]; ok {
		if diff := want.Memory().Value() - memory.Value(); max(diff, -diff) > 64<<10 {
			return false
		}
	}
	return true
}

func pick(all map[string]string, keys ...string) map[string]string {
	out := map[string]string{}
	for _, key := range keys {
		if v, ok := all[key]; ok {
			out[key] = v
		}
	}
	return out
}

// templateSeen notes a template. If it changed, its pods may have another size now, and
// there may be pods that have none. Its status is looked at each time, because what we
// compared it with when we wrote it may have been old.
func (r *run) templateSeen(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, changed bool) {
	r.enqueueTemplate(sizing.LabelOf(t.Name))
	if !changed {
		return
	}
	r.watchIfNeeded(ctx)
	r.enqueueSpreadOut(r.indexed(byTemplate, sizing.LabelOf(t.Name)))
	var list appsv1.DaemonSetList
	if err := r.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "DaemonSets were not listed")
		return
	}
	for i := range list.Items {
		if templateOf(&list.Items[i]) == t.Name {
			r.daemonSets.Add(client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
}

// daemonSetsChanged has the status of a DaemonSet's template looked at.
func (r *run) daemonSetsChanged(d *appsv1.DaemonSet) {
	if name := templateOf(d); name != "" {
		label := sizing.LabelOf(name)
		r.statuses.AddAfter(label, r.pause(label, d.Status.DesiredNumberScheduled))
	}
}

// podSeen notes a pod. A new pod may have its size from a replica that did not know the latest template. A pod that
// is bound now could not be resized before. A pod whose node granted or dropped a resize may be due another size.
func (r *run) podSeen(ctx context.Context, was, pod *corev1.Pod) {
	if mayBecomeDue(was, pod) {
		r.work.Add(client.ObjectKeyFromObject(pod))
	}
	if was == nil {
		r.enqueueTemplateOf(ctx, pod)
		return
	}
	if was.Labels[stowage.SizedByLabel] != pod.Labels[stowage.SizedByLabel] {
		r.enqueueTemplateOf(ctx, was)
	}
	if !sameToStatus(was, pod) {
		r.enqueueTemplateOf(ctx, pod)
	}
	r.reportNode(was, pod)
}

// mayBecomeDue reports whether a pod may be due a resize now that it was not due before. Was may be nil.
func mayBecomeDue(was, pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	return was == nil || was.Spec.NodeName == "" || pendingOf(pod) == nil && pendingOf(was) != nil
}

// sameToStatus reports whether the status of a template says the same of two versions of a pod.
func sameToStatus(was, pod *corev1.Pod) bool {
	return was.Status.Phase == pod.Status.Phase && maps.Equal(was.Labels, pod.Labels) &&
		equality.Semantic.DeepEqual(was.Status.Conditions, pod.Status.Conditions) && equality.Semantic.DeepEqual(was.Spec, pod.Spec)
}

// reportNode warns if a pod's node has just put a resize off or failed to do it.
func (r *run) reportNode(was, pod *corev1.Pod) {
	if now, before := pendingOf(pod), pendingOf(was); now != nil && (before == nil || before.Reason != now.Reason) {
		outcome, reason := resizeDeferred, stowage.EventResizeDeferred
		if now.Reason == corev1.PodReasonInfeasible {
			outcome, reason = resizeInfeasible, stowage.EventResizeInfeasible
		}
		r.Metrics.resizes.WithLabelValues(outcome).Inc()
		r.warn(pod, reason, fmt.Sprintf("node %q cannot resize a pod now: %s", pod.Spec.NodeName, now.Message))
	}
	if failed := failedOn(pod); failed != nil && failedOn(was) == nil {
		r.Metrics.resizes.WithLabelValues(resizeNodeError).Inc()
		r.warn(pod, stowage.EventResizeFailed, fmt.Sprintf("the kubelet of node %q tried to resize pod %s and failed: %s", pod.Spec.NodeName, pod.Name, failed.Message))
	}
}

// enqueueTemplate has the status of the templates of a label looked at. Every event of a pod comes here, so the
// pods are not counted again.
func (r *run) enqueueTemplate(label string) { r.statuses.AddAfter(label, r.pause(label, 0)) }

// enqueueTemplates has the statuses of all templates looked at.
func (r *run) enqueueTemplates(ctx context.Context) {
	var list flexdaemonsets.FlexDaemonsetTemplateList
	if err := r.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "FlexDaemonsetTemplates were not listed")
	}
	for i := range list.Items {
		r.enqueueTemplate(sizing.LabelOf(list.Items[i].Name))
	}
}

// enqueueTemplateOf has the status of a pod's template looked at, and that of the template that its DaemonSet names now.
func (r *run) enqueueTemplateOf(ctx context.Context, pod *corev1.Pod) {
	label := pod.Labels[stowage.SizedByLabel]
	if label != "" {
		r.enqueueTemplate(label)
	}
	var d appsv1.DaemonSet
	if o := metav1.GetControllerOfNoCopy(pod); o == nil || r.Informers.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: o.Name}, &d, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	if name := templateOf(&d); name != "" && sizing.LabelOf(name) != label {
		r.enqueueTemplate(sizing.LabelOf(name))
	}
}

// enqueueSpreadOut has pods looked at, spread over a time.
func (r *run) enqueueSpreadOut(pods []*corev1.Pod) {
	labels := map[string]bool{}
	for _, pod := range pods {
		r.work.AddAfter(client.ObjectKeyFromObject(pod), time.Duration(rand.Int64N(int64(r.Timing.Jitter)+1)))
		labels[pod.Labels[stowage.SizedByLabel]] = true
	}
	for label := range labels {
		r.enqueueTemplate(label)
	}
}
