package status

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/world"
)

// rollsOut are the findings whose remedy may be to roll out. What a rollout does to a workload takes a request, and is asked for these alone.
var rollsOut = map[finding.Reason]bool{
	finding.OutsidePool: true, finding.OverTarget: true, finding.PoolRemoved: true, finding.WithoutSeat: true, finding.OverInDomain: true,
	finding.EvictionRefused: true, finding.RolloutUnfinished: true, finding.RepairInVain: true, finding.PodHeld: true,
}

// knownRollout is what was read of a Deployment, at a generation of it.
type knownRollout struct {
	generation int64
	finding.Rollout
}

// mostRollouts is how many workloads are remembered.
const mostRollouts = 2000

// ofRollout returns a function that adds to the values of a finding what a rollout of a target would do. It reads only once it is called.
func (r *Run) ofRollout(ctx context.Context, target world.Object, d *divisions.Division) func(*finding.Values) {
	return func(v *finding.Values) {
		v.Rollout = r.rolloutOf(ctx, target)
		v.NoNodes, v.Cordoned = d.Closed(func(pool nodeset.Set) nodefit.Nodes {
			var nodes corev1.NodeList
			if err := r.Cached.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: pool.Selector()}, client.UnsafeDisableDeepCopy); err != nil {
				return nodefit.NodesUnknown
			}
			return nodefit.NodesOf(nodes.Items)
		})
	}
}

// rolloutOf returns what keeps a rollout of a target from creating all pods again. The informers have metadata of Deployments alone, so a Deployment is
// read from the API server, once for each of its generations.
func (r *Run) rolloutOf(ctx context.Context, target world.Object) (none finding.Rollout) {
	name := client.ObjectKey{Namespace: target.Namespace, Name: target.Name}
	switch {
	case target.Group() == appsv1.GroupName && target.Kind == "StatefulSet":
		o := &appsv1.StatefulSet{}
		if r.Cached.Get(ctx, name, o) != nil {
			return none
		}
		return finding.RolloutOf(o)
	case target.Group() != appsv1.GroupName || target.Kind != "Deployment":
		return none
	}
	cached, read := &metav1.PartialObjectMetadata{}, &appsv1.Deployment{}
	cached.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if r.Cached.Get(ctx, name, cached) != nil {
		return none
	}
	if known, ok := r.rollouts[cached.UID]; ok && known.generation == cached.Generation {
		return known.Rollout
	}
	if r.Uncached.Get(ctx, name, read) != nil {
		return none
	}
	if len(r.rollouts) >= mostRollouts {
		r.rollouts = map[types.UID]knownRollout{}
	}
	of := finding.RolloutOf(read)
	r.rollouts[read.UID] = knownRollout{read.Generation, of}
	return of
}
