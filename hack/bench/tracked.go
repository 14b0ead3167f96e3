package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// track grows one workload to many pods and says what they cost Stowage: requests for
// the first pod, the size of the ledger in the burst, and memory afterwards.
func (b *bench) track(ctx context.Context) error {
	ns, err := b.namespace(ctx, "tracked", "stowage")
	if err != nil {
		return err
	}
	if err := b.setCapacity(ctx, corev1.ResourcePods, int64(b.options.tracked)); err != nil {
		return err
	}
	d := deployment(ns.Name, benchCase{spread: true})
	if err := b.Client.Create(ctx, d); err != nil {
		return err
	}
	scale := func(replicas int) error {
		return b.Client.Patch(ctx, d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)))
	}
	largest := 0
	grown := func(replicas int) error {
		return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
			var ledgers stowage.SeatLedgerList
			if err := b.Client.List(ctx, &ledgers, client.InNamespace(ns.Name)); err != nil {
				return false, err
			}
			for i := range ledgers.Items {
				ledgers.Items[i].ManagedFields = nil
				data, err := json.Marshal(&ledgers.Items[i])
				if err != nil {
					return false, err
				}
				largest = max(largest, len(data))
			}
			err := b.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
			return int(d.Status.Replicas) == replicas, err
		})
	}
	time.Sleep(5 * time.Second) // the start's own requests end
	rss, heap, err := b.memory()
	if err != nil {
		return err
	}
	requests, err := b.apiRequests()
	if err != nil {
		return err
	}
	if err := scale(1); err != nil {
		return err
	}
	if err := grown(1); err != nil {
		return err
	}
	lone, err := b.apiRequests()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := scale(b.options.tracked); err != nil {
		return err
	}
	if err := grown(b.options.tracked); err != nil {
		return err
	}
	took := time.Since(start)
	all, err := b.apiRequests()
	if err != nil {
		return err
	}
	// Claims expire, and the ledger is removed.
	if err := b.ledgersGone(ctx); err != nil {
		return err
	}
	rssAfter, heapAfter, err := b.memory()
	if err != nil {
		return err
	}
	n := float64(b.options.tracked)
	fmt.Printf("\n%d pods of one workload, created in %.0fs, %d replica(s):\n\n", b.options.tracked, took.Seconds(), b.options.replicas)
	fmt.Printf("API requests for a lone pod     %.0f\n", lone-requests)
	fmt.Printf("API requests per pod of a burst %.3f\n", (all-lone)/n)
	fmt.Printf("largest ledger                  %.0f KiB (%.0f bytes per claim)\n", float64(largest)/1024, float64(largest)/n)
	fmt.Printf("resident memory                 %.0f MiB before, %.0f MiB after\n", rss/(1<<20), rssAfter/(1<<20))
	fmt.Printf("heap in use                     %.1f MiB before, %.1f MiB after: %.0f bytes per tracked pod\n", heap/(1<<20), heapAfter/(1<<20), (heapAfter-heap)/n)
	return nil
}

// ledgersGone waits until no SeatLedger is left.
func (b *bench) ledgersGone(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		var ledgers stowage.SeatLedgerList
		err := b.Client.List(ctx, &ledgers)
		return len(ledgers.Items) == 0, err
	})
}

// memory returns the resident memory of the first replica and its heap after a
// collection, in bytes.
func (b *bench) memory() (rss, heap float64, err error) {
	if rss, err = b.metric("process_resident_memory_bytes"); err != nil {
		return 0, 0, err
	}
	heap, err = b.metric("go_memstats_heap_alloc_bytes")
	// The heap between two collections is up to twice what is in use; the least of
	// some seconds is close to it.
	for range 30 {
		time.Sleep(time.Second)
		h, err := b.metric("go_memstats_heap_alloc_bytes")
		if err != nil {
			return 0, 0, err
		}
		heap = min(heap, h)
	}
	return rss, heap, err
}
