// Command versions runs the tests on several versions of Kubernetes, and writes what it finds into
// docs/support.md. `make test-versions` calls it.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// suites are the packages that run on each version, and what their column of the table is called.
var suites = []struct {
	title, pkg string
	skew       bool // only the test with the previous release
}{
	{"All features", "./test/e2e ./test/resources ./test/serving ./test/situations", false},
	{"With an earlier version", "./test/bursts", true},
	{"Install, upgrade, uninstall", "./test/install", false},
}

// previous is the commit that stands for the previous release, until there is one.
const previous = "9850efd"

// The lines of docs/support.md between which the table is.
const begin, end = "<!-- begin: make test-versions -->\n", "<!-- end -->\n"

func main() {
	only := flag.String("only", "", "Versions to run, separated by commas, such as v1.30.14 (default all); the other rows of docs/support.md stay")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Run the tests on each version in hack/controlplane/versions and on the newest one.\n\nExample: go run ./hack/versions -only v1.30.14\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string) error {
	repo, err := controlplane.RepositoryRoot()
	if err != nil {
		return err
	}
	modules, err := filepath.Glob(filepath.Join(repo, "hack", "controlplane", "versions", "v*"))
	if err != nil {
		return err
	}
	newest, err := controlplane.NewestVersion(repo)
	if err != nil {
		return err
	}
	supported := []string{newest}
	for _, m := range slices.Backward(modules) {
		supported = append(supported, filepath.Base(m))
	}
	versions := supported
	if only != "" {
		for v := range strings.SplitSeq(only, ",") {
			if !slices.Contains(supported, v) {
				return fmt.Errorf("-only names %q; it must be of %s", v, strings.Join(supported, ", "))
			}
		}
		versions = strings.Split(only, ",")
	}

	older, err := buildPrevious(ctx, repo)
	if err != nil {
		return fmt.Errorf("build commit %s: %w", previous, err)
	}

	var failed []string
	for _, v := range versions {
		row, ok, err := test(ctx, repo, older, v, v == newest)
		if err != nil {
			return fmt.Errorf("version %s: %w", v, err)
		}
		fmt.Print(row)
		if !ok {
			failed = append(failed, v)
			continue
		}
		if err := write(filepath.Join(repo, "docs", "support.md"), supported, v, row); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("tests fail on %s, whose rows stay as they were", strings.Join(failed, ", "))
	}
	return nil
}

// test builds one version, runs the suites on it, and returns a row of the table.
func test(ctx context.Context, repo, older, version string, newest bool) (row string, ok bool, err error) {
	env := os.Environ()
	if !newest {
		env = append(env, controlplane.VersionVariable+"="+version)
	}
	fmt.Printf("== Kubernetes %s\n", version)
	build := exec.CommandContext(ctx, "make", "--no-print-directory", "controlplane")
	build.Dir, build.Env, build.Stdout, build.Stderr = repo, env, os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		return "", false, err
	}
	cells := []string{version}
	var lacks []string
	ok = true
	for _, s := range suites {
		args := strings.Fields(s.pkg)
		if s.skew {
			args = append(args, "-run=TestSkew", "-previous="+older)
		}
		r, err := runSuite(ctx, repo, env, args...)
		if err != nil {
			return "", false, err
		}
		ok = ok && r.failed == 0
		cells = append(cells, r.text())
		lacks = append(lacks, r.lacks...)
		fmt.Printf("   %s: %s, %s\n", s.title, r.text(), r.took.Round(time.Second))
	}
	slices.Sort(lacks)
	cells = append(cells, cmp.Or(strings.Join(slices.Compact(lacks), ", "), "nothing"))
	return "| " + strings.Join(cells, " | ") + " |\n", ok, nil
}

// buildPrevious builds the program of the previous release, once, and returns its path.
func buildPrevious(ctx context.Context, repo string) (string, error) {
	path := filepath.Join(repo, "bin", "stowage-"+previous)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Printf("Building commit %s\n", previous)
	dir, err := os.MkdirTemp("", "stowage-previous-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source := filepath.Join(dir, "source")
	if err := controlplane.Extract(ctx, repo, previous, source); err != nil {
		return "", err
	}
	if err := controlplane.BuildStowage(ctx, source, path); err != nil {
		return "", err
	}
	return path, nil
}

// result is what became of a package's tests.
type result struct {
	passed, failed, skipped int
	lacks                   []string // what the skipped tests need
	took                    time.Duration
}

func (r *result) text() string {
	parts := []string{fmt.Sprintf("%d passed", r.passed)}
	if r.skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", r.skipped))
	}
	if r.failed > 0 {
		parts = append(parts, fmt.Sprintf("**%d failed**", r.failed))
	}
	return strings.Join(parts, ", ")
}

// lacking finds what a test says that it needs.
var lacking = regexp.MustCompile(`LACKS: (.+)`)

// runSuite runs the tests of a package. The output of tests that fail goes to the standard output.
func runSuite(ctx context.Context, repo string, env []string, args ...string) (*result, error) {
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1", "-timeout", "30m"}, args...)...)
	cmd.Dir, cmd.Env = repo, env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r, read := tally(out)
	exit := cmd.Wait()
	r.took = time.Since(start)
	if read != nil {
		return nil, read
	}
	if exit != nil && r.failed == 0 { // a build that fails, say
		if !errors.As(exit, new(*exec.ExitError)) {
			return nil, exit
		}
		fmt.Print(stderr.String())
		r.failed++
	}
	return r, nil
}

// event is a line of `go test -json` (go doc test2json).
type event struct{ Action, Test, Output string }

// tally counts the tests that are no subtests.
func tally(in io.Reader) (*result, error) {
	r := &result{}
	output := map[string]*strings.Builder{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // what a program prints beside the tests
		}
		top, _, sub := strings.Cut(e.Test, "/")
		if output[top] == nil {
			output[top] = &strings.Builder{}
		}
		output[top].WriteString(e.Output)
		if m := lacking.FindStringSubmatch(e.Output); m != nil {
			r.lacks = append(r.lacks, strings.TrimSpace(m[1]))
		}
		switch {
		case e.Action == "fail" && !sub:
			if e.Test != "" || r.failed == 0 {
				r.failed++
			}
			fmt.Print(output[top].String())
		case e.Test == "" || sub:
		case e.Action == "pass":
			r.passed++
		case e.Action == "skip":
			r.skipped++
		}
	}
	return r, lines.Err()
}

func table(rows []string) string {
	titles := []string{"Kubernetes"}
	for _, s := range suites {
		titles = append(titles, s.title)
	}
	titles = append(titles, "What it lacks")
	return "| " + strings.Join(titles, " | ") + " |\n" + strings.Repeat("| --- ", len(titles)) + "|\n" + strings.Join(rows, "")
}

// write puts a version's row into the table of a page. Rows of versions that are not supported any more go.
func write(file string, supported []string, version, row string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no lines %q and %q", file, begin, end)
	}
	of := map[string]string{}
	for line := range strings.Lines(old) {
		if cells := strings.SplitN(line, " | ", 2); len(cells) == 2 {
			of[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	of[version] = row
	var rows []string
	for _, v := range supported {
		rows = append(rows, of[v])
	}
	return os.WriteFile(file, []byte(before+begin+table(rows)+end+after), 0o644)
}
