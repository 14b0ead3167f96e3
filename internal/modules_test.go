package internal_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// CI builds several modules that share most of their libraries. The build cache serves all of them only if they have the
// same versions. Karpenter is left out: it cannot be built with newer libraries of Kubernetes. CI does not build peers, which have
// the versions of their releases.
func TestModulesShareVersions(t *testing.T) {
	files, err := filepath.Glob("../hack/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../go.mod", "../hack/controlplane/kubernetes/go.mod", "../hack/controlplane/kwok/go.mod")
	type use struct{ file, version string }
	first := map[string]use{}
	for _, file := range files {
		if strings.Contains(file, "/karpenter/") || strings.Contains(file, "/peers/") {
			continue
		}
		for path, version := range required(t, file) {
			switch other, ok := first[path]; {
			case !ok:
				first[path] = use{file, version}
			case other.version != version:
				t.Errorf("%s requires %s %s, and %s requires %s: run `go get %s@VERSION` and `go mod tidy` with the newer one in both",
					file, path, version, other.file, other.version, path)
			}
		}
	}
	if _, ok := first["k8s.io/apimachinery"]; !ok {
		t.Error("no module requires k8s.io/apimachinery: the test looks in the wrong place")
	}
}

// required returns the versions that a go.mod requires, after its replacements.
func required(t *testing.T, file string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	type version struct{ Path, Version string }
	var mod struct {
		Require []version
		Replace []struct{ Old, New version }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	for _, r := range mod.Replace {
		if _, ok := versions[r.Old.Path]; ok && r.New.Version != "" {
			versions[r.Old.Path] = r.New.Version
		}
	}
	return versions
}

// One release of Go builds all modules, here, in CI, which reads it from go.mod, and in the image that Docker builds. Karpenter is left out: it
// needs a newer one, which hack/make/test.mk has the go command download.
func TestModulesShareToolchain(t *testing.T) {
	files := []string{"../go.mod"}
	for _, pattern := range []string{"../hack/*/go.mod", "../hack/*/*/go.mod", "../hack/*/*/*/go.mod"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 14 {
		t.Errorf("only %d modules were found", len(files))
	}
	line, first := regexp.MustCompile(`(?m)^toolchain go(\S+)$`), ""
	for _, file := range files {
		if strings.Contains(file, "/karpenter/") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := line.FindSubmatch(text)
		if m == nil {
			t.Errorf("%s names no toolchain", file)
			continue
		}
		if first == "" {
			first = string(m[1])
		}
		if got := string(m[1]); got != first {
			t.Errorf("%s has toolchain go%s, and another module go%s", file, got, first)
		}
	}
	dockerfile, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(dockerfile), " golang:"+first+" AS build\n") {
		t.Errorf("the Dockerfile does not build with Go %s", first)
	}
}
