package supply

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// brokenMapper cannot ask the API server.
type brokenMapper struct{ meta.RESTMapper }

func (brokenMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("no answer")
}

func namesOfAll(t *testing.T, c *Catalogs) string {
	t.Helper()
	all, err := c.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, of := range all {
		names = append(names, of.Name+"@"+of.Version)
	}
	return strings.Join(names, " ")
}

// The catalogs are those that the watch shows, the oldest first. Until it has begun, and where the kind is not served, there are none.
func TestCatalogsFollow(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	informer := controllertest.NewFakeInformer()
	informers := &informertest.FakeInformers{Scheme: scheme, InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{stowage.GroupVersion.WithKind("VMCatalog"): informer}}
	mapper := meta.NewDefaultRESTMapper(nil)
	c := NewCatalogs()
	if c.Synced() {
		t.Error("they are known before it is known whether the kind is served")
	}
	if served, err := c.Follow(t.Context(), brokenMapper{}, informers); served || err == nil || c.Synced() {
		t.Errorf("without an answer, the kind is served: %t, known: %t, error %v", served, c.Synced(), err)
	}
	if served, err := c.Follow(t.Context(), mapper, informers); served || err != nil || !c.Synced() {
		t.Errorf("without the kind, it is served: %t, known: %t, error %v", served, c.Synced(), err)
	}
	mapper.Add(stowage.GroupVersion.WithKind("VMCatalog"), meta.RESTScopeRoot)
	if _, err := c.Follow(t.Context(), mapper, &informertest.FakeInformers{Scheme: scheme, Error: errors.New("no informer")}); err == nil {
		t.Error("an informer that cannot be made is no error")
	}
	if served, err := c.Follow(t.Context(), mapper, informers); !served || err != nil || c.Synced() {
		t.Errorf("with the kind, it is served: %t, known: %t, error %v", served, c.Synced(), err)
	}
	informer.Synced()
	if !c.Synced() || namesOfAll(t, c) != "" {
		t.Errorf("known: %t, catalogs: %s", c.Synced(), namesOfAll(t, c))
	}
	of := func(name, version string, created int64) *stowage.VMCatalog {
		return &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, CreationTimestamp: metav1.NewTime(time.Unix(created, 0))}}
	}
	informer.Add(of("young", "1", 2))
	informer.Add(of("old", "2", 1))
	if got := namesOfAll(t, c); got != "old@2 young@1" {
		t.Errorf("catalogs are %s", got)
	}
	informer.Update(of("young", "1", 2), of("young", "3", 2))
	informer.Delete(of("old", "2", 1))
	if got := namesOfAll(t, c); got != "young@3" {
		t.Errorf("after an update and a deletion, catalogs are %s", got)
	}
}
