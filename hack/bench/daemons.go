package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The cases of the DaemonSet benchmark.
var daemonCases = []benchCase{
	{name: caseNone, webhook: "none"},
	{name: caseFloor, webhook: "floor"},
	{name: "stowage, no template", webhook: "stowage"},
	{name: "stowage, OnCreate", webhook: "stowage", template: flexdaemonsets.UpdateOnCreate},
	{name: caseInPlace, webhook: "stowage", template: flexdaemonsets.UpdateInPlace},
}

// caseInPlace is the case whose cost at rest is measured, too.
const caseInPlace = "stowage, InPlace"

// daemonLabel is on the nodes of the benchmark.
const daemonLabel = "bench.stowage.dev/daemons"

// spent is what Stowage and the webhook's calls have taken since the start.
type spent struct {
	reads, cpu, calls float64
	took              time.Duration
}

// spent reads what was taken so far.
func (b *bench) spent(ctx context.Context) (s spent, err error) {
	if s.reads, err = b.requests(`method="GET"`); err != nil {
		return s, err
	}
	if s.cpu, err = b.metric("process_cpu_seconds_total"); err != nil {
		return s, err
	}
	s.calls, s.took, err = b.calls(ctx)
	return s, err
}

// daemons measures a DaemonSet onto many nodes, and what the controllers take while these
// only heartbeat.
func (b *bench) daemons(ctx context.Context) error {
	// 1. Nodes of three sizes.
	fmt.Printf("Making %d nodes\n", b.options.daemons)
	sizes := []string{"cpu=3920m,memory=15104Mi", "cpu=15890m,memory=60Gi", "cpu=63770m,memory=250Gi"}
	for i := range b.options.daemons {
		if err := b.fakeNode(ctx, fmt.Sprintf("daemon-%d", i), sizes[i%len(sizes)], map[string]string{daemonLabel: "yes"},
			corev1.Taint{Key: daemonLabel, Effect: corev1.TaintEffectNoSchedule}); err != nil {
			return err
		}
	}
	if err := b.WaitForNodes(ctx, 9+b.options.daemons); err != nil {
		return err
	}
	rss, heap, err := b.memory()
	if err != nil {
		return err
	}

	// 2. DaemonSets, in turns. The first of each case warms up and is not counted.
	results := map[string][]result{}
	reads := map[string]float64{}
	for i := range b.options.runs + 1 {
		for _, bc := range daemonCases {
			before, err := b.spent(ctx)
			if err != nil {
				return err
			}
			r, err := b.daemonSet(ctx, bc, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", bc.name, err)
			}
			after, err := b.spent(ctx)
			if err != nil {
				return err
			}
			if calls := after.calls - before.calls; calls > 0 {
				r.call = (after.took - before.took) / time.Duration(calls)
			}
			r.cpu = (after.cpu - before.cpu) / float64(b.options.daemons)
			fmt.Printf("DaemonSet %d of %d, %-22s created %6.2fs, ready %6.2fs\n", i, b.options.runs, bc.name, r.created.Seconds(), r.ready.Seconds())
			if i > 0 {
				results[bc.name] = append(results[bc.name], r)
				reads[bc.name] += after.reads - before.reads
			}
		}
	}
	fmt.Printf("\nMedians of %d DaemonSets on %d nodes, %d replica(s):\n\n", b.options.runs, b.options.daemons, b.options.replicas)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tCREATED\tOF NO WEBHOOK\tOF THE FLOOR\tREADY\tWEBHOOK CALL\tCPU OF A REPLICA PER POD\tAPI READS OF STOWAGE, IN ALL")
	created := func(name string) time.Duration {
		return median(results[name], func(r result) time.Duration { return r.created })
	}
	for _, c := range daemonCases {
		fmt.Fprintf(w, "%s\t%.2fs\t%.2f\t%.2f\t%.2fs\t%.1fms\t%.2fms\t%.0f\n", c.name, created(c.name).Seconds(),
			ratio(created(c.name), created(caseNone)), ratio(created(c.name), created(caseFloor)),
			median(results[c.name], func(r result) time.Duration { return r.ready }).Seconds(),
			ms(median(results[c.name], func(r result) time.Duration { return r.call })), median(results[c.name], func(r result) float64 { return r.cpu })*1000, reads[c.name])
	}
	if err := w.Flush(); err != nil {
		return err
	}

	return b.daemonsAtRest(ctx, rss, heap)
}

// daemonsAtRest measures the memory with one sized pod on each node, and the steady state: with the controllers and, for what the watches alone
// take, without. Rss and heap are what they were before.
func (b *bench) daemonsAtRest(ctx context.Context, rss, heap float64) error {
	var idle, busy []float64
	inPlace := slices.IndexFunc(daemonCases, func(c benchCase) bool { return c.name == caseInPlace })
	if inPlace < 0 {
		return nil
	}
	if _, err := b.daemonSet(ctx, daemonCases[inPlace], func() error {
		rssAfter, heapAfter, err := b.memory()
		if err != nil {
			return err
		}
		fmt.Printf("\nresident memory  %.0f MiB before, %.0f MiB with a sized pod on each node\n", rss/(1<<20), rssAfter/(1<<20))
		fmt.Printf("heap in use      %.1f MiB before, %.1f MiB\n", heap/(1<<20), heapAfter/(1<<20))
		for range b.options.runs {
			for _, controllers := range []bool{true, false} {
				o := controlplane.StowageOptions{Binary: b.binary, Replicas: b.options.replicas, Env: []string{"LOG_LEVEL="}}
				if !controllers {
					o.Args = []string{"--sizing=false", "--spread=false", "--peerpods-capacity=Off"}
				}
				if err := b.StartStowage(ctx, o); err != nil {
					return err
				}
				time.Sleep(10 * time.Second) // the start's own work ends
				cpu, requests, err := b.heartbeats(ctx)
				if err != nil {
					return err
				}
				fmt.Printf("heartbeats, controllers %-5v  %5.2f ms of CPU per second, %.0f writes to the API\n", controllers, cpu*1000, requests)
				if controllers {
					busy = append(busy, cpu)
				} else {
					idle = append(idle, cpu)
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	slices.Sort(idle)
	slices.Sort(busy)
	fmt.Printf("\nMedians while each of %d nodes reports its status every %s: %.2f ms of CPU per second with controllers, %.2f without\n",
		b.options.daemons, heartbeatEvery, busy[len(busy)/2]*1000, idle[len(idle)/2]*1000)
	return nil
}

// fakeNode makes a node whose kubelet kwok plays.
func (b *bench) fakeNode(ctx context.Context, name, size string, labels map[string]string, taints ...corev1.Taint) error {
	list := testkit.ResourceList(size + ",ephemeral-storage=90Gi,pods=110")
	labels[corev1.LabelOSStable], labels[corev1.LabelHostname] = "linux", name
	return b.Client.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status:     corev1.NodeStatus{Capacity: list, Allocatable: list},
	})
}

// How often each node reports its status, and for how long that is measured. A kubelet
// does it every five minutes (nodeStatusReportFrequency).
const (
	heartbeatEvery = 10 * time.Second
	heartbeatFor   = 30 * time.Second
)

// heartbeats has every node report its status, and returns the seconds of CPU that the
// first replica takes in a second, and the writes that it sends meanwhile.
func (b *bench) heartbeats(ctx context.Context) (cpu, writes float64, err error) {
	const writing = `method="(PATCH|POST|PUT|DELETE)"`
	before, err := b.metric("process_cpu_seconds_total")
	if err != nil {
		return 0, 0, err
	}
	wrote, err := b.requests(writing)
	if err != nil {
		return 0, 0, err
	}
	leases, err := b.requests(`host="[^"]*",method="PUT"`) // an elected replica renews its lease
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	tick := time.NewTicker(heartbeatEvery / time.Duration(b.options.daemons))
	defer tick.Stop()
	for i := 0; time.Since(start) < heartbeatFor; i++ {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-tick.C:
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("daemon-%d", i%b.options.daemons)}}
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		if err := b.Client.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
			return 0, 0, err
		}
	}
	after, err := b.metric("process_cpu_seconds_total")
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(start).Seconds()
	wroteAfter, err := b.requests(writing)
	if err != nil {
		return 0, 0, err
	}
	leasesAfter, err := b.requests(`host="[^"]*",method="PUT"`)
	if err != nil {
		return 0, 0, err
	}
	return (after - before) / took, wroteAfter - wrote - (leasesAfter - leases), nil
}

// daemonSet puts a DaemonSet onto the nodes, does something while it is there, and
// removes it again.
func (b *bench) daemonSet(ctx context.Context, bc benchCase, meanwhile func() error) (_ result, err error) {
	b.serial++
	ns, err := b.namespace(ctx, fmt.Sprintf("daemons-%d", b.serial), bc.webhook)
	if err != nil {
		return result{}, err
	}
	template := deployment(ns.Name, bc).Spec.Template
	template.Spec.NodeSelector = nil
	template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: daemonLabel, Operator: corev1.NodeSelectorOpExists}}}},
	}}}
	template.Spec.Tolerations = []corev1.Toleration{{Key: daemonLabel, Operator: corev1.TolerationOpExists}}
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "daemons", Namespace: ns.Name},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}
	if bc.template != "" {
		t := &flexdaemonsets.FlexDaemonsetTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: ns.Name},
			Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
				CPUPercentage: new(int32(1)), MemoryPercentage: new(int32(1)), MinCPU: "10m", UpdatePolicy: bc.template,
			},
		}
		if err := b.Client.Create(ctx, t); err != nil {
			return result{}, err
		}
		defer func() { err = errors.Join(err, b.Client.Delete(ctx, t)) }()
		if err := b.until(ctx, func(ctx context.Context) (bool, error) { // the leader knows it
			err := b.Client.Get(ctx, client.ObjectKeyFromObject(t), t)
			return t.Status.ObservedGeneration == t.Generation, err
		}); err != nil {
			return result{}, err
		}
		d.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: t.Name}
	}
	start := time.Now()
	if err := b.Client.Create(ctx, d); err != nil {
		return result{}, err
	}
	var r result
	if err := b.until(ctx, func(ctx context.Context) (bool, error) {
		if err := b.Client.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return false, err
		}
		if r.created == 0 && int(d.Status.CurrentNumberScheduled) == b.options.daemons {
			r.created = time.Since(start)
		}
		r.ready = time.Since(start)
		return int(d.Status.NumberReady) == b.options.daemons, nil
	}); err != nil {
		return result{}, err
	}
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return result{}, err
		}
	}
	return r, b.clean(ctx, ns, bc)
}

// metric reads one metric of the first replica. Each that is read so is above 0.
func (b *bench) metric(name string) (float64, error) {
	v, err := b.Replicas()[0].Metric(name)
	if err == nil && v == 0 {
		err = fmt.Errorf("there is no metric %s", name)
	}
	return v, err
}

// requests returns how many requests all replicas of Stowage have sent to the API server,
// of those whose labels match an expression.
func (b *bench) requests(labels string) (float64, error) { return b.sum(requestsMetric, labels) }

// requestsMetric counts the requests of a client of the API server.
const requestsMetric = "rest_client_requests_total"

// sum adds up a metric over all replicas of Stowage, of the samples whose labels match an expression.
func (b *bench) sum(name, labels string) (float64, error) {
	sum := 0.0
	for _, r := range b.Processes() {
		v, err := r.Metric(name, labels)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}
