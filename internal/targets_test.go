package internal_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// What tests build while they run is compiled before they run.
func TestTargetsBuildFirst(t *testing.T) {
	const program, image = "./cmd/stowage", "cd hack/release && go build"
	for target, first := range map[string][]string{
		"test-cluster": {program, image}, "test-node": {program, image}, "test-karpenter": {program}, "test-shortages": {program},
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
