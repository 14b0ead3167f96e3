package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
)

// long are the suites on a control plane that are too long for `make test`. Each has a target of its own.
var long = []string{"compare", "domains", "fleet", "karpenter", "liveness", "node", "outage", "shortages"}

// first are the suites that take longest. They begin first, so that none of them is left alone at the end.
var first = []string{"e2e", "serving", "bursts", "resources"}

// more are the suites that CI runs each time beside `make test`, by `make test-more`.
var more = []string{"impact", "install", "local", "situations", "soak"}

// last is the package that compares what the others have used, those of `make test` too.
const last = "permissions"

// modules are the other modules of the repository that have tests. The last one compiles parts of kube-scheduler, which the control plane shares.
var modules = []step{
	{name: "hack/docs", dir: "hack/docs", args: []string{"./..."}},
	{name: "hack/monitoring", dir: "hack/monitoring", args: []string{"-count=1", "./..."}},
	{name: "kube-scheduler and the ReplicaSet controller", dir: "hack/controlplane/kubernetes", args: []string{"-trimpath", "-count=1", "./comparison", "./scaledown"}},
}

// moreSteps are those of `make test-more`: the files of a release, the kinds in the oldest Kubernetes, and longer runs of the simulations that take most
// of `make test`.
var moreSteps = []step{
	{name: "hack/release", dir: "hack/release", args: []string{"-count=1", "./..."}},
	{name: "hack/controlplane/versions", dir: "hack/controlplane/versions/v1.30.14", args: []string{"-count=1", "./..."}},
	{name: "simulations", dir: ".", args: []string{"-count=1", "-run=Simulation$", "./internal/spread/ledger", "./internal/spread/shortage/spill", "-histories=1000"}},
}

// planned are the commands of a run: first the builds, one after the other, then what compiles the tests, or nil, and then the lanes side by side.
// Beside compilers, suites take twice as long, and their control planes compute while they wait.
type planned struct {
	builds  []step
	compile *step
	lanes   [][]step
}

// plan lists what is to run: all, or the part that only names.
func plan(ctx context.Context, only string, flags []string) (planned, error) {
	if !slices.Contains([]string{"", "unit", "cluster", "more"}, only) {
		return planned{}, fmt.Errorf("-only is %q; it must be unit, cluster or more", only)
	}
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return planned{}, fmt.Errorf("list the packages: %w", err)
	}
	return arrange(only, flags, strings.Fields(string(out))), nil
}

// arrange arranges the packages of the main module, and the other modules.
func arrange(only string, flags, all []string) planned {
	target := func(name, target string) step {
		return step{name: name, dir: ".", args: []string{"make", "--no-print-directory", target}}
	}
	p := planned{builds: []step{target("build Stowage", "build")}}
	if only != "unit" {
		p.builds = append(p.builds, target("build the control plane", "controlplane"))
	}
	if only == "more" { // test/install installs with helm, and makes the image
		p.builds = append(p.builds, target("build what installs", "prebuild"), target("build helm", "bin/tools/helm"))
	}
	cluster, unit := divide(all)
	others := modules
	switch only {
	case "cluster":
		unit, others = nil, nil
	case "unit":
		cluster = nil
	case "more":
		cluster, unit, others = named(all, more), nil, moreSteps
	}
	if len(flags) == 0 { // with flags such as -race, go test compiles something else
		p.compile = &step{name: "compile the tests", dir: ".", args: slices.Concat([]string{"go", "list", "-export", "-deps", "-test", "-f", "{{with .DepsErrors}}{{.}}{{end}}"}, cluster, unit)}
	}
	var suites, rest []step
	if len(cluster) > 0 {
		slices.SortStableFunc(cluster, func(a, b string) int { return cmp.Compare(turn(a), turn(b)) })
		// A suite waits for half of its time, so two processors have room for four. The test cache does not see what the control plane runs.
		suites = append(suites, tests("suites", max(4, runtime.GOMAXPROCS(0)/2), append([]string{"-count=1"}, flags...), cluster))
		if only == "more" && len(flags) == 0 { // with flags such as -short or -run, not all permissions are used
			suites = append(suites, goTest(step{name: "permissions", dir: ".", args: []string{"-count=1", "./test/" + last}}, nil))
		}
	}
	if len(unit) > 0 {
		rest = append(rest, tests("unit tests", runtime.GOMAXPROCS(0), flags, unit))
	}
	for _, m := range others {
		rest = append(rest, goTest(m, flags))
	}
	if only == "more" {
		rest = append(rest, target("counts of allocations", "counts"))
	}
	for i := range rest { // suites have deadlines, and what computes has none
		rest[i].yields = true
	}
	p.lanes = slices.DeleteFunc([][]step{suites, rest}, func(lane []step) bool { return len(lane) == 0 })
	return p
}

// tests are packages of the main module, so many at once.
func tests(name string, atOnce int, flags, packages []string) step {
	args := slices.Concat([]string{fmt.Sprintf("-p=%d", atOnce), "-parallel=6", "-timeout=40m"}, flags, packages)
	return goTest(step{name: name, dir: ".", args: args}, nil)
}

// turn is when a package begins: those of first in their order, and then all others.
func turn(pkg string) int {
	if i := slices.Index(first, path.Base(pkg)); i >= 0 && onControlPlane(pkg) {
		return i
	}
	return len(first)
}

// named returns the packages on a control plane that have one of some names.
func named(packages, names []string) []string {
	return slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return !onControlPlane(p) || !slices.Contains(names, path.Base(p)) })
}

func onControlPlane(pkg string) bool { return strings.Contains(pkg, "/stowage/test/") }

// goTest makes a go test of a step's arguments. It vets nothing: that compiles more than the tests do, and `make lint` vets the main module.
func goTest(s step, flags []string) step {
	s.args = slices.Concat([]string{"go", "test", "-json", "-vet=off"}, flags, s.args)
	s.json = true
	return s
}

// divide splits the packages of `make test` by whether they need a control plane.
func divide(packages []string) (cluster, unit []string) {
	for _, p := range packages {
		switch name := path.Base(p); {
		case !onControlPlane(p):
			unit = append(unit, p)
		case name != last && !slices.Contains(long, name) && !slices.Contains(more, name):
			cluster = append(cluster, p)
		}
	}
	return cluster, unit
}
