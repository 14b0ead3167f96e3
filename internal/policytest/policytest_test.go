package policytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/preview"
)

const web = "Deployment default/web"

func decided() Expect {
	return Expect{
		Workloads: []Workload{
			{
				Workload: web, Pods: new(10), Decisions: map[string]int{"spread": 10}, Pools: map[string]int{"a": 8, "b": 2},
				Sizes: map[string]corev1.ResourceList{"n1": {corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("2")}},
				VMs:   []VMs{{Count: 3, VM: preview.VM{VCPUs: "1", Memory: "2048"}}},
			},
			{Workload: "Deployment default/other", Pods: new(1)},
		},
		Warnings: []string{"Deployment default/web: RuntimeClass kata is not in the input"},
	}
}

func TestCompare(t *testing.T) {
	const warning = "is not in the input"
	cases := map[string]struct {
		expected Expect
		want     []string
	}{
		"a field":     {Expect{Workloads: []Workload{{Workload: web, Pods: new(10)}}, Warnings: []string{warning}}, nil},
		"a field off": {Expect{Workloads: []Workload{{Workload: web, Pods: new(9)}}, Warnings: []string{warning}}, []string{"- " + web + ": pods = 9", "+ " + web + ": pods = 10"}},
		"pools": {
			Expect{Workloads: []Workload{{Workload: web, Pools: map[string]int{"a": 8, "c": 2}}}, Warnings: []string{warning}},
			[]string{"+ " + web + ": pods of pool b = 2", "- " + web + ": pods of pool c = 2"},
		},
		"a pool with none": {Expect{Workloads: []Workload{{Workload: web, Pools: map[string]int{"a": 8, "b": 2, "c": 0}}}, Warnings: []string{warning}}, nil},
		"no pools at all":  {Expect{Workloads: []Workload{{Workload: "Deployment default/other", Pools: map[string]int{}}}, Warnings: []string{warning}}, nil},
		"decisions": {
			Expect{Workloads: []Workload{{Workload: web, Decisions: map[string]int{"unchanged": 10}}}, Warnings: []string{warning}},
			[]string{"+ " + web + ": pods of decision spread = 10", "- " + web + ": pods of decision unchanged = 10"},
		},
		"a size, written in another way": {
			Expect{Workloads: []Workload{{Workload: web, Sizes: map[string]corev1.ResourceList{
				"n1": {corev1.ResourceMemory: resource.MustParse("1073741824"), corev1.ResourceCPU: resource.MustParse("2000m")},
			}}}, Warnings: []string{warning}},
			nil,
		},
		"another size": {
			Expect{Workloads: []Workload{{Workload: web, Sizes: map[string]corev1.ResourceList{
				"n1": {corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourceCPU: resource.MustParse("2")},
			}}}, Warnings: []string{warning}},
			[]string{"- " + web + ": memory on node n1 = 2Gi", "+ " + web + ": memory on node n1 = 1Gi"},
		},
		"VMs": {
			Expect{Workloads: []Workload{{Workload: web, VMs: []VMs{{Count: 2, VM: preview.VM{VCPUs: "1", Memory: "2048"}}}}}, Warnings: []string{warning}},
			[]string{"- " + web + ": VMs of 1 vCPUs, 2048 MiB = 2", "+ " + web + ": VMs of 1 vCPUs, 2048 MiB = 3"},
		},
		"a workload that is not there": {
			Expect{Workloads: []Workload{{Workload: "Pod default/p", Pods: new(1)}}, Warnings: []string{warning}},
			[]string{"- Pod default/p", "- Pod default/p: pods = 1"},
		},
		"a warning that nobody expects": {
			Expect{Workloads: []Workload{{Workload: web, Pods: new(10)}}},
			[]string{"+ warning: Deployment default/web: RuntimeClass kata is not in the input"},
		},
		"a warning that does not come": {
			Expect{Workloads: []Workload{{Workload: web, Pods: new(10)}}, Warnings: []string{warning, "too many"}},
			[]string{"- warning: too many"},
		},
		"an error that does not come": {Expect{Error: "no such file", Warnings: []string{warning}}, []string{"- error: no such file"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, renewed := Compare(tc.expected, decided())
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if again, _ := Compare(renewed, decided()); len(again) > 0 {
				t.Errorf("what is to be written differs from what was decided: %v", again)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		got, renewed := Compare(Expect{}, decided())
		if len(got) < 8 {
			t.Errorf("a case that expects nothing must differ from everything that was decided: %v", got)
		}
		if diff := cmp.Diff(decided(), renewed); diff != "" {
			t.Errorf("renewed (-want +got):\n%s", diff)
		}
	})
}

func TestReadRefuses(t *testing.T) {
	head := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"
	for name, tc := range map[string]struct{ text, want string }{
		"no kind":             {"cases: []", "expected apiVersion"},
		"no case":             {head, "cases: there is none"},
		"an unknown field":    {head + "case: []", `unknown field "case"`},
		"no name":             {head + "cases: [{files: [a]}]", "cases[0].name: it is required"},
		"one name twice":      {head + "cases: [{name: a, files: [a]}, {name: a, files: [a]}]", `cases[1].name: "a" is the name of another case`},
		"no files":            {head + "cases: [{name: a}]", "cases[0].files: it is required"},
		"standard input":      {head + "files: ['-']\ncases: [{name: a}]", "standard input"},
		"a workload twice":    {head + "cases: [{name: a, files: [a], expect: {workloads: [{workload: w}, {workload: w}]}}]", `"w" must be named, and once`},
		"error and workloads": {head + "cases: [{name: a, files: [a], expect: {error: e, workloads: [{workload: w}]}}]", "exclude each other"},
		"a bad quantity":      {head + "cases: [{name: a, files: [a], expect: {workloads: [{workload: w, sizes: {n: {cpu: lots}}}]}}]", "quantities must match"},
		"no YAML":             {"\t", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), Suffix)
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %q and the path", err, tc.want)
			}
		})
	}
}

// An update changes what is expected, and nothing else.
func TestUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), Suffix)
	const before = `# A comment.
apiVersion: cli.stowage.dev/v1alpha1
kind: PolicyTest
files: [web.yaml] # another
cases:
  - name: first
    replicas: 10
    expect:
      warnings: [old]
  - name: second # kept
    expect: {}
  - name: third
`
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Update(path, map[string]Expect{"first": {Error: "e"}, "third": decided()}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"# A comment.", "# another", "second # kept", "replicas: 10"} {
		if !strings.Contains(string(got), part) {
			t.Errorf("%q is lost in\n%s", part, got)
		}
	}
	f, err := Read(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if f.Cases[0].Expect.Error != "e" || len(f.Cases[0].Expect.Warnings) > 0 {
		t.Errorf("the first case expects %+v", f.Cases[0].Expect)
	}
	if differences, _ := Compare(f.Cases[2].Expect, decided()); len(differences) > 0 {
		t.Errorf("the third case differs from what was written: %v", differences)
	}
}

func TestWriteJUnit(t *testing.T) {
	var out strings.Builder
	if err := WriteJUnit(&out, []Result{
		{File: "a", Case: "one", Took: time.Second},
		{File: "a", Case: "two <&>", Differences: []string{"- x", "+ y"}},
		{File: "b", Case: "one"},
	}); err != nil {
		t.Fatal(err)
	}
	const want = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" failures="1">
  <testsuite name="a" tests="2" failures="1">
    <testcase classname="a" name="one" time="1"></testcase>
    <testcase classname="a" name="two &lt;&amp;&gt;" time="0">
      <failure message="the decisions are not the expected ones">- x&#xA;+ y</failure>
    </testcase>
  </testsuite>
  <testsuite name="b" tests="1" failures="0">
    <testcase classname="b" name="one" time="0"></testcase>
  </testsuite>
</testsuites>
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
