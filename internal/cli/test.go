package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/policytest"
	"github.com/stowage-dev/stowage/internal/preview"
)

const testHelp = `Compare what Stowage decides about manifests with what test files expect. No cluster
is needed.

A test file names manifests and cases, and each case says what is expected. In a
directory, the command runs all files whose name ends with ` + policytest.Suffix + `:

  apiVersion: ` + policytest.APIVersion + `
  kind: ` + policytest.Kind + `
  files: [../deploy/web.yaml]    # relative to this file
  cases:
  - name: ten replicas while spot has room for four
    replicas: 10
    exhausted: {spot: 4}
    expect:
      workloads:
      - workload: Deployment default/web
        pools: {on-demand: 6, spot: 4}

Workloads and fields that a case does not name are not compared. Each warning must be
expected. With --update, a case without expectations gets all that is decided now.

The exit status is 0 if all cases pass, 3 if one fails, 1 if a test file is wrong, and
2 if the command was called in a wrong way.`

// testOptions are the settings of the command test.
type testOptions struct {
	update bool
	junit  string // file; "" is none
	quiet  bool
}

func newTestCommand(s Streams) *cobra.Command {
	o := &testOptions{}
	cmd := &cobra.Command{
		Use:   "test FILE|DIR...",
		Short: "Compare decisions about manifests with what is expected",
		Long:  testHelp,
		Example: `  # Run every test file below a directory
  stowage test tests/

  # In CI, with a report
  stowage test . --junit report.xml

  # Accept what is decided now
  stowage test tests/ --update`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return config.NewUsageError(errors.New("name a test file or a directory"))
			}
			return o.run(cmd.Context(), s, args)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.update, "update", o.update, "Write what is decided into the test files")
	fs.StringVar(&o.junit, "junit", o.junit, "File for a report in JUnit's format")
	fs.BoolVarP(&o.quiet, "quiet", "q", o.quiet, "Print failed cases only")
	return cmd
}

// run runs all cases, then writes what changed.
func (o *testOptions) run(ctx context.Context, s Streams, paths []string) error {
	cases, err := readCases(paths)
	if err != nil {
		return err
	}
	var results []policytest.Result
	renewed := map[string]map[int]policytest.Expect{} // by file and place
	outcomes := map[string]int{}
	var timer clock.RealClock
	for _, c := range cases {
		begin := timer.Now()
		decided, err := c.decide(ctx)
		if err != nil {
			return err
		}
		differences := policytest.Compare(c.Expect, decided)
		r := policytest.Result{File: c.file.Path, Case: c.Name, Differences: differences, Took: timer.Since(begin)}
		outcome := "ok"
		if len(differences) > 0 {
			outcome = "FAILED"
		}
		if o.update && outcome == "FAILED" {
			if now, err := policytest.Renew(c.Expect, decided); err != nil {
				differences = append(differences, fmt.Sprintf("not updated: %v", err))
			} else {
				outcome, r.Differences = "updated", nil
				if renewed[r.File] == nil {
					renewed[r.File] = map[int]policytest.Expect{}
				}
				renewed[r.File][c.place] = now
			}
		}
		outcomes[outcome]++
		results = append(results, r)
		o.printCase(s, outcome, &r, differences)
	}
	for _, name := range slices.Sorted(maps.Keys(renewed)) {
		if err := policytest.Update(name, renewed[name]); err != nil {
			return err
		}
	}
	if err := o.writeJUnit(results); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "\nCases: %d (%d ok, %d updated, %d failed).\n", len(results), outcomes["ok"], outcomes["updated"], outcomes["FAILED"])
	if outcomes["FAILED"] > 0 {
		fmt.Fprintln(s.Out, "Lines with - are expected, lines with + are decided; --update accepts what is decided.")
		return errNotOK
	}
	return nil
}

// printCase prints what came of a case.
func (o *testOptions) printCase(s Streams, outcome string, r *policytest.Result, differences []string) {
	if outcome != "ok" || !o.quiet {
		fmt.Fprintf(s.Out, "%-7s  %s\n", outcome, preview.Printable(r.File+": "+r.Case))
	}
	for _, d := range differences {
		fmt.Fprintf(s.Out, "           %s\n", strings.ReplaceAll(preview.Printable(d), "\n", "\n             "))
	}
}

// readCases reads all test files, and reports all that is wrong with them.
func readCases(paths []string) ([]*testCase, error) {
	names, err := policytest.Find(paths)
	if err != nil {
		return nil, err
	}
	var cases []*testCase
	var errs []error
	for _, name := range names {
		f, err := policytest.Read(name)
		if err != nil {
			errs = append(errs, errors.New(preview.Printable(err.Error())))
			continue
		}
		for i := range f.Cases {
			c, err := newTestCase(f, i)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: case %q: %w", preview.Printable(f.Path), f.Cases[i].Name, err))
			}
			cases = append(cases, c)
		}
	}
	return cases, errors.Join(errs...)
}

func (o *testOptions) writeJUnit(results []policytest.Result) (err error) {
	if o.junit == "" {
		return nil
	}
	out, err := os.Create(o.junit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return policytest.WriteJUnit(out, results)
}

// testCase is a case with the settings of its preview.
type testCase struct {
	*policytest.Case
	file    *policytest.File
	place   int // in the file
	preview *previewOptions
	written map[string]string // how the file writes the paths of the inputs
}

// newTestCase reads the settings of a case. Environment variables do not count, so that a case has one outcome
// everywhere.
func newTestCase(f *policytest.File, place int) (*testCase, error) {
	t := &testCase{Case: &f.Cases[place], file: f, place: place, preview: newPreviewOptions()}
	o := t.preview
	fs := pflag.NewFlagSet(t.Name, pflag.ContinueOnError)
	o.addDecisionFlags(fs)
	for _, flags := range [][]string{f.Flags, t.Flags} {
		if err := fs.Parse(flags); err != nil {
			return nil, fmt.Errorf("flags: %w", err)
		}
		if fs.NArg() > 0 {
			return nil, fmt.Errorf("flags: %q is no flag", fs.Arg(0))
		}
	}
	var err error
	if o.files, t.written, err = f.Inputs(t.Case); err != nil {
		return nil, err
	}
	if t.Replicas != nil {
		if err := fs.Set("replicas", fmt.Sprint(*t.Replicas)); err != nil {
			return nil, err
		}
	}
	for name, pods := range t.Exhausted {
		o.exhausted = append(o.exhausted, fmt.Sprintf("%s=%d", name, pods))
	}
	return t, o.validate(fs)
}

// decide makes the decisions of a case. Errors of the manifests are a part of what is decided.
func (t *testCase) decide(ctx context.Context) (policytest.Expect, error) {
	var workloads []string
	var pods []preview.Admitted
	var decides *preview.Preview
	warnings, err := t.preview.decide(ctx, strings.NewReader(""), func(p *preview.Preview) func(*preview.Admitted) {
		decides, workloads = p, p.Workloads()
		return func(a *preview.Admitted) { pods = append(pods, *a) }
	})
	if errors.Is(err, errInterrupted) {
		return policytest.Expect{}, err
	}
	decided := policytest.Decided(workloads, pods, warnings, err, t.preview.peerPods.Config.VMResource, t.written)
	if decides != nil {
		decided.AddScaleDowns(decides.ScaleDowns())
	}
	return decided, nil
}
