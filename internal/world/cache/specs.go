package cache

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// Policies whose specs have to be read, by second and at once. Namespaces have equal parts. One is read when another one that came before
// it goes, and does not count until then.
const (
	specRate  = 20
	specBurst = 100
	specRetry = time.Second
)

// compareEvery is how often what is known of policies is compared with the informer's store.
const compareEvery = time.Minute

// dropGhosts forgets the policies that the informer's store did not have twice. A first list that breaks off may have shown them to
// the transform, and no event tells that they are gone. One that is missing for the first time may be on its way into the store.
func (c *Cache) dropGhosts(ctx context.Context) {
	var stored stowage.SpreadPolicyList
	if synced, served := c.PoliciesSynced(); !synced || !served || c.cached.List(ctx, &stored, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	there := make(map[types.UID]bool, len(stored.Items))
	for i := range stored.Items {
		there[stored.Items[i].UID] = true
	}
	p := c.policies
	p.mu.Lock()
	defer p.mu.Unlock()
	ghosts := map[types.UID]bool{}
	for namespace, n := range p.ranked {
		before := len(n.ranks)
		n.ranks = slices.DeleteFunc(n.ranks, func(r rankedPolicy) bool {
			if there[r.uid] {
				return false
			}
			ghosts[r.uid] = true
			if p.ghosts[r.uid] {
				delete(n.byName, r.Name)
			}
			return p.ghosts[r.uid]
		})
		if len(n.ranks) != before {
			p.count(namespace, nil)
		}
	}
	p.ghosts = ghosts
}

// ReadSpecs reads the specs of policies that have come to count since their watch brought them, until ctx ends.
func (c *Cache) ReadSpecs(ctx context.Context) error {
	limit := fair.NewLimiter[string](specRate, specBurst)
	p := c.policies
	compare := time.NewTicker(compareEvery)
	defer compare.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-compare.C:
			c.dropGhosts(ctx)
			continue
		case <-p.missing:
		}
		for _, name := range p.lacking() {
			if !limit.Allow(name.Namespace, c.clock.Now()) || c.readSpec(ctx, name) != nil {
				time.AfterFunc(specRetry, p.lack)
			}
		}
	}
}

// readSpec reads one policy. It lists, as the watch may.
func (c *Cache) readSpec(ctx context.Context, name types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, c.objects.timeout)
	defer cancel()
	var found stowage.SpreadPolicyList
	if err := c.uncached.List(ctx, &found, client.InNamespace(name.Namespace), client.MatchingFields{metav1.ObjectNameField: name.Name}); err != nil {
		return err
	}
	c.policies.mu.Lock()
	defer c.policies.mu.Unlock()
	for i := range found.Items {
		o := &found.Items[i]
		n := c.policies.ranked[name.Namespace]
		if n == nil || n.uid(o.Name) != o.UID {
			continue // it is gone, as the watch shows, or another one has its name
		}
		c.policies.see(&stowage.SpreadPolicy{ObjectMeta: dated(o.ObjectMeta), Spec: o.Spec})
	}
	return nil
}
