package internal_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What tests build while they run is compiled before they run.
func TestTargetsBuildFirst(t *testing.T) {
	const program, image = "./cmd/stowage", "cd hack/release && go build"
	for target, first := range map[string][]string{
		"test-one": {program, image}, "test-node": {program, image}, "test-karpenter": {program}, "test-shortages": {program},
	} {
		cmd := exec.Command("make", "--no-print-directory", "--dry-run", target)
		cmd.Dir = ".."
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		before, _, found := strings.Cut(string(out), "go test")
		for _, command := range first {
			if !found || !strings.Contains(before, command) {
				t.Errorf("make %s does not run %q before its tests", target, command)
			}
		}
	}
}

// No release is built of code with known vulnerabilities.
func TestReleaseChecksVulnerabilities(t *testing.T) {
	text, err := os.ReadFile("../hack/make/image.mk")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^release-dry-run:[^#\n]*\bvulncheck\b`).Match(text) {
		t.Error("make release-dry-run does not run vulncheck")
	}
}

// Long suites take turns by the number of commits. One that cannot run gives its turn to the next, and one that fails runs once more.
func TestLongSuitesTakeTurns(t *testing.T) {
	script, err := os.ReadFile("../hack/turn.sh")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)suites=\((.*?)\n\)`).FindSubmatch(script)
	if list == nil {
		t.Fatal("hack/turn.sh has no list of suites")
	}
	targets := regexp.MustCompile(`"[^"]+"|\S+`).FindAllString(string(list[1]), -1)
	makefiles, err := exec.Command("sh", "-c", "cat ../Makefile ../hack/make/*.mk").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		name := strings.Fields(strings.Trim(target, `"`))[0]
		if !strings.Contains(string(makefiles), "\n"+name+":") {
			t.Errorf("hack/turn.sh has %s, which is no target", name)
		}
	}

	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("hack/turn.sh", string(script))
	for _, version := range []string{"v1.30.1", "v1.33.2"} {
		write("hack/controlplane/versions/"+version+"/go.mod", "")
	}
	write("programs/git", "#!/bin/sh\ncase \"$*\" in *--count*) echo $COMMITS;; *shallow*) echo ${SHALLOW:-false};; *) echo 120;; esac\n")
	// The first lines of a file say what each call of make does.
	write("programs/make", "#!/bin/sh\necho \"$*\" >> calls\ndoes=$(head -n 1 does); sed -i 1d does\ncase \"$does\" in passes) echo '--- PASS: T';; lacks) echo 'NOT RUN: no room';; *) echo '--- FAIL: T'; exit 1;; esac\n")
	turn := func(commits int, does ...string) (calls []string, out string, ok bool) {
		t.Helper()
		write("does", strings.Join(does, "\n")+"\n")
		write("calls", "")
		cmd := exec.Command(filepath.Join(root, "hack/turn.sh"))
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "programs")+":"+os.Getenv("PATH"), fmt.Sprint("COMMITS=", commits))
		text, err := cmd.CombinedOutput()
		called, _ := os.ReadFile(filepath.Join(root, "calls"))
		for line := range strings.Lines(string(called)) {
			calls = append(calls, strings.TrimSpace(strings.TrimPrefix(line, "--no-print-directory")))
		}
		return calls, string(text), err == nil
	}
	seen := map[string]bool{}
	for commits := range 2 * len(targets) {
		calls, out, ok := turn(commits, "passes")
		if !ok || len(calls) != 1 {
			t.Fatalf("after %d commits, %q were called:\n%s", commits, calls, out)
		}
		seen[calls[0]] = true
	}
	if len(seen) != len(targets)+1 || !seen["test-versions VERSIONS=v1.30.1"] || !seen["test-versions VERSIONS=v1.33.2"] {
		t.Errorf("two rounds of turns have %v", seen)
	}
	first, _, _ := turn(0, "passes")
	second, _, _ := turn(1, "passes")
	for name, tc := range map[string]struct {
		does []string
		want []string
		says string
		ok   bool
	}{
		"passes":          {[]string{"passes"}, first, "== make", true},
		"cannot run":      {[]string{"lacks", "passes"}, append(slices.Clone(first), second...), "NOT RUN: no room", true},
		"fails once":      {[]string{"fails", "passes"}, append(slices.Clone(first), first...), "FLAKY: make " + first[0], true},
		"fails twice":     {[]string{"fails", "fails"}, append(slices.Clone(first), first...), "failed twice", false},
		"none of all can": {slices.Repeat([]string{"lacks"}, len(targets)), nil, "can run none", true},
	} {
		calls, out, ok := turn(0, tc.does...)
		if ok != tc.ok || !strings.Contains(out, tc.says) || tc.want != nil && !slices.Equal(calls, tc.want) {
			t.Errorf("%s: %q were called, ok %t:\n%s", name, calls, ok, out)
		}
	}
}
