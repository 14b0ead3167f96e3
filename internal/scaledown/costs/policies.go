package costs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterscaledownpolicies;scaledownpolicies,verbs=list;watch,roleName=stowage-scale-down-controllers

// Policies are the ScaleDownPolicies and ClusterScaleDownPolicies as their watches show them.
type Policies struct {
	// Changes tells of each change of a policy, with its namespace, which is empty for one of the cluster.
	Changes listeners.Listeners[string]

	mu     sync.Mutex
	byUID  map[types.UID]*policies.Policy
	synced []func() bool
	known  bool // it is known whether the kinds are served
}

// NewPolicies returns what is known before the watches begin.
func NewPolicies() *Policies { return &Policies{byUID: map[types.UID]*policies.Policy{}} }

// Follow watches policies if the API server has their kinds. It returns false if it has not. Then there are none, until a later call finds the kinds.
func (p *Policies) Follow(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers) (served bool, err error) {
	gvk := stowage.GroupVersion.WithKind(policies.KindCluster)
	if _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
		if !meta.IsNoMatchError(err) {
			return false, fmt.Errorf("find the kind %s: %w", policies.KindCluster, err)
		}
		p.follow(nil)
		return false, nil
	}
	var synced []func() bool
	for kind, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&stowage.ScaleDownPolicy{}: worldcache.Handler(func(was, is *stowage.ScaleDownPolicy, _ bool) {
			if is == nil {
				p.see(was.UID, was.Namespace, nil)
			} else {
				p.see(is.UID, is.Namespace, policies.Of(is))
			}
		}),
		&stowage.ClusterScaleDownPolicy{}: worldcache.Handler(func(was, is *stowage.ClusterScaleDownPolicy, _ bool) {
			if is == nil {
				p.see(was.UID, "", nil)
			} else {
				p.see(is.UID, "", policies.OfCluster(is))
			}
		}),
	} {
		informer, err := informers.GetInformer(ctx, kind, crcache.BlockUntilSynced(false))
		if err != nil {
			return false, fmt.Errorf("watch %T: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return false, fmt.Errorf("watch %T: %w", kind, err)
		}
		synced = append(synced, registration.HasSynced)
	}
	p.follow(synced)
	return true, nil
}

func (p *Policies) follow(synced []func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.known = synced, true
}

// see notes one version of a policy, or nil if it is gone. A write of its status changes nothing.
func (p *Policies) see(uid types.UID, namespace string, is *policies.Policy) {
	p.mu.Lock()
	was := p.byUID[uid]
	if is == nil {
		delete(p.byUID, uid)
	} else if was == nil || was.Generation != is.Generation {
		p.byUID[uid] = is
	}
	p.mu.Unlock()
	if is == nil || was == nil || was.Generation != is.Generation {
		p.Changes.Tell(namespace)
	}
}

// all returns the policies, in the order in which they win. It returns false until they are known.
func (p *Policies) all() (sorted []*policies.Policy, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ok := range p.synced {
		known = ok()
		if !known {
			return nil, false
		}
	}
	sorted = slices.Collect(maps.Values(p.byUID))
	policies.Sort(sorted) // it marks those that are too many
	return sorted, p.known
}
