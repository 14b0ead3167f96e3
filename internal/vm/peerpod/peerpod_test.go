package peerpod_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"pgregory.net/rapid"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/test/testkit"
)

const vm = stowage.DefaultVMResource

// sizing returns the sizing annotations, in a fixed order; "" is none.
func sizing(p *podpatch.Pod) []string {
	a := p.Metadata.Annotations
	return []string{a[stowage.DefaultVCPUsAnnotation], a[stowage.DefaultMemoryAnnotation], a[stowage.DefaultGPUsAnnotation]}
}

func pod() *testkit.PodBuilder { return testkit.Pod("p").RuntimeClass("kata-remote") }

// convert fails the test if the pod cannot be converted.
func convert(t interface{ Fatalf(string, ...any) }, cfg *peerpod.Config, p *podpatch.Pod) (*podpatch.Pod, []string) {
	got, warnings, err := cfg.Convert(p, nil, "", nil)
	if err != nil {
		t.Fatalf("convert: %v", err)
	}
	return got, warnings
}

// Kata Containers refuses a sandbox if one annotation of its prefix matches none of the expressions in enable_annotations. These are the default
// ones of the remote hypervisor: src/runtime/config/configuration-remote.toml.in of Kata Containers 4.1.0.
var enabledByKata = []string{"machine_type", "default_memory", "default_vcpus", "image", "default_gpus", "gpu_model", "cc_init_data"}

func TestKataTakesOurAnnotations(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	named := catalog.Type{Name: "large", VCPUs: 8, Memory: 1 << 34, GPUs: 2, Model: "h100"}
	got, _, err := cfg.Convert(pod().Container("a", "", "cpu=1,memory=1Gi,nvidia.com/gpu=1").View(t), nil, "", chooser{&named})
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "io.katacontainers.config.hypervisor."
	ours := 0
	for key := range got.Metadata.Annotations {
		if name, is := strings.CutPrefix(key, prefix); is {
			ours++
			if !slices.ContainsFunc(enabledByKata, func(e string) bool { return regexp.MustCompile(e).MatchString(name) }) {
				t.Errorf("Kata Containers refuses %s", key)
			}
		}
	}
	if ours != 5 {
		t.Errorf("%d annotations for Kata Containers: %v", ours, got.Metadata.Annotations)
	}
}

// The document's name of the memory is written where that is asked for, and goes where it is not any more, unless another client wrote it.
func TestMemoryAnnotations(t *testing.T) {
	one, both := peerpod.DefaultConfig(), peerpod.DefaultConfig()
	both.MemoryAnnotations = []string{"default_memory", "default_mem"}
	names := func(p *podpatch.Pod) []string {
		return []string{p.Metadata.Annotations[stowage.DefaultMemoryAnnotation], p.Metadata.Annotations[stowage.DefaultMemAnnotation]}
	}
	check := func(what string, p *podpatch.Pod, want ...string) {
		t.Helper()
		if got := names(p); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	plain := pod().Container("a", "", "memory=1Gi").View(t)
	wrote, _ := convert(t, &both, plain)
	check("both", wrote, "1024", "1024")
	again, _ := convert(t, &one, wrote)
	check("both, and then one", again, "1024", "")
	own, _ := convert(t, &one, pod().Container("a", "", "memory=1Gi").Annotation(stowage.DefaultMemAnnotation, "512").View(t))
	check("the user's, by the document's name", own, "512", "512")
	again, _ = convert(t, &one, own)
	check("the same, again", again, "512", "512")
	for _, wrong := range [][]string{nil, {"default_mem"}, {"default_mem", "default_memory"}, {"default_memory", "memory"}} {
		cfg := peerpod.DefaultConfig()
		if cfg.MemoryAnnotations = wrong; len(cfg.Validate()) == 0 {
			t.Errorf("%q is valid", wrong)
		}
	}
}

// Kata Containers reads a fraction of a vCPU.
func TestFractionsOfVCPUs(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	for text, want := range map[string]struct {
		vcpus  int64
		warned bool
	}{
		"0.75": {1, false}, "2": {2, false}, "2.5": {3, false}, "0": {0, false},
		"two": {0, true}, "": {0, true}, "-1": {0, true}, "NaN": {0, true}, "Inf": {0, true}, "1e300": {0, true},
	} {
		got, warnings := convert(t, &cfg, pod().Container("a", "", "cpu=4").Annotation(stowage.DefaultVCPUsAnnotation, text).View(t))
		if vcpus, _ := peerpod.SizeOf(got.Metadata.Annotations); vcpus != want.vcpus || (len(warnings) > 0) != want.warned {
			t.Errorf("%q: %d vCPUs, warned %q", text, vcpus, warnings)
		}
	}
}

func TestConvertSizes(t *testing.T) {
	cases := map[string]struct {
		pod    *testkit.PodBuilder
		sizing peerpod.Sizing // Sum if empty
		want   []string       // vCPUs, memory, memory again, GPUs
	}{
		"the documented example": {
			pod:  pod().Container("c", "cpu=1,memory=1Gi", "cpu=1,memory=2Gi"),
			want: []string{"1", "2048", ""},
		},
		"containers and init containers add up": {
			pod:  pod().Container("a", "", "cpu=1,memory=1Gi").Container("b", "", "cpu=500m,memory=512Mi").InitContainer("i", "", "cpu=2,memory=2Gi"),
			want: []string{"4", "3584", ""},
		},
		"limits without requests count": {
			pod:  pod().Container("c", "", "cpu=2,memory=2Gi"),
			want: []string{"2", "2048", ""},
		},
		"requests without limits count": {
			pod:  pod().Container("c", "cpu=2,memory=2Gi", ""),
			want: []string{"2", "2048", ""},
		},
		"each container counts its limit, or else its request": {
			pod:  pod().Container("a", "cpu=1", "cpu=8").Container("b", "cpu=2", ""),
			want: []string{"10", "", ""},
		},
		"limit or request is chosen for each resource": {
			pod:  pod().Container("a", "cpu=1,memory=1Gi", "cpu=3"),
			want: []string{"3", "1024", ""},
		},
		"fractions are rounded up once, in the total": {
			pod:  pod().Container("a", "cpu=250m", "").Container("b", "cpu=250m", ""),
			want: []string{"1", "", ""},
		},
		"the smallest fraction is a whole vCPU and a whole MiB": {
			pod:  pod().Container("a", "cpu=1m,memory=1", ""),
			want: []string{"1", "1", ""},
		},
		"memory in decimal units": {
			pod:  pod().Container("a", "memory=1G", ""),
			want: []string{"", "954", ""},
		},
		"memory in parts of bytes that add up": {
			pod:  pod().Container("a", "memory=0.2Gi", "").Container("b", "memory=0.2Gi", "").Container("c", "memory=0.2Gi", "").Container("d", "memory=0.2Gi", "").Container("e", "memory=0.2Gi", ""),
			want: []string{"", "1024", ""},
		},
		"memory in thousandths of bytes": {
			pod:  pod().Container("a", "memory=1048576001m", ""),
			want: []string{"", "2", ""},
		},
		"zero is not written": {
			pod:  pod().Container("a", "cpu=0,memory=0,nvidia.com/gpu=0", "cpu=0"),
			want: []string{"", "", ""},
		},
		"a limit of zero is a limit": {
			pod:  pod().Container("a", "cpu=0", "cpu=0").Container("b", "cpu=1", ""),
			want: []string{"1", "", ""},
		},
		"nothing asked for": {
			pod:  pod().Container("a", "", ""),
			want: []string{"", "", ""},
		},
		"GPUs of several vendors": {
			pod: pod().Container("a", "", "nvidia.com/gpu=2").Container("b", "", "amd.com/gpu=1").
				InitContainer("i", "", "gpu.intel.com/i915=1,gpu.intel.com/xe=1"),
			want: []string{"", "", "5"},
		},
		"pod-level resources are the total where they say something": {
			pod:  pod().Container("a", "", "cpu=8,memory=1Gi,nvidia.com/gpu=1").PodResources("cpu=2", "cpu=3"),
			want: []string{"3", "1024", "1"},
		},
		"a pod-level request without a limit is the least": {
			pod:  pod().Container("a", "memory=1Gi", "cpu=1,memory=4Gi").PodResources("cpu=3,memory=1Gi", ""),
			want: []string{"3", "4096", ""},
		},
		"sidecars add up": {
			pod:  pod().Sidecar("s", "cpu=1", "").InitContainer("i", "cpu=4", "").Container("a", "cpu=1", ""),
			want: []string{"6", "", ""},
		},
		"effective: the peak while initializing": {
			pod:    pod().Sidecar("s", "cpu=1", "").InitContainer("i", "cpu=4", "").Container("a", "cpu=1", ""),
			sizing: peerpod.SizingEffective,
			want:   []string{"5", "", ""},
		},
		"effective: a sidecar that starts after the peak is not in it": {
			pod:    pod().InitContainer("i", "cpu=4", "").Sidecar("s", "cpu=1", "").Container("a", "cpu=1", ""),
			sizing: peerpod.SizingEffective,
			want:   []string{"4", "", ""},
		},
		"effective: what runs together": {
			pod:    pod().InitContainer("i", "cpu=2", "").Sidecar("s", "cpu=1", "").Container("a", "cpu=3", ""),
			sizing: peerpod.SizingEffective,
			want:   []string{"4", "", ""},
		},
		"quantities too large to count saturate": {
			pod:  pod().Container("a", "cpu=9223372036854775807,memory=100E", "").Container("b", "cpu=1,memory=100E", ""),
			want: []string{"9223372037", "8796093023", ""},
		},
		"a user's annotation wins": {
			pod:  pod().Container("a", "cpu=2", "").Annotation(stowage.DefaultVCPUsAnnotation, "7"),
			want: []string{"7", "", ""},
		},
		"a user's memory is repeated under its other name": {
			pod:  pod().Container("a", "memory=1Gi", "").Annotation(stowage.DefaultMemoryAnnotation, "9000"),
			want: []string{"", "9000", ""},
		},
		"a VM entry of the user's own is not a size": {
			pod:  pod().Container("a", vm+"=1,cpu=1", vm+"=1"),
			want: []string{"1", "", ""},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := peerpod.DefaultConfig()
			if tc.sizing != "" {
				cfg.Sizing = tc.sizing
			}
			got, _ := convert(t, &cfg, tc.pod.View(t))
			if diff := cmp.Diff(tc.want, sizing(got)); diff != "" {
				t.Errorf("sizing (-want +got):\n%s", diff)
			}
			expectStripped(t, got)
			again, _ := convert(t, &cfg, got)
			if patch := podpatch.Diff(got, again); len(patch) != 0 {
				t.Errorf("a second pass changes %v", patch)
			}
		})
	}
}

// expectStripped checks what must hold of every converted pod.
func expectStripped(t interface{ Errorf(string, ...any) }, p *podpatch.Pod) {
	if p.Spec.Resources != nil {
		t.Errorf("spec.resources is still there: %v", p.Spec.Resources)
	}
	first := true
	for i := range p.Spec.Containers {
		for _, list := range []podpatch.ResourceList{p.Spec.Containers[i].Resources.Requests, p.Spec.Containers[i].Resources.Limits} {
			q, ok := list[vm]
			if first && (!ok || q != "1" || len(list) != 1) || !first && len(list) != 0 {
				t.Errorf("container %d has entries %v", i, list)
			}
		}
		first = false
	}
	for i := range p.Spec.InitContainers {
		if r := p.Spec.InitContainers[i].Resources; r != nil && len(r.Limits)+len(r.Requests) > 0 {
			t.Errorf("init container %d has entries %v", i, r)
		}
	}
}

func TestConvertKeepsTheOriginal(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	got, _ := convert(t, &cfg, pod().
		Container("app", "cpu=1,hugepages-2Mi=4Mi,ephemeral-storage=1Gi", "hugepages-2Mi=4Mi").
		InitContainer("setup", "", "").
		PodResources("", "memory=1Gi").
		Annotation(stowage.DefaultGPUsAnnotation, "1").View(t))
	want := `{"pod":{"limits":{"memory":"1Gi"}},` +
		`"containers":{"app":{"requests":{"cpu":"1","ephemeral-storage":"1Gi","hugepages-2Mi":"4Mi"},"limits":{"hugepages-2Mi":"4Mi"}},"setup":{}},` +
		`"kept":["` + stowage.DefaultGPUsAnnotation + `"]}`
	if diff := cmp.Diff(want, got.Metadata.Annotations[stowage.OriginalResourcesAnnotation]); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestConvertWarns(t *testing.T) {
	cases := map[string]struct {
		pod  *testkit.PodBuilder
		want []string // one part of each warning, in order
	}{
		"nothing to say": {pod: pod().Container("a", "cpu=1,ephemeral-storage=1Gi,nvidia.com/gpu=1,gpu.intel.com/i915=1", "")},
		"huge pages":     {pod: pod().Container("a", "", "hugepages-2Mi=4Mi"), want: []string{`container "a": hugepages-2Mi (4Mi) is left out of a peer pod: the huge pages are the node's`}},
		"amounts of a GPU's parts": {
			pod:  pod().Container("a", "", "gpu.intel.com/memory=4000,gpu.intel.com/i915=1"),
			want: []string{`container "a": gpu.intel.com/memory (4k)`},
		},
		"a device that is no GPU": {
			pod:  pod().Container("a", "", "vendor.example/fpga=1,vendor.example/nic=2"),
			want: []string{`container "a": vendor.example/fpga (1)`, `container "a": vendor.example/nic (2)`},
		},
		"a claim of dynamic resource allocation": {
			pod:  pod().Container("a", "", "").Claim("gpu"),
			want: []string{`container "a" keeps its resources.claims`},
		},
		"a user's annotation that Kata cannot read": {
			pod:  pod().Container("a", "", "").Annotation(stowage.DefaultVCPUsAnnotation, "two"),
			want: []string{`default_vcpus is "two"`},
		},
		"a record that names no containers": {
			pod:  pod().Container("a", "", "").Annotation(stowage.OriginalResourcesAnnotation, "{}"),
			want: []string{"is not ours and was replaced: it names no containers"},
		},
		"a record of a negative entry": {
			pod:  pod().Container("a", "", "").Annotation(stowage.OriginalResourcesAnnotation, `{"containers":{"a":{"limits":{"cpu":"-5"}}}}`),
			want: []string{`is not ours and was replaced: container "a": limits: cpu: "-5" is negative`},
		},
		"a record of no quantity": {
			pod:  pod().Container("a", "", "").Annotation(stowage.OriginalResourcesAnnotation, `{"containers":{"a":{"limits":{"cpu":"five"}}}}`),
			want: []string{"is not ours and was replaced"},
		},
		"a record that is not ours": {
			pod:  pod().Container("a", "", "").Annotation(stowage.OriginalResourcesAnnotation, "{"),
			want: []string{"is not ours"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := peerpod.DefaultConfig()
			_, got := convert(t, &cfg, tc.pod.View(t))
			if len(got) != len(tc.want) {
				t.Fatalf("got warnings %q, want %d", got, len(tc.want))
			}
			for i, part := range tc.want {
				if !strings.Contains(got[i], part) {
					t.Errorf("warning %d is %q, want it to contain %q", i, got[i], part)
				}
			}
		})
	}
}

// What happens to a pod between two passes of ours.
func TestConvertAgain(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	first := func(t *testing.T) *corev1.Pod {
		original := pod().Container("a", "cpu=1,memory=1Gi", "").InitContainer("i", "cpu=2", "")
		return applied(t, &cfg, original.Obj())
	}
	cases := map[string]struct {
		between func(*corev1.Pod)
		want    []string
	}{
		"a LimitRange fills containers in": {
			between: func(p *corev1.Pod) {
				for i := range p.Spec.Containers {
					p.Spec.Containers[i].Resources.Requests["cpu"] = testkit.ResourceList("cpu=7")["cpu"]
				}
				p.Spec.InitContainers[0].Resources.Limits = testkit.ResourceList("memory=3Gi")
			},
			want: []string{"3", "1024", ""},
		},
		"a sidecar is injected": {
			between: func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, testkit.Pod("").Container("injected", "cpu=500m,memory=64Mi", "").Obj().Spec.Containers...)
			},
			want: []string{"4", "1088", ""},
		},
		"a sidecar is injected before our container": {
			between: func(p *corev1.Pod) {
				p.Spec.Containers = append(testkit.Pod("").Container("injected", "cpu=1", "").Obj().Spec.Containers, p.Spec.Containers...)
			},
			want: []string{"4", "1024", ""},
		},
		"another client resizes the VM": {
			between: func(p *corev1.Pod) { p.Annotations[stowage.DefaultVCPUsAnnotation] = "16" },
			want:    []string{"16", "1024", ""},
		},
		"a recorded container is gone, and the VM keeps its size": {
			between: func(p *corev1.Pod) { p.Spec.InitContainers = nil },
			want:    []string{"3", "1024", ""},
		},
		"pod-level resources are added": {
			between: func(p *corev1.Pod) { p.Spec.Resources = pod().PodResources("cpu=9", "").Obj().Spec.Resources },
			want:    []string{"9", "1024", ""},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := first(t)
			tc.between(p)
			second := applied(t, &cfg, p)
			got := testkit.View(t, second)
			if diff := cmp.Diff(tc.want, sizing(got)); diff != "" {
				t.Errorf("sizing (-want +got):\n%s", diff)
			}
			expectStripped(t, got)
			third, _ := convert(t, &cfg, got)
			if patch := podpatch.Diff(got, third); len(patch) != 0 {
				t.Errorf("a third pass changes %v", patch)
			}
		})
	}
}

// applied converts a whole pod.
func applied(t *testing.T, cfg *peerpod.Config, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	view, _ := convert(t, cfg, testkit.View(t, p))
	out := p.DeepCopy()
	out.Annotations = view.Metadata.Annotations
	out.Labels = view.Metadata.Labels
	out.Spec.Resources = nil
	for _, pair := range []struct {
		to   []corev1.Container
		from []podpatch.Container
	}{{out.Spec.InitContainers, view.Spec.InitContainers}, {out.Spec.Containers, view.Spec.Containers}} {
		for i := range pair.to {
			pair.to[i].Resources.Requests, pair.to[i].Resources.Limits = typed(t, pair.from[i].Resources.Requests), typed(t, pair.from[i].Resources.Limits)
		}
	}
	return out
}

func typed(t *testing.T, list podpatch.ResourceList) corev1.ResourceList {
	t.Helper()
	if list == nil {
		return nil
	}
	out := corev1.ResourceList{}
	for name, q := range list {
		v, err := q.Parse()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = v
	}
	return out
}

func TestConvertRefusesWhatIsNoQuantity(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	for _, limits := range []string{`{"cpu":"1e999999999"}`, `{"memory":"lots"}`, `{"nvidia.com/gpu":""}`} {
		p, err := podpatch.Decode([]byte(`{"spec":{"containers":[{"name":"a","resources":{"limits":` + limits + `}}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = cfg.Convert(p, nil, "", nil)
		if err == nil || !strings.Contains(err.Error(), `container "a": limits: `) {
			t.Errorf("limits %s: the error is %v, want it to name the container and the field", limits, err)
		}
	}
}

func TestConvertDoesNotModifyItsInput(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	in := pod().Container("a", "cpu=1", "cpu=1").Annotation("a", "b").PodResources("cpu=1", "").View(t)
	want := in.Clone()
	convert(t, &cfg, in)
	if patch := podpatch.Diff(want, in); len(patch) != 0 {
		t.Errorf("the input changed: %v", patch)
	}
}

// In effective sizing, a pod whose containers set requests only is as large as the
// scheduler counts it.
func TestEffectiveEqualsScheduler(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	cfg.Sizing = peerpod.SizingEffective
	rapid.Check(t, func(t *rapid.T) {
		b := pod()
		amount := func(label string) string {
			return fmt.Sprintf("cpu=%dm,memory=%dMi", rapid.IntRange(0, 4000).Draw(t, label+" cpu"), rapid.IntRange(0, 4000).Draw(t, label+" memory"))
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "init containers") {
			if rapid.Bool().Draw(t, "sidecar") {
				b.Sidecar(fmt.Sprintf("i%d", i), amount("sidecar"), "")
			} else {
				b.InitContainer(fmt.Sprintf("i%d", i), amount("init"), "")
			}
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
			b.Container(fmt.Sprintf("c%d", i), amount("container"), "")
		}
		want := resource.PodRequests(b.Obj(), resource.PodResourcesOptions{})
		data, err := json.Marshal(b.Obj())
		if err != nil {
			t.Fatal(err)
		}
		view, err := podpatch.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := convert(t, &cfg, view)
		wantSizing := []string{notZero((want.Cpu().MilliValue() + 999) / 1000), notZero(want.Memory().Value() >> 20)}
		if diff := cmp.Diff(wantSizing, sizing(got)[:2]); diff != "" {
			t.Fatalf("sizing (-scheduler +ours):\n%s", diff)
		}
	})
}

func notZero(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// FuzzConvert feeds pods and records that nobody would write.
func FuzzConvert(f *testing.F) {
	f.Add("1", "2Gi", `{"containers":{"a":{"limits":{"cpu":"1"}}}}`, "3")
	f.Add("-1", "1e99", `{"containers":{"a":null},"pod":{},"kept":["x"]}`, "")
	f.Add("9223372036854775807", "0.0000000001", `[]`, "-1")
	f.Fuzz(func(t *testing.T, cpu, memory, record, annotation string) {
		data, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{
				stowage.OriginalResourcesAnnotation: record, stowage.DefaultVCPUsAnnotation: annotation,
			}},
			"spec": map[string]any{"containers": []any{
				map[string]any{"name": "a", "resources": map[string]any{"limits": map[string]string{"cpu": cpu, "memory": memory, "nvidia.com/gpu": cpu}}},
				map[string]any{"name": "b"},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := podpatch.Decode(data)
		if err != nil {
			return // not a pod
		}
		for _, mode := range []peerpod.Sizing{peerpod.SizingSum, peerpod.SizingEffective} {
			cfg := peerpod.DefaultConfig()
			cfg.Sizing = mode
			got, _, err := cfg.Convert(p, nil, "", nil)
			if err != nil {
				return // it is no quantity, and the pod passes as it is
			}
			for _, v := range sizing(got)[1:] {
				if strings.HasPrefix(v, "-") {
					t.Errorf("a negative size: %v", sizing(got))
				}
			}
			again, _ := convert(t, &cfg, got)
			if patch := podpatch.Diff(got, again); len(patch) != 0 {
				t.Errorf("a second pass changes %v", patch)
			}
		}
	})
}

// A pod whose template was copied from a running pod gets the size that its own containers ask for.
func TestConvertCopiedRecord(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	running, _ := convert(t, &cfg, pod().Container("a", "", "cpu=16,memory=64Gi").View(t))
	copied := running.Metadata.Annotations[stowage.OriginalResourcesAnnotation]
	for round := range 3 { // the copy may be of a pod that had a copy itself
		fresh := pod().Container("a", "", "cpu=2").View(t)
		for key, value := range running.Metadata.Annotations {
			fresh.SetAnnotation(key, value)
		}
		got, warnings, err := cfg.Convert(fresh, nil, copied, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"2", "", ""}; !slices.Equal(sizing(got), want) {
			t.Errorf("round %d: the size is %v, want %v", round, sizing(got), want)
		}
		if len(warnings) != 1 || !strings.Contains(warnings[0], "a copy of another pod's") {
			t.Errorf("round %d: warnings %q", round, warnings)
		}
		again, warnings, err := cfg.Convert(got, nil, copied, nil)
		if err != nil || len(warnings) > 0 || len(podpatch.Diff(got, again)) > 0 {
			t.Errorf("round %d: a second pass: %v, warnings %q, changes %v", round, err, warnings, podpatch.Diff(got, again))
		}
		running, copied = got, got.Metadata.Annotations[stowage.OriginalResourcesAnnotation]
	}
}

// The other pod had a container that this one does not have.
func TestConvertCopiedRecordOfOtherContainers(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	running, _ := convert(t, &cfg, pod().Container("a", "", "cpu=4").Container("injected", "", "cpu=1").Annotation(stowage.DefaultMemoryAnnotation, "512").View(t))
	fresh := pod().Container("a", "", "cpu=2").View(t)
	for key, value := range running.Metadata.Annotations {
		fresh.SetAnnotation(key, value)
	}
	got, _, err := cfg.Convert(fresh, nil, running.Metadata.Annotations[stowage.OriginalResourcesAnnotation], nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"2", "512", ""}; !slices.Equal(sizing(got), want) { // a user wrote the memory
		t.Errorf("the size is %v, want %v", sizing(got), want)
	}
}

// The API server refuses negative entries; it must see them.
func TestConvertNegative(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	for _, entry := range []string{"cpu=-1", "ephemeral-storage=-1Gi"} {
		if _, _, err := cfg.Convert(pod().Container("a", entry, "").View(t), nil, "", nil); err == nil || !strings.Contains(err.Error(), `container "a": requests:`) {
			t.Errorf("%s: the error is %v", entry, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	if errs := cfg.Validate(); len(errs) > 0 {
		t.Errorf("the defaults are refused: %v", errs)
	}
	bad := peerpod.Config{
		RuntimeClasses: []string{"Kata"}, VMResource: "cpu", GPUResources: []string{"gpu", "nvidia.com/*"}, Sizing: "Guess",
	}
	text := fmt.Sprint(bad.Validate())
	for _, part := range []string{`RuntimeClass "Kata"`, `VM resource: "cpu"`, `GPU resource "gpu"`, `sizing "Guess"`} {
		if !strings.Contains(text, part) {
			t.Errorf("the errors are %v, want one to name %s", text, part)
		}
	}
	clash := peerpod.DefaultConfig()
	clash.GPUResources = []string{"kata.peerpods.io/*"}
	if len(clash.Validate()) == 0 {
		t.Error("a VM resource that is also a GPU is accepted")
	}
}

// chooser chooses one type for each pod.
type chooser struct{ only *catalog.Type }

func (c chooser) Choose(*catalog.Need) (*catalog.Type, []string) { return c.only, nil }
func (c chooser) Type(string) *catalog.Type                      { return c.only }
func (chooser) Closed(string, *catalog.Need) bool                { return false }
func (chooser) Check(string, *catalog.Need) []string             { return nil }
