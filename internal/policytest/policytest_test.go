package policytest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

const (
	web   = "Deployment default/web"
	other = "Deployment default/other"
)

func decided() Expect {
	return Expect{
		Workloads: []Workload{
			{
				Workload: web, Pods: new(10), Decisions: map[string]int{"spread": 10}, Pools: map[string]int{"a": 8, "b": 2},
				Sizes: map[string]map[corev1.ResourceName]Quantity{"n1": {"memory": "1Gi", "cpu": "2"}},
				VMs:   []VMs{{Count: 3, VM: preview.VM{VCPUs: "1", Memory: "2048"}}},
			},
			{Workload: other, Pods: new(0), Decisions: map[string]int{}, Pools: map[string]int{}, Sizes: map[string]map[corev1.ResourceName]Quantity{}, VMs: []VMs{}},
		},
		Warnings: []string{"Deployment default/web: RuntimeClass kata is not in the input"},
	}
}

func TestCompare(t *testing.T) {
	const warning = "is not in the input"
	expect := func(w Workload) Expect { return Expect{Workloads: []Workload{w}, Warnings: []string{warning}} }
	sizes := func(cpu, memory Quantity) map[string]map[corev1.ResourceName]Quantity {
		return map[string]map[corev1.ResourceName]Quantity{"n1": {"memory": memory, "cpu": cpu}}
	}
	everything := decided()
	everything.Workloads[1] = Workload{Workload: other, Pods: new(0)} // without its empty fields
	cases := map[string]struct {
		expected Expect
		want     []string
		renewed  Expect // what --update writes
		refused  string // why --update writes nothing
	}{
		"a field":     {expected: expect(Workload{Workload: web, Pods: new(10)}), renewed: expect(Workload{Workload: web, Pods: new(10)})},
		"a field off": {expect(Workload{Workload: web, Pods: new(9)}), []string{"- " + web + ": pods = 9", "+ " + web + ": pods = 10"}, expect(Workload{Workload: web, Pods: new(10)}), ""},
		"pools": {
			expect(Workload{Workload: web, Pools: map[string]int{"a": 8, "c": 2}}),
			[]string{"+ " + web + ": pods of pool b = 2", "- " + web + ": pods of pool c = 2"},
			expect(Workload{Workload: web, Pools: map[string]int{"a": 8, "b": 2}}), "",
		},
		"a pool with none": {expected: expect(Workload{Workload: web, Pools: map[string]int{"a": 8, "b": 2, "c": 0}}), renewed: expect(Workload{Workload: web, Pools: map[string]int{"a": 8, "b": 2}})},
		"no pools at all":  {expected: expect(Workload{Workload: other, Pools: map[string]int{}}), renewed: expect(Workload{Workload: other, Pools: map[string]int{}})},
		"pools that are gone": {
			expect(Workload{Workload: other, Pools: map[string]int{"a": 1}, VMs: []VMs{{Count: 1}}}),
			[]string{"- " + other + ": VMs of  vCPUs,  MiB = 1", "- " + other + ": pods of pool a = 1"},
			expect(Workload{Workload: other, Pools: map[string]int{}, VMs: []VMs{}}), "",
		},
		"no pods": {expected: expect(Workload{Workload: other, Pods: new(0)}), renewed: expect(Workload{Workload: other, Pods: new(0)})},
		"decisions": {
			expect(Workload{Workload: web, Decisions: map[string]int{"unchanged": 10}}),
			[]string{"+ " + web + ": pods of decision spread = 10", "- " + web + ": pods of decision unchanged = 10"},
			expect(Workload{Workload: web, Decisions: map[string]int{"spread": 10}}), "",
		},
		"a size, written in another way": {
			expected: expect(Workload{Workload: web, Sizes: sizes("2000m", "1073741824")}), renewed: expect(Workload{Workload: web, Sizes: sizes("2", "1Gi")}),
		},
		"another size": {
			expect(Workload{Workload: web, Sizes: sizes("2", "2Gi")}),
			[]string{"- " + web + ": memory on node n1 = 2Gi", "+ " + web + ": memory on node n1 = 1Gi"},
			expect(Workload{Workload: web, Sizes: sizes("2", "1Gi")}), "",
		},
		"VMs": {
			expect(Workload{Workload: web, VMs: []VMs{{Count: 2, VM: preview.VM{VCPUs: "1", Memory: "2048"}}}}),
			[]string{"- " + web + ": VMs of 1 vCPUs, 2048 MiB = 2", "+ " + web + ": VMs of 1 vCPUs, 2048 MiB = 3"},
			expect(Workload{Workload: web, VMs: []VMs{{Count: 3, VM: preview.VM{VCPUs: "1", Memory: "2048"}}}}), "",
		},
		"VMs of another type": {
			expect(Workload{Workload: web, VMs: []VMs{{Count: 3, VM: preview.VM{VCPUs: "1", Memory: "2048", Type: "small", PricePerHour: catalog.Price{Known: true, Micros: 96000}}}}}),
			[]string{"+ " + web + ": VMs of 1 vCPUs, 2048 MiB = 3", "- " + web + ": VMs of 1 vCPUs, 2048 MiB, type small, at 0.096 an hour = 3"},
			expect(Workload{Workload: web, VMs: []VMs{{Count: 3, VM: preview.VM{VCPUs: "1", Memory: "2048"}}}}), "",
		},
		"a workload that is not there": {
			expect(Workload{Workload: "Pod default/p", Pods: new(1)}),
			[]string{"- Pod default/p", "- Pod default/p: pods = 1"}, Expect{}, "the manifests have no Pod default/p",
		},
		"a warning that nobody expects": {
			Expect{Workloads: []Workload{{Workload: web, Pods: new(10)}}},
			[]string{"+ warning: Deployment default/web: RuntimeClass kata is not in the input"},
			Expect{Workloads: []Workload{{Workload: web, Pods: new(10)}}, Warnings: decided().Warnings}, "",
		},
		"a warning that does not come": {
			Expect{Warnings: []string{warning, "too many"}}, []string{"- warning: too many"}, Expect{Warnings: []string{warning}}, "",
		},
		"two parts of one warning": {expected: Expect{Warnings: []string{warning, "kata"}}, renewed: Expect{Warnings: []string{warning, "kata"}}},
		"an error that does not come": {
			Expect{Error: "no such file"},
			[]string{"- error: no such file", "+ warning: Deployment default/web: RuntimeClass kata is not in the input"}, everything, "",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Compare(tc.expected, decided())); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			renewed, err := Renew(tc.expected, decided())
			if (err != nil || tc.refused != "") && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("error %v, want %q", err, tc.refused)
			}
			if diff := cmp.Diff(tc.renewed, renewed); diff != "" {
				t.Errorf("renewed (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		if got := Compare(Expect{}, decided()); len(got) < 8 {
			t.Errorf("a case that expects nothing must differ from everything that was decided: %v", got)
		}
		renewed, err := Renew(Expect{}, decided())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(everything, renewed); diff != "" {
			t.Errorf("renewed (-want +got):\n%s", diff)
		}
	})
	t.Run("wrong manifests", func(t *testing.T) {
		wrong := Expect{Error: "x.yaml: no such file"}
		if _, err := Renew(expect(Workload{Workload: web}), wrong); err == nil {
			t.Error("wrong manifests became the expectation")
		}
		if diff := Compare(Expect{Error: "no such"}, wrong); len(diff) > 0 {
			t.Errorf("an expected error differs: %v", diff)
		}
	})
}

// Texts have the paths of a test file as the file writes them, wherever the file is.
func TestDecidedPaths(t *testing.T) {
	written := map[string]string{"/a/deploy": ".", "/a/deploy/sub": "sub", "/a/nodes.yaml": "../nodes.yaml"}
	got := Decided(nil, nil, []string{"/a/deploy/sub/x.yaml: document 1", "/a/deploy/y.yaml: and /a/nodes.yaml"}, nil, "", written)
	if diff := cmp.Diff([]string{"sub/x.yaml: document 1", "./y.yaml: and ../nodes.yaml"}, got.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if got := Decided(nil, nil, nil, errors.New("open /a/nodes.yaml: no such file"), "", written); got.Error != "open ../nodes.yaml: no such file" {
		t.Errorf("error %q", got.Error)
	}
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
		"two documents":       {head + "cases: [{name: a, files: [a]}]\n---\n" + head, "expected one YAML document"},
		"error and warnings":  {head + "cases: [{name: a, files: [a], expect: {error: e, warnings: [w]}}]", "error excludes"},
		"error and workloads": {head + "cases: [{name: a, files: [a], expect: {error: e, workloads: [{workload: w}]}}]", "error excludes"},
		"a bad quantity":      {head + "cases: [{name: a, files: [a], expect: {workloads: [{workload: w, sizes: {n: {cpu: lots}}}]}}]", "lots"},
		"a huge quantity":     {head + "cases: [{name: a, files: [a], expect: {workloads: [{workload: w, sizes: {n: {cpu: 1e999999999}}}]}}]", "1e999999999"},
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
	if err := Update(path, map[int]Expect{0: {Error: "e"}, 2: decided()}); err != nil {
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
	if diff := cmp.Diff(decided(), f.Cases[2].Expect); diff != "" {
		t.Errorf("the third case (-written +read):\n%s", diff)
	}
}

// A file is not updated where that would change more than the case, or leave a wrong file.
func TestUpdateRefuses(t *testing.T) {
	head := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"
	for name, tc := range map[string]struct {
		text   string
		expect Expect
		want   string
	}{
		"an alias":     {head + "files: &all [a]\ncases: [{name: a, files: *all, expect: {}}]\n", Expect{Error: "e"}, "anchors"},
		"a merge key":  {head + "cases:\n- name: a\n  files: [a]\n  expect: {<<: {error: e}}\n", Expect{Error: "f"}, "merge keys"},
		"a wrong file": {head + "cases: [{name: a, files: [a]}]\n", Expect{Error: "e", Warnings: []string{"w"}}, "would be wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), Suffix)
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Update(path, map[int]Expect{0: tc.expect}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != tc.text {
				t.Errorf("the file is now %q (%v)", got, err)
			}
		})
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
