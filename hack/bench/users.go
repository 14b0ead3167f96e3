package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// numbers reads positive numbers with commas between them.
func numbers(text string) (out []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of at least 1", part)
		}
		out = append(out, n)
	}
	return out, nil
}

// underLoad is what the pods of one case took while so many users created them.
type underLoad struct {
	took     time.Duration // from the first request to the last answer
	p50, p99 time.Duration // of one create, as its user sees it
	failed   int           // creates that the API server refused
	bypassed int           // pods that the case's webhook should have changed, and did not
}

// load measures creates of pods by many users at once, in the shape of load tests of other webhooks: each user waits for an answer before
// the next create. Nobody schedules the pods.
func (b *bench) load(ctx context.Context) error {
	results := map[int]map[string][]underLoad{}
	// The first turn warms up and is not counted.
	for turn := range b.options.runs + 1 {
		for _, users := range b.options.users {
			for _, bc := range cases {
				r, err := b.createAsUsers(ctx, bc, users)
				if err != nil {
					return fmt.Errorf("%s, %d users: %w", bc.name, users, err)
				}
				fmt.Printf("turn %d of %d, %3d users, %-28s %6.2fs, p99 %4.0fms, failed %d, bypassed %d\n",
					turn, b.options.runs, users, bc.name, r.took.Seconds(), ms(r.p99), r.failed, r.bypassed)
				if turn == 0 {
					continue
				}
				if results[users] == nil {
					results[users] = map[string][]underLoad{}
				}
				results[users][bc.name] = append(results[users][bc.name], r)
			}
		}
	}
	return b.reportLoad(results)
}

// createAsUsers has users create the pods of one Deployment, in a namespace of its own.
func (b *bench) createAsUsers(ctx context.Context, bc benchCase, users int) (r underLoad, err error) {
	b.serial++
	ns, err := b.namespace(ctx, fmt.Sprintf("bench-%d", b.serial), bc.webhook)
	if err != nil {
		return r, err
	}
	owner, err := b.paused(ctx, ns.Name, "load", bc, b.options.pods)
	if err != nil {
		return r, err
	}
	if err := quiet(ctx); err != nil {
		return r, err
	}
	begin := time.Now()
	took, failures := b.create(ctx, users, b.options.pods, func(i int) *corev1.Pod {
		pod := steadyPod(owner, strconv.Itoa(i))
		pod.Spec.SchedulerName = "nobody"
		return pod
	})
	r.took, r.failed = time.Since(begin), len(failures)
	if len(failures) > 0 {
		fmt.Println("a create that failed:", failures[0])
	}
	slices.Sort(took)
	r.p50, r.p99 = took[len(took)/2], took[len(took)*99/100]
	var pods corev1.PodList
	if err := b.Client.List(ctx, &pods, client.InNamespace(ns.Name)); err != nil {
		return r, err
	}
	for i := range pods.Items {
		if !bc.seen(&pods.Items[i]) {
			r.bypassed++
		}
	}
	return r, b.remove(ctx, ns)
}

// create has users create pods: each one takes the next pod when the API server has answered it. It returns how long each create took, and
// the errors.
func (b *bench) create(ctx context.Context, users, pods int, pod func(i int) *corev1.Pod) (took []time.Duration, failures []error) {
	took = make([]time.Duration, pods)
	errs := make([]error, pods)
	var next atomic.Int64
	var all sync.WaitGroup
	for range users {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < pods; i = int(next.Add(1)) - 1 {
				begin := time.Now()
				errs[i] = b.Client.Create(ctx, pod(i))
				took[i] = time.Since(begin)
			}
		})
	}
	all.Wait()
	return took, slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// reportLoad prints medians of the turns, and what a case took of the floor in the same turn: the median, the lowest and the highest.
func (b *bench) reportLoad(results map[int]map[string][]underLoad) error {
	fmt.Printf("\nCreates of %d pods by users at once, medians of %d turns, %d replica(s):\n\n", b.options.pods, b.options.runs, b.options.replicas)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "USERS\tCASE\tPODS A SECOND\tP50\tP99\tP99 OF THE FLOOR\tLOWEST\tHIGHEST\tFAILED\tBYPASSED")
	for _, users := range b.options.users {
		for _, c := range cases {
			turns, floor := results[users][c.name], results[users][caseFloor]
			var took, p50, p99 []time.Duration
			var ofFloor []float64
			failed, bypassed := 0, 0
			for i, t := range turns {
				took, p50, p99 = append(took, t.took), append(p50, t.p50), append(p99, t.p99)
				ofFloor = append(ofFloor, ratio(t.p99, floor[i].p99))
				failed, bypassed = failed+t.failed, bypassed+t.bypassed
			}
			for _, values := range [][]time.Duration{took, p50, p99} {
				slices.Sort(values)
			}
			slices.Sort(ofFloor)
			middle, last := len(turns)/2, len(turns)-1
			fmt.Fprintf(w, "%d\t%s\t%.0f\t%.0fms\t%.0fms\t%.2f\t%.2f\t%.2f\t%d\t%d\n", users, c.name, float64(b.options.pods)/took[middle].Seconds(),
				ms(p50[middle]), ms(p99[middle]), ofFloor[middle], ofFloor[0], ofFloor[last], failed, bypassed)
		}
	}
	return w.Flush()
}
