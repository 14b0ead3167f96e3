package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// compare measures this tree and a commit in turns, each on a cluster of its own. Both clusters run all the time, so
// whatever slows the machine slows both builds. Which build is first changes with each turn.
func compare(ctx context.Context, o options, repo, dir string) error {
	source := filepath.Join(dir, "source")
	if err := controlplane.Extract(ctx, repo, o.against, source); err != nil {
		return err
	}
	var both []*bench
	for _, build := range []build{{source: repo, name: "this tree"}, {source: source, name: o.against}} {
		fmt.Printf("Starting a cluster with Stowage of %s\n", build.name)
		b, err := start(ctx, o, repo, build, filepath.Join(dir, fmt.Sprintf("cluster-%d", len(both))))
		if err != nil {
			return fmt.Errorf("%s: %w", build.name, err)
		}
		defer b.Stop()
		both = append(both, b)
	}
	turns := slices.Clone(both)
	for i := range o.runs + 1 {
		for _, b := range turns {
			if err := b.bursts(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", b.build.name, err)
			}
		}
		slices.Reverse(turns)
	}
	for _, b := range both {
		if err := b.report(); err != nil {
			return err
		}
		if err := b.reportSeats(); err != nil {
			return err
		}
	}
	return reportComparison(both[0], both[1])
}

// reportComparison prints what this tree takes as a part of what the commit takes: the median over the turns, and the
// lowest and the highest turn. The rows of the floor and of no webhook show the noise, for nothing differs there. The
// last column of each time takes that noise away: it compares what each build takes of the floor on its own cluster.
func reportComparison(tree, commit *bench) error {
	fmt.Printf("\nThis tree as a part of %s, of %d turns:\n\n", commit.build.name, tree.options.runs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tCREATED\tLOWEST\tHIGHEST\tEACH OF ITS FLOOR\tREADY\tLOWEST\tHIGHEST\tEACH OF ITS FLOOR")
	for _, c := range cases {
		fmt.Fprint(w, c.name)
		for _, of := range []func(result) time.Duration{
			func(r result) time.Duration { return r.created },
			func(r result) time.Duration { return r.ready },
		} {
			var turns []float64
			for i, r := range tree.results[c.name] {
				turns = append(turns, ratio(of(r), of(commit.results[c.name][i])))
			}
			slices.Sort(turns)
			fmt.Fprintf(w, "\t%.2f\t%.2f\t%.2f\t%.2f", turns[len(turns)/2], turns[0], turns[len(turns)-1],
				tree.ofTheFloor(c.name, of)/commit.ofTheFloor(c.name, of))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// ofTheFloor returns the median of a case as a part of the floor's.
func (b *bench) ofTheFloor(name string, of func(result) time.Duration) float64 {
	return ratio(median(b.results[name], of), median(b.results[caseFloor], of))
}
