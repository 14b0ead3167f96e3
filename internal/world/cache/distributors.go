package cache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// distributors is the index of PodDistributors by target. Every pod asks it, so an answer takes the same time however many
// there are, of other targets or of the same one.
type distributors struct {
	hasSynced func() bool // asked until it is true
	synced    atomic.Bool

	mu       sync.RWMutex
	byTarget map[target]*siblings
}

// target is an object, in whatever version.
type target struct{ namespace, group, kind, name string }

func targetOf(o world.Object) target { return target{o.Namespace, o.Group(), o.Kind, o.Name} }

// siblings are the PodDistributors of one target.
type siblings struct {
	all    map[string]*versprei.PodDistributor // by name
	winner *versprei.PodDistributor
}

// FollowDistributors makes the index. Until the index has all that there is, and without it, PodDistributors are listed. It has to
// be called before the cache answers.
func (c *Cache) FollowDistributors(ctx context.Context, informers crcache.Informers) error {
	informer, err := informers.GetInformer(ctx, &versprei.PodDistributor{})
	if err != nil {
		return fmt.Errorf("watch PodDistributors: %w", err)
	}
	index := &distributors{byTarget: map[target]*siblings{}}
	registration, err := informer.AddEventHandler(Handler(func(was, is *versprei.PodDistributor, _ bool) { index.replace(was, is) }))
	if err != nil {
		return fmt.Errorf("watch PodDistributors: %w", err)
	}
	index.hasSynced = registration.HasSynced
	c.distributors = index
	return nil
}

// ready reports whether the index has all that there is. It may be nil.
func (x *distributors) ready() bool {
	if x == nil {
		return false
	}
	if !x.synced.Load() && x.hasSynced() {
		x.synced.Store(true)
	}
	return x.synced.Load()
}

// replace puts one version of a PodDistributor in the place of another. Either may be nil.
func (x *distributors) replace(was, is *versprei.PodDistributor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was != nil {
		x.remove(targetOf(world.TargetOf(was)), was.Name)
	}
	if is != nil {
		key := targetOf(world.TargetOf(is))
		r := x.byTarget[key]
		if r == nil {
			r = &siblings{all: map[string]*versprei.PodDistributor{}}
			x.byTarget[key] = r
		}
		if r.all[is.Name] = is; world.Wins(is, r.winner) {
			r.winner = is
		}
	}
}

func (x *distributors) remove(key target, name string) {
	r := x.byTarget[key]
	if r == nil {
		return
	}
	delete(r.all, name)
	if len(r.all) == 0 {
		delete(x.byTarget, key)
		return
	}
	if r.winner.Name != name {
		return
	}
	r.winner = nil
	for _, d := range r.all {
		if world.Wins(d, r.winner) {
			r.winner = d
		}
	}
}

// winner returns the PodDistributor that targets one of some objects.
func (x *distributors) winner(namespace string, targets []world.Ref) *versprei.PodDistributor {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var best *versprei.PodDistributor
	for _, ref := range targets {
		if r := x.byTarget[targetOf(world.Object{Namespace: namespace, Ref: ref})]; r != nil && world.Wins(r.winner, best) {
			best = r.winner
		}
	}
	return best
}

// PodDistributor implements [world.Snapshot].
func (c *Cache) PodDistributor(ctx context.Context, namespace string, targets []world.Ref) (*versprei.PodDistributor, error) {
	if c.distributors.ready() {
		return c.distributors.winner(namespace, targets), nil
	}
	list, err := c.PodDistributors(ctx, namespace)
	return world.Winner(list, targets), err
}

// PodDistributorsOf returns PodDistributors that target an object, at most so many.
func (c *Cache) PodDistributorsOf(ctx context.Context, object world.Object, most int) (out []*versprei.PodDistributor, err error) {
	if c.distributors.ready() {
		c.distributors.mu.RLock()
		defer c.distributors.mu.RUnlock()
		if r := c.distributors.byTarget[targetOf(object)]; r != nil {
			for _, d := range r.all {
				if out = append(out, d); len(out) == most {
					break
				}
			}
		}
		return out, nil
	}
	list, err := c.PodDistributors(ctx, object.Namespace)
	for i := range list {
		if len(out) < most && world.TargetOf(&list[i]).SameObject(object.Ref) {
			out = append(out, &list[i])
		}
	}
	return out, err
}

// PodDistributors returns the PodDistributors of a namespace, or of all of them if it is empty, with their specs.
func (c *Cache) PodDistributors(ctx context.Context, namespace string) ([]versprei.PodDistributor, error) {
	var list versprei.PodDistributorList
	if err := c.cached.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("read the PodDistributors of namespace %q: %w", namespace, err)
	}
	return list.Items, nil
}
