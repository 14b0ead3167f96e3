package sizing_test

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/test/testkit"
)

type spec = flexdaemonsets.FlexDaemonsetTemplateSpec

// documented is the template of the documentation.
func documented() spec {
	return spec{CPUPercentage: new(int32(10)), MemoryPercentage: new(int32(15)), StoragePercentage: new(int32(5)), MinCPU: "100m", MinMemory: "128Mi"}
}

func compile(t interface {
	Helper()
	Fatal(...any)
}, s spec) *sizing.Template {
	t.Helper()
	template, err := sizing.Compile(&flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: s})
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// described is a pod's resources: a line for each container, and one for the pod.
func described(pod *podpatch.Pod) string {
	var out strings.Builder
	line := func(who string, r *podpatch.Resources) {
		if r == nil {
			r = &podpatch.Resources{}
		}
		fmt.Fprintf(&out, "%s: %s | %s\n", who, listed(r.Requests), listed(r.Limits))
	}
	for c := range pod.AllContainers() {
		line(c.Name, c.Resources)
	}
	if pod.Spec.Resources != nil {
		line("pod", pod.Spec.Resources)
	}
	return out.String()
}

func listed(list podpatch.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		parts = append(parts, fmt.Sprintf("%s=%s", name, list[name]))
	}
	return strings.Join(parts, ",")
}

func TestSize(t *testing.T) {
	const node = "cpu=3920m,memory=15104Mi,ephemeral-storage=90Gi"
	cpu := func(percent int32) spec { return spec{CPUPercentage: &percent} }
	with := func(s spec, change func(*spec)) spec {
		change(&s)
		return s
	}
	cases := map[string]struct {
		spec    spec
		pod     *testkit.PodBuilder
		node    string
		limited []corev1.ResourceName
		want    string
		notes   []string
	}{
		"the documented template": {
			spec: documented(), pod: testkit.Pod("p").Container("a", "", ""), node: node,
			want: "a: cpu=392m,ephemeral-storage=4608Mi,memory=2375653785 | cpu=392m,ephemeral-storage=4608Mi,memory=2375653785\n",
		},
		"minimums win on a small node": {
			spec: documented(), pod: testkit.Pod("p").Container("a", "", ""), node: "cpu=500m,memory=512Mi,ephemeral-storage=10Gi",
			want: "a: cpu=100m,ephemeral-storage=512Mi,memory=128Mi | cpu=100m,ephemeral-storage=512Mi,memory=128Mi\n",
		},
		"maximums win on a large node": {
			spec: with(cpu(10), func(s *spec) { s.MaxCPU = "2" }), pod: testkit.Pod("p").Container("a", "", ""), node: "cpu=64",
			want: "a: cpu=2 | cpu=2\n",
		},
		"what has no percentage stays": {
			spec: cpu(10), pod: testkit.Pod("p").Container("a", "cpu=1,memory=1Gi", "memory=2Gi"), node: node,
			want: "a: cpu=392m,memory=1Gi | cpu=392m,memory=2Gi\n",
		},
		"two containers share in proportion": {
			spec: cpu(10), pod: testkit.Pod("p").Container("a", "cpu=300m", "").Container("b", "cpu=100m", ""), node: node,
			want: "a: cpu=294m | cpu=294m\nb: cpu=98m | cpu=98m\n",
		},
		"five containers share evenly, and the first get what is left": {
			spec: cpu(10), node: node,
			pod:  testkit.Pod("p").Container("a", "", "").Container("b", "", "").Container("c", "", "").Container("d", "", "").Container("e", "", ""),
			want: "a: cpu=79m | cpu=79m\nb: cpu=79m | cpu=79m\nc: cpu=78m | cpu=78m\nd: cpu=78m | cpu=78m\ne: cpu=78m | cpu=78m\n",
		},
		"a container that declares nothing beside others gets an even share": {
			spec: cpu(10), pod: testkit.Pod("p").Container("a", "cpu=3", "").Container("b", "", "").Container("c", "cpu=1", ""), node: "cpu=30",
			want: "a: cpu=1500m | cpu=1500m\nb: cpu=1 | cpu=1\nc: cpu=500m | cpu=500m\n",
		},
		"a container that declares zero wants none": {
			spec: cpu(10), pod: testkit.Pod("p").Container("a", "cpu=1", "").Container("b", "cpu=0", "").Container("c", "cpu=0", ""), node: node,
			want: "a: cpu=392m | cpu=392m\nb: cpu=0 | cpu=0\nc: cpu=0 | cpu=0\n",
		},
		"amounts are written as the API server writes them": {
			spec: spec{MemoryPercentage: new(int32(25)), MinMemory: "500M"}, pod: testkit.Pod("p").Container("a", "", ""), node: "memory=1Gi",
			want: "a: memory=500M | memory=500M\n",
		},
		"without limits, where the namespace demands one, it grows": {
			spec: with(cpu(50), func(s *spec) { s.Limits = flexdaemonsets.LimitsNone }), node: node, limited: []corev1.ResourceName{corev1.ResourceCPU},
			pod: testkit.Pod("p").Container("a", "cpu=100m", "cpu=150m"), want: "a: cpu=1960m | cpu=1960m\n",
		},
		"the ceiling of a pod with requests of its own": {
			spec: with(cpu(50), func(s *spec) { s.Ceiling = flexdaemonsets.CeilingTemplate }), node: node,
			pod: testkit.Pod("p").PodResources("cpu=1", "").Container("a", "", ""), want: "a: cpu=1 | cpu=1\npod: cpu=1 | cpu=1\n",
		},
		"pod-level limits allow for excluded containers": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"proxy"} }), node: node,
			pod:  testkit.Pod("p").PodResources("cpu=500m", "cpu=2").Container("proxy", "cpu=92m", "cpu=1").Container("a", "", ""),
			want: "proxy: cpu=92m | cpu=1\na: cpu=300m | cpu=300m\npod: cpu=392m | cpu=1\n",
		},
		"pod-level requests are never below the excluded containers together": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"b", "c"} }), node: node,
			pod:   testkit.Pod("p").PodResources("cpu=1", "cpu=2").Container("a", "", "").Container("b", "cpu=300m", "").Container("c", "cpu=200m", ""),
			want:  "a: cpu=0 | cpu=0\nb: cpu=300m | \nc: cpu=200m | \npod: cpu=500m | cpu=500m\n",
			notes: []string{"the containers that are excluded request all of the pod's cpu, 392m; nothing is left for the others"},
		},
		"pod-level requests allow for an excluded init container beside a sidecar": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"i"} }), node: node,
			pod:  testkit.Pod("p").PodResources("cpu=1", "cpu=2").Sidecar("s", "cpu=100m", "").InitContainer("i", "cpu=600m", "").Container("a", "cpu=300m", ""),
			want: "s: cpu=98m | cpu=98m\ni: cpu=600m | \na: cpu=294m | cpu=294m\npod: cpu=698m | cpu=698m\n",
		},
		"a limit without a request is what it declares": {
			spec: cpu(10), pod: testkit.Pod("p").Container("a", "", "cpu=3").Container("b", "cpu=1", ""), node: node,
			want: "a: cpu=294m | cpu=294m\nb: cpu=98m | cpu=98m\n",
		},
		"sidecars share, and an init container does not raise the total": {
			spec: cpu(10), node: node,
			pod: testkit.Pod("p").InitContainer("first", "cpu=2", "cpu=3").Sidecar("s", "cpu=100m", "").InitContainer("second", "cpu=2", "").
				InitContainer("small", "cpu=10m", "").InitContainer("none", "", "").Container("a", "cpu=300m", ""),
			want: "first: cpu=392m | cpu=392m\ns: cpu=98m | cpu=98m\nsecond: cpu=294m | \nsmall: cpu=10m | \nnone:  | \na: cpu=294m | cpu=294m\n",
		},
		"an excluded container counts and stays": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"proxy"} }), node: node,
			pod:  testkit.Pod("p").Sidecar("proxy", "cpu=92m", "cpu=1").Container("a", "", "").Container("b", "", ""),
			want: "proxy: cpu=92m | cpu=1\na: cpu=150m | cpu=150m\nb: cpu=150m | cpu=150m\n",
		},
		"excluded containers that request everything": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"proxy"} }), node: node,
			pod:   testkit.Pod("p").Container("proxy", "cpu=2", "").Container("a", "cpu=1", "cpu=1"),
			want:  "proxy: cpu=2 | \na: cpu=0 | cpu=0\n",
			notes: []string{"the containers that are excluded request all of the pod's cpu, 392m; nothing is left for the others"},
		},
		"only excluded containers": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"a"} }), node: node,
			pod: testkit.Pod("p").Container("a", "cpu=2", ""), want: "a: cpu=2 | \n",
		},
		"without limits, own limits stay where they can": {
			spec: with(cpu(10), func(s *spec) { s.Limits = flexdaemonsets.LimitsNone }), node: node,
			pod:  testkit.Pod("p").InitContainer("i", "cpu=2", "cpu=3").Container("a", "cpu=100m", "cpu=150m").Container("b", "cpu=100m", "cpu=2").Container("c", "cpu=196m", "cpu=196m"),
			want: "i: cpu=392m | cpu=3\na: cpu=99m | cpu=150m\nb: cpu=99m | cpu=2\nc: cpu=194m | cpu=196m\n",
		},
		"without limits, one below the request goes": {
			spec: with(cpu(50), func(s *spec) { s.Limits = flexdaemonsets.LimitsNone }), node: node,
			pod: testkit.Pod("p").Container("a", "cpu=100m", "cpu=150m"), want: "a: cpu=1960m | \n",
		},
		"the ceiling is what the pod template requests": {
			spec: with(documented(), func(s *spec) { s.Ceiling = flexdaemonsets.CeilingTemplate }), node: node,
			pod:   testkit.Pod("p").Container("a", "cpu=100m,memory=64Mi", "").Container("b", "cpu=50m,memory=192Mi", ""),
			want:  "a: cpu=100m,memory=64Mi | cpu=100m,memory=64Mi\nb: cpu=50m,memory=192Mi | cpu=50m,memory=192Mi\n",
			notes: []string{"the ceiling is what the pod template requests, and it requests no ephemeral-storage; the pod keeps what it declares"},
		},
		"below the ceiling, the share": {
			spec: with(cpu(10), func(s *spec) { s.Ceiling = flexdaemonsets.CeilingTemplate }), node: node,
			pod: testkit.Pod("p").Container("a", "cpu=2", ""), want: "a: cpu=392m | cpu=392m\n",
		},
		"a minimum above what the node has": {
			spec: with(cpu(10), func(s *spec) { s.MinCPU = "8" }), pod: testkit.Pod("p").Container("a", "", ""), node: node,
			want: "a: cpu=8 | cpu=8\n", notes: []string{"the pod gets the minimum of cpu, 8, which is more than the node has (3920m)"},
		},
		"a node without the resource, and no minimum": {
			spec: documented(), pod: testkit.Pod("p").Container("a", "ephemeral-storage=1Gi", ""), node: "cpu=4,memory=8Gi",
			want:  "a: cpu=400m,ephemeral-storage=1Gi,memory=1288490188 | cpu=400m,memory=1288490188\n",
			notes: []string{"the node has no allocatable ephemeral-storage; the pod keeps what it declares"},
		},
		"no node": {
			spec: documented(), pod: testkit.Pod("p").Container("a", "cpu=1", ""),
			want: "a: cpu=100m,memory=128Mi | cpu=100m,memory=128Mi\n",
			notes: []string{
				"the node has no allocatable cpu; the pod gets the minimum", "the node has no allocatable memory; the pod gets the minimum",
				"the node has no allocatable ephemeral-storage; the pod keeps what it declares",
			},
		},
		"pod-level resources follow": {
			spec: cpu(10), node: node,
			pod:  testkit.Pod("p").PodResources("cpu=1,memory=1Gi", "cpu=2").Container("a", "cpu=500m", "").Container("b", "", ""),
			want: "a: cpu=196m | cpu=196m\nb: cpu=196m | cpu=196m\npod: cpu=392m,memory=1Gi | cpu=392m\n",
		},
		"pod-level resources never below an excluded container": {
			spec: with(cpu(10), func(s *spec) { s.ExcludeContainers = []string{"i", "b"} }), node: node,
			pod:  testkit.Pod("p").PodResources("cpu=1", "cpu=2").InitContainer("i", "cpu=600m", "cpu=900m").Container("a", "", "").Container("b", "cpu=500m", ""),
			want: "i: cpu=600m | cpu=900m\na: cpu=0 | cpu=0\nb: cpu=500m | \npod: cpu=600m | cpu=900m\n",
			notes: []string{
				"the containers that are excluded request all of the pod's cpu, 392m; nothing is left for the others",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod.View(t)
			before := pod.Clone()
			template := compile(t, tc.spec)
			res, err := template.Size(pod, sizing.Place{Allocatable: testkit.ResourceList(tc.node), Limited: tc.limited})
			if err != nil {
				t.Fatal(err)
			}
			got := res.Pod
			if diff := cmp.Diff(tc.want, described(got)); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.notes, res.Notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
			if len(res.Sized) > 0 && got.Metadata.Labels[stowage.SizedByLabel] != "agent" {
				t.Errorf("the label is missing: %v", got.Metadata.Labels)
			}
			for c := range got.AllContainers() {
				for _, q := range append(slices.Collect(maps.Values(c.Resources.Requests)), slices.Collect(maps.Values(c.Resources.Limits))...) {
					if parsed := resource.MustParse(string(q)); parsed.String() != string(q) {
						t.Errorf("the API server writes %s as %s", q, parsed.String())
					}
				}
			}
			again, err := template.Size(got, sizing.Place{Allocatable: testkit.ResourceList(tc.node), Limited: tc.limited})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again.Pod); diff != "" {
				t.Errorf("a second pass changed something:\n%s", diff)
			}
		})
	}
}

// A pod that others changed after it was sized comes out the same; a container that is
// new takes its part of the same total.
func TestSizeAgain(t *testing.T) {
	template := compile(t, spec{CPUPercentage: new(int32(10)), Limits: flexdaemonsets.LimitsNone})
	node := sizing.Place{Allocatable: testkit.ResourceList("cpu=4")}
	size := func(pod *podpatch.Pod) *podpatch.Pod {
		t.Helper()
		res, err := template.Size(pod, node)
		if err != nil {
			t.Fatal(err)
		}
		return res.Pod
	}
	first := size(testkit.Pod("p").Container("a", "cpu=3", "").Container("b", "cpu=1", "").View(t))

	t.Run("a LimitRange fills in", func(t *testing.T) {
		pod := first.Clone()
		pod.Spec.Containers[0].Resources.Limits = podpatch.ResourceList{corev1.ResourceCPU: "200m"}
		if diff := cmp.Diff(described(first), described(size(pod))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("the peer pods take everything out", func(t *testing.T) {
		pod := first.Clone()
		for c := range pod.AllContainers() {
			c.Resources = nil
		}
		if diff := cmp.Diff(described(first), described(size(pod))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("a sidecar is injected, before or after", func(t *testing.T) {
		late := first.Clone()
		late.Spec.Containers = append(late.Spec.Containers, podpatch.Container{Name: "s", Resources: &podpatch.Resources{Requests: podpatch.ResourceList{corev1.ResourceCPU: "1"}}})
		early := testkit.Pod("p").Container("a", "cpu=3", "").Container("b", "cpu=1", "").Container("s", "cpu=1", "").View(t)
		want := "a: cpu=240m | \nb: cpu=80m | \ns: cpu=80m | \n"
		for when, pod := range map[string]*podpatch.Pod{"late": late, "early": early} {
			if diff := cmp.Diff(want, described(size(pod))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
	})
	t.Run("a sidecar is injected beside containers that declare nothing", func(t *testing.T) {
		pod := size(testkit.Pod("p").Container("a", "", "").View(t))
		pod.Spec.Containers = append(pod.Spec.Containers, podpatch.Container{Name: "s", Resources: &podpatch.Resources{Requests: podpatch.ResourceList{corev1.ResourceCPU: "10m"}}})
		if got, want := described(size(pod)), "a: cpu=200m | \ns: cpu=200m | \n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a resource leaves the template", func(t *testing.T) {
		both := compile(t, spec{CPUPercentage: new(int32(10)), MemoryPercentage: new(int32(10))})
		pod := testkit.Pod("p").Container("a", "memory=64Mi", "").Container("b", "memory=64Mi", "memory=1Gi").View(t)
		res, err := both.Size(pod, sizing.Place{Allocatable: testkit.ResourceList("cpu=4,memory=4Gi")})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := described(size(res.Pod)), "a: cpu=200m,memory=64Mi | \nb: cpu=200m,memory=64Mi | memory=1Gi\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if diff := cmp.Diff(described(pod), described(sizing.Unsize(res.Pod))); diff != "" {
			t.Errorf("without its size (-want +got):\n%s", diff)
		}
	})
	t.Run("a record that was copied from another pod", func(t *testing.T) {
		copied := first.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]
		for range 2 { // also if the copy comes from a pod that had a copy
			pod := testkit.Pod("p").Container("a", "cpu=1", "").Container("b", "cpu=1", "").Annotation(stowage.DeclaredResourcesAnnotation, copied).View(t)
			want := "a: cpu=200m | \nb: cpu=200m | \n"
			for range 3 {
				pod = size(sizing.Disown(pod, copied))
				if got := described(pod); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
			copied = pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]
		}
	})
	t.Run("a record that is none is replaced", func(t *testing.T) {
		for _, text := range []string{
			"", "{", "[]", "{}", `{"containers":null}`,
			`{"containers":{},"sized":["` + strings.Repeat(`","`, 400_000) + `"]}`,
			`{"containers":{},"sized":["nvidia.com/gpu"]}`,
			`{"containers":{},"excluded":["` + strings.Repeat(`","`, 1000) + `"]}`,
			`{"containers":{"a":{"requests":{"cpu":"1e999999999"}}}}`,
			`{"containers":{"a":{"requests":{"ephemeral-storage":"x"}}},"sized":["ephemeral-storage"]}`,
			`{"containers":{},"pod":{"requests":{"nvidia.com/gpu":"1"}}}`,
		} {
			pod := testkit.Pod("p").Container("a", "cpu=3", "").Annotation(stowage.DeclaredResourcesAnnotation, text).View(t)
			res, err := template.Size(pod, node)
			if err != nil || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "is not ours") {
				t.Fatalf("%.80q: %v, %v", text, res.Notes, err)
			}
			if got, want := described(res.Pod), "a: cpu=400m | \n"; got != want {
				t.Errorf("%.80q: got %q", text, got)
			}
		}
	})
	t.Run("a quantity that is none", func(t *testing.T) {
		pod := testkit.Pod("p").Container("a", "cpu=1", "").View(t)
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = "1e999999999"
		if _, err := template.Size(pod, node); err == nil || !strings.Contains(err.Error(), `container "a": requests: cpu`) {
			t.Errorf("got %v", err)
		}
	})
}

// Fields without an effect are warned of.
func TestCompileWarns(t *testing.T) {
	c, err := sizing.Compile(&flexdaemonsets.FlexDaemonsetTemplate{Spec: spec{CPUPercentage: new(int32(10)), MinCPU: "1", MinMemory: "1Gi", MaxStorage: "2Gi"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"spec.minMemory has no effect without spec.memoryPercentage", "spec.maxStorage has no effect without spec.storagePercentage"}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestCompileRefuses(t *testing.T) {
	cases := map[string]struct {
		spec spec
		want string
	}{
		"nothing to size":       {spec{MinCPU: "1"}, "spec: it has no percentage"},
		"zero":                  {spec{CPUPercentage: new(int32(0))}, "spec.cpuPercentage: 0 is not a percentage from 1 to 100"},
		"above 100":             {spec{MemoryPercentage: new(int32(101))}, "spec.memoryPercentage: 101"},
		"negative":              {spec{StoragePercentage: new(int32(-5))}, "spec.storagePercentage: -5"},
		"no quantity":           {spec{CPUPercentage: new(int32(1)), MinCPU: "lots"}, `spec.minCPU: "lots" is not a quantity`},
		"a negative quantity":   {spec{CPUPercentage: new(int32(1)), MaxMemory: "-1"}, `spec.maxMemory: "-1" is negative`},
		"minimum above maximum": {spec{CPUPercentage: new(int32(1)), MinCPU: "2", MaxCPU: "1500m"}, "spec.minCPU: 2 is above maxCPU, 1500m"},
		"limits":                {spec{CPUPercentage: new(int32(1)), Limits: "Some"}, `spec.limits: "Some" must be`},
		"ceiling":               {spec{CPUPercentage: new(int32(1)), Ceiling: "Sky"}, `spec.ceiling: "Sky" must be`},
		"policy":                {spec{CPUPercentage: new(int32(1)), UpdatePolicy: "Now"}, `spec.updatePolicy: "Now" must be`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := sizing.Compile(&flexdaemonsets.FlexDaemonsetTemplate{Spec: tc.spec})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestViolations(t *testing.T) {
	template := compile(t, spec{CPUPercentage: new(int32(10))})
	cases := map[string]struct {
		item           corev1.LimitRangeItem
		sidecar, whole string
		want           []string
	}{
		"within":         {item: corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: testkit.ResourceList("cpu=200m")}},
		"another":        {item: corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: testkit.ResourceList("memory=1Gi")}},
		"of claims":      {item: corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: testkit.ResourceList("cpu=5")}},
		"below minimum":  {item: corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: testkit.ResourceList("cpu=250m")}, want: []string{`min.cpu (Container): container "b" requests 200m, less than 250m`}},
		"above maximum":  {item: corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: testkit.ResourceList("cpu=500m")}, want: []string{`max.cpu (Container): container "i" has a limit of 1, more than 500m`, `max.cpu (Container): container "b" has no limit`}},
		"ratio":          {item: corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: testkit.ResourceList("cpu=2")}, want: []string{`maxLimitRequestRatio.cpu (Container): container "b" has a limit of nothing and requests 200m`}},
		"the pod":        {item: corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=900m")}, want: []string{`max.cpu (Pod): the pod has a limit of 1, more than 900m`}},
		"with sidecars":  {item: corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=1")}, sidecar: "cpu=100m", want: []string{`max.cpu (Pod): the pod has a limit of 1100m, more than 1`}},
		"as a whole":     {item: corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=900m")}, whole: "cpu=800m"},
		"the pod at all": {item: corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: testkit.ResourceList("cpu=1")}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := testkit.Pod("p")
			if tc.sidecar != "" {
				b.Sidecar("s", tc.sidecar, tc.sidecar)
			}
			if tc.whole != "" {
				b.PodResources(tc.whole, tc.whole)
			}
			pod := b.InitContainer("i", "cpu=1", "cpu=1").Container("a", "cpu=300m", "cpu=300m").Container("b", "cpu=200m", "").View(t)
			lr := &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{tc.item}}}
			if diff := cmp.Diff(tc.want, template.Violations(lr, pod)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLabelOf(t *testing.T) {
	long := strings.Repeat("a.b-", 60)
	for _, name := range []string{"agent", "agent.v1", strings.Repeat("x", 63), long + "1", long + "2"} {
		label := sizing.LabelOf(name)
		if len(label) > 63 || len(name) <= 63 && label != name {
			t.Errorf("%q became %q", name, label)
		}
	}
	if sizing.LabelOf(long+"1") == sizing.LabelOf(long+"2") {
		t.Error("two names have one label")
	}
}

// weights are a container list's declared requests, of every magnitude.
var weights = rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, 100_000), rapid.Int64Range(0, math.MaxInt64)), 1, 12)

var anyTotal = rapid.OneOf(rapid.Int64Range(0, 40), rapid.Int64Range(0, 1<<40), rapid.Int64Range(0, math.MaxInt64-1))

// Parts add up, none is more than a unit below its exact part nor shrinks when the total
// grows, and a split in proportion to a split is that split again.
func TestSplitProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, total := weights.Draw(t, "weights"), anyTotal.Draw(t, "total")
		parts := sizing.Split(total, w)
		sum, weightSum := new(big.Int), new(big.Int)
		for i := range parts {
			sum.Add(sum, big.NewInt(parts[i]))
			weightSum.Add(weightSum, big.NewInt(w[i]))
		}
		if sum.Cmp(big.NewInt(total)) != 0 {
			t.Fatalf("%v add up to %s", parts, sum)
		}
		small := slices.Max(w) < math.MaxInt64/int64(len(w)) // others are weighed alike
		for i := range parts {
			if w[i] == 0 && weightSum.Sign() > 0 && parts[i] != 0 {
				t.Fatalf("container %d of no weight got %d", i, parts[i])
			}
			if exact := new(big.Int).Mul(big.NewInt(total), big.NewInt(w[i])); small && weightSum.Sign() > 0 && exact.Div(exact, weightSum).Cmp(big.NewInt(parts[i])) > 0 {
				t.Fatalf("container %d got %d, less than its exact part %s", i, parts[i], exact)
			}
		}
		more := sizing.Split(total+1, w)
		for i := range parts {
			if more[i] < parts[i] {
				t.Fatalf("container %d shrinks from %v to %v", i, parts, more)
			}
		}
	})
}

// A split agrees with the plain form of the same method: units handed out one by one.
func TestSplitAgreesWithOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SliceOfN(rapid.Int64Range(0, 60), 1, 8).Draw(t, "weights")
		total := rapid.Int64Range(0, 200).Draw(t, "total")
		if slices.Max(w) == 0 {
			for i := range w {
				w[i] = 1
			}
		}
		want := make([]int64, len(w))
		for range total {
			best := 0
			for i := range w {
				if w[i]*(want[best]+1) > w[best]*(want[i]+1) {
					best = i
				}
			}
			want[best]++
		}
		if diff := cmp.Diff(want, sizing.Split(total, w)); diff != "" {
			t.Fatalf("(-one by one +split):\n%s", diff)
		}
	})
}

// anyPod is a pod with containers of all sorts.
func anyPod(tb testing.TB, t *rapid.T) *podpatch.Pod {
	pod := testkit.Pod("p")
	entry := func(label string) string {
		n := rapid.Int64Range(-1, 4000).Draw(t, label)
		if n < 0 {
			return ""
		}
		return fmt.Sprintf("cpu=%dm", n)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "inits") {
		if name, e := fmt.Sprintf("i%d", i), entry("init"); rapid.Bool().Draw(t, "sidecar") {
			pod.Sidecar(name, e, "")
		} else {
			pod.InitContainer(name, e, e)
		}
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "containers") {
		if name, e := fmt.Sprintf("c%d", i), entry("request"); rapid.Bool().Draw(t, "limited") {
			pod.Container(name, e, e)
		} else {
			pod.Container(name, e, "")
		}
	}
	return pod.View(tb)
}

// The pod's total is the rule's, at every node size, and grows with the node; what is
// side by side adds up to it, and no init container exceeds it.
func TestSizeProperties(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		s := spec{CPUPercentage: new(rapid.Int32Range(1, 100).Draw(t, "percent"))}
		least := rapid.Int64Range(0, 2000).Draw(t, "min")
		most := least + rapid.Int64Range(0, 4000).Draw(t, "above")
		s.MinCPU, s.MaxCPU = flexdaemonsets.Amount(fmt.Sprintf("%dm", least)), flexdaemonsets.Amount(fmt.Sprintf("%dm", most))
		if rapid.Bool().Draw(t, "no limits") {
			s.Limits = flexdaemonsets.LimitsNone
		}
		if rapid.Bool().Draw(t, "ceiling") {
			s.Ceiling = flexdaemonsets.CeilingTemplate
		}
		excluded := rapid.Bool().Draw(t, "exclude")
		if excluded {
			s.ExcludeContainers = []string{"c1", "i1"}
		}
		template, pod := compile(t, s), anyPod(tb, t)
		before := int64(-1)
		nodes := rapid.SliceOfN(rapid.Int64Range(1, 256_000), 1, 5).Draw(t, "nodes")
		slices.Sort(nodes)
		for _, node := range nodes {
			res, err := template.Size(pod, sizing.Place{Allocatable: testkit.ResourceList(fmt.Sprintf("cpu=%dm", node))})
			if err != nil {
				t.Fatal(err)
			}
			got := res.Pod
			if got == pod {
				continue // nothing to size
			}
			want := min(max(node*int64(*s.CPUPercentage)/100, least), most)
			var requested, declared, kept int64
			running := map[string]bool{}
			for c := range got.AllContainers() {
				if c.IsSidecar() || strings.HasPrefix(c.Name, "c") {
					running[c.Name] = true
					requested += request(t, c)
					if slices.Contains(s.ExcludeContainers, c.Name) {
						kept += request(t, c)
					}
				}
			}
			for c := range pod.AllContainers() {
				if running[c.Name] {
					declared += request(t, c)
				}
			}
			if s.Ceiling != "" {
				want = min(want, declared)
			}
			shared := len(running) > len(s.ExcludeContainers) || !running["c1"] && !running["i1"]
			if want = max(want, kept); shared && requested != want {
				t.Fatalf("on %dm the pod requests %dm, want %dm:\n%s", node, requested, want, described(got))
			}
			if requested < before {
				t.Fatalf("a larger node gives less: %dm after %dm", requested, before)
			}
			before = requested
			sidecars := int64(0)
			for i := range got.Spec.InitContainers {
				c := &got.Spec.InitContainers[i]
				n := request(t, c)
				if c.IsSidecar() {
					sidecars += n
				} else if n+sidecars > want && !excluded {
					t.Fatalf("init container %q needs %dm beside %dm, more than %dm", c.Name, n, sidecars, want)
				}
			}
			for c := range got.AllContainers() {
				if c.Resources == nil {
					continue
				}
				if l, ok := c.Resources.Limits[corev1.ResourceCPU]; ok {
					limit, err := l.Parse()
					if err != nil || limit.MilliValue() < request(t, c) {
						t.Fatalf("%q has a limit of %s below its request:\n%s", c.Name, l, described(got))
					}
				}
			}
		}
	})
}

func request(t *rapid.T, c *podpatch.Container) int64 {
	if c.Resources == nil {
		return 0
	}
	text, ok := c.Resources.Requests[corev1.ResourceCPU]
	if !ok {
		return 0
	}
	q, err := text.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return q.MilliValue()
}

// No template, node or pod makes it panic, and what is sized once stays.
func FuzzSize(f *testing.F) {
	f.Add("100m", "4", "128Mi", "1", "2", "3920m", int32(10))
	f.Add("1e9", "1E", "9223372036854775807", "9223372036854775807", "1Ei", "9223372036854775807", int32(100))
	f.Add("0.1", ".5", "1e-3", "0", "-1", "1n", int32(1))
	f.Fuzz(func(t *testing.T, minCPU, maxCPU, minMemory, declared, limit, allocatable string, percent int32) {
		template, err := sizing.Compile(&flexdaemonsets.FlexDaemonsetTemplate{Spec: spec{
			CPUPercentage: &percent, MinCPU: flexdaemonsets.Amount(minCPU), MaxCPU: flexdaemonsets.Amount(maxCPU),
			MemoryPercentage: new(int32(7)), MinMemory: flexdaemonsets.Amount(minMemory),
		}})
		if err != nil || !utf8.ValidString(declared) || !utf8.ValidString(limit) { // as JSON is
			return
		}
		q, err := podpatch.Quantity(allocatable).Parse()
		if err != nil {
			return
		}
		node := sizing.Place{Allocatable: corev1.ResourceList{corev1.ResourceCPU: q, corev1.ResourceMemory: q}}
		c := podpatch.Container{Name: "a", Resources: &podpatch.Resources{
			Requests: podpatch.ResourceList{corev1.ResourceCPU: podpatch.Quantity(declared), corev1.ResourceMemory: podpatch.Quantity(limit)},
			Limits:   podpatch.ResourceList{corev1.ResourceCPU: podpatch.Quantity(limit)},
		}}
		pod := &podpatch.Pod{Spec: podpatch.Spec{Containers: []podpatch.Container{c, {Name: "b"}}}}
		out, err := template.Size(pod, node)
		if err != nil {
			return
		}
		again, err := template.Size(out.Pod, node)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(out.Pod, again.Pod); diff != "" {
			t.Fatalf("a second pass changed something:\n%s", diff)
		}
	})
}
