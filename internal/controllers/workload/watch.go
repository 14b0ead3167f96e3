package workload

import (
	"context"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	toolscache "k8s.io/client-go/tools/cache"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/leader"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/seats"
)

// watchPolicies has the workloads of a policy reconciled that is created or edited. Their pods do not
// change by that, and resyncs are too rare for pods that were created a moment before their policy.
func (r *run) watchPolicies(t *leader.Term) error {
	ctx := t.Context()
	err := t.Watch(r.Informers, &versprei.PodDistributor{}, toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			if d := obj.(*versprei.PodDistributor); !first { // a resync begins the term
				r.policyChanged(ctx, d.Namespace, policy.TargetOf(d))
			}
		},
		UpdateFunc: func(was, is any) {
			if old, now := was.(*versprei.PodDistributor), is.(*versprei.PodDistributor); old.Generation != now.Generation {
				r.policyChanged(ctx, now.Namespace, policy.TargetOf(now))
			}
		},
	})
	if err != nil {
		return err
	}
	// A Deployment's annotations are copied into its ReplicaSets by its controller.
	return t.Watch(r.Informers, &appsv1.ReplicaSet{}, toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(was, is any) {
			if old, now := was.(*appsv1.ReplicaSet), is.(*appsv1.ReplicaSet); !maps.Equal(old.Annotations, now.Annotations) {
				r.policyChanged(ctx, now.Namespace, cluster.Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: now.Name})
			}
		},
	})
}

// policyChanged has the workloads reconciled whose pods a target's policy concerns.
func (r *run) policyChanged(ctx context.Context, namespace string, target cluster.Ref) {
	owners, _, err := r.ownersOf(ctx, namespace, target)
	if err != nil {
		r.Log.Error(err, "the workloads of a policy are not known; the next resync finds them", "namespace", namespace, "kind", target.Kind, "name", target.Name)
		return
	}
	for _, w := range owners {
		if w.Current != 0 {
			r.work.AddAfter(seats.OwnerOf(w), r.Timing.Quiet)
		}
	}
}
