package costs

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterscaledownpolicies;scaledownpolicies,verbs=list;watch,roleName=stowage-scale-down-controllers

// Policies are the watches of ScaleDownPolicies and ClusterScaleDownPolicies.
type Policies struct {
	// Changes tells of each change of a policy, with its namespace, which is empty for one of the cluster.
	Changes listeners.Listeners[string]

	mu     sync.Mutex
	synced []func() bool // of the watches, where the kinds are served
	known  bool          // it is known whether they are
}

// Follow watches policies if the API server has their kinds. It returns false if it has not. Then there are none, until a later call finds the kinds.
func (p *Policies) Follow(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers) (served bool, err error) {
	synced, served, err := worldcache.FollowKinds(ctx, mapper, informers, stowage.GroupVersion.WithKind(policies.KindCluster), map[client.Object]toolscache.ResourceEventHandler{
		&stowage.ScaleDownPolicy{}: worldcache.Handler(func(was, is *stowage.ScaleDownPolicy, _ bool) {
			switch {
			case is == nil:
				p.Changes.Tell(was.Namespace)
			case was == nil || was.Generation != is.Generation: // and not the status
				p.Changes.Tell(is.Namespace)
			}
		}),
		&stowage.ClusterScaleDownPolicy{}: worldcache.Handler(func(was, is *stowage.ClusterScaleDownPolicy, _ bool) {
			if was == nil || is == nil || was.Generation != is.Generation {
				p.Changes.Tell("")
			}
		}),
	})
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.known = synced, true
	return served, nil
}

// all returns the policies that the watches show, in the order in which they win. It returns false until they are known.
func (p *Policies) all(ctx context.Context, watches client.Reader) (sorted []*policies.Policy, known bool, err error) {
	p.mu.Lock()
	synced, known := p.synced, p.known
	p.mu.Unlock()
	for _, ok := range synced {
		known = known && ok()
	}
	if !known || len(synced) == 0 {
		return nil, known, nil
	}
	var own stowage.ScaleDownPolicyList
	if err := watches.List(ctx, &own, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, err
	}
	var cluster stowage.ClusterScaleDownPolicyList
	if err := watches.List(ctx, &cluster, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, err
	}
	for i := range own.Items {
		sorted = append(sorted, policies.Of(&own.Items[i]))
	}
	for i := range cluster.Items {
		sorted = append(sorted, policies.OfCluster(&cluster.Items[i]))
	}
	policies.Sort(sorted)
	return sorted, true, nil
}
