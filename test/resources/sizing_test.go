package resources

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

const (
	documentedShare = `{cpuPercentage: 10, memoryPercentage: 15, storagePercentage: 5, minCPU: "100m", minMemory: "128Mi"}`
	cpuShare        = `{cpuPercentage: 10}`
)

// becomes waits until the pods have these sizes.
func (n *tenant) becomes(t *testing.T, app string, want map[string]string) {
	t.Helper()
	var diff string
	defer func() {
		if t.Failed() {
			t.Logf("%s (-want +got):\n%s", app, diff)
		}
	}()
	eventually(t, app+" has the right sizes", func() (bool, error) {
		diff = cmp.Diff(want, n.Sized(t, app, len(want)))
		return diff == "", nil
	})
}

// The documented template, on nodes of three sizes and one that is tiny.
func TestSizingOnThreeNodes(t *testing.T) {
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=3920m,memory=15104Mi,ephemeral-storage=90Gi")
	n.SizedNode(t, "16", "cpu=15890m,memory=60Gi,ephemeral-storage=180Gi")
	n.SizedNode(t, "tiny", "cpu=900m,memory=800Mi,ephemeral-storage=10Gi")
	n.SizeTemplate(t, "documented", documentedShare)
	both := func(s string) string { return "a: " + s + " | " + s }
	want := map[string]string{
		"4":    both("cpu=392m,ephemeral-storage=4608Mi,memory=2375653785"),
		"16":   both("cpu=1589m,ephemeral-storage=9Gi,memory=9Gi"),
		"tiny": both("cpu=100m,ephemeral-storage=512Mi,memory=128Mi"),
	}

	// On the DaemonSet or on its pod template, it is the same.
	must(t, n.Create(t.Context(), n.SizedDaemonSet("on-daemonset", n.Namespace+".documented", suite.Agent())))
	onTemplate := n.SizedDaemonSet("on-template", "", suite.Agent())
	onTemplate.Spec.Template.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: n.Namespace + ".documented"}
	must(t, n.Create(t.Context(), onTemplate))
	for _, app := range []string{"on-daemonset", "on-template"} {
		if diff := cmp.Diff(want, n.Sized(t, app, 3)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", app, diff)
		}
	}

	// A node that joins later gets a pod of its own size.
	n.SizedNode(t, "64", "cpu=63770m,memory=250Gi,ephemeral-storage=380Gi")
	want["64"] = both("cpu=6377m,ephemeral-storage=19Gi,memory=38400Mi")
	if diff := cmp.Diff(want, n.Sized(t, "on-daemonset", 4)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// The scheduler accounts it: two such pods and nothing else are on each node.
	bin, err := controlplane.Locate(repo)
	must(t, err)
	n.Sized(t, "on-template", 4)
	for node, cpu := range map[string]string{"4": "784m", "16": "3178m", "64": "12754m", "tiny": "200m"} {
		eventually(t, "kubectl describe node shows the sum", func() (bool, error) {
			out, err := exec.Command(bin.Kubectl, "--kubeconfig", cluster.Kubeconfig, "describe", "node", n.Namespace+"-"+node).Output()
			return regexp.MustCompile(`(?m)^  cpu +` + cpu + ` `).Match(out), err
		})
	}

	// And preview agrees with all of it.
	var got []string
	offline := preview(t, templateObject(n, "documented", documentedShare), n.SizedDaemonSet("on-daemonset", n.Namespace+".documented", suite.Agent()))
	for i := range offline {
		terms := offline[i].Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		node := strings.TrimPrefix(terms[0].MatchFields[0].Values[0], n.Namespace+"-")
		if suite.ResourcesOf(&offline[i]) != want[node] {
			t.Errorf("preview for %s: %s", node, suite.ResourcesOf(&offline[i]))
		}
		got = append(got, node)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"16", "4", "64", "tiny"}, got); diff != "" {
		t.Errorf("preview's nodes (-want +got):\n%s", diff)
	}
}

func templateObject(n *tenant, name, spec string) *flexdaemonsets.FlexDaemonsetTemplate {
	f := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace + "." + name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &f.Spec); err != nil {
		panic(err)
	}
	return f
}

// Pods of every shape, as the real DaemonSet controller makes them.
func TestSizingShapes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=40,memory=80Gi,ephemeral-storage=100Gi") // room for all of them
	n.SizeTemplate(t, "cpu", `{cpuPercentage: 1}`)
	n.SizeTemplate(t, "excluding", `{cpuPercentage: 1, excludeContainers: [proxy]}`)
	n.SizeTemplate(t, "none", `{cpuPercentage: 1, limits: None}`)
	n.SizeTemplate(t, "ceiling", `{cpuPercentage: 1, minCPU: 1, ceiling: Template}`)
	n.SizeTemplate(t, "storage", `{cpuPercentage: 1, storagePercentage: 10, maxStorage: "1Gi"}`)
	cases := map[string]struct {
		template string
		pod      *testkit.PodBuilder
		want     string
	}{
		"one":      {"cpu", suite.Agent(), "a: cpu=400m | cpu=400m"},
		"two":      {"cpu", testkit.Pod("").Container("a", "cpu=30m", "").Container("b", "cpu=10m", ""), "a: cpu=300m | cpu=300m\nb: cpu=100m | cpu=100m"},
		"five":     {"cpu", testkit.Pod("").Container("a", "cpu=5m", "").Container("b", "cpu=5m", "").Container("c", "cpu=5m", "").Container("d", "cpu=5m", "").Container("e", "cpu=10m", ""), "a: cpu=67m | cpu=67m\nb: cpu=67m | cpu=67m\nc: cpu=67m | cpu=67m\nd: cpu=66m | cpu=66m\ne: cpu=133m | cpu=133m"},
		"mixed":    {"cpu", testkit.Pod("").Container("a", "cpu=5m,memory=1Gi", "memory=2Gi").Container("b", "", ""), "a: cpu=200m,memory=1Gi | cpu=200m,memory=2Gi\nb: cpu=200m | cpu=200m"},
		"sidecar":  {"cpu", testkit.Pod("").Sidecar("s", "cpu=1", "").InitContainer("i", "cpu=2", "cpu=3").Container("a", "cpu=3", ""), "s: cpu=100m | cpu=100m\ni: cpu=300m | cpu=300m\na: cpu=300m | cpu=300m"},
		"limits":   {"cpu", testkit.Pod("").Container("a", "", "cpu=3").Container("b", "", "cpu=1"), "a: cpu=300m | cpu=300m\nb: cpu=100m | cpu=100m"},
		"excluded": {"excluding", testkit.Pod("").Container("proxy", "cpu=50m", "cpu=2").Container("a", "", ""), "proxy: cpu=50m | cpu=2\na: cpu=350m | cpu=350m"},
		"no-limit": {"none", testkit.Pod("").Container("a", "cpu=10m", "cpu=20m").Container("b", "cpu=30m", "cpu=2"), "a: cpu=100m | \nb: cpu=300m | cpu=2"},
		"ceiling":  {"ceiling", testkit.Pod("").Container("a", "cpu=10m", "cpu=20m"), "a: cpu=10m | cpu=10m"},
		"pod":      {"cpu", suite.Agent().PodResources("cpu=2", "cpu=3"), "a: cpu=400m | cpu=400m"},
		"storage":  {"storage", suite.Agent(), "a: cpu=400m,ephemeral-storage=1Gi | cpu=400m,ephemeral-storage=1Gi"},
	}
	if !suite.AtLeast("1.34") {
		t.Log("LACKS: pod-level resources (since 1.34)")
		delete(cases, "pod")
	}
	for name, tc := range cases {
		must(t, n.Create(t.Context(), n.SizedDaemonSet(name, n.Namespace+"."+tc.template, tc.pod)))
	}
	for name, tc := range cases {
		if diff := cmp.Diff(map[string]string{"4": tc.want}, n.Sized(t, name, 1)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, there := cases["pod"]; !there {
		return
	}
	pods, err := n.Pods(t.Context(), "pod")
	must(t, err)
	if r := pods[0].Spec.Resources; suite.ResourceText(r.Requests) != "cpu=400m" || suite.ResourceText(r.Limits) != "cpu=400m" {
		t.Errorf("pod-level resources are %v", r)
	}
}

// What changes reaches the pods that are made after it, with both update strategies and
// by a restart.
func TestSizingFollowsChanges(t *testing.T) {
	n := newTenant(t)
	node := n.SizedNode(t, "4", "cpu=4,memory=8Gi")
	f := n.SizeTemplate(t, "cpu", cpuShare)
	must(t, n.Create(t.Context(), n.SizedDaemonSet("rolling", f.Name, suite.Agent())))
	onDelete := n.SizedDaemonSet("on-delete", f.Name, suite.Agent())
	onDelete.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	must(t, n.Create(t.Context(), onDelete))
	surge := n.SizedDaemonSet("surge", f.Name, suite.Agent())
	surge.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{
		MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1)),
	}}
	must(t, n.Create(t.Context(), surge))
	apps := []string{"rolling", "on-delete", "surge"}
	all := func(cpu string) {
		t.Helper()
		for _, app := range apps {
			n.becomes(t, app, map[string]string{"4": fmt.Sprintf("a: cpu=%s | cpu=%[1]s", cpu)})
		}
	}
	restart := func() {
		t.Helper()
		for _, app := range apps {
			d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: app}}
			must(t, n.Patch(t.Context(), d, client.RawPatch(client.Merge.Type(), fmt.Appendf(nil, // as kubectl rollout restart does
				`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"%s"}}}}}`, f.ResourceVersion))))
		}
		must(t, n.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(n.Namespace), client.MatchingLabels{"app": "on-delete"}))
	}
	all("400m")

	t.Run("the template", func(t *testing.T) {
		must(t, n.Patch(t.Context(), f, client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"cpuPercentage":20}}`))))
		eventually(t, "the status says what waits", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(f), f)
			return f.Status.OffSize == 3 && condition(f, flexdaemonsets.ConditionUpToDate) == "False AwaitsNewPods", err
		})
		all("400m") // running pods stay
		restart()
		all("800m")
	})
	t.Run("the node", func(t *testing.T) {
		must(t, n.Status().Patch(t.Context(), node, client.RawPatch(client.Merge.Type(), []byte(`{"status":{"allocatable":{"cpu":"3"}}}`))))
		eventually(t, "the status says what waits", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(f), f)
			return f.Status.OffSize == 3, err
		})
		must(t, n.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(n.Namespace)))
		all("600m")
	})
	t.Run("the template is deleted", func(t *testing.T) {
		must(t, n.Delete(t.Context(), f))
		all("600m")
		must(t, n.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(n.Namespace)))
		for _, app := range apps {
			n.becomes(t, app, map[string]string{"4": "a:  | "})
		}
		eventually(t, "an event says so", func() (bool, error) {
			return n.HasEvent(t, "ResourceTemplateMissing", "does not exist; the pod keeps its size"), nil
		})
	})
}

// condition is a template's condition: status and reason.
func condition(f *flexdaemonsets.FlexDaemonsetTemplate, kind string) string {
	for _, c := range f.Status.Conditions {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// Whatever is missing, the pod is admitted, and the user is told.
func TestSizingWithoutWhatItNeeds(t *testing.T) {
	n := newTenant(t)
	node := n.SizedNode(t, "4", "cpu=4")
	n.SizeTemplate(t, "minimums", `{cpuPercentage: 10, memoryPercentage: 10, minCPU: "100m"}`)
	n.SizeTemplate(t, "storage", `{storagePercentage: 10}`)
	d := n.SizedDaemonSet("d", "", suite.Agent())
	d.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"}
	must(t, n.Create(t.Context(), d))
	try := func(template string, change func(*corev1.Pod), opts ...client.CreateOption) *corev1.Pod {
		t.Helper()
		return n.TryPod(t, d, metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, func(p *corev1.Pod) {
			p.Spec.Containers = suite.Agent().Obj().Spec.Containers
			if template != "" {
				p.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: template}
			}
			p.Spec.Affinity = suite.PinnedTo(node.Name)
			if change != nil {
				change(p)
			}
		}, opts...)
	}
	min := n.Namespace + ".minimums"
	cases := map[string]struct {
		template string
		change   func(*corev1.Pod)
		opts     []client.CreateOption
		want     string
		warning  string
	}{
		"no template at all":       {want: "a:  | "},
		"no such template":         {template: "none-such", want: "a:  | ", warning: `FlexDaemonsetTemplate "none-such" does not exist; the pod keeps its size`},
		"a name that is none":      {template: strings.Repeat("x ", 4000), want: "a:  | ", warning: "which is no name of a FlexDaemonsetTemplate"},
		"no such node":             {template: min, change: func(p *corev1.Pod) { p.Spec.Affinity = suite.PinnedTo("gone") }, want: "a: cpu=100m | cpu=100m", warning: `node "gone" does not exist; the pod gets the minimums`},
		"no node, no minimum":      {template: n.Namespace + ".storage", change: func(p *corev1.Pod) { p.Spec.Affinity = suite.PinnedTo("gone") }, want: "a:  | ", warning: `node "gone" does not exist; the pod keeps its size`},
		"not pinned":               {template: min, change: func(p *corev1.Pod) { p.Spec.Affinity = nil }, want: "a: cpu=100m | cpu=100m", warning: "the pod does not say which node it is for"},
		"the node has no memory":   {template: min, want: "a: cpu=400m | cpu=400m", warning: `on node "` + node.Name + `": the node has no allocatable memory; the pod keeps what it declares`},
		"a DaemonSet that is gone": {change: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a002" }, opts: []client.CreateOption{client.DryRunAll}, want: "a:  | ", warning: `DaemonSet "d" was not found`},
		"gone, but the pod says":   {template: min, change: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a002" }, opts: []client.CreateOption{client.DryRunAll}, want: "a: cpu=400m | cpu=400m"},
		"a dry run":                {template: min, opts: []client.CreateOption{client.DryRunAll}, want: "a: cpu=400m | cpu=400m"},
		"bound already":            {template: min, change: func(p *corev1.Pod) { p.Spec.Affinity, p.Spec.NodeName = nil, node.Name }, want: "a: cpu=400m | cpu=400m"},
		"off":                      {template: min, change: func(p *corev1.Pod) { p.Annotations[stowage.ModeKey] = "Off" }, want: "a:  | "},
		"audit":                    {template: min, change: func(p *corev1.Pod) { p.Annotations[stowage.ModeKey] = "Audit" }, want: "a:  | ", warning: "stowage (audit): sizing would make this pod as big as its share of node"},
		"a record that is hostile": {template: min, change: func(p *corev1.Pod) {
			p.Annotations[stowage.DeclaredResourcesAnnotation] = `{"containers":{"a":{"requests":{"cpu":"1e-999999999"}}}}`
		}, want: "a: cpu=400m | cpu=400m", warning: "is not ours and is replaced"},
		"a pod of its own": {template: min, change: func(p *corev1.Pod) { p.OwnerReferences = nil }, want: "a:  | ", warning: "is for the pods of a DaemonSet"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n.Warnings.Take()
			pod := try(tc.template, tc.change, tc.opts...)
			if got := suite.ResourcesOf(pod); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			warnings := strings.Join(n.Warnings.Take(), "\n")
			if tc.warning != "" && !strings.Contains(warnings, tc.warning) || tc.warning == "" && strings.Contains(warnings, "Template") && !strings.Contains(warnings, "memory") {
				t.Errorf("warnings: %q, want %q", warnings, tc.warning)
			}
			if len(tc.opts) == 0 {
				_ = n.Delete(t.Context(), pod)
			}
		})
	}
}

// Sizing comes before the peer pods and after a LimitRange's defaults, and holds when the
// API server calls us again because another webhook changed the pod.
func TestSizingTogether(t *testing.T) {
	n := newTenant(t, "inject=yes")
	n.SizedNode(t, "4", "cpu=4,memory=8Gi,kata.peerpods.io/vm=5")
	n.SizeTemplate(t, "share", `{cpuPercentage: 50, memoryPercentage: 75}`)
	suite.StartInjector(t, n.Tenant)
	lr := limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: testkit.ResourceList("cpu=200m,memory=128Mi")})
	lr.Namespace = n.Namespace
	must(t, n.Create(t.Context(), lr))
	eventually(t, "the LimitRange is in force", func() (bool, error) {
		p := testkit.Pod("probe").Namespace(n.Namespace).Container("a", "", "").Obj()
		err := n.Create(t.Context(), p, client.DryRunAll)
		return len(p.Spec.Containers[0].Resources.Limits) > 0, err
	})
	two := func() *testkit.PodBuilder {
		return testkit.Pod("").Container("a", "cpu=100m", "").Container("b", "", "")
	}
	must(t, n.Create(t.Context(), n.SizedDaemonSet("plain", n.Namespace+".share", two())))
	must(t, n.Create(t.Context(), n.SizedDaemonSet("vm", n.Namespace+".share", two().RuntimeClass("kata-remote"))))

	// The total holds, and the container that came last has its part of it.
	n.becomes(t, "plain", map[string]string{"4": strings.Join([]string{
		"a: cpu=500m,memory=2Gi | cpu=500m,memory=2Gi",
		"b: cpu=1,memory=2Gi | cpu=1,memory=2Gi",
		"injected: cpu=500m,memory=2Gi | cpu=500m,memory=2Gi",
	}, "\n")})
	// The VM is as big as the share.
	n.becomes(t, "vm", map[string]string{"4": "a: kata.peerpods.io/vm=1 | kata.peerpods.io/vm=1\nb:  | \ninjected:  | "})
	pods, err := n.Pods(t.Context(), "vm")
	must(t, err)
	if diff := cmp.Diff([]string{"2", "6144", ""}, suite.VMSize(&pods[0])); diff != "" {
		t.Errorf("the VM's size (-want +got):\n%s", diff)
	}
}

// A LimitRange that would refuse the size costs the size, not the pod.
func TestSizingThatALimitRangeRefuses(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=4,memory=8Gi")
	n.SizeTemplate(t, "cpu", cpuShare)
	lr := limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: testkit.ResourceList("cpu=200m")})
	lr.Namespace = n.Namespace
	must(t, n.Create(t.Context(), lr))
	must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", n.Namespace+".cpu", testkit.Pod("").Container("a", "cpu=50m", "cpu=100m"))))
	n.becomes(t, "agent", map[string]string{"4": "a: cpu=50m | cpu=100m"})
	eventually(t, "an event says so", func() (bool, error) {
		return n.HasEvent(t, "LimitRangeRefusesSize", `max.cpu (Container): container "a" has a limit of 400m, more than 200m`), nil
	})
}

// What the API server accepts, fills in and refuses of a FlexDaemonsetTemplate.
func TestFlexDaemonsetTemplateValidation(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const head = "apiVersion: flexdaemonsets.xai/v1alpha1\nkind: FlexDaemonsetTemplate\nmetadata: {name: default-resource-percentages}\n"
	try := func(spec string) (*unstructured.Unstructured, error) {
		u := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(head+"spec: "+spec), &u.Object))
		return u, n.Create(t.Context(), u, client.DryRunAll)
	}
	got, err := try(documentedShare)
	must(t, err)
	if got.GetNamespace() != "" {
		t.Error("it is not cluster-scoped")
	}
	spec := got.Object["spec"].(map[string]any)
	if spec["limits"] != "Equal" || spec["updatePolicy"] != "OnCreate" || spec["ceiling"] != nil || spec["minCPU"] != "100m" {
		t.Errorf("the documented manifest becomes %v", spec)
	}
	const quantity = "it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	cases := map[string]struct {
		spec string
		want []string // parts of the refusal; none is accepted
	}{
		"everything":          {spec: `{cpuPercentage: 100, memoryPercentage: 1, storagePercentage: 50, minCPU: 0.1, maxCPU: 2, minMemory: 1024, maxMemory: 1e9, minStorage: ".5Gi", maxStorage: 1Ti, limits: None, ceiling: Template, excludeContainers: [istio-proxy], updatePolicy: InPlace}`, want: []string{"spec.minCPU: Invalid value"}}, // a fraction is a text
		"everything, as text": {spec: `{cpuPercentage: 100, memoryPercentage: 1, storagePercentage: 50, minCPU: "0.1", maxCPU: 2, minMemory: 1024, maxMemory: "1e9", minStorage: ".5Gi", maxStorage: 1Ti, limits: None, ceiling: Template, excludeContainers: [istio-proxy], updatePolicy: InPlace}`},
		"zero":                {spec: "{cpuPercentage: 0}", want: []string{"spec.cpuPercentage: Invalid value: 0", "greater than or equal to 1"}},
		"101":                 {spec: "{memoryPercentage: 101}", want: []string{"spec.memoryPercentage: Invalid value: 101", "less than or equal to 100"}},
		"-5":                  {spec: "{storagePercentage: -5}", want: []string{"spec.storagePercentage: Invalid value: -5", "greater than or equal to 1"}},
		"a fraction":          {spec: "{cpuPercentage: 2.5}", want: []string{"spec.cpuPercentage: Invalid value"}},
		"nothing":             {spec: "{minCPU: 1}", want: []string{"spec: Invalid value", "set at least one of cpuPercentage, memoryPercentage and storagePercentage"}},
		"no quantity":         {spec: "{cpuPercentage: 1, minCPU: lots}", want: []string{`spec.minCPU: Invalid value: "lots": ` + quantity}},
		"no unit":             {spec: "{cpuPercentage: 1, maxMemory: 5GB}", want: []string{`spec.maxMemory: Invalid value: "5GB": ` + quantity}},
		"negative":            {spec: "{cpuPercentage: 1, minStorage: -1}", want: []string{`spec.minStorage: Invalid value: -1: ` + quantity}},
		"hostile":             {spec: `{cpuPercentage: 1, minCPU: "1e-999999999", maxCPU: "1e999999999"}`, want: []string{`spec.minCPU: Invalid value`, `spec.maxCPU: Invalid value`, quantity}},
		"huge":                {spec: `{cpuPercentage: 1, minCPU: "` + strings.Repeat("9", 5000) + `"}`, want: []string{"spec.minCPU"}},
		"CPU upside down":     {spec: "{cpuPercentage: 1, minCPU: 2, maxCPU: 1500m}", want: []string{"spec.minCPU: Invalid value", "minCPU is above maxCPU"}},
		"memory upside down":  {spec: "{memoryPercentage: 1, minMemory: 1Gi, maxMemory: 1G}", want: []string{"spec.minMemory: Invalid value", "minMemory is above maxMemory"}},
		"storage upside down": {spec: "{storagePercentage: 1, minStorage: 2, maxStorage: 1}", want: []string{"spec.minStorage: Invalid value", "minStorage is above maxStorage"}},
		"equal bounds":        {spec: "{cpuPercentage: 1, minCPU: 1, maxCPU: 1000m}"},
		"limits":              {spec: "{cpuPercentage: 1, limits: Some}", want: []string{`spec.limits: Unsupported value: "Some"`}},
		"a ceiling":           {spec: "{cpuPercentage: 1, ceiling: Sky}", want: []string{`spec.ceiling: Unsupported value: "Sky"`}},
		"a policy":            {spec: "{cpuPercentage: 1, updatePolicy: Now}", want: []string{`spec.updatePolicy: Unsupported value: "Now"`}},
		"a name twice":        {spec: "{cpuPercentage: 1, excludeContainers: [a, a]}", want: []string{`spec.excludeContainers[1]: Duplicate value: "a"`}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := try(tc.spec)
			if len(tc.want) == 0 {
				must(t, err)
				return
			}
			if !apierrors.IsInvalid(err) {
				t.Fatalf("got %v", err)
			}
			for _, want := range tc.want {
				// Older API servers leave the value out of the message of a CEL rule.
				short := invalidValue.ReplaceAllString(want, `Invalid value: "":`)
				if !strings.Contains(err.Error(), want) && (suite.AtLeast("1.37") || !strings.Contains(err.Error(), short)) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
		})
	}
}

var invalidValue = regexp.MustCompile(`Invalid value: [^:]+:`)
