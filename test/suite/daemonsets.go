package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/testkit"
)

// SizingLabel is on the nodes of one test, which repel every other pod.
const SizingLabel = "sizing-test"

// SizedNode makes a node of the test's own, with these allocatable resources and more capacity.
func (n *Tenant) SizedNode(t *testing.T, name, allocatable string) *corev1.Node {
	t.Helper()
	name = n.Namespace + "-" + name
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{SizingLabel: n.Namespace, corev1.LabelHostname: name},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: SizingLabel, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: testkit.ResourceList(allocatable), Capacity: testkit.ResourceList(allocatable)},
	}
	node.Status.Allocatable[corev1.ResourcePods], node.Status.Capacity[corev1.ResourcePods] = resource.MustParse("110"), resource.MustParse("110")
	for r, q := range node.Status.Capacity {
		q.Add(q)
		node.Status.Capacity[r] = q
	}
	Must(t, n.Create(t.Context(), node))
	t.Cleanup(func() { _ = Cluster.Client.Delete(context.Background(), node) })
	return node
}

// SizeTemplate makes a FlexDaemonsetTemplate.
func (n *Tenant) SizeTemplate(t *testing.T, name, spec string) *flexdaemonsets.FlexDaemonsetTemplate {
	t.Helper()
	f := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace + "." + name}}
	Must(t, yaml.UnmarshalStrict([]byte(spec), &f.Spec))
	Must(t, n.Create(t.Context(), f))
	t.Cleanup(func() { _ = Cluster.Client.Delete(context.Background(), f) })
	return f
}

// SizedDaemonSet is a DaemonSet for the test's nodes, with the containers of a pod.
func (n *Tenant) SizedDaemonSet(name, template string, pod *testkit.PodBuilder) *appsv1.DaemonSet {
	spec := pod.Obj().Spec
	spec.NodeSelector = map[string]string{SizingLabel: n.Namespace}
	spec.Tolerations = []corev1.Toleration{{Key: SizingLabel, Operator: corev1.TolerationOpExists}}
	spec.TerminationGracePeriodSeconds = new(int64(0))
	labels := map[string]string{"app": name}
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
	if template != "" {
		d.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: template}
	}
	return d
}

// Agent is the smallest pod.
func Agent() *testkit.PodBuilder { return testkit.Pod("").Container("a", "", "") }

// Sized waits until there is a running pod for each of the nodes, and returns what their
// containers have, by the end of the node's name: "name: requests | limits" for each.
func (n *Tenant) Sized(t *testing.T, app string, nodes int) map[string]string {
	t.Helper()
	var out map[string]string
	Eventually(t, fmt.Sprintf("%s has %d pods", app, nodes), func() (bool, error) {
		pods, err := n.Pods(t.Context(), app)
		out = map[string]string{}
		for i := range pods {
			if !podstatus.Ready(&pods[i]) {
				return false, err
			}
			out[strings.TrimPrefix(pods[i].Spec.NodeName, n.Namespace+"-")] = ResourcesOf(&pods[i])
		}
		return len(pods) == nodes && len(out) == nodes, err
	})
	return out
}

// ResourcesOf is what a pod's containers have, a line for each.
func ResourcesOf(pod *corev1.Pod) string {
	var lines []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		lines = append(lines, fmt.Sprintf("%s: %s | %s", c.Name, ResourceText(c.Resources.Requests), ResourceText(c.Resources.Limits)))
	}
	return strings.Join(lines, "\n")
}

// ResourceText is a list of resources as text, sorted by name.
func ResourceText(list corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		parts = append(parts, fmt.Sprintf("%s=%s", name, q.String()))
	}
	return strings.Join(parts, ",")
}

// PinnedTo is the affinity that the DaemonSet controller gives a pod.
func PinnedTo(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}}}
}
