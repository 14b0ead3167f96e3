package seats

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/world"
)

// Ref returns the reference to an owner.
func Ref(o ledger.Owner) world.Ref {
	return world.Ref{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}
}

// OwnerOf returns the owner of a workload's pods.
func OwnerOf(w *world.Workload) ledger.Owner {
	return ledger.Owner{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, UID: w.UID}
}

// Observe returns an owner with those of its pods that have a seat.
func (p *Pods) Observe(w *world.Workload) observed.Owner {
	return observed.Owner{Workload: w, Pods: p.Of(OwnerOf(w).Key())}
}

// ObserveClaims is [Pods.Observe] if one of the pods has a volume.
func (p *Pods) ObserveClaims(w *world.Workload) (of observed.Owner, ok bool) {
	key := OwnerOf(w).Key()
	p.mu.RLock()
	o := p.byOwner[key]
	ok = o != nil && o.claims > 0
	p.mu.RUnlock()
	if !ok {
		return of, false
	}
	return p.Observe(w), true
}

// OwnersUnder returns the owners of a workload's pods. Those of kinds that are not watched are known by their pods; how many
// pods they ask for is not known.
func (p *Pods) OwnersUnder(ctx context.Context, snapshot world.Snapshot, top world.Object) ([]*world.Workload, error) {
	owners, err := snapshot.PodOwners(ctx, top.Namespace, top.Ref)
	if err != nil {
		return nil, err
	}
	found := map[types.UID]bool{}
	for _, w := range owners {
		found[w.UID] = true
	}
	var others []*world.Workload
	for _, o := range p.ownersUnwatched(top.Namespace) {
		if !found[o.UID] {
			others = append(others, &world.Workload{Ref: Ref(o), Namespace: o.Namespace, Replicas: -1, Current: -1})
		}
	}
	below, err := world.Under(ctx, snapshot, top, others)
	if err != nil && len(owners) == 0 {
		return nil, err
	}
	return append(owners, below...), nil
}
