package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What the benchmark of orders makes.
const (
	orderLabel = "bench.stowage.dev/order"
	orderPools = 3
	orderGroup = 50 // seats of one write in a burst, about
	pollOrder  = 20 * time.Millisecond
)

// orders are orders of pods over the pools. The scheduler can reuse its work for pods that are alike and follow each
// other (KEP-5598, OpportunisticBatching), so the order may matter to it.
var orders = []struct {
	name string
	pool func(i, pods int) int
}{
	{"as the sequence has them", func(i, _ int) int { return i % orderPools }},
	{"by pool in groups of 50", func(i, _ int) int { return i % orderGroup * orderPools / orderGroup }},
	{"by pool", func(i, pods int) int { return i * orderPools / pods }},
}

// order measures how many pods of several pools the scheduler binds per second, by their order. Stowage takes no part:
// the pods have their node selectors already.
func (b *bench) order(ctx context.Context) error {
	fmt.Printf("Making %d nodes\n", b.options.orderNodes)
	for i := range b.options.orderNodes {
		if err := b.fakeNode(ctx, fmt.Sprintf("order-%d", i), b.options.orderSize, map[string]string{orderLabel: fmt.Sprint(i % orderPools)}); err != nil {
			return err
		}
	}
	took := make([][]time.Duration, len(orders))
	for run := range b.options.runs + 1 {
		for i, o := range orders {
			d, err := b.schedule(ctx, o.pool)
			if err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			fmt.Printf("run %d of %d, %-26s %6.0f pods a second\n", run, b.options.runs, o.name, float64(b.options.pods)/d.Seconds())
			if run > 0 { // the first warms up
				took[i] = append(took[i], d)
			}
		}
	}
	fmt.Printf("\nMedians of %d runs of %d pods on %d nodes of %s:\n\n", b.options.runs, b.options.pods, b.options.orderNodes, b.options.orderSize)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ORDER\tPODS A SECOND\tOF THE FIRST")
	for i, o := range orders {
		slices.Sort(took[i])
		d := took[i][len(took[i])/2]
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\n", o.name, float64(b.options.pods)/d.Seconds(), ratio(took[0][len(took[0])/2], d))
	}
	return w.Flush()
}

// schedule creates pods while the scheduler is stopped, and returns how long the scheduler takes to bind them.
func (b *bench) schedule(ctx context.Context, pool func(i, pods int) int) (_ time.Duration, err error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "order-"}}
	if err := b.Client.Create(ctx, ns); err != nil {
		return 0, err
	}
	if err := b.Signal("kube-scheduler", syscall.SIGSTOP); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.Signal("kube-scheduler", syscall.SIGCONT)) }() // also after an error
	for i := range b.options.pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: fmt.Sprintf("p-%d", i)},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{orderLabel: fmt.Sprint(pool(i, b.options.pods))},
				Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
				}}},
				TerminationGracePeriodSeconds: new(int64(0)),
			},
		}
		if err := b.Client.Create(ctx, pod); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	if err := b.Signal("kube-scheduler", syscall.SIGCONT); err != nil {
		return 0, err
	}
	// One pod without a node at a time: lists of hundreds would compete with the scheduler.
	if err := wait.PollUntilContextTimeout(ctx, pollOrder, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		last, err := b.Clientset.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=", Limit: 1})
		if err != nil {
			return false, err
		}
		return len(last.Items) == 0, nil
	}); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := b.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(ns.Name), client.GracePeriodSeconds(0)); err != nil {
		return 0, err
	}
	if err := b.until(ctx, func(ctx context.Context) (bool, error) {
		var left corev1.PodList
		err := b.Client.List(ctx, &left, client.InNamespace(ns.Name), client.Limit(1))
		return len(left.Items) == 0, err
	}); err != nil {
		return 0, err
	}
	return took, b.Client.Delete(ctx, ns)
}
