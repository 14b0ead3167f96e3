package internal_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/stowage-dev/stowage/"

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list returns the packages of a pattern, without their tests.
func list(t *testing.T, patterns ...string) map[string]goPackage {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]goPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

// Decisions take plain values and return plain values: the packages that decide must not be
// able to reach a cluster.
func TestDecisionsImportNoClient(t *testing.T) {
	pure := []string{
		"world", "world/manifests", "nodeset", "podpatch", "admission/pipeline", "admission/scope", "preview", "spread/policy", "spread/admit", "size/admit", "vm/admit", "nodefit", "autoscaler/karpenter", "autoscaler/clusterautoscaler",
		"finding", "refusal", "spread/sequence", "spread/layout", "spread/observed", "spread/division", "spread/ledger", "spread/placement", "spread/repair/planner", "spread/shortage/spill",
		"size/sizing",
		"vm/peerpod", "vm/catalog",
		"scaledown/layers", "scaledown/policies", "selector",
	}
	packages := list(t, "./...")
	for _, name := range pure {
		p, ok := packages["internal/"+name]
		if !ok {
			t.Errorf("there is no package %s", name)
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "k8s.io/client-go") || strings.HasPrefix(dep, "sigs.k8s.io/controller-runtime") {
				t.Errorf("the pure package %s depends on %s", name, dep)
			}
		}
	}
}

// capabilities are the folders of what Stowage does to a pod. Each is whole, from its rule to its controllers.
var capabilities = []string{"internal/spread", "internal/size", "internal/vm", "internal/scaledown"}

// within reports whether a package is in a folder.
func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// A capability knows none of the others, and what all stand on knows no capability.
func TestCapabilitiesAreApart(t *testing.T) {
	ground := []string{"internal/platform", "internal/admission", "internal/world", "internal/autoscaler", "internal/nodefit", "internal/podpatch", "internal/podstatus", "internal/config", "internal/capability"}
	found := map[string]int{}
	for name, p := range list(t, "../internal/...") {
		for _, imported := range p.Imports {
			imported, _ = strings.CutPrefix(imported, module)
			for _, c := range capabilities {
				if !within(imported, c) {
					continue
				}
				found[c]++
				if imported == c && name != c && within(name, c) {
					t.Errorf("%s imports %s, which puts the capability together", name, imported)
				}
				for _, other := range capabilities {
					if other != c && within(name, other) {
						t.Errorf("%s imports %s, a part of another capability", name, imported)
					}
				}
				for _, g := range ground {
					if within(name, g) {
						t.Errorf("%s imports %s, a part of a capability", name, imported)
					}
				}
			}
			if within(name, "internal/platform") && strings.HasPrefix(imported, "internal/") && !within(imported, "internal/platform") {
				t.Errorf("%s imports %s; platform stands below everything", name, imported)
			}
		}
	}
	for _, c := range capabilities {
		if found[c] == 0 {
			t.Errorf("nobody imports %s: the test looks in the wrong place", c)
		}
	}
}

// With the build tag offline, the program compiles, and has no part of a client of an API server. README's first command is built so.
func TestOffline(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "offline", "-deps", "../cmd/stowage").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.SplitSeq(string(out), "\n") {
		for _, heavy := range []string{"k8s.io/client-go/kubernetes/typed/", "k8s.io/client-go/informers", "sigs.k8s.io/controller-runtime/pkg/manager"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("it depends on %s", dep)
			}
		}
	}
	if out, err := exec.Command("go", "build", "-tags", "offline", "../internal/cli").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Imports point one way: see docs/design/architecture.md.
func TestImportRules(t *testing.T) {
	packages := list(t, "../...")
	if len(packages) < 30 {
		t.Fatalf("only %d packages were found", len(packages))
	}
	// only lists who may import a package.
	only := map[string][]string{
		"internal/admission":       {"internal/server", "hack/gendocs"},
		"internal/server":          {"internal/cli", "hack/gendocs", "hack/controlplane"},
		"internal/capability":      {"internal/server", "internal/scaledown", "internal/spread", "internal/size", "internal/vm"},
		"internal/spread":          {"internal/server", "internal/cli"},
		"internal/size":            {"internal/server", "internal/cli"},
		"internal/vm":              {"internal/server", "internal/cli"},
		"internal/scaledown":       {"internal/server", "internal/cli"},
		"internal/cli":             {"cmd/stowage", "hack/gendocs", "test/suite"},
		"internal/config":          {"internal/server", "internal/cli", "internal/spread", "internal/spread/admit", "internal/size", "internal/size/admit", "internal/vm", "internal/vm/admit", "internal/scaledown", "hack/gendocs", "hack/controlplane"},
		"internal/preview":         {"internal/cli", "internal/impact", "internal/playground", "internal/policytest"},
		"internal/playground":      {"cmd/playground"},
		"internal/report":          {"internal/preview", "internal/inspect", "internal/impact", "internal/cli", "internal/playground"},
		"internal/impact":          {"internal/cli", "hack/gendocs", "test/impact", "test/karpenter"},
		"internal/policytest":      {"internal/cli", "hack/gendocs"},
		"internal/inspect":         {"internal/cli"},
		"internal/platform/leader": {"internal/server", "internal/capability", "internal/spread", "internal/spread/", "internal/size", "internal/size/", "internal/vm", "internal/vm/", "internal/scaledown", "internal/scaledown/", "test/testkit"},
		"internal/spread/repair":   {"internal/spread", "hack/gendocs"},
		"internal/spread/shortage": {"internal/spread", "hack/gendocs"},
		"internal/spread/status":   {"internal/spread", "hack/gendocs"},
		"internal/size/resize":     {"internal/size", "hack/gendocs"},
		"internal/vm/capacity":     {"internal/vm", "hack/gendocs"},
		"internal/scaledown/costs": {"internal/scaledown", "hack/gendocs"},
	}
	for name, p := range packages {
		for _, imported := range p.Imports {
			imported, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			for target, allowed := range only {
				if imported != target {
					continue
				}
				if !slices.ContainsFunc(allowed, func(a string) bool { return name == a || strings.HasSuffix(a, "/") && strings.HasPrefix(name, a) }) {
					t.Errorf("%s imports %s; only %s may", name, imported, strings.Join(allowed, ", "))
				}
			}
			product := strings.HasPrefix(name, "internal/") || strings.HasPrefix(name, "api/") || strings.HasPrefix(name, "cmd/")
			if product && (strings.HasPrefix(imported, "test/") || strings.HasPrefix(imported, "hack/")) {
				t.Errorf("%s, a part of the product, imports %s", name, imported)
			}
			if strings.HasPrefix(name, "api") && !strings.HasPrefix(imported, "api") {
				t.Errorf("%s imports %s; the API imports nothing of Stowage", name, imported)
			}
		}
		// What documents are made with is not linked into the product.
		if name == "cmd/stowage" && slices.Contains(p.Deps, module+"hack/gendocs") {
			t.Error("the product links the document generators")
		}
	}
}
