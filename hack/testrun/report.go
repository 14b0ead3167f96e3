package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// repository is the path of the main module, before those of its packages.
const repository = "github.com/stowage-dev/stowage/"

// event is a line of `go test -json` (go doc test2json; go help buildjson for a build that fails).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that is built
	Test       string
	Output     string
	Elapsed    float64 // seconds
	// FailedBuild is the ImportPath of what does not compile, of a package that failed because of that.
	FailedBuild string
}

// report tells on out how far the tests are. Lanes share it.
type report struct {
	out io.Writer
	log io.Writer // gets all events as they are
	now func() time.Time

	mu       sync.Mutex
	begin    time.Time
	last     time.Time // when it wrote a line
	packages map[string]*results
	ended    int // packages
	passed   int // tests
	failures []failure
}

// results are those of a package that runs.
type results struct {
	running map[string]bool // tests that have begun, with their subtests; false while one waits for others
	passed  int
	failed  []string
	output  map[string][]string // of a test that has not passed, or of the package itself
}

// failure is a failed test, a package that failed without one (it does not compile, say), or a step without packages.
type failure struct {
	step      step
	pkg, test string
}

func newReport(out, log io.Writer, now func() time.Time) *report {
	return &report{out: out, log: log, now: now, begin: now(), last: now(), packages: map[string]*results{}}
}

// say writes a line behind the time since the begin. The caller holds mu, or is alone.
func (r *report) say(format string, args ...any) {
	r.last = r.now()
	fmt.Fprintf(r.out, "%s  %s\n", clock(r.last.Sub(r.begin)), fmt.Sprintf(format, args...))
}

// clock writes a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%2d:%02d", s/60, s%60)
}

// step tells when something begins and ends that prints its own progress.
func (r *report) step(name string, run func() error) error {
	r.say("%s", name)
	begin := r.now()
	err := run()
	r.say("%s: %.0f s", name, r.now().Sub(begin).Seconds())
	return err
}

// tests runs a step of a lane.
func (r *report) tests(ctx context.Context, s step) {
	cmd := s.command(ctx)
	if !s.json {
		cmd.Stdout, cmd.Stderr = nil, nil
		out, err := cmd.CombinedOutput()
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.say("FAIL  %s\n%s", s.name, out)
			r.failures = append(r.failures, failure{step: s})
			return
		}
		r.say("ok    %s", s.name)
		return
	}
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.fails(s, err)
		return
	}
	r.read(s, out)
	if err := cmd.Wait(); err != nil && !r.hasFailed(s) {
		r.fails(s, err)
	}
}

// hasFailed reports whether a failure of a step is known.
func (r *report) hasFailed(s step) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.failures, func(f failure) bool { return f.step.name == s.name })
}

func (r *report) fails(s step, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.say("FAIL  %s: %v", s.name, err)
	r.failures = append(r.failures, failure{step: s})
}

// read reads the events of a go test.
func (r *report) read(s step, from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)} // not of go test
			}
			r.event(s, e, line)
		}
		if err != nil {
			return
		}
	}
}

func (r *report) event(s step, e event, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.log.Write(line)
	name := cmp.Or(e.Package, built(e.ImportPath))
	p := r.packages[name]
	if p == nil {
		p = &results{running: map[string]bool{}, output: map[string][]string{}}
		r.packages[name] = p
	}
	switch e.Action {
	case "run", "cont":
		p.running[e.Test] = true
	case "pause":
		p.running[e.Test] = false
	case "output", "build-output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.packageEnds(s, name, p, e)
			return
		}
		delete(p.running, e.Test)
		if e.Action == "fail" {
			p.failed = append(p.failed, e.Test)
			return
		}
		delete(p.output, e.Test)
		if e.Action == "pass" {
			p.passed++
		}
	}
}

// built is the package of an ImportPath, which for a test binary is "path [path.test]".
func built(importPath string) string { return strings.Fields(importPath + " -")[0] }

// packageEnds tells of a package, and prints what its failed tests printed.
func (r *report) packageEnds(s step, name string, p *results, e event) {
	delete(r.packages, name)
	r.ended++
	r.passed += p.passed
	short := strings.TrimPrefix(name, repository)
	if e.Action != "fail" {
		if p.passed > 0 && !slices.ContainsFunc(p.output[""], func(line string) bool { return strings.Contains(line, "(cached)") }) {
			r.say("ok    %-32s %4d tests %6.1f s", short, p.passed, e.Elapsed)
		}
		return
	}
	r.say("FAIL  %-32s %4d tests %6.1f s", short, p.passed, e.Elapsed)
	// Tests that a panic or the deadline cut off have failed, too.
	failed := slices.Concat(p.failed, slices.Sorted(maps.Keys(p.running)))
	for _, test := range slices.Concat(failed, []string{""}) {
		fmt.Fprint(r.out, strings.Join(p.output[test], ""))
	}
	if of := r.packages[built(e.FailedBuild)]; e.FailedBuild != "" && of != nil { // it has no tests, and so no end of its own
		fmt.Fprint(r.out, strings.Join(of.output[""], ""))
		of.output = map[string][]string{}
	}
	// Of a test and its subtests, the innermost say what failed.
	failed = slices.DeleteFunc(failed, func(test string) bool {
		return slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, test+"/") })
	})
	if len(failed) == 0 {
		failed = []string{""}
	}
	for _, test := range failed {
		r.failures = append(r.failures, failure{step: s, pkg: short, test: test})
	}
}

// progress tells what runs, if no line was written for a while.
func (r *report) progress(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.mu.Lock()
			if r.now().Sub(r.last) >= every {
				r.say("...   %s", r.state())
			}
			r.mu.Unlock()
		}
	}
}

// state tells how much has ended, and what runs.
func (r *report) state() string {
	var now []string
	passed := r.passed
	for name, p := range r.packages {
		passed += p.passed
		if tests := slices.DeleteFunc(slices.Sorted(maps.Keys(p.running)), func(test string) bool { return strings.Contains(test, "/") || !p.running[test] }); len(tests) > 0 {
			now = append(now, strings.TrimPrefix(name, repository)+" "+tests[0])
		}
	}
	slices.Sort(now)
	out := fmt.Sprintf("%d tests passed, %d packages ended", passed, r.ended)
	if len(now) == 0 {
		return out + "; compiling"
	}
	return out + "; running " + strings.Join(now[:min(3, len(now))], ", ")
}

// summary tells the result: what failed, with the command that runs it alone.
func (r *report) summary(took time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) == 0 && r.passed == 0 {
		return errors.New("no test ran: is TESTFLAGS right?")
	}
	if len(r.failures) == 0 {
		r.say("all passed: %d tests of %d packages, %s", r.passed, r.ended, strings.TrimSpace(clock(took)))
		return nil
	}
	fmt.Fprintln(r.out, "\nFailed, each with the command that runs it alone:")
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "  %s\n    %s\n", strings.TrimSpace(cmp.Or(f.pkg, f.step.name)+" "+f.test), f.again())
	}
	return errors.New("tests failed")
}

// again is the command that runs alone what failed.
func (f failure) again() string {
	switch {
	case !f.step.json:
		return strings.Join(f.step.args, " ")
	case f.step.dir == "." && f.test == "":
		return "make test-one PACKAGE=./" + f.pkg
	case f.step.dir == ".":
		return fmt.Sprintf("make test-one PACKAGE=./%s RUN='%s'", f.pkg, regexp.QuoteMeta(f.test))
	}
	return fmt.Sprintf("cd %s && go test -count=1 ./... -run '%s'", f.step.dir, regexp.QuoteMeta(f.test))
}
