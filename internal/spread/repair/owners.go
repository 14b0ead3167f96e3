package repair

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// ownersOf returns what makes the pods of a target, and whether the target is there.
func (r *run) ownersOf(ctx context.Context, namespace string, target cluster.Ref) (owners []*cluster.Workload, found bool, err error) {
	w, err := r.Cluster.Workload(ctx, namespace, target)
	if err != nil {
		return nil, false, err
	}
	all, err := r.Cluster.PodOwners(ctx, namespace)
	if err != nil {
		return nil, false, err
	}
	seen := map[types.UID]bool{}
	var unread error
	for _, m := range all {
		chain, err := cluster.Owners(ctx, r.Cluster, namespace, m.Ref)
		switch {
		case chain.Includes(target):
			owners = append(owners, m)
			seen[m.UID] = true
		case err != nil:
			unread = err // it may be of another workload
		}
	}
	if len(owners) == 0 && unread != nil {
		return nil, false, unread
	}
	// Kinds that are not watched are known by their pods.
	for _, o := range r.Seats.Pods().Owners() {
		if o.Namespace == namespace && !seen[o.UID] && seats.Ref(o).SameObject(target) {
			owners = append(owners, &cluster.Workload{Ref: seats.Ref(o), Namespace: namespace, Replicas: -1, Current: -1})
		}
	}
	return owners, w != nil || len(owners) > 0, nil
}
