package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each object is installed after what it needs, and the registrations are the last to come and the first to go.
func TestManifests(t *testing.T) {
	dir := t.TempDir()
	must(t, writeManifests(options{root: "../..", version: "v1.2.3", dir: dir}, dir, "r.example/stowage:1.2.3"))
	install, err := os.ReadFile(filepath.Join(dir, installFile))
	must(t, err)
	uninstall, err := os.ReadFile(filepath.Join(dir, uninstallFile))
	must(t, err)

	kindsOf := func(file []byte) []string {
		var kinds []string
		for _, m := range regexp.MustCompile(`(?m)^kind: (\S+)$`).FindAllSubmatch(file, -1) {
			kinds = append(kinds, string(m[1]))
		}
		return kinds
	}
	kinds := kindsOf(install)
	order := []string{"Namespace", "CustomResourceDefinition", "ValidatingAdmissionPolicyBinding", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Service", "Deployment", "MutatingWebhookConfiguration"}
	for i, kind := range order[1:] {
		if before := order[i]; slices.Index(kinds, kind) < lastIndex(kinds, before) || !slices.Contains(kinds, before) {
			t.Errorf("%s comes before %s: %v", kind, before, kinds)
		}
	}
	removed := kindsOf(uninstall)
	if !strings.HasSuffix(removed[0], "WebhookConfiguration") || !strings.HasSuffix(removed[1], "WebhookConfiguration") {
		t.Errorf("first, these are deleted: %v", removed[:2])
	}
	want := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return kind == "CustomResourceDefinition" || kind == "Namespace" })
	slices.Reverse(want)
	if !slices.Equal(removed, want) {
		t.Errorf("these are deleted: %v, want %v", removed, want)
	}
	deployments := strings.Count(string(install), "kind: Deployment\n")
	for text, want := range map[string]int{"image: r.example/stowage:1.2.3\n": deployments, "/v1.2.3/install.yaml": 1} {
		if is := strings.Count(string(install), text); is != want {
			t.Errorf("%q is there %d times, want %d", text, is, want)
		}
	}
}

func lastIndex(list []string, of string) int {
	for i, s := range slices.Backward(list) {
		if s == of {
			return i
		}
	}
	return -1
}
