package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// What the benchmark of a large cluster makes.
const (
	podsPerWorkload       = 50
	workloadsPerNamespace = 20
	steadyFor             = 20 * time.Second
	steadyWorkloads       = 20
	restFor               = time.Minute
	scaleWait             = 30 * time.Minute
	starts                = 5 // cold starts, and changes of the leader
)

// scale measures what a large cluster costs Stowage: memory, CPU at rest, a cold start, a change of the leader,
// and the latency of pods that are created at a steady rate, beside that on an empty cluster.
func (b *bench) scale(ctx context.Context) error {
	// 1. An empty cluster.
	empty, err := b.steady(ctx, "empty")
	if err != nil {
		return err
	}

	// 2. Nodes, and workloads without pods.
	nodes, workloads := b.options.scaleNodes, b.options.scalePods/podsPerWorkload
	fmt.Printf("Making %d nodes\n", nodes)
	if err := b.scaleNodes(ctx, nodes); err != nil {
		return err
	}
	fmt.Printf("Making %d workloads\n", workloads)
	deployments, err := b.scaleWorkloads(ctx, workloads)
	if err != nil {
		return err
	}
	rss, heap, err := b.memory()
	if err != nil {
		return err
	}

	// 3. Their pods.
	pods := workloads * podsPerWorkload
	if err := b.scaleUp(ctx, deployments, pods); err != nil {
		return err
	}
	fmt.Println("Waiting for the ledgers to be removed")
	if err := b.ledgersGone(ctx); err != nil {
		return err
	}
	rssAfter, heapAfter, err := b.memory()
	if err != nil {
		return err
	}

	// 4. At rest.
	fmt.Println("Measuring the CPU at rest")
	rest, err := b.atRest(ctx)
	if err != nil {
		return err
	}

	// 5. A steady rate, as on the empty cluster.
	full, err := b.steady(ctx, "full")
	if err != nil {
		return err
	}

	// 6. Replicas that start, and leaders that are lost.
	var cold, repaired []time.Duration
	for i := range starts {
		leader, others, err := b.leader(ctx)
		if err != nil {
			return err
		}
		others[0].Kill()
		begin := time.Now()
		if err := b.Restart(ctx, others[0]); err != nil {
			return err
		}
		cold = append(cold, time.Since(begin))
		took, err := b.loseLeader(ctx, leader, deployments[i])
		if err != nil {
			return err
		}
		repaired = append(repaired, took)
		if err := b.Restart(ctx, leader); err != nil {
			return err
		}
		fmt.Printf("start %d of %d: ready after %.1fs; a pod of a lost leader repaired after %.1fs\n", i+1, starts, cold[i].Seconds(), repaired[i].Seconds())
	}
	slices.Sort(cold)
	slices.Sort(repaired)

	fmt.Printf("\n%d nodes, %d pods in %d workloads, %d replica(s):\n\n", nodes, pods, workloads, b.options.replicas)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "resident memory\t%.0f MiB without pods, %.0f MiB with them\n", rss/(1<<20), rssAfter/(1<<20))
	fmt.Fprintf(w, "heap in use\t%.1f MiB without pods, %.1f MiB with them: %.0f bytes per pod\n", heap/(1<<20), heapAfter/(1<<20), (heapAfter-heap)/float64(pods))
	fmt.Fprintf(w, "CPU at rest, of one core\t%s\n", rest)
	fmt.Fprintf(w, "cold start until ready\t%.1fs (median of %d)\n", cold[starts/2].Seconds(), starts)
	fmt.Fprintf(w, "a killed leader until the first repair\t%.1fs (median of %d)\n", repaired[starts/2].Seconds(), starts)
	fmt.Fprintf(w, "creation of a pod at %d a second\tempty cluster\tfull cluster\n", b.options.scaleRate)
	for i, of := range []string{caseNone, "spread"} {
		fmt.Fprintf(w, "  %s, p50\t%.1fms\t%.1fms\n", of, ms(empty[i].p50), ms(full[i].p50))
		fmt.Fprintf(w, "  %s, p99\t%.1fms\t%.1fms\n", of, ms(empty[i].p99), ms(full[i].p99))
	}
	return w.Flush()
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// scaleNodes makes fake nodes of the pools of the strategy.
func (b *bench) scaleNodes(ctx context.Context, nodes int) error {
	pools := []string{"od4vcpu16gb", "spot4vcpu16gb", "spot8vcpu32gb"}
	for i := range nodes {
		if err := b.fakeNode(ctx, fmt.Sprintf("scale-%d", i), "cpu=63770m,memory=250Gi", map[string]string{"nodesize": pools[i%len(pools)]}); err != nil {
			return err
		}
	}
	return b.WaitForNodes(ctx, 9+nodes)
}

// scaleWorkloads makes Deployments without replicas.
func (b *bench) scaleWorkloads(ctx context.Context, workloads int) ([]*appsv1.Deployment, error) {
	var out []*appsv1.Deployment
	var ns *corev1.Namespace
	for i := range workloads {
		if i%workloadsPerNamespace == 0 {
			var err error
			if ns, err = b.namespace(ctx, fmt.Sprintf("scale-%d", i/workloadsPerNamespace), "stowage"); err != nil {
				return nil, err
			}
		}
		d := deployment(ns.Name, benchCase{spread: true})
		d.Name = fmt.Sprintf("workload-%d", i)
		label := map[string]string{"app": d.Name}
		d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = label, label
		if err := b.Client.Create(ctx, d); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// scaleUp gives workloads their pods and waits until all pods are ready.
func (b *bench) scaleUp(ctx context.Context, deployments []*appsv1.Deployment, pods int) error {
	begin := time.Now()
	for i, d := range deployments {
		if err := b.Client.Patch(ctx, d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, podsPerWorkload))); err != nil {
			return err
		}
		// Some workloads at a time, as in a cluster.
		if i%workloadsPerNamespace != workloadsPerNamespace-1 && i < len(deployments)-1 {
			continue
		}
		if err := wait.PollUntilContextTimeout(ctx, time.Second, scaleWait, true, func(ctx context.Context) (bool, error) {
			var list appsv1.DeploymentList
			if err := b.Client.List(ctx, &list, client.InNamespace(d.Namespace)); err != nil {
				return false, err
			}
			return !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool { return d.Status.ReadyReplicas != podsPerWorkload }), nil
		}); err != nil {
			return fmt.Errorf("pods of namespace %s: %w", d.Namespace, err)
		}
		fmt.Printf("%d of %d pods are ready after %.0fs\n", (i+1)*podsPerWorkload, pods, time.Since(begin).Seconds())
	}
	return nil
}

// atRest returns the CPU that each replica takes while nothing happens, as text.
func (b *bench) atRest(ctx context.Context) (string, error) {
	before := make([]float64, len(b.Replicas()))
	for i, r := range b.Replicas() {
		var err error
		if before[i], err = r.Metric("process_cpu_seconds_total"); err != nil {
			return "", err
		}
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(restFor):
	}
	var out []string
	for i, r := range b.Replicas() {
		after, err := r.Metric("process_cpu_seconds_total")
		if err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("%.2f%%", (after-before[i])/restFor.Seconds()*100))
	}
	return strings.Join(out, ", "), nil
}

// leader returns the replica that leads, and the others.
func (b *bench) leader(ctx context.Context) (leader *controlplane.Replica, others []*controlplane.Replica, err error) {
	// The controllers of the leader have metrics that no other replica has.
	err = wait.PollUntilContextTimeout(ctx, time.Second, time.Minute, true, func(context.Context) (bool, error) {
		leader, others = nil, nil
		for _, r := range b.Replicas() {
			workers, err := r.Metric("controller_runtime_max_concurrent_reconciles", `controller="resize"`)
			if err != nil {
				return false, err
			}
			if workers > 0 && leader == nil {
				leader = r
			} else {
				others = append(others, r)
			}
		}
		return leader != nil, nil
	})
	if err == nil && len(others) == 0 {
		err = errors.New("a change of the leader needs two replicas")
	}
	return leader, others, err
}

// loseLeader kills the leader, takes the seat from a pod, and returns after what time the next leader has given
// the pod a seat again.
func (b *bench) loseLeader(ctx context.Context, leader *controlplane.Replica, d *appsv1.Deployment) (time.Duration, error) {
	var pods corev1.PodList
	if err := b.Client.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)); err != nil {
		return 0, err
	}
	if len(pods.Items) == 0 {
		return 0, fmt.Errorf("workload %s has no pods", d.Name)
	}
	pod := &pods.Items[0]
	leader.Kill()
	begin := time.Now()
	if err := b.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, stowage.SeatLabel))); err != nil {
		return 0, err
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		err := b.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return pod.Labels[stowage.SeatLabel] != "", err
	})
	return time.Since(begin), err
}

// latency is that of the creation of a pod.
type latency struct{ p50, p99 time.Duration }

// steady creates pods at a steady rate, those of no webhook and those of workloads with a strategy in turns, and
// returns the latencies of both. The pods have no ReplicaSet, which would create them in batches.
func (b *bench) steady(ctx context.Context, name string) ([]latency, error) {
	fmt.Printf("Creating %d pods a second for %s\n", b.options.scaleRate, steadyFor)
	var out []latency
	for _, bc := range []benchCase{{name: caseNone, webhook: "none"}, {name: "spread", webhook: "stowage", spread: true}} {
		ns, err := b.namespace(ctx, fmt.Sprintf("steady-%s-%s", name, bc.webhook), bc.webhook)
		if err != nil {
			return nil, err
		}
		var owners []*appsv1.Deployment
		for i := range steadyWorkloads {
			d, err := b.paused(ctx, ns.Name, fmt.Sprintf("steady-%d", i), bc, int(steadyFor.Seconds())*b.options.scaleRate/steadyWorkloads)
			if err != nil {
				return nil, err
			}
			owners = append(owners, d)
		}
		took, err := b.createAtRate(ctx, owners)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(took, cmp.Compare[time.Duration])
		out = append(out, latency{p50: took[len(took)/2], p99: took[len(took)*99/100]})
		if bc.spread {
			if err := b.reportUnseated(ctx, ns); err != nil {
				return nil, err
			}
		}
		if err := b.remove(ctx, ns); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// reportUnseated prints how many pods of a namespace have no seat: the API server had no answer in time for them.
func (b *bench) reportUnseated(ctx context.Context, ns *corev1.Namespace) error {
	var pods corev1.PodList
	if err := b.Client.List(ctx, &pods, client.InNamespace(ns.Name)); err != nil {
		return err
	}
	unseated := 0
	for i := range pods.Items {
		if pods.Items[i].Labels[stowage.SeatLabel] == "" {
			unseated++
		}
	}
	fmt.Printf("%d of %d pods bypassed the webhook\n", unseated, len(pods.Items))
	return nil
}

// createAtRate creates pods of owners in turns and returns how long each creation took.
func (b *bench) createAtRate(ctx context.Context, owners []*appsv1.Deployment) ([]time.Duration, error) {
	took := make([]time.Duration, int(steadyFor.Seconds())*b.options.scaleRate)
	var failed atomic.Value
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(b.options.scaleRate))
	defer tick.Stop()
	for i := range took {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		pod := steadyPod(owners[i%len(owners)], strconv.Itoa(i))
		all.Go(func() {
			begin := time.Now()
			if err := b.Client.Create(ctx, pod); err != nil {
				failed.Store(err)
			}
			took[i] = time.Since(begin)
		})
	}
	all.Wait()
	if err, ok := failed.Load().(error); ok {
		return nil, err
	}
	return took, nil
}

// paused makes a Deployment that asks for pods, and whose controller makes no ReplicaSet for them. It returns when the webhook of the case
// knows the Deployment.
func (b *bench) paused(ctx context.Context, namespace, name string, bc benchCase, replicas int) (*appsv1.Deployment, error) {
	d := deployment(namespace, bc)
	d.Name, d.Spec.Paused, d.Spec.Replicas = name, true, new(int32(replicas))
	if err := b.Client.Create(ctx, d); err != nil {
		return nil, err
	}
	return d, b.until(ctx, func(ctx context.Context) (bool, error) {
		pod := steadyPod(d, "try")
		err := b.Client.Create(ctx, pod, client.DryRunAll)
		return bc.spread == (pod.Labels[stowage.PoolLabel] != ""), err
	})
}

// steadyPod is a pod of a workload.
func steadyPod(owner *appsv1.Deployment, suffix string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *owner.Spec.Template.ObjectMeta.DeepCopy(), Spec: *owner.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = owner.Namespace, owner.Name+"-"+suffix
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	return pod
}
