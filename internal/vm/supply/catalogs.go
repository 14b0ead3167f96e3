// Package supply knows which types of VMs there are, follows the VMs of peer pods, and closes types whose VMs cannot be made. It keeps the status of
// VMCatalogs.
//
// What follows from what is seen is decided by package catalog. This package looks, writes and evicts. It promises that
//   - without a VMCatalog it sends no request and watches no pod;
//   - a pod is evicted only after the closure of its type was stored and seen in the watch;
//   - a pod is evicted only if nothing has changed of it since it was read without a VM.
package supply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=vmcatalogs,verbs=list;watch,roleName=stowage-peerpods

// Catalogs are the VMCatalogs as the watch shows them.
type Catalogs struct {
	sorted atomic.Pointer[[]*catalog.Catalog]

	mu     sync.Mutex
	byName map[string]*catalog.Catalog
	synced func() bool // nil until it is known whether the kind is served
}

// NewCatalogs returns what is known before the watch begins.
func NewCatalogs() *Catalogs { return &Catalogs{byName: map[string]*catalog.Catalog{}} }

// Follow watches VMCatalogs if the API server has the kind. It returns false if it has not. Then there are none, until a later call finds it.
func (c *Catalogs) Follow(ctx context.Context, mapper meta.RESTMapper, informers crcache.Informers) (served bool, err error) {
	gvk := stowage.GroupVersion.WithKind("VMCatalog")
	if _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
		if !meta.IsNoMatchError(err) {
			return false, fmt.Errorf("find the kind VMCatalog: %w", err)
		}
		c.follow(func() bool { return true })
		return false, nil
	}
	informer, err := informers.GetInformer(ctx, &stowage.VMCatalog{}, crcache.BlockUntilSynced(false))
	if err != nil {
		return false, fmt.Errorf("watch VMCatalogs: %w", err)
	}
	registration, err := informer.AddEventHandler(worldcache.Handler(func(was, is *stowage.VMCatalog, _ bool) { c.see(was, is) }))
	if err != nil {
		return false, fmt.Errorf("watch VMCatalogs: %w", err)
	}
	c.follow(registration.HasSynced)
	return true, nil
}

func (c *Catalogs) follow(synced func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = synced
}

// see puts one version of a catalog in the place of another. Either may be nil.
func (c *Catalogs) see(was, is *stowage.VMCatalog) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is != nil {
		c.byName[is.Name] = catalog.Compile(is)
	} else {
		delete(c.byName, was.Name)
	}
	sorted := slices.SortedFunc(maps.Values(c.byName), catalog.Compare)
	c.sorted.Store(&sorted)
}

// Synced reports whether all catalogs are known.
func (c *Catalogs) Synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced != nil && c.synced()
}

// All returns the catalogs, the one that holds first.
func (c *Catalogs) All(context.Context) ([]*catalog.Catalog, error) {
	if all := c.sorted.Load(); all != nil {
		return *all, nil
	}
	return nil, nil
}
