package cache

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterspreadpolicies;spreadpolicies,verbs=list;watch,roleName=stowage-spread

// policies are all policies, as their watches show them.
type policies struct {
	mu         sync.Mutex
	namespaced map[types.NamespacedName]*stowage.SpreadPolicy
	cluster    map[string]*stowage.ClusterSpreadPolicy
	all        *world.Policies // nil after a change, until somebody asks
	synced     []func() bool
	served     bool
	known      bool // it is known whether the kinds are served
	// kinds are those that policies name. Everything is named where no policy is known.
	kinds map[stowage.OwnerKind]bool
	any   bool
}

// FollowPolicies watches policies if the API server has their kinds. It returns false if it has not. Then there are none, until a
// later call finds the kinds.
func (c *Cache) FollowPolicies(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers) (served bool, err error) {
	p := &c.policies
	gvk := stowage.GroupVersion.WithKind("ClusterSpreadPolicy")
	if _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
		if !meta.IsNoMatchError(err) {
			return false, fmt.Errorf("find the kind ClusterSpreadPolicy: %w", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.known = true
		return false, nil
	}
	var synced []func() bool
	for _, kind := range []client.Object{&stowage.SpreadPolicy{}, &stowage.ClusterSpreadPolicy{}} {
		informer, err := informers.GetInformer(ctx, kind, crcache.BlockUntilSynced(false))
		if err != nil {
			return false, fmt.Errorf("watch %T: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.replace(nil, obj) },
			UpdateFunc: func(was, is any) { p.replace(was, is) },
			DeleteFunc: func(obj any) { p.replace(Deleted(obj), nil) },
		})
		if err != nil {
			return false, fmt.Errorf("watch %T: %w", kind, err)
		}
		synced = append(synced, registration.HasSynced)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.served, p.known = synced, true, true
	return true, nil
}

// PoliciesSynced reports whether all policies are known, and whether the API server has their kinds.
func (c *Cache) PoliciesSynced() (synced, served bool) {
	c.policies.mu.Lock()
	defer c.policies.mu.Unlock()
	for _, ok := range c.policies.synced {
		if !ok() {
			return false, true
		}
	}
	return c.policies.known, c.policies.served
}

// names reports whether a policy divides the pods of owners of a kind.
func (p *policies) names(ref world.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list()
	return p.any || p.kinds[stowage.OwnerKind{Group: ref.Group(), Kind: ref.Kind}]
}

// replace puts one version of a policy in the place of another. Either may be nil. A write of the status changes nothing.
func (p *policies) replace(was, is any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := was.(client.Object); ok {
		now, ok := is.(client.Object)
		if ok && old.GetUID() == now.GetUID() && old.GetGeneration() == now.GetGeneration() {
			return
		}
	}
	switch o := was.(type) {
	case *stowage.SpreadPolicy:
		delete(p.namespaced, client.ObjectKeyFromObject(o))
	case *stowage.ClusterSpreadPolicy:
		delete(p.cluster, o.Name)
	}
	switch o := is.(type) {
	case *stowage.SpreadPolicy:
		if p.namespaced == nil {
			p.namespaced = map[types.NamespacedName]*stowage.SpreadPolicy{}
		}
		p.namespaced[client.ObjectKeyFromObject(o)] = o
	case *stowage.ClusterSpreadPolicy:
		if p.cluster == nil {
			p.cluster = map[string]*stowage.ClusterSpreadPolicy{}
		}
		p.cluster[o.Name] = o
	}
	p.all = nil
}

// Policies implements [world.Snapshot].
func (c *Cache) Policies(context.Context, string) (*world.Policies, error) {
	p := &c.policies
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list(), nil
}

// list returns all policies. The mutex is held.
func (p *policies) list() *world.Policies {
	if p.all != nil {
		return p.all
	}
	p.kinds = map[stowage.OwnerKind]bool{}
	if len(p.namespaced)+len(p.cluster) == 0 {
		return nil
	}
	p.all = &world.Policies{}
	for _, o := range p.namespaced {
		p.all.Namespaced = append(p.all.Namespaced, o)
		p.name(o.Spec.Kinds)
	}
	for _, o := range p.cluster {
		p.all.Cluster = append(p.all.Cluster, o)
		p.name(o.Spec.Kinds)
	}
	return p.all
}

func (p *policies) name(kinds []stowage.OwnerKind) {
	for _, k := range kinds {
		p.kinds[k] = true
	}
}

// ReadTemplates has the pod templates read of all workloads that are not watched, for somebody who asks once.
func (c *Cache) ReadTemplates() { c.policies.any = true }

// PoliciesOf returns policies that were listed, or nil if there are none.
func PoliciesOf(namespaced []stowage.SpreadPolicy, cluster []stowage.ClusterSpreadPolicy) *world.Policies {
	if len(namespaced)+len(cluster) == 0 {
		return nil
	}
	all := &world.Policies{}
	for i := range namespaced {
		all.Namespaced = append(all.Namespaced, &namespaced[i])
	}
	for i := range cluster {
		all.Cluster = append(all.Cluster, &cluster[i])
	}
	return all
}
