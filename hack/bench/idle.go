package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// idle measures what workloads of one pod each cost the leader while nothing happens. A PodDistributor divides every second one,
// and an annotation the others; with policy, one ClusterSpreadPolicy divides all. All pods go to one of three pools, so a third of the nodes must have room for them. With full,
// each has two pods, and two of its three pools have no room: their pods have gone to the third one, and return when they can.
func (b *bench) idle(ctx context.Context) error {
	const perNamespace = 1000
	nodes := b.scaleNodes
	if b.options.full {
		nodes = b.fullNodes
	}
	if err := nodes(ctx, b.options.scaleNodes); err != nil {
		return err
	}
	if b.options.policy {
		if err := b.Client.Create(ctx, policyOfAll()); err != nil {
			return err
		}
	}
	n := b.options.idle
	for first := 0; first < n; first += perNamespace {
		count := min(perNamespace, n-first)
		if err := b.idleWorkloads(ctx, fmt.Sprint("idle-", first/perNamespace), count); err != nil {
			return err
		}
		fmt.Printf("%d of %d workloads have their pods\n", first+count, n)
	}
	if b.options.full {
		fmt.Println("Waiting for pools without room, then for two resyncs")
		if err := b.exhausted(ctx); err != nil {
			return err
		}
	} else {
		fmt.Println("Waiting for the ledgers to be removed, then for two resyncs")
		if err := b.ledgersGone(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(restFor):
	}
	fmt.Printf("\n%d workloads, in each minute:\n", n)
	for range b.options.minutes {
		before, err := b.apiRequests()
		if err != nil {
			return err
		}
		rest, err := b.atRest(ctx)
		if err != nil {
			return err
		}
		after, err := b.apiRequests()
		if err != nil {
			return err
		}
		fmt.Printf("%s of a core, %.2f API requests a second\n", rest, (after-before)/restFor.Seconds())
	}
	return nil
}

// idleWorkloads makes a namespace with so many workloads, and waits for their pods.
func (b *bench) idleWorkloads(ctx context.Context, namespace string, count int) error {
	const atOnce = 8
	ns, err := b.namespace(ctx, namespace, "stowage")
	if err != nil {
		return err
	}
	errs := make([]error, count)
	workqueue.ParallelizeUntil(ctx, atOnce, count, func(i int) { errs[i] = b.idleWorkload(ctx, ns.Name, i) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	pods := count
	if b.options.full {
		pods *= 2
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, scaleWait, true, func(ctx context.Context) (bool, error) {
		var list appsv1.DeploymentList
		if err := b.Client.List(ctx, &list, client.InNamespace(ns.Name)); err != nil {
			return false, err
		}
		ready := 0
		for i := range list.Items {
			ready += int(list.Items[i].Status.ReadyReplicas)
		}
		return ready == pods, nil
	})
	if err != nil {
		return fmt.Errorf("pods of namespace %s: %w", ns.Name, err)
	}
	return nil
}

// idleWorkload makes one of the workloads, with its policy.
func (b *bench) idleWorkload(ctx context.Context, namespace string, i int) error {
	replicas, annotated := int32(1), i%2 == 0 && !b.options.full && !b.options.policy
	if b.options.full {
		replicas = 2
	}
	d := deployment(namespace, benchCase{spread: annotated})
	d.Name = fmt.Sprint("workload-", i)
	label := map[string]string{"app": d.Name}
	d.Spec.Replicas, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = &replicas, label, label
	if !annotated && !b.options.policy {
		pd := distributorOf(d)
		if b.options.full {
			pd.Spec.Rebalance = versprei.RebalanceEvict
			for p := range pd.Spec.Distribution {
				pd.Spec.Distribution[p].NodeLabel["nodesize"] = versprei.LabelValue(fullPools[p])
				pd.Spec.Distribution[p].Spill = &versprei.Spill{After: fullAfter.String()}
			}
		}
		if err := b.Client.Create(ctx, pd); err != nil {
			return err
		}
	}
	return b.Client.Create(ctx, d)
}

// fullAfter is how long a pod waits for its pool.
const fullAfter = 10 * time.Second

// fullPools are three pools. The second and the third one have no room.
var fullPools = []string{"with-room", "full-1", "full-2"}

// fullNodes makes nodes of [fullPools]. A pod would fit on an empty one, but none is empty.
func (b *bench) fullNodes(ctx context.Context, nodes int) error {
	for i := range nodes {
		pool, size := fullPools[i%len(fullPools)], "cpu=63770m,memory=250Gi"
		if pool != fullPools[0] {
			size = "cpu=1m,memory=1Gi"
		}
		if err := b.fakeNode(ctx, fmt.Sprint("full-", i), size, map[string]string{"nodesize": pool}); err != nil {
			return err
		}
	}
	return b.WaitForNodes(ctx, 9+nodes)
}

// exhausted waits until nearly all workloads have a pool without room.
func (b *bench) exhausted(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, func(ctx context.Context) (bool, error) {
		var states stowage.PoolStateList
		if err := b.Client.List(ctx, &states); err != nil {
			return false, err
		}
		return len(states.Items) >= b.options.idle*9/10, nil
	})
}

// policyOfAll divides the pods of all Deployments over the pools of the strategy.
func policyOfAll() *stowage.ClusterSpreadPolicy {
	p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	p.Spec.Mode, p.Spec.Enforcement = stowage.PolicyEnforce, versprei.EnforcementRequired
	for _, pool := range idlePools {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: "p-" + pool, NodeSelector: map[string]versprei.LabelValue{"nodesize": versprei.LabelValue(pool)}, Weight: 1})
	}
	return p
}

// idlePools are the values of the label of the strategy's pools.
var idlePools = []string{"od4vcpu16gb", "spot4vcpu16gb", "spot8vcpu32gb"}

// distributorOf divides the pods of a Deployment over the pools of the strategy.
func distributorOf(d *appsv1.Deployment) *versprei.PodDistributor {
	out := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
	out.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name}
	for _, pool := range idlePools {
		out.Spec.Distribution = append(out.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"nodesize": versprei.LabelValue(pool)}, Weight: 1})
	}
	return out
}
