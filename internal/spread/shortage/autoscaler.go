package shortage

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodeset"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

const (
	// karpenterFor is for how long the last look at Karpenter's objects holds. karpenterAbsent is for how long
	// Stowage assumes that there is no Karpenter, or that it may not read its objects.
	karpenterFor    = 3 * time.Second
	karpenterAbsent = 5 * time.Minute
	// failedFor is for how long a launch that failed says that a NodePool can make no such node.
	failedFor = 2 * time.Minute
)

// autoscaler is what Karpenter's objects show. Workloads share it.
type autoscaler struct {
	at, next time.Time
	pools    []karpenter.NodePool
	coming   map[string]karpenter.NodeClaim
	failed   map[string]failure // of nodes that went and had never been ready, by the name of the NodeClaim
}

// failure is a node that a NodePool could not make.
type failure struct {
	claim karpenter.NodeClaim
	at    time.Time
}

// askKarpenter reads the NodePools, and the nodes that are on their way. A cluster without Karpenter has none, and so has one
// in which Stowage may not read them: see docs/karpenter.md.
func (r *run) askKarpenter(ctx context.Context) *autoscaler {
	a := &r.autoscaler
	now := r.Clock.Now()
	if now.Before(a.next) {
		return a
	}
	var pools []karpenter.NodePool
	coming := map[string]karpenter.NodeClaim{}
	ready := map[string]bool{}
	err := r.eachOf(ctx, karpenter.NodePools, func(u *unstructured.Unstructured) error {
		p, err := karpenter.ParseNodePool(u)
		pools = append(pools, p)
		return err
	})
	if err == nil {
		err = r.eachOf(ctx, karpenter.NodeClaims, func(u *unstructured.Unstructured) error {
			c, err := karpenter.ParseNodeClaim(u)
			if c.Coming {
				coming[c.Name] = c
			} else if u.GetDeletionTimestamp() == nil {
				ready[c.Name] = true
			}
			return err
		})
	}
	if a.failed == nil {
		a.failed = map[string]failure{}
	}
	maps.DeleteFunc(a.failed, func(_ string, f failure) bool { return now.Sub(f.at) >= failedFor })
	a.next = now.Add(karpenterFor)
	if err != nil { // a part of the NodePools would look as if the others could make no node
		pools, coming = nil, map[string]karpenter.NodeClaim{}
	}
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		a.next = now.Add(karpenterAbsent)
	case err != nil:
		r.Log.Error(err, "Karpenter's objects were not read; pools are taken as if no node were on its way")
	}
	if now.Sub(a.at) > 3*karpenterFor {
		a.coming = nil // a node may have become ready and gone since
	}
	for name, c := range a.coming {
		if _, still := coming[name]; !still && !ready[name] && err == nil {
			a.failed[name] = failure{c, now}
		}
	}
	a.at, a.pools, a.coming = now, pools, coming
	return a
}

func (r *run) eachOf(ctx context.Context, kind schema.GroupVersionKind, use func(*unstructured.Unstructured) error) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return worldapi.Each(ctx, r.Uncached, list, use)
}

// onWay reports whether a node of a set is being made.
func (a *autoscaler) onWay(nodes nodeset.Set) bool {
	for _, c := range a.coming {
		if c.Of(nodes) {
			return true
		}
	}
	return false
}

// cannotMake reports whether no NodePool can make nodes of a set. Each is at its limit for a pod, or has just
// failed to launch a node. It is false if none can: then somebody else makes the nodes.
func (a *autoscaler) cannotMake(nodes nodeset.Set, requests corev1.ResourceList) bool {
	suitable := slices.DeleteFunc(slices.Clone(a.pools), func(p karpenter.NodePool) bool { return !p.Makes(nodes) })
	for i := range suitable {
		failed := false
		for _, f := range a.failed {
			failed = failed || f.claim.NodePool == suitable[i].Name && f.claim.Of(nodes) && a.at.Sub(f.at) < failedFor
		}
		if !failed && !suitable[i].AtLimit(requests) {
			return false
		}
	}
	return len(suitable) > 0
}
