package supply

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/world"
)

// move evicts pods whose VM was not made, and whose successors get another type.
func (r *run) move(ctx context.Context, c *catalog.Catalog, peers []*Peer) {
	if len(c.Closures()) == 0 {
		return
	}
	for _, p := range peers {
		if p.Ours {
			r.newest = max(r.newest, p.CreationTimestamp.Unix())
		}
	}
	now := r.Time.Now()
	for _, p := range peers {
		if !r.moves(ctx, c, p) || r.stays(p) {
			continue
		}
		if r.unproven.MayEvict(r.newest, now) && r.limit.Allow(p.Namespace, r.Clock.Now()) && r.evict(ctx, c, p) {
			r.unproven.Note(now)
		}
	}
}

// moves reports whether a pod is to be evicted, as it was seen.
func (r *run) moves(ctx context.Context, c *catalog.Catalog, p *Peer) bool {
	if !p.shows() || !p.Active {
		return false
	}
	zone, known := r.zoneOf(ctx, p.Node)
	pod := p.pod(zone)
	return known && c.Moves(&pod, p.Need, r.Time.Now())
}

// evict evicts a pod, if it is as it was seen.
func (r *run) evict(ctx context.Context, c *catalog.Catalog, p *Peer) bool {
	pod := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: p.Name}, pod); err != nil || pod.UID != p.UID {
		return false
	}
	fresh := PeerOf(&r.Config, pod)
	if !r.moves(ctx, c, fresh) || !r.Scope.Enforces(ctx, pod.Namespace, podpatch.FromPod(pod)) {
		return false
	}
	result, err := r.Evictor.EvictUnchanged(ctx, pod)
	if err != nil && !r.stays(fresh) { // else the evictor has just read its Job, and it is not tried again
		r.Log.Error(err, "a pod whose VM was not made was not evicted; this is tried again", "namespace", pod.Namespace, "kind", "Pod", "name", pod.Name)
	}
	if result != evict.Evicted {
		return false
	}
	next := c.Choose(fresh.Need, pod.Namespace, nil).Type
	r.Events.Warn(pod, stowage.EventVMNotMade, events.Supply, "no VM of type %s was made within %s, so the pod was evicted; its successor gets type %s", p.Type, c.FailAfter, next.Name)
	r.Log.Info("a pod was evicted, because its VM was not made", "namespace", pod.Namespace, "kind", "Pod", "name", pod.Name, "type", p.Type, "next", next.Name)
	return true
}

// stays reports whether it is known, without a request, that nobody creates a pod in the place of one. Otherwise the evictor finds out.
func (r *run) stays(p *Peer) bool {
	if p.Owner == nil {
		return true
	}
	next, known := r.Successors.Known(world.RefOf(p.Owner))
	return known && next == successor.None
}
