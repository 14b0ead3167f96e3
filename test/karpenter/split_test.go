package karpenter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/test/suite"
)

// allTypes are the instance types of the tests.
const allTypes = "c4, c16, c64"

// With one DaemonSet for each instance type, as `stowage split` prints them, each pod has the size that Karpenter plans.
// The test also counts nodes that were created in vain and pods that waited, with and without split DaemonSets.
func TestSplitDaemonSets(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	t.Parallel()
	template := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "twentieth"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(5)), MemoryPercentage: new(int32(5))}}
	suite.Must(t, suite.Cluster.Client.Create(t.Context(), template))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), template) })
	nodes := nodeOfEachType(t)

	var whole, split outcome
	for i := range *orders {
		for _, form := range []struct {
			name  string
			sum   *outcome
			apply func(*testing.T, *suite.Tenant, []*appsv1.DaemonSet, []corev1.Node)
		}{{"whole", &whole, applyWhole}, {"split", &split, applySplit}} {
			t.Run(fmt.Sprintf("%s-%d", form.name, i), func(t *testing.T) {
				o := order(t, uint64(i), template.Name, nodes, form.apply)
				form.sum.vain, form.sum.waited, form.sum.nodes = form.sum.vain+o.vain, form.sum.waited+o.waited, form.sum.nodes+o.nodes
				form.sum.unplanned += o.unplanned
			})
		}
	}
	for _, form := range []struct {
		name string
		sum  outcome
	}{{"one DaemonSet for all nodes", whole}, {"one DaemonSet for each instance type", split}} {
		t.Logf("%-37s %d orders of 200 pods: %3d nodes, %2d of them in vain; %3d pods waited for over a minute", form.name, *orders, form.sum.nodes, form.sum.vain, form.sum.waited)
	}
	// How long pods wait, and whether a node on its way takes pods before the one that was created for them, depends on
	// what else the machine does. The sizes do not.
	if whole.unplanned == 0 || split.unplanned > 0 {
		t.Errorf("sizes that differ from the plan: %d with one DaemonSet for all nodes, %d with one for each instance type; want some and none", whole.unplanned, split.unplanned)
	}
}

// outcome counts what Karpenter made of some pods.
type outcome struct {
	nodes  int
	vain   int // nodes on which none of the pods runs
	waited int // pods that waited for over a minute
	// unplanned counts the DaemonSets and instance types for which the size differs from Karpenter's plan.
	unplanned int
}

// nodeOfEachType has Karpenter make a node of each instance type, and returns them.
func nodeOfEachType(t *testing.T) []corev1.Node {
	t.Helper()
	p := pool{"each-type", "on-demand", "WhenEmpty", allTypes}
	p.createWith(t, "0")
	n := suite.NewTenant(t)
	for i, name := range strings.Split(allTypes, ", ") {
		d := requests(n.Deployment(name, 1, nil), "1", "1Gi")
		d.Spec.Template.Spec.NodeSelector = map[string]string{poolLabel: p.name, corev1.LabelInstanceTypeStable: name}
		suite.Must(t, n.Create(t.Context(), d))
		n.Ready(t, name, 1)
		if nodes := p.nodes(t); len(nodes) != i+1 {
			t.Fatalf("%d nodes for %d instance types", len(nodes), i+1)
		}
	}
	return p.nodes(t)
}

// order creates five sized DaemonSets for a pool of its own, then 200 pods of many sizes in random order.
func order(t *testing.T, seed uint64, template string, examples []corev1.Node, apply func(*testing.T, *suite.Tenant, []*appsv1.DaemonSet, []corev1.Node)) outcome {
	const pods, minute, patience = 200, time.Minute, 90 * time.Second
	random := rand.New(rand.NewPCG(seed, 0))
	n := suite.NewTenant(t)
	p := pool{n.Namespace, "on-demand", "WhenEmpty", allTypes}
	p.createWith(t, "0")
	var sets []*appsv1.DaemonSet
	for i := range 5 {
		d := n.DaemonSet(fmt.Sprintf("agent-%d", i), template)
		d.Spec.Template.Spec.NodeSelector = map[string]string{poolLabel: p.name}
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("800Mi"),
		}
		sets = append(sets, d)
	}
	apply(t, n, sets, examples)

	for i := 0; i < pods; {
		for range min(1+random.IntN(5), pods-i) {
			cpu := int64(100 * math.Pow(400, random.Float64())) // 100m to 40, as many of each order of magnitude
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": "load"}}, Spec: suite.PodTemplate("load").Spec}
			pod.Spec.NodeSelector = map[string]string{poolLabel: p.name}
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(cpu<<21, resource.BinarySI),
			}
			suite.Must(t, n.Create(t.Context(), pod))
			i++
		}
		// The pods come at random times, so that Karpenter plans for some while nodes for others are on their way.
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
	}

	var list corev1.PodList
	waits := func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" }
	_ = wait.PollUntilContextTimeout(t.Context(), time.Second, patience, true, func(ctx context.Context) (bool, error) {
		list = corev1.PodList{}
		err := n.List(ctx, &list, client.InNamespace(n.Namespace), client.MatchingLabels{"app": "load"})
		return err == nil && !slices.ContainsFunc(list.Items, waits), nil
	})
	if len(list.Items) != pods {
		t.Fatalf("%d pods", len(list.Items))
	}
	var out outcome
	used := map[string]bool{}
	for _, pod := range list.Items {
		used[pod.Spec.NodeName] = true
		bound := time.Now()
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
				bound = c.LastTransitionTime.Time
			}
		}
		if bound.Sub(pod.CreationTimestamp.Time) > minute {
			out.waited++
		}
	}
	for _, node := range p.nodes(t) {
		out.nodes++
		if !used[node.Name] {
			out.vain++
		}
	}
	cmd := exec.CommandContext(t.Context(), suite.Binary, "status", "-n", n.Namespace, "-o", "json", "--kubeconfig", suite.Cluster.Kubeconfig)
	data, _ := cmd.Output() // the exit status says that sizes differ
	var report struct{ Plans []struct{ OK bool } }
	suite.Must(t, json.Unmarshal(data, &report))
	for _, plan := range report.Plans {
		if !plan.OK {
			out.unplanned++
		}
	}
	t.Logf("%+v", out)
	return out
}

func applyWhole(t *testing.T, n *suite.Tenant, sets []*appsv1.DaemonSet, _ []corev1.Node) {
	for _, d := range sets {
		suite.Must(t, n.Create(t.Context(), d))
	}
}

// applySplit applies what `stowage split` prints for the DaemonSets and a node of each instance type.
func applySplit(t *testing.T, n *suite.Tenant, sets []*appsv1.DaemonSet, examples []corev1.Node) {
	var template flexdaemonsets.FlexDaemonsetTemplate
	suite.Must(t, n.Get(t.Context(), client.ObjectKey{Name: sets[0].Annotations[flexdaemonsets.TemplateAnnotation]}, &template))
	template.SetGroupVersionKind(flexdaemonsets.GroupVersion.WithKind("FlexDaemonsetTemplate"))
	template.ManagedFields = nil
	items := []any{template}
	for _, e := range examples {
		node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: e.Name, Labels: maps.Clone(e.Labels)}, Status: e.Status}
		node.Labels[poolLabel] = n.Namespace
		items = append(items, node)
	}
	for _, d := range sets {
		d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
		items = append(items, d)
	}
	input, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	suite.Must(t, err)
	cmd := exec.CommandContext(t.Context(), suite.Binary, "split", "-")
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), string(out)))
}
