package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// warmUp is how many pods the burst has that comes before each measured one, and is not counted.
const warmUp = 100

// pair is one turn of a case: a burst with this tree, and one with the commit.
type pair struct{ tree, commit result }

// compare measures this tree and a commit in turns on one API server, with the kinds and the rights of this tree: two control planes on one
// machine differ by as much as most changes do. The processes of a build are new in each turn, and which build is first changes with each turn.
func compare(ctx context.Context, o options, repo, dir string) error {
	source, other := filepath.Join(dir, "source"), filepath.Join(dir, "stowage-of-the-commit")
	if err := controlplane.Extract(ctx, repo, o.against, source); err != nil {
		return err
	}
	if err := controlplane.BuildStowage(ctx, source, other); err != nil {
		return err
	}
	b, err := start(ctx, o, repo, dir)
	if err != nil {
		return err
	}
	defer b.Stop()
	// StartStowage tries a pod there to see whether the webhook answers.
	probed := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	if err := b.Client.Patch(ctx, probed, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"stowage"}}}`, webhookLabel))); err != nil {
		return err
	}

	cases = slices.DeleteFunc(cases, func(c benchCase) bool { return c.webhook != "stowage" })
	binaries := []string{b.binary, other}
	pairs := map[string][]pair{}
	for i := range o.runs {
		turn := map[string]*pair{}
		for _, c := range cases {
			turn[c.name] = &pair{}
		}
		for j := range binaries {
			binary := binaries[(i+j)%2]
			if err := b.replace(ctx, binary); err != nil {
				return err
			}
			for _, c := range cases {
				b.options.pods = warmUp * o.deployments
				if _, err := b.burst(ctx, c); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				b.options.pods = o.pods
				r, err := b.burst(ctx, c)
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				if binary == other {
					turn[c.name].commit = r
				} else {
					turn[c.name].tree = r
				}
			}
		}
		for _, c := range cases {
			p := *turn[c.name]
			pairs[c.name] = append(pairs[c.name], p)
			fmt.Printf("turn %d of %d, %-28s this tree created %.2fs, ready %.2fs; %s created %.2fs, ready %.2fs\n", i+1, o.runs, c.name,
				p.tree.created.Seconds(), p.tree.ready.Seconds(), o.against, p.commit.created.Seconds(), p.commit.ready.Seconds())
		}
	}
	return reportComparison(o, pairs)
}

// replace stops the replicas and starts those of another build.
func (b *bench) replace(ctx context.Context, binary string) error {
	o := b.stowage(binary)
	o.Installed = true
	if err := b.StartStowage(ctx, o); err != nil || b.options.service == "" {
		return err
	}
	in := client.InNamespace(controlplane.StowageNamespace)
	if err := b.Client.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, in, client.MatchingLabels{discoveryv1.LabelServiceName: controlplane.StowageService}); err != nil {
		return err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: controlplane.StowageService}}
	if err := b.Client.Delete(ctx, service); err != nil {
		return err
	}
	return b.callStowage(ctx)
}

// reportComparison prints what this tree takes as a part of what the commit takes: the median of the turns, and an interval of the median.
func reportComparison(o options, pairs map[string][]pair) error {
	low, sure := interval(o.runs)
	fmt.Printf("\nThis tree as a part of %s: medians of %d turns of %d pods, and between what they are with a confidence of %.0f%%:\n\n", o.against, o.runs, o.pods, 100*sure)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tCREATED\tBETWEEN\tREADY\tBETWEEN\tAPI REQUESTS OF STOWAGE PER POD\tOF THE COMMIT")
	for _, c := range cases {
		fmt.Fprint(w, c.name)
		for _, of := range []func(result) time.Duration{
			func(r result) time.Duration { return r.created },
			func(r result) time.Duration { return r.ready },
		} {
			var ratios []float64
			for _, p := range pairs[c.name] {
				ratios = append(ratios, ratio(of(p.tree), of(p.commit)))
			}
			slices.Sort(ratios)
			fmt.Fprintf(w, "\t%.2f\t%.2f and %.2f", ratios[len(ratios)/2], ratios[low], ratios[len(ratios)-1-low])
		}
		var tree, commit []result
		for _, p := range pairs[c.name] {
			tree, commit = append(tree, p.tree), append(commit, p.commit)
		}
		requests := func(r result) float64 { return r.requests }
		fmt.Fprintf(w, "\t%.3f\t%.3f\n", median(tree, requests), median(commit, requests))
	}
	return w.Flush()
}

// interval returns how many of n sorted values to leave out at each end, so that the median of what they are drawn from lies between the
// rest with a confidence of at least 95%, or as high as n values allow. How many of the values are below the median follows a binomial
// distribution with p = 1/2 (Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2).
func interval(n int) (leaveOut int, confidence float64) {
	term := 1.0 // of so many values below the median, times 2^n
	for range n {
		term /= 2
	}
	confidence = 1 - 2*term
	for below, sum := 1, term; below < n/2; below++ {
		term *= float64(n-below+1) / float64(below)
		sum += term
		if 1-2*sum < 0.95 {
			break
		}
		leaveOut, confidence = below, 1-2*sum
	}
	return leaveOut, confidence
}
