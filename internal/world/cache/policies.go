package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterspreadpolicies;spreadpolicies,verbs=list;watch,roleName=stowage-spread

// WatchedPolicies are the policies, as their watches show them. Of the SpreadPolicies of a namespace that do not count, only their ranks
// are kept: anybody who may write one may write thousands.
type WatchedPolicies struct {
	mu sync.Mutex
	// of are those of each namespace, and of the cluster, which has no name. They do not change: others take their place.
	of     map[string]*world.Policies
	ranked map[string]*namespacePolicies
	synced []func() bool
	served bool
	known  bool // it is known whether the kinds are served
	// kinds are how many policies name each kind. Everything is named where no policy is known.
	kinds map[stowage.OwnerKind]int
	any   bool
	// missing has an entry after a policy has come to count whose spec is not kept.
	missing chan struct{}
	// ghosts are those that the informer's store did not have as it was compared last.
	ghosts map[types.UID]bool
}

// NewWatchedPolicies returns what is known before the watches begin.
func NewWatchedPolicies() *WatchedPolicies {
	return &WatchedPolicies{
		of: map[string]*world.Policies{}, ranked: map[string]*namespacePolicies{}, kinds: map[stowage.OwnerKind]int{}, missing: make(chan struct{}, 1),
	}
}

// namespacePolicies are the SpreadPolicies of a namespace.
type namespacePolicies struct {
	ranks  []rankedPolicy              // sorted
	byName map[string]world.PolicyRank // of each of them
	whole  map[string]*stowage.SpreadPolicy
}

// rankedPolicy is what is kept of each SpreadPolicy.
type rankedPolicy struct {
	world.PolicyRank
	uid        types.UID
	generation int64
	bytes      int
}

// find returns where a policy stands, or where one of its rank would.
func (n *namespacePolicies) find(rank world.PolicyRank) int {
	at, _ := slices.BinarySearchFunc(n.ranks, rank, func(a rankedPolicy, b world.PolicyRank) int { return a.Compare(b) })
	return at
}

// uid returns that of a policy, or "" if it is not known.
func (n *namespacePolicies) uid(name string) types.UID {
	rank, known := n.byName[name]
	if !known {
		return ""
	}
	at := n.find(rank)
	return n.ranks[at].uid
}

// remove removes a policy, if it is known and drop says so of what is known.
func (n *namespacePolicies) remove(name string, drop func(is rankedPolicy) bool) (removed bool) {
	rank, known := n.byName[name]
	if !known {
		return false
	}
	at := n.find(rank)
	if !drop(n.ranks[at]) {
		return false
	}
	n.ranks = slices.Delete(n.ranks, at, at+1)
	delete(n.byName, name)
	return true
}

// counting returns the ranks of those that count.
func (n *namespacePolicies) counting() []rankedPolicy {
	return n.ranks[:world.Counting(len(n.ranks), func(i int) int { return n.ranks[i].bytes })]
}

// FollowPolicies watches policies if the API server has their kinds. It returns false if it has not. Then there are none, until a
// later call finds the kinds.
func (c *Cache) FollowPolicies(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers) (served bool, err error) {
	p := c.policies
	synced, served, err := FollowKinds(ctx, mapper, informers, stowage.GroupVersion.WithKind("ClusterSpreadPolicy"), map[client.Object]toolscache.ResourceEventHandler{
		&stowage.SpreadPolicy{}: Handler(func(was, is *stowage.SpreadPolicy, _ bool) {
			if is == nil { // keep has seen the others
				p.gone(was)
			}
		}),
		&stowage.ClusterSpreadPolicy{}: Handler(func(was, is *stowage.ClusterSpreadPolicy, _ bool) { p.replace(was, is) }),
	})
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.served, p.known = synced, served, true
	return served, nil
}

// FollowKinds watches some kinds if the API server has one of them, which stands for all. Synced are functions that report whether a handler has been
// called for all objects that there were.
func FollowKinds(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers, one schema.GroupVersionKind, handlers map[client.Object]toolscache.ResourceEventHandler) (synced []func() bool, served bool, err error) {
	if _, err := mapper.RESTMapping(one.GroupKind(), one.Version); meta.IsNoMatchError(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("find the kind %s: %w", one.Kind, err)
	}
	for kind, handler := range handlers {
		informer, err := informers.GetInformer(ctx, kind, crcache.BlockUntilSynced(false))
		if err != nil {
			return nil, false, fmt.Errorf("watch %T: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, false, fmt.Errorf("watch %T: %w", kind, err)
		}
		synced = append(synced, registration.HasSynced)
	}
	return synced, true, nil
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
func (p *WatchedPolicies) names(ref world.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.any || p.kinds[stowage.OwnerKind{Group: ref.Group(), Kind: ref.Kind}] > 0
}

// keep is the transform of the informer of SpreadPolicies. It takes the spec out of a policy, so that the informer keeps none. A policy
// may come twice, the second time without its spec.
func (p *WatchedPolicies) keep(o *stowage.SpreadPolicy) *stowage.SpreadPolicy {
	kept := &stowage.SpreadPolicy{ObjectMeta: dated(o.ObjectMeta), Status: o.Status}
	if len(o.Spec.Pools) > 0 { // each policy has one
		p.mu.Lock()
		defer p.mu.Unlock()
		p.see(&stowage.SpreadPolicy{ObjectMeta: dated(o.ObjectMeta), Spec: o.Spec})
	}
	return kept
}

// see notes one version of a SpreadPolicy. A write of the status changes nothing, and neither does an event that comes twice.
func (p *WatchedPolicies) see(o *stowage.SpreadPolicy) {
	n := p.ranked[o.Namespace]
	if n == nil {
		n = &namespacePolicies{byName: map[string]world.PolicyRank{}, whole: map[string]*stowage.SpreadPolicy{}}
		p.ranked[o.Namespace] = n
	}
	is := rankedPolicy{world.RankOf(&o.ObjectMeta, &o.Spec), o.UID, o.Generation, world.PolicyBytes(&o.Spec)}
	older := func(known rankedPolicy) bool { // else it was read meanwhile
		return known.uid != o.UID || known.generation <= o.Generation
	}
	if _, known := n.byName[o.Name]; known && !n.remove(o.Name, older) {
		return
	}
	at := n.find(is.PolicyRank)
	n.ranks = slices.Insert(n.ranks, at, is)
	n.byName[o.Name] = is.PolicyRank
	p.count(o.Namespace, o)
}

// gone notes that a SpreadPolicy was deleted.
func (p *WatchedPolicies) gone(o *stowage.SpreadPolicy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.ranked[o.Namespace]
	if n == nil {
		return
	}
	if n.remove(o.Name, func(known rankedPolicy) bool { return known.uid == o.UID }) { // and not one that took its name
		p.count(o.Namespace, nil)
	}
}

// count puts the SpreadPolicies of a namespace that count in the place of those that did, if they are others. Seen is the one that has
// changed, or nil.
func (p *WatchedPolicies) count(namespace string, seen *stowage.SpreadPolicy) {
	n, counting := p.ranked[namespace], &world.Policies{}
	whole := map[string]*stowage.SpreadPolicy{}
	for _, r := range n.counting() {
		o := n.whole[r.Name]
		if seen != nil && r.Name == seen.Name && !sameVersion(o, seen) {
			o = seen
		}
		if o == nil || o.UID != r.uid {
			p.lack()
			continue
		}
		whole[r.Name] = o
		counting.Namespaced = append(counting.Namespaced, o)
	}
	n.whole = whole
	if len(n.ranks) == 0 {
		delete(p.ranked, namespace)
	}
	if was := p.of[namespace]; was != nil {
		if slices.Equal(was.Namespaced, counting.Namespaced) {
			return
		}
		for _, o := range was.Namespaced {
			p.name(o.Spec.Kinds, -1)
		}
	}
	for _, o := range counting.Namespaced {
		p.name(o.Spec.Kinds, 1)
	}
	if p.of[namespace] = counting; len(counting.Namespaced) == 0 {
		delete(p.of, namespace)
	}
}

// sameVersion reports whether a policy is known in the version that was seen. Known may be nil.
func sameVersion(known, seen *stowage.SpreadPolicy) bool {
	return known != nil && known.UID == seen.UID && known.Generation == seen.Generation
}

// lack notes that the spec of a policy that counts has to be read.
func (p *WatchedPolicies) lack() {
	select {
	case p.missing <- struct{}{}:
	default:
	}
}

// lacking returns the policies that count and whose specs have to be read.
func (p *WatchedPolicies) lacking() (out []types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for namespace, n := range p.ranked {
		for _, r := range n.counting() {
			if n.whole[r.Name] == nil {
				out = append(out, types.NamespacedName{Namespace: namespace, Name: r.Name})
			}
		}
	}
	return out
}

// replace puts one version of a ClusterSpreadPolicy in the place of the one that is known. Either may be nil. A write of the status
// changes nothing, and neither does an event that comes twice.
func (p *WatchedPolicies) replace(was, is *stowage.ClusterSpreadPolicy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, name := &world.Policies{}, ""
	if p.of[""] != nil {
		of.Cluster = slices.Clone(p.of[""].Cluster)
	}
	if is != nil {
		name = is.Name
	} else if was != nil {
		name = was.Name
	}
	if at := slices.IndexFunc(of.Cluster, func(o *stowage.ClusterSpreadPolicy) bool { return o.Name == name }); at >= 0 {
		known := of.Cluster[at]
		if is != nil && known.UID == is.UID && known.Generation == is.Generation {
			return
		}
		p.name(known.Spec.Kinds, -1)
		of.Cluster = slices.Delete(of.Cluster, at, at+1)
	}
	if is != nil {
		of.Cluster = append(of.Cluster, is)
		p.name(is.Spec.Kinds, 1)
	}
	if p.of[""] = of; len(of.Cluster) == 0 {
		delete(p.of, "")
	}
}

// name counts the kinds that policies name.
func (p *WatchedPolicies) name(kinds []stowage.OwnerKind, n int) {
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

// PoliciesBeyond returns the SpreadPolicies that do not count.
func (c *Cache) PoliciesBeyond() (beyond []types.NamespacedName) {
	c.policies.mu.Lock()
	defer c.policies.mu.Unlock()
	for namespace, n := range c.policies.ranked {
		for _, r := range n.ranks[len(n.counting()):] {
			beyond = append(beyond, types.NamespacedName{Namespace: namespace, Name: r.Name})
		}
	}
	return beyond
}

// AllPolicies returns the policies of the cluster and of every namespace that count.
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
