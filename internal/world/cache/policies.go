package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterspreadpolicies;spreadpolicies,verbs=list;watch,roleName=stowage-spread

// policies are all policies, as their watches show them.
type policies struct {
	mu sync.Mutex
	// of are those of each namespace, and of the cluster, which has no name. They do not change: others take their place.
	of     map[string]*world.Policies
	synced []func() bool
	served bool
	known  bool // it is known whether the kinds are served
	// kinds are how many policies name each kind. Everything is named where no policy is known.
	kinds map[stowage.OwnerKind]int
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
	return p.any || p.kinds[stowage.OwnerKind{Group: ref.Group(), Kind: ref.Kind}] > 0
}

// replace puts one version of a policy in the place of the one that is known. Either may be nil. A write of the status changes
// nothing, and neither does an event that comes twice.
func (p *policies) replace(was, is any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of, p.kinds = map[string]*world.Policies{}, map[stowage.OwnerKind]int{}
	}
	object, there := is.(client.Object)
	if !there {
		var ok bool
		if object, ok = was.(client.Object); !ok {
			return
		}
	}
	namespace, name := object.GetNamespace(), object.GetName()
	if known, kinds := p.find(object, namespace, name); known != nil {
		if there && known.GetUID() == object.GetUID() && known.GetGeneration() == object.GetGeneration() {
			return
		}
		p.count(kinds, -1)
		p.change(namespace, func(of *world.Policies) {
			of.Namespaced = slices.DeleteFunc(of.Namespaced, func(p *stowage.SpreadPolicy) bool { return p.Name == name })
			of.Cluster = slices.DeleteFunc(of.Cluster, func(p *stowage.ClusterSpreadPolicy) bool { return p.Name == name })
		})
	}
	switch o := is.(type) {
	case *stowage.SpreadPolicy:
		p.change(namespace, func(of *world.Policies) { of.Namespaced = append(of.Namespaced, o) })
		p.count(o.Spec.Kinds, 1)
	case *stowage.ClusterSpreadPolicy:
		p.change("", func(of *world.Policies) { of.Cluster = append(of.Cluster, o) })
		p.count(o.Spec.Kinds, 1)
	}
}

// find returns the policy of a name that is known, and the kinds that it names. It returns nil if none is.
func (p *policies) find(like client.Object, namespace, name string) (client.Object, []stowage.OwnerKind) {
	of := p.of[namespace]
	if of == nil {
		return nil, nil
	}
	if _, ok := like.(*stowage.SpreadPolicy); ok {
		for _, o := range of.Namespaced {
			if o.Name == name {
				return o, o.Spec.Kinds
			}
		}
		return nil, nil
	}
	for _, o := range of.Cluster {
		if o.Name == name {
			return o, o.Spec.Kinds
		}
	}
	return nil, nil
}

// change puts changed policies of a namespace in the place of those that there are.
func (p *policies) change(namespace string, change func(*world.Policies)) {
	of := &world.Policies{}
	if was := p.of[namespace]; was != nil {
		of.Namespaced, of.Cluster = slices.Clone(was.Namespaced), slices.Clone(was.Cluster)
	}
	change(of)
	if p.of[namespace] = of; len(of.Namespaced)+len(of.Cluster) == 0 {
		delete(p.of, namespace)
	}
}

func (p *policies) count(kinds []stowage.OwnerKind, n int) {
	for _, k := range kinds {
		if p.kinds[k] += n; p.kinds[k] <= 0 {
			delete(p.kinds, k)
		}
	}
}

// Policies implements [world.Snapshot].
func (c *Cache) Policies(_ context.Context, namespace string) (*world.Policies, error) {
	c.policies.mu.Lock()
	defer c.policies.mu.Unlock()
	return c.policies.of[namespace], nil
}

// AllPolicies returns the policies of the cluster and of every namespace.
func (c *Cache) AllPolicies() *world.Policies {
	c.policies.mu.Lock()
	defer c.policies.mu.Unlock()
	all := &world.Policies{}
	for _, of := range c.policies.of {
		all.Namespaced, all.Cluster = append(all.Namespaced, of.Namespaced...), append(all.Cluster, of.Cluster...)
	}
	return all
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
