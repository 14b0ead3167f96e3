// Command mutants changes one operator, constant or statement of a package at a time, and runs the package's own tests. A
// mutant that no test notices shows a decision that no test pins. `make test-mutants` calls it.
//
// The mutants stand in an overlay of the go command (go help build), so that the tree stays as it is.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// The tests of these packages must kill so many percent of the mutants.
var deciding = []string{
	"internal/spread/sequence", "internal/spread/layout", "internal/spread/observed", "internal/spread/division", "internal/spread/ledger",
	"internal/spread/shortage/spill", "internal/spread/repair/planner",
	"internal/scaledown/layers", "internal/scaledown/policies",
}

const required = 90 // percent

// short are the flags with which the tests of some packages take seconds. What finds faults that tests plant is left out.
// Without -short rapid plays all histories: TestSimulation of ledger fails if it saw fewer.
var short = map[string][]string{
	"internal/spread/ledger":         {"-skip", "FindsPlantedBugs", "-short=false", "-histories", "200"},
	"internal/spread/shortage/spill": {"-skip", "FindsFaults", "-histories", "200"},
}

func main() {
	workers := flag.Int("workers", 2, "Mutants tested at once")
	only := flag.String("run", "", "Test only mutants whose name contains this text")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Test the tests of some packages (default: %s).\n\nExample: go run ./hack/mutants internal/spread/sequence\n\nFlags:\n", strings.Join(deciding, ", "))
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = deciding
	}
	if err := run(ctx, packages, *only, *workers); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// outcome is what became of a mutant.
type outcome int

const (
	killed   outcome = iota
	survived         // no test failed
	invalid          // it does not compile
)

// score is the outcomes of a package.
type score struct {
	counts     [invalid + 1]int
	equivalent int
}

func (s *score) percent() float64 {
	return 100 * float64(s.counts[killed]) / float64(max(1, s.counts[killed]+s.counts[survived]))
}

func run(ctx context.Context, packages []string, only string, workers int) error {
	equivalent, err := readEquivalents("hack/mutants/equivalent.txt")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stowage-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PACKAGE\tKILLED\tSURVIVED\tEQUIVALENT\tPERCENT")
	var wrong, unused []string
	for _, pkg := range packages {
		pkg = filepath.Clean(pkg)
		all, err := mutantsOf(pkg)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(m mutant) bool { return !strings.Contains(m.name, only) })
		s, err := test(ctx, dir, pkg, all, equivalent, workers)
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f\n", pkg, s.counts[killed], s.counts[survived], s.equivalent, s.percent())
		if slices.Contains(deciding, pkg) && only == "" && s.percent() < required {
			wrong = append(wrong, fmt.Sprintf("%s: %.1f%% of the mutants are killed; at least %d%% must be", pkg, s.percent(), required))
		}
		for name := range equivalent {
			if only == "" && strings.HasPrefix(name, pkg+"/") && !slices.ContainsFunc(all, func(m mutant) bool { return m.name == name }) {
				unused = append(unused, name)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	slices.Sort(unused)
	for _, name := range unused {
		wrong = append(wrong, "equivalent.txt names no mutant: "+name)
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}

// readEquivalents reads the mutants that no test can kill. A line has a name, a tab and the reason.
func readEquivalents(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for n, line := range strings.Split(string(data), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, "\t")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: the line has no tab with a reason after it", file, n+1)
		}
		out[name] = true
	}
	return out, nil
}

// test runs the tests of a package with each of its mutants.
func test(ctx context.Context, dir, pkg string, all []mutant, equivalent map[string]bool, workers int) (*score, error) {
	begin := time.Now()
	if out, err := goTest(ctx, pkg, "", 10*time.Minute); err != nil {
		return nil, fmt.Errorf("the tests fail without a mutant: %w\n%s", err, out)
	}
	timeout := 3*time.Since(begin) + 10*time.Second
	s := &score{}
	var mu sync.Mutex
	var failed error
	var done int
	work := make(chan mutant)
	var running sync.WaitGroup
	for n := range workers {
		running.Go(func() {
			for m := range work {
				o, err := try(ctx, filepath.Join(dir, fmt.Sprint(n)), pkg, m, timeout)
				mu.Lock()
				if failed = errors.Join(failed, err); err == nil {
					s.counts[o]++
					if o == survived {
						fmt.Println("survived:", m.name)
					}
				}
				if done++; done%50 == 0 {
					fmt.Fprintf(os.Stderr, "%s: %d of %d mutants\n", pkg, done, len(all))
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range all {
		if ctx.Err() != nil {
			break
		}
		if equivalent[m.name] {
			s.equivalent++
			continue
		}
		work <- m
	}
	close(work)
	running.Wait()
	return s, errors.Join(failed, ctx.Err())
}

// try runs the tests with one mutant.
func try(ctx context.Context, dir, pkg string, m mutant, timeout time.Duration) (outcome, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	source, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(source, m.source, 0o644); err != nil {
		return 0, err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return 0, err
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{original: source}})
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(overlay, text, 0o644); err != nil {
		return 0, err
	}
	out, err := goTest(ctx, pkg, overlay, timeout)
	switch {
	case err == nil:
		return survived, nil
	case bytes.Contains(out, []byte("[build failed]")):
		return invalid, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	}
	return killed, nil
}

// goTest runs the tests of a package, until the first one fails.
func goTest(ctx context.Context, pkg, overlay string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Minute) // to build
	defer cancel()
	args := []string{"test", "-vet=off", "-count=1", "-short", "-failfast", "-timeout", timeout.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, []string{"./" + pkg}, short[pkg])...)
	cmd.Env = append(os.Environ(), "RAPID_NOFAILFILE=true") // what rapid finds in a mutant must not be played against the code
	return cmd.CombinedOutput()
}
