package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testFile = `apiVersion: cli.stowage.dev/v1alpha1
kind: PolicyTest
files: [web.json]
cases:
- name: as many as there are
  expect:
    workloads: [{workload: Deployment default/web, pods: 2}]
- name: ten
  replicas: 10
  expect:
    workloads: [{workload: Deployment default/web, pods: 9}]
- name: wrong input
  files: [nowhere.yaml]
  expect: {error: "nowhere.yaml: no such file"}
- name: golden
  flags: [--namespace=mine]
`

func TestTest(t *testing.T) {
	const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"c"}]}}}}`
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a/web.json", deployment)
	file := write("a/my-stowage-test.yaml", testFile)
	badFlag := write("bad/flag.yaml", strings.Replace(testFile, "--namespace=mine", "--frobnicate", 1))
	badReplicas := write("bad/replicas.yaml", strings.Replace(testFile, "replicas: 10", "replicas: -1", 1))
	badFile := write("bad/kind.yaml", "kind: Pod")
	empty := t.TempDir()
	report := filepath.Join(dir, "report.xml")

	// check runs the command, and returns what it printed.
	check := func(name string, code int, args []string, parts ...string) {
		t.Helper()
		got, shown := run(t, "", map[string]string{"STOWAGE_SPREAD": "bogus"}, append([]string{"test"}, args...)...)
		if got != code {
			t.Errorf("%s: exit status %d, want %d", name, got, code)
		}
		for _, part := range parts {
			if !strings.Contains(shown, part) {
				t.Errorf("%s: %q is missing in\n%s", name, part, shown)
			}
		}
	}
	check("no argument", 2, nil, "name a test file or a directory")
	check("nothing there", 1, []string{empty}, "there is no file whose name ends with stowage-test.yaml")
	check("a missing file", 1, []string{filepath.Join(dir, "nowhere")}, "no such file")
	check("a bad flag", 1, []string{badFlag}, badFlag, `case "golden"`, "unknown flag: --frobnicate")
	check("a bad count", 1, []string{badReplicas}, `case "ten"`, "--replicas is -1")
	check("no test file", 1, []string{badFile}, badFile, "expected apiVersion")
	check("failures", 3, []string{dir, "--junit", report},
		"ok       "+file+": as many as there are\n", "FAILED   "+file+": ten\n", "- Deployment default/web: pods = 9\n", "+ Deployment default/web: pods = 10\n",
		"ok       "+file+": wrong input\n", "FAILED   "+file+": golden\n", "Cases: 4 (2 ok, 0 updated, 2 failed).")
	if data := read(t, report); strings.Count(data, "<failure") != 2 || strings.Count(data, "<testcase") != 4 {
		t.Errorf("the report is\n%s", data)
	}
	check("quiet", 3, []string{"-q", file}, "FAILED ")
	if _, shown := run(t, "", nil, "test", "-q", file); strings.Contains(shown, "ok       ") {
		t.Errorf("-q prints cases that passed:\n%s", shown)
	}
	check("update", 0, []string{file, "--update"}, "updated  "+file+": ten\n", "Cases: 4 (2 ok, 2 updated, 0 failed).")
	moved := write("wrong/stowage-test.yml", strings.Replace(testFile, "web.json", "gone.json", 1))
	check("an update of wrong manifests", 3, []string{filepath.Dir(moved), "--update"}, "not updated: the manifests are wrong", "3 failed")
	if got := read(t, moved); got != strings.Replace(testFile, "web.json", "gone.json", 1) {
		t.Errorf("a mistake became the expectation:\n%s", got)
	}
	check("updated", 0, []string{file}, "Cases: 4 (4 ok, 0 updated, 0 failed).")
}

// The samples, and the examples of the documents, are decided as their test files expect.
func TestSamples(t *testing.T) {
	code, shown := run(t, "", nil, "test", "../../config/samples", "../../docs")
	if code != 0 {
		t.Error(shown)
	}
}
