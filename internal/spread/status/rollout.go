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

// rollout is what keeps a rollout of a workload from creating all pods again.
type rollout struct {
	paused, onDelete bool
	partition        int64
}

// knownRollout is what was read of a workload, at a version of it.
type knownRollout struct {
	version string
	rollout
}

// mostRollouts is how many workloads are remembered.
const mostRollouts = 2000

// ofRollout returns a function that adds to the values of a finding what a rollout of a target would do. It reads only once it is called.
func (r *Run) ofRollout(ctx context.Context, target world.Object, d *divisions.Division) func(*finding.Values) {
	return func(v *finding.Values) {
		of := r.rolloutOf(ctx, target)
		v.Paused, v.OnDelete, v.Partition = of.paused, of.onDelete, of.partition
		v.NoNodes, v.Cordoned = d.Closed(func(pool nodeset.Set) nodefit.Nodes {
			var nodes corev1.NodeList
			if err := r.Cached.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: pool.Selector()}, client.UnsafeDisableDeepCopy); err != nil {
				return nodefit.NodesUnknown
			}
			return nodefit.NodesOf(nodes.Items)
		})
	}
}

// rolloutOf returns what keeps a rollout of a target from creating all pods again. The informers have no such field of a Deployment or a StatefulSet,
// so the object is read from the API server, once for each of its versions.
func (r *Run) rolloutOf(ctx context.Context, target world.Object) (of rollout) {
	if target.Group() != appsv1.GroupName {
		return of
	}
	name := client.ObjectKey{Namespace: target.Namespace, Name: target.Name}
	cached, read := client.Object(nil), client.Object(nil)
	switch target.Kind {
	case "Deployment":
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
		cached, read = m, &appsv1.Deployment{}
	case "StatefulSet":
		cached, read = &appsv1.StatefulSet{}, &appsv1.StatefulSet{}
	default:
		return of
	}
	if err := r.Cached.Get(ctx, name, cached); err != nil {
		return of
	}
	if known, ok := r.rollouts[cached.GetUID()]; ok && known.version == cached.GetResourceVersion() {
		return known.rollout
	}
	if err := r.Uncached.Get(ctx, name, read); err != nil {
		return of
	}
	switch o := read.(type) {
	case *appsv1.Deployment:
		of.paused = o.Spec.Paused
	case *appsv1.StatefulSet:
		of.onDelete = o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
		if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil && !of.onDelete {
			of.partition = int64(*u.Partition)
		}
	}
	if len(r.rollouts) >= mostRollouts {
		r.rollouts = map[types.UID]knownRollout{}
	}
	r.rollouts[read.GetUID()] = knownRollout{read.GetResourceVersion(), of}
	return of
}
