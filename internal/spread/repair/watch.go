package repair

import (
	"context"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	toolscache "k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
)

// watchPolicies notes the policies that are created or edited. The pods that they concern do not change by
// that, and resyncs are too rare for pods that were created a moment before their policy.
func (r *run) watchPolicies(t *leader.Term) error {
	if err := t.Watch(r.Informers, &versprei.PodDistributor{}, toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			d := obj.(*versprei.PodDistributor)
			if !first || r.Time.Since(d.CreationTimestamp.Time) < podstatus.PolicyGrace { // a resync begins the term
				r.policyChanged(world.TargetOf(d))
			}
		},
		UpdateFunc: func(was, is any) {
			if old, now := was.(*versprei.PodDistributor), is.(*versprei.PodDistributor); old.Generation != now.Generation {
				r.policyChanged(world.TargetOf(now))
			}
		},
	}); err != nil {
		return err
	}
	// A Deployment's annotations are copied into its ReplicaSets by its controller.
	return t.Watch(r.Informers, &appsv1.ReplicaSet{}, toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(was, is any) {
			if old, now := was.(*appsv1.ReplicaSet), is.(*appsv1.ReplicaSet); !maps.Equal(old.Annotations, now.Annotations) {
				r.policyChanged(world.Object{Namespace: now.Namespace, Ref: world.Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: now.Name}})
			}
		},
	})
}

// followSpreadPolicies notes the SpreadPolicies that are created, once the API server has their kind.
func (r *run) followSpreadPolicies(t *leader.Term) {
	if _, served := r.World.PoliciesSynced(); !served || r.followed {
		return
	}
	err := t.Watch(r.Informers, &stowage.SpreadPolicy{}, toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(obj any, _ bool) {
		if p := obj.(*stowage.SpreadPolicy); r.Time.Since(p.CreationTimestamp.Time) < podstatus.PolicyGrace {
			r.policyChanged(world.Object{Namespace: p.Namespace, Ref: world.Ref{APIVersion: stowage.GroupVersion.String(), Kind: spreadPolicyKind, Name: p.Name}})
		}
	}})
	if err != nil {
		r.Log.Error(err, "SpreadPolicies are not followed yet")
		return
	}
	r.followed = true
}

const spreadPolicyKind = "SpreadPolicy"

// rememberPolicies is how long it is remembered when a policy changed. A pod that waits longer is as any other.
const rememberPolicies = 10 * time.Minute

// policySince returns when the policy of a workload came to be. That is when its PodDistributor, SpreadPolicy or ClusterSpreadPolicy was
// created, or when this leader saw the annotations being written. It is zero where that is not known.
func (r *run) policySince(owner ledger.Owner, p *policy.Policy) time.Time {
	if p.Distributor != nil {
		return p.Distributor.CreationTimestamp.Time
	}
	if p.Policy != nil {
		return p.Policy.CreationTimestamp.Time
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policies[world.Object{Namespace: owner.Namespace, Ref: world.Ref{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name}}].date
}

// change is when a policy changed: at tells how long ago that is, and date is compared with the dates of pods.
type change struct{ at, date time.Time }

func (r *run) policyChanged(t world.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policies[t] = change{at: r.Clock.Now(), date: r.Time.Now()}
}

// lookAtPolicies has the workloads reconciled whose policies changed within the grace period. Their pods may still be
// starting, and a pod without a seat is not watched.
func (r *run) lookAtPolicies(ctx context.Context) {
	var due []world.Object
	r.mu.Lock()
	for t, changed := range r.policies {
		age := r.Clock.Since(changed.at)
		if age >= r.Timing.Quiet && age < r.Timing.Quiet+max(r.Timing.Quiet, podstatus.PolicyGrace) {
			due = append(due, t)
		}
		if age >= rememberPolicies {
			delete(r.policies, t)
		}
	}
	r.mu.Unlock()
	for _, t := range due {
		if t.Kind == spreadPolicyKind {
			r.lookAtYoung(ctx, t.Namespace)
			continue
		}
		owners, err := r.Seats.Pods().OwnersUnder(ctx, r.World, t)
		if err != nil {
			r.Log.Error(err, "the workloads of a policy are not known; the next resync finds them", "namespace", t.Namespace, "kind", t.Kind, "name", t.Name)
			continue
		}
		if len(owners) == 0 && !t.Watched() { // nothing shows the pods that were there before
			if w, err := r.World.Workload(ctx, t.Namespace, t.Ref); err == nil && w != nil {
				r.work.AddUnlessFailing(seats.OwnerOf(w))
			}
		}
		for _, w := range owners {
			if w.Current != 0 {
				r.work.AddUnlessFailing(seats.OwnerOf(w))
			}
		}
	}
}

// lookAtYoung has the workloads of a namespace reconciled that are so young that a SpreadPolicy may have come a moment after them.
func (r *run) lookAtYoung(ctx context.Context, namespace string) {
	workloads, err := r.World.PodOwnersIn(ctx, namespace)
	if err != nil {
		r.Log.Error(err, "the workloads of a SpreadPolicy are not known; the next resync finds them", "namespace", namespace)
		return
	}
	for _, w := range workloads {
		if w.Current > 0 && r.Time.Since(w.Created) < goEarlyFor {
			r.work.AddUnlessFailing(seats.OwnerOf(w))
		}
	}
}
