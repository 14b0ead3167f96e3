package capacity

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// reconcile has one node advertise how many VMs it may have, and publishes how many its pods take.
func (r *run) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	var node corev1.Node
	if err := r.Informers.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		if apierrors.IsNotFound(err) {
			r.account(ctx, name, nil)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result, err := r.advertise(ctx, node.DeepCopy())
	if err != nil {
		return result, err
	}
	// A change of the amount comes back as a change of the node.
	if again := r.account(ctx, name, &node); again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
		result.RequeueAfter = again
	}
	return result, nil
}

// advertise has one node, as the cache shows it, advertise how many VMs it may have.
func (r *run) advertise(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	// 1. What should it advertise?
	name := node.Name
	known, shown := r.change(node)
	if known == nil && !shown {
		r.notMissing(name) // the daemon may have put it back
		return reconcile.Result{}, nil
	}
	// There is something to do: what the cache shows may be older than what was done last.
	if err := r.Uncached.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	advertised := peerpod.AdvertisedBy(node, string(r.Resource))
	change, conflict := r.change(node)
	if conflict {
		want, _ := r.desired(node)
		r.Events.Warn(node, stowage.EventForeignCapacity, events.Advertise,
			"the node advertises %d of %s, which another client set, and not %d; Stowage changes the amount once it is removed or the node has the annotation %s",
			advertised.Capacity, r.Resource, want, stowage.PeerPodsCapacityAnnotation)
		if shown {
			return reconcile.Result{}, nil // once it is removed, an event comes
		}
		return reconcile.Result{RequeueAfter: lookAgain}, nil
	}
	// Here and after a write, the amount is not the one that the cache shows. It may become that one again while the
	// watch is broken; the list after it shows no change, and no event comes.
	if change == nil {
		return reconcile.Result{RequeueAfter: lookAgain}, nil
	}
	if change.Restores {
		if wait := r.waitToRestore(name); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}

	// 2. Have it advertise that.
	err := r.write(ctx, node, advertised, change)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	kind := "set"
	switch {
	case change.Amount == peerpod.None:
		kind = "withdrawn"
	case change.Restores:
		kind = "restored"
	}
	if change.Restores {
		r.noteRestored(node, advertised, change.Amount)
	}
	r.notMissing(name)
	r.Metrics.writes.WithLabelValues(kind).Inc()
	r.Log.Info("VM capacity written", "kind", "Node", "name", name, "change", kind, "vms", max(0, change.Amount), "had", advertised.Capacity)
	return reconcile.Result{RequeueAfter: lookAgain}, nil
}

// notMissing notes that a node has its amount.
func (r *run) notMissing(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, node)
}

// write writes a change of what a node advertises. The mark comes before the amount and goes after it, so that no
// amount set by Stowage is ever taken for another client's. Each write says what version it changes: another
// client may have set an amount since.
func (r *run) write(ctx context.Context, node *corev1.Node, advertised peerpod.Advertised, change *peerpod.Change) error {
	var mark, amount any
	if change.Amount != peerpod.None {
		mark, amount = change.Mark, fmt.Sprint(change.Amount)
	}
	writeMark := func() error {
		if change.Mark == advertised.Mark {
			return nil
		}
		return r.patch(ctx, r.Uncached.Patch, node, map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, "annotations": map[string]any{stowage.PeerPodsCapacityAnnotation: mark},
		}})
	}
	writeAmount := func() error {
		if change.Amount == advertised.Capacity && change.Amount == advertised.Allocatable {
			return nil
		}
		entry := map[string]any{string(r.Resource): amount}
		return r.patch(ctx, r.patchStatus, node, map[string]any{
			"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "status": map[string]any{"capacity": entry, "allocatable": entry},
		})
	}
	first, second := writeMark, writeAmount
	if change.Amount == peerpod.None {
		first, second = writeAmount, writeMark
	}
	if err := first(); err != nil {
		return err
	}
	half := peerpod.AdvertisedBy(node, string(r.Resource)) // as the answer has it
	for try := 1; ; try++ {
		err := second()
		if !apierrors.IsConflict(err) || try == mostTries {
			return err
		}
		// Something else of the node has changed. Where the amount and the mark have not, the second write goes on.
		fresh := &corev1.Node{}
		if err := r.Uncached.Get(ctx, client.ObjectKeyFromObject(node), fresh); err != nil {
			return err
		}
		if *node = *fresh; peerpod.AdvertisedBy(node, string(r.Resource)) != half {
			return err
		}
	}
}

// mostTries is how often the second write of a change is tried. A kubelet writes its node every few seconds.
const mostTries = 3

// change returns what to do to a node, or nil, and whether the node has another client's amount. Where a daemon
// decides, its amount is not another client's.
func (r *run) change(node *corev1.Node) (change *peerpod.Change, conflict bool) {
	want, known := r.desired(node)
	if !known {
		return nil, false
	}
	now := peerpod.AdvertisedBy(node, string(r.Resource))
	if now.Mark == "" && now.Capacity > 0 && r.byDaemon() && r.Nodes.Matches(labels.Set(node.Labels)) {
		now.Mark = takenOver
	}
	return peerpod.Advertise(now, want)
}

// takenOver stands for the mark on an amount that a daemon set.
const takenOver = "daemon"

// daemonStops is how long an amount is missed on a node whose daemon is Ready. A daemon removes the amount as it
// stops, and a moment later its pod is not Ready.
const daemonStops = 2 * time.Second

// waitToRestore returns how long an amount that somebody changed is left so. A kubelet that starts zeroes the
// amount once; another client that keeps changing it wins less and less often.
func (r *run) waitToRestore(node string) time.Duration {
	now := r.Clock.Now()
	if r.byDaemon() {
		r.mu.Lock()
		since, missing := r.missing[node]
		if !missing {
			since = now
			r.missing[node] = now
		}
		r.mu.Unlock()
		if wait := daemonStops - now.Sub(since); wait > 0 {
			return wait
		}
	}
	return r.restored.Wait(node, now)
}

func (r *run) patchStatus(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return r.Uncached.Status().Patch(ctx, obj, patch)
}

// patch changes a node, which is then as the answer has it.
func (r *run) patch(ctx context.Context, send func(context.Context, client.Object, client.Patch, ...client.PatchOption) error, node *corev1.Node, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	now := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := send(ctx, now, client.RawPatch(types.MergePatchType, data)); err != nil {
		return err
	}
	*node = *now
	return nil
}

// noteRestored notes that a node's amount was put back.
func (r *run) noteRestored(node *corev1.Node, had peerpod.Advertised, want int64) {
	begins := r.restored.Written(node.Name, r.Clock.Now())
	if begins || had.Capacity > 0 && had.Capacity != want { // a kubelet zeroes; an amount is another client's
		r.Events.Warn(node, stowage.EventCapacityContested, events.Advertise,
			"another client changed %s, which Stowage keeps at %d, to %d; it was put back, and is put back less often each time", r.Resource, want, max(0, had.Capacity))
	}
}
