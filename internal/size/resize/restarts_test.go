package resize

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/test/testkit"
)

// restarting returns ready pods of a DaemonSet whose containers restart when their CPU is resized, with what is around them.
func restarting(most *intstr.IntOrString, pods ...*corev1.Pod) []client.Object {
	d := daemonSet()
	d.Status.CurrentNumberScheduled, d.Status.DesiredNumberScheduled = int32(len(pods)), int32(len(pods))
	if most != nil {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: most}
	}
	objects := []client.Object{d, &corev1.Namespace{}, template(nil)}
	objects[1].SetName("default")
	for i, p := range pods {
		p.Name, p.UID, p.Spec.NodeName = fmt.Sprint("agent-", i), types.UID(fmt.Sprint("pod-", i)), fmt.Sprint("n", i)
		node := &corev1.Node{}
		node.Name, node.Status.Allocatable = p.Spec.NodeName, testkit.ResourceList("cpu=4,memory=16Gi")
		objects = append(objects, p, node)
	}
	return objects
}

// small is a ready pod that is too small, and whose container restarts for a resource.
func small(r corev1.ResourceName, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := agent("100m", condition(corev1.PodReady, "", ""))
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: r, RestartPolicy: corev1.RestartContainer}}
	for _, f := range edit {
		f(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

// reconcileAll reconciles so many pods once, and returns how many resizes were asked for.
func reconcileAll(t *testing.T, b *bench, pods int) int {
	t.Helper()
	before := len(b.resizes)
	for i := range pods {
		if _, err := b.reconcilePod(t.Context(), types.NamespacedName{Namespace: "default", Name: fmt.Sprint("agent-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	return len(b.resizes) - before
}

// Of pods whose containers restart, as many are resized at a time as a rolling update of their DaemonSet makes unavailable.
func TestRestartsAreLimited(t *testing.T) {
	number := func(text string) *intstr.IntOrString { n := intstr.Parse(text); return &n }
	cpu := func(edit ...func(*corev1.Pod)) *corev1.Pod { return small(corev1.ResourceCPU, edit...) }
	fits := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits = testkit.ResourceList("cpu=400m"), testkit.ResourceList("cpu=400m")
	}
	for name, tc := range map[string]struct {
		most *intstr.IntOrString
		pods []*corev1.Pod
		want int
	}{
		"one, if the DaemonSet does not say":       {pods: []*corev1.Pod{cpu(), cpu(), cpu(), cpu()}, want: 1},
		"two":                                      {most: number("2"), pods: []*corev1.Pod{cpu(), cpu(), cpu(), cpu()}, want: 2},
		"a part of the nodes, rounded up":          {most: number("30%"), pods: []*corev1.Pod{cpu(), cpu(), cpu(), cpu()}, want: 2},
		"one at least":                             {most: number("0"), pods: []*corev1.Pod{cpu(), cpu(), cpu(), cpu()}, want: 1},
		"one is not ready, and the last":           {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, unready)}},
		"who is not ready is resized all the same": {pods: []*corev1.Pod{cpu(unready), cpu(unready), cpu()}, want: 2},
		"one is resized": {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, condition(corev1.PodResizeInProgress, "", ""))
		})}},
		"the kubelet of one has not begun": {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = running("400m", "100m").Status.ContainerStatuses
		})}},
		"one was put off by its node": {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, condition(corev1.PodResizePending, corev1.PodReasonDeferred, ""))
		})}, want: 1},
		"one was tried by its node, which failed": {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, condition(corev1.PodResizeInProgress, corev1.PodReasonError, ""))
		})}, want: 1},
		"one was put off, and is not ready": {pods: []*corev1.Pod{cpu(), cpu(), cpu(fits, unready, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, condition(corev1.PodResizePending, corev1.PodReasonDeferred, ""))
		})}},
		"another resource restarts":            {pods: []*corev1.Pod{small(corev1.ResourceMemory), small(corev1.ResourceMemory), small(corev1.ResourceMemory)}, want: 3},
		"none restarts, and one is not ready":  {pods: []*corev1.Pod{agent("100m"), agent("100m"), agent("100m")}, want: 3},
		"one that ends counts as not ready":    {pods: []*corev1.Pod{cpu(), cpu(fits, unready, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}},
		"one of another kind, whatever it may": {pods: []*corev1.Pod{cpu(), agent("400m")}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, restarting(tc.most, tc.pods...)...)
			if got := reconcileAll(t, b, len(tc.pods)); got != tc.want {
				t.Errorf("%d pods are resized at a time, want %d", got, tc.want)
			}
		})
	}
}

// The next pod is resized when the watch has shown the one before, and that is ready. A resize that is never seen is waited for no longer
// than a minute, and one that was refused not at all.
func TestNextRestart(t *testing.T) {
	pods := []*corev1.Pod{small(corev1.ResourceCPU), small(corev1.ResourceCPU), small(corev1.ResourceCPU)}
	b := newBench(t, restarting(nil, pods...)...)
	show := func(i int, edit func(*corev1.Pod)) {
		t.Helper()
		p := pods[i].DeepCopy()
		edit(p)
		kept, err := keepSizedPod(p)
		if err == nil {
			err = b.pods.Load().GetIndexer().Update(kept)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	resized := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits = testkit.ResourceList("cpu=400m"), testkit.ResourceList("cpu=400m")
	}
	if got := reconcileAll(t, b, 3); got != 1 {
		t.Fatalf("%d resizes at first", got)
	}
	show(0, func(p *corev1.Pod) { p.Labels["x"] = "y" }) // an older event
	if got := reconcileAll(t, b, 3); got != 0 {
		t.Errorf("%d more before the watch has the new size", got)
	}
	show(0, func(p *corev1.Pod) { resized(p); unready(p) })
	if got := reconcileAll(t, b, 3); got != 0 {
		t.Errorf("%d more while the first restarts", got)
	}
	show(0, resized)
	if got := reconcileAll(t, b, 3); got != 1 {
		t.Errorf("%d more after the first is ready", got)
	}
	last, before := types.NamespacedName{Namespace: "default", Name: "agent-2"}, len(b.resizes)
	for want, after := range []time.Duration{0, reservedFor} {
		b.clock.SetTime(time.Unix(0, 0).Add(after))
		if _, err := b.reconcilePod(t.Context(), last); err != nil || len(b.resizes)-before != want {
			t.Errorf("%d resizes of the last pod %s after one that was never seen, want %d (%v)", len(b.resizes)-before, after, want, err)
		}
	}

	b = newBench(t, restarting(nil, small(corev1.ResourceCPU), small(corev1.ResourceCPU))...)
	b.answer = apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "agent-0", nil)
	if got := reconcileAll(t, b, 2); got != 2 {
		t.Errorf("%d resizes are asked for, and each is refused", got)
	}
	unrecorded := func(p *corev1.Pod) { p.Annotations = nil }
	b = newBench(t, restarting(nil, small(corev1.ResourceCPU, unrecorded), small(corev1.ResourceCPU, unrecorded))...)
	b.marked = errors.New("no answer")
	for i := range 2 {
		if _, err := b.reconcilePod(t.Context(), types.NamespacedName{Namespace: "default", Name: fmt.Sprint("agent-", i)}); err == nil || len(b.restarts) > 0 {
			t.Errorf("a pod that could not be written: %v, %d reservations", err, len(b.restarts))
		}
	}
}

// The status names a DaemonSet whose containers restart for a resize, and says what its other pods wait for.
func TestStatusOfRestarts(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		spec func(*flexdaemonsets.FlexDaemonsetTemplateSpec)
		want bool
	}{
		"its container restarts":       {pod: small(corev1.ResourceCPU), want: true},
		"for another resource":         {pod: small(corev1.ResourceMemory)},
		"pods are not resized":         {pod: small(corev1.ResourceCPU), spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }},
		"the container is left out":    {pod: small(corev1.ResourceCPU), spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.ExcludeContainers = []string{"c"} }},
		"its container does not do so": {pod: agent("100m")},
	} {
		t.Run(name, func(t *testing.T) {
			objects := restarting(nil, tc.pod)
			objects[2] = template(tc.spec)
			b := newBench(t, objects...)
			if _, err := b.reconcileStatus(t.Context(), sizing.LabelOf("tenth")); err != nil {
				t.Fatal(err)
			}
			var tmpl flexdaemonsets.FlexDaemonsetTemplate
			if err := b.Uncached.Get(t.Context(), client.ObjectKey{Name: "tenth"}, &tmpl); err != nil {
				t.Fatal(err)
			}
			valid, upToDate := meta.FindStatusCondition(tmpl.Status.Conditions, flexdaemonsets.ConditionValid), meta.FindStatusCondition(tmpl.Status.Conditions, flexdaemonsets.ConditionUpToDate)
			if got := strings.Contains(valid.Message, "a resize restarts containers of DaemonSet default/agent (resizePolicy RestartContainer)"); got != tc.want {
				t.Errorf("Valid: %s", valid.Message)
			}
			if got := strings.Contains(upToDate.Message, "its containers restart for that"); got != tc.want {
				t.Errorf("UpToDate: %s", upToDate.Message)
			}
		})
	}
}
