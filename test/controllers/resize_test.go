package controllers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// cpu returns what the first container of a pod requests.
func (n *tenant) cpu(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	must(t, n.get(t, p))
	return p.Spec.Containers[0].Resources.Requests.Cpu().String()
}

// actuate plays the kubelet: a container has the resources that its pod asks for.
func (n *tenant) actuate(t *testing.T, p *corev1.Pod, conditions ...corev1.PodCondition) {
	t.Helper()
	must(t, n.get(t, p))
	p.Status.Conditions = append([]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, conditions...)
	for i := range p.Status.ContainerStatuses {
		if len(conditions) == 0 {
			p.Status.ContainerStatuses[i].Resources = p.Spec.Containers[i].Resources.DeepCopy()
		}
	}
	must(t, n.Status().Update(t.Context(), p))
}

// A template with updatePolicy OnCreate is created just after a DaemonSet's pods: they are sized in place.
// What cannot be resized in place is evicted while it is not ready.
func TestPodsBeforeTheirTemplate(t *testing.T) {
	for name, tc := range map[string]struct {
		spec  flexdaemonsets.FlexDaemonsetTemplateSpec
		ready corev1.ConditionStatus
		done  func(*testing.T, *tenant, *corev1.Pod) bool
	}{
		"resized": {flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10))}, corev1.ConditionTrue, func(t *testing.T, n *tenant, p *corev1.Pod) bool {
			return n.cpu(t, p) == "400m"
		}},
		"evicted": {flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10)), StoragePercentage: new(int32(10))}, corev1.ConditionFalse, func(t *testing.T, n *tenant, p *corev1.Pod) bool {
			return n.gone(t, p)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTenant(t)
			node := n.node(t, "a", "cpu=4,memory=8Gi,ephemeral-storage=10Gi")
			f := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}, Spec: tc.spec}
			d, p := n.daemonSet(t, f.Name, node)
			p.Status.Conditions[0].Status = tc.ready
			must(t, n.Status().Update(t.Context(), p))
			must(t, n.Create(t.Context(), f))
			eventually(t, "the pod is "+name, func() bool { return tc.done(t, n, p) })
			if name == "evicted" {
				eventually(t, "an event says so", func() bool { return n.events(t, d, stowage.EventPodRecreated) > 0 })
			}
		})
	}
}

// daemonSet makes a DaemonSet that names a template, and its pod on a node.
func (n *tenant) daemonSet(t *testing.T, template string, node *corev1.Node) (*appsv1.DaemonSet, *corev1.Pod) {
	t.Helper()
	labels := map[string]string{"app": "agent"}
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "agent", Annotations: map[string]string{flexdaemonsets.TemplateAnnotation: template}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: testkit.Pod("").Container("c", "cpu=1", "cpu=1").Obj().Spec},
		},
	}
	must(t, n.Create(t.Context(), d))
	p := n.pod(t, d, testkit.Pod("").Label("app", "agent").Container("c", "cpu=1", "cpu=1"), node)
	d.Status.CurrentNumberScheduled, d.Status.DesiredNumberScheduled, d.Status.NumberReady = 1, 1, 1
	must(t, n.Status().Update(t.Context(), d))
	return d, p
}

// A pod that bypassed the webhook is sized in place, and follows its template and its node. A resize
// that a node cannot do is not asked for again and again.
func TestResizeInPlace(t *testing.T) {
	n := newTenant(t)
	node := n.node(t, "a", "cpu=4,memory=8Gi")
	f := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
		CPUPercentage: new(int32(10)), UpdatePolicy: flexdaemonsets.UpdateInPlace,
	}}
	must(t, n.Create(t.Context(), f))
	_, p := n.daemonSet(t, f.Name, node)
	upToDate := func(want metav1.ConditionStatus) func() bool {
		return func() bool {
			must(t, n.get(t, f))
			return f.Status.Pods == 1 && slices.ContainsFunc(f.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == flexdaemonsets.ConditionUpToDate && c.Status == want
			})
		}
	}
	eventually(t, "the pod is sized", func() bool { return n.cpu(t, p) == "400m" })
	n.actuate(t, p)
	eventually(t, "the template says so", upToDate(metav1.ConditionTrue))

	grow := func(cpu string) {
		must(t, n.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"status":{"allocatable":{"cpu":"`+cpu+`"}}}`))))
	}
	grow("8")
	eventually(t, "the pod follows its node", func() bool { return n.cpu(t, p) == "800m" })
	tries := 0
	refuse := func() {
		tries++
		n.actuate(t, p, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible,
			Message: fmt.Sprintf("Node didn't have enough capacity: cpu, requested: 800, capacity: %d", tries),
		})
		clock.Step(time.Minute)
	}
	refuse()
	eventually(t, "the template says that the size is not in force", upToDate(metav1.ConditionFalse))
	generation := p.Generation
	n.comesToRest(t, "flexdaemonsettemplate-status", refuse, f) // though the message changes
	if must(t, n.get(t, p)); p.Generation != generation {
		t.Error("the pod was resized again")
	}

	grow("4")
	eventually(t, "the pod follows its node again", func() bool { return n.cpu(t, p) == "400m" })
	n.actuate(t, p)
	eventually(t, "the template says so", upToDate(metav1.ConditionTrue))
}
