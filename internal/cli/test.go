package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/policytest"
)

const testHelp = `Compare what Stowage decides about manifests with what test files expect, without a
cluster.

A test file names manifests and, for each case, what is expected of them. In a
directory, the command runs all files whose name ends with ` + policytest.Suffix + `:

  apiVersion: ` + policytest.APIVersion + `
  kind: ` + policytest.Kind + `
  files: [web.yaml]              # relative to this file
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
  stowage test deploy/

  # In CI, with a report
  stowage test . --junit report.xml

  # Accept what is decided now
  stowage test deploy/ --update`,
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

// run runs the test files, and reports wrong ones before it runs any.
func (o *testOptions) run(ctx context.Context, s Streams, paths []string) error {
	names, err := policytest.Find(paths)
	if err != nil {
		return err
	}
	var files []*policytest.File
	var errs []error
	for _, name := range names {
		f, err := policytest.Read(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var results []policytest.Result
	failed, updated := 0, 0
	for _, f := range files {
		renewed := map[string]policytest.Expect{}
		for i := range f.Cases {
			c := &f.Cases[i]
			begin := time.Now()
			decided, err := decideCase(ctx, f, c)
			if err != nil {
				return fmt.Errorf("%s: case %q: %w", f.Path, c.Name, err)
			}
			differences, now := policytest.Compare(c.Expect, decided)
			r := policytest.Result{File: f.Path, Case: c.Name, Differences: differences, Took: time.Since(begin)}
			outcome := "ok"
			switch {
			case len(differences) == 0:
			case o.update:
				outcome = "updated"
				renewed[c.Name] = now
				r.Differences = nil
				updated++
			default:
				outcome = "FAILED"
				failed++
			}
			results = append(results, r)
			if outcome != "ok" || !o.quiet {
				fmt.Fprintf(s.Out, "%-7s  %s: %s\n", outcome, f.Path, c.Name)
			}
			for _, d := range differences {
				fmt.Fprintf(s.Out, "           %s\n", strings.ReplaceAll(d, "\n", "\n             "))
			}
		}
		if len(renewed) > 0 {
			if err := policytest.Update(f.Path, renewed); err != nil {
				return err
			}
		}
	}
	if err := o.writeJUnit(results); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "\nFiles: %d. Cases: %d (%d ok, %d updated, %d failed).\n", len(files), len(results), len(results)-updated-failed, updated, failed)
	if failed > 0 {
		fmt.Fprintln(s.Out, "Lines with - are expected, lines with + are decided; --update accepts what is decided.")
		return errNotOK
	}
	return nil
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

// decideCase makes the decisions of a case. Environment variables do not count, so that a case has one outcome
// everywhere. The error is about the test file; errors of the manifests are a part of what is decided.
func decideCase(ctx context.Context, f *policytest.File, c *policytest.Case) (policytest.Expect, error) {
	o := newPreviewOptions()
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	o.addDecisionFlags(fs)
	for _, flags := range [][]string{f.Flags, c.Flags} {
		if err := fs.Parse(flags); err != nil {
			return policytest.Expect{}, fmt.Errorf("flags: %w", err)
		}
		if fs.NArg() > 0 {
			return policytest.Expect{}, fmt.Errorf("flags: %q is no flag", fs.Arg(0))
		}
	}
	o.files = f.Inputs(c)
	if c.Replicas != nil {
		if err := fs.Set("replicas", fmt.Sprint(*c.Replicas)); err != nil {
			return policytest.Expect{}, err
		}
	}
	for name, pods := range c.Exhausted {
		o.exhausted = append(o.exhausted, fmt.Sprintf("%s=%d", name, pods))
	}
	if err := o.validate(fs); err != nil {
		return policytest.Expect{}, err
	}
	_, pods, warnings, err := o.decide(ctx, strings.NewReader(""))
	if ctx.Err() != nil {
		return policytest.Expect{}, ctx.Err()
	}
	return policytest.Decided(pods, warnings, err, o.peerPods.Config.VMResource), nil
}
