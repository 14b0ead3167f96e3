package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// The namespace whose pods change has workloads of so many pods.
const podsOfBusy = 10

// statusDelays measures how long the status of a PodDistributor is behind its pods, while those of another namespace change all
// the time: its workloads lose half of their pods and get them back, a few in a second.
func (b *bench) statusDelays(ctx context.Context) error {
	if err := b.scaleNodes(ctx, b.options.scaleNodes); err != nil {
		return err
	}
	busy, err := b.divided(ctx, "busy", b.options.status/podsOfBusy, podsOfBusy)
	if err != nil {
		return err
	}
	calm, err := b.divided(ctx, "calm", 1, podsOfBusy)
	if err != nil {
		return err
	}
	alone, err := b.delays(ctx, calm[0])
	if err != nil {
		return err
	}
	changing, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- b.keepChanging(changing, busy) }()
	beside, err := b.delays(ctx, calm[0])
	stop()
	if err := <-failed; err != nil {
		return err
	}
	if err != nil {
		return err
	}
	fmt.Printf("\n%d changes of a Deployment, until the status of its PodDistributor counts its pods:\n\n", len(alone))
	fmt.Printf("alone                               median %.1fs, most %.1fs\n", alone[len(alone)/2].Seconds(), alone[len(alone)-1].Seconds())
	fmt.Printf("beside %5d other pods that change  median %.1fs, most %.1fs\n", b.options.status, beside[len(beside)/2].Seconds(), beside[len(beside)-1].Seconds())
	return nil
}

// divided makes Deployments with a PodDistributor each, in a namespace of their own, and waits until their pods are ready.
func (b *bench) divided(ctx context.Context, name string, workloads int, replicas int32) ([]*appsv1.Deployment, error) {
	ns, err := b.namespace(ctx, name, "stowage")
	if err != nil {
		return nil, err
	}
	out := make([]*appsv1.Deployment, workloads)
	for i := range out {
		d := deployment(ns.Name, benchCase{})
		d.Name = fmt.Sprint("workload-", i)
		label := map[string]string{"app": d.Name}
		d.Spec.Replicas, d.Spec.Selector, d.Spec.Template.Labels = &replicas, &metav1.LabelSelector{MatchLabels: label}, label
		if err := b.Client.Create(ctx, distributorOf(d)); err != nil {
			return nil, err
		}
		if err := b.Client.Create(ctx, d); err != nil {
			return nil, err
		}
		out[i] = d
	}
	return out, wait.PollUntilContextTimeout(ctx, time.Second, scaleWait, true, func(ctx context.Context) (bool, error) {
		var list appsv1.DeploymentList
		err := b.Client.List(ctx, &list, client.InNamespace(ns.Name))
		return !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool { return d.Status.ReadyReplicas < replicas }), err
	})
}

// keepChanging scales Deployments down and up, in turns, until ctx ends.
func (b *bench) keepChanging(ctx context.Context, deployments []*appsv1.Deployment) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		replicas := podsOfBusy / 2 * (1 + (i/len(deployments)+1)%2)
		if err := b.setReplicas(ctx, deployments[i%len(deployments)], int32(replicas)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (b *bench) setReplicas(ctx context.Context, d *appsv1.Deployment, n int32) error {
	target := d.DeepCopy()
	return b.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)))
}

// delays changes the replicas of a Deployment ten times, and returns how long the status took after the last pod came or went,
// in ascending order.
func (b *bench) delays(ctx context.Context, d *appsv1.Deployment) ([]time.Duration, error) {
	var out []time.Duration
	for i := range 10 {
		want := int32(podsOfBusy * (1 + (i+1)%2))
		if err := b.setReplicas(ctx, d, want); err != nil {
			return nil, err
		}
		if err := b.until(ctx, func(ctx context.Context) (bool, error) {
			var is appsv1.Deployment
			err := b.Client.Get(ctx, client.ObjectKeyFromObject(d), &is)
			return is.Status.Replicas == want && is.Status.ReadyReplicas == want, err
		}); err != nil {
			return nil, fmt.Errorf("pods of %s: %w", d.Namespace, err)
		}
		begin := time.Now()
		if err := b.until(ctx, func(ctx context.Context) (bool, error) {
			var pd versprei.PodDistributor
			if err := b.Client.Get(ctx, client.ObjectKeyFromObject(d), &pd); err != nil {
				return false, err
			}
			sum := int32(0)
			for _, p := range pd.Status.Pools {
				sum += p.Current
			}
			return sum == want, nil
		}); err != nil {
			return nil, fmt.Errorf("status of %s: %w", d.Namespace, err)
		}
		out = append(out, time.Since(begin))
	}
	slices.Sort(out)
	return out, nil
}
