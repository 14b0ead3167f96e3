package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// The cases and their sizes are those of Kubernetes' scheduler_perf, SchedulingWhileGated and SchedulingWithExtendedResource
// (test/integration/scheduler_perf/misc/performance-config.yaml). Its pods come from 30 workers at once.
const (
	schedulingWorkers  = 30
	deletionsPerSecond = 50
)

// schedulingCase is one of them, and what Stowage does there.
type schedulingCase struct {
	name string
	with benchCase
	run  func(b *bench, ctx context.Context, bc benchCase) (podsPerSecond float64, err error)
}

var schedulingCases = []schedulingCase{
	{name: "while pods are gated", run: (*bench).whileGated, with: benchCase{name: "spread", webhook: "stowage", spread: true}},
	{name: "with an extended resource", run: (*bench).withExtendedResource, with: benchCase{name: "peer pods", webhook: "stowage", peer: true}},
}

// scheduling measures how many pods a second are created and scheduled.
func (b *bench) scheduling(ctx context.Context) error {
	if err := b.setCapacity(ctx, corev1.ResourcePods, 90000); err != nil {
		return err
	}
	// The nodes of peer pods have one VM each, and no other node has any.
	if err := b.setCapacity(ctx, stowage.DefaultVMResource, 0); err != nil {
		return err
	}
	for i := range b.options.pods {
		name := fmt.Sprintf("scheduling-%d", i)
		if err := b.fakeNode(ctx, name, "cpu=4,memory=32Gi,"+string(stowage.DefaultVMResource)+"=1", map[string]string{}, vmTaint); err != nil {
			return err
		}
	}
	if err := b.WaitForNodes(ctx, 9+b.options.pods); err != nil {
		return err
	}
	results := map[string][]speeds{}
	for turn := range b.options.runs + 1 {
		for _, c := range schedulingCases {
			s, err := b.compareScheduling(ctx, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("turn %d of %d, %-26s %4.0f pods a second without a webhook, %4.0f with the floor, %4.0f with Stowage\n",
				turn, b.options.runs, c.name, s.without, s.floor, s.with)
			if turn > 0 {
				results[c.name] = append(results[c.name], s)
			}
		}
	}
	return b.reportScheduling(results)
}

// speeds are how many pods a second were created and scheduled in a turn of a case.
type speeds struct{ without, floor, with float64 }

func (b *bench) compareScheduling(ctx context.Context, c schedulingCase) (s speeds, err error) {
	if s.without, err = c.run(b, ctx, benchCase{name: caseNone, webhook: "none"}); err != nil {
		return s, fmt.Errorf("%s: %w", caseNone, err)
	}
	if s.floor, err = c.run(b, ctx, benchCase{name: caseFloor, webhook: "floor"}); err != nil {
		return s, fmt.Errorf("%s: %w", caseFloor, err)
	}
	if s.with, err = c.run(b, ctx, c.with); err != nil {
		return s, fmt.Errorf("%s: %w", c.with.name, err)
	}
	return s, nil
}

// reportScheduling prints medians, and of the ratios the lowest and the highest, too.
func (b *bench) reportScheduling(results map[string][]speeds) error {
	fmt.Printf("\n%d pods created and scheduled, medians of %d turns, %d replica(s):\n\n", b.options.pods, b.options.runs, b.options.replicas)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tPODS A SECOND WITHOUT A WEBHOOK\tFLOOR\tSTOWAGE\tOF NO WEBHOOK (LOWEST, HIGHEST)\tOF THE FLOOR (LOWEST, HIGHEST)")
	for _, c := range schedulingCases {
		of := func(value func(speeds) float64) (middle, lowest, highest float64) {
			var values []float64
			for _, s := range results[c.name] {
				values = append(values, value(s))
			}
			slices.Sort(values)
			return values[len(values)/2], values[0], values[len(values)-1]
		}
		without, _, _ := of(func(s speeds) float64 { return s.without })
		floor, _, _ := of(func(s speeds) float64 { return s.floor })
		with, _, _ := of(func(s speeds) float64 { return s.with })
		share, low, high := of(func(s speeds) float64 { return s.with / s.without })
		floorShare, floorLow, floorHigh := of(func(s speeds) float64 { return s.with / s.floor })
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f (%.2f, %.2f)\t%.2f (%.2f, %.2f)\n", c.name, without, floor, with, share, low, high, floorShare, floorLow, floorHigh)
	}
	return w.Flush()
}

// vmTaint keeps the pods that are no peer pods from the nodes with VMs.
var vmTaint = corev1.Taint{Key: "bench.stowage.dev/vm", Effect: corev1.TaintEffectNoSchedule}

// whileGated measures pods that are created and scheduled beside as many pods with a scheduling gate, while as many others are deleted.
func (b *bench) whileGated(ctx context.Context, bc benchCase) (float64, error) {
	b.serial++
	ns, err := b.namespace(ctx, fmt.Sprintf("bench-%d", b.serial), bc.webhook)
	if err != nil {
		return 0, err
	}
	pods := func(name string, change func(*corev1.Pod)) (func(i int) *corev1.Pod, error) {
		owner, err := b.paused(ctx, ns.Name, name, bc, b.options.pods)
		return func(i int) *corev1.Pod {
			pod := steadyPod(owner, strconv.Itoa(i))
			change(pod)
			return pod
		}, err
	}
	gated, err := pods("gated", func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "bench.stowage.dev/hold"}}
	})
	if err != nil {
		return 0, err
	}
	deleted, err := pods("deleted", func(*corev1.Pod) {})
	if err != nil {
		return 0, err
	}
	measured, err := pods("measured", func(*corev1.Pod) {})
	if err != nil {
		return 0, err
	}
	if _, failures := b.create(ctx, schedulingWorkers, b.options.pods, gated); len(failures) > 0 {
		return 0, failures[0]
	}
	if _, err := b.createAndSchedule(ctx, ns.Name, deleted); err != nil {
		return 0, err
	}
	if err := quiet(ctx); err != nil {
		return 0, err
	}
	deleting, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.deleteSlowly(deleting, ns.Name, "deleted") }()
	perSecond, err := b.createAndSchedule(ctx, ns.Name, measured)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	return perSecond, b.clean(ctx, ns, bc)
}

// deleteSlowly deletes the pods of an owner, [deletionsPerSecond], until it has deleted all or ctx ends.
func (b *bench) deleteSlowly(ctx context.Context, namespace, owner string) error {
	tick := time.NewTicker(time.Second / deletionsPerSecond)
	defer tick.Stop()
	for i := range b.options.pods {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", owner, i)}}
		if err := b.Client.Delete(ctx, pod); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// withExtendedResource measures pods that each need the only VM of a node. Without Stowage they ask for it themselves.
func (b *bench) withExtendedResource(ctx context.Context, bc benchCase) (float64, error) {
	b.serial++
	ns, err := b.namespace(ctx, fmt.Sprintf("bench-%d", b.serial), bc.webhook)
	if err != nil {
		return 0, err
	}
	owner, err := b.paused(ctx, ns.Name, "measured", bc, b.options.pods)
	if err != nil {
		return 0, err
	}
	if err := quiet(ctx); err != nil {
		return 0, err
	}
	perSecond, err := b.createAndSchedule(ctx, ns.Name, func(i int) *corev1.Pod {
		pod := steadyPod(owner, strconv.Itoa(i))
		pod.Spec.Tolerations = []corev1.Toleration{{Key: vmTaint.Key, Operator: corev1.TolerationOpExists}}
		if !bc.peer {
			vm := corev1.ResourceList{stowage.DefaultVMResource: *resource.NewQuantity(1, resource.DecimalSI)}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: vm, Limits: vm}
		}
		return pod
	})
	if err != nil {
		return 0, err
	}
	return perSecond, b.clean(ctx, ns, bc)
}

// createAndSchedule creates pods from [schedulingWorkers] at once, and returns how many of them a second got a node.
func (b *bench) createAndSchedule(ctx context.Context, namespace string, pod func(i int) *corev1.Pod) (podsPerSecond float64, err error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute) // ends the watch, too
	defer stop()
	list, err := b.Clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	// The API server may close a watch at any time.
	scheduled, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
			return b.Clientset.CoreV1().Pods(namespace).Watch(ctx, options)
		},
	})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	failed := make(chan error, 1)
	go func() {
		if _, failures := b.create(ctx, schedulingWorkers, b.options.pods, pod); len(failures) > 0 {
			failed <- failures[0]
		}
	}()
	owner := metav1.GetControllerOf(pod(0)).UID
	for left := b.options.pods; left > 0; {
		select {
		case err := <-failed:
			return 0, err
		case event, open := <-scheduled.ResultChan():
			if !open {
				return 0, fmt.Errorf("%d of %d pods have no node: %w", left, b.options.pods, context.Cause(ctx))
			}
			// A pod is added to what the selector selects when it gets its node.
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Added && metav1.GetControllerOf(p).UID == owner {
				left--
			}
		}
	}
	return float64(b.options.pods) / time.Since(begin).Seconds(), nil
}
