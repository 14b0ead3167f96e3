package cache

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/internal/world"
)

type readFunc func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error

// newTestCache returns a cache whose watches show two namespaces and nothing else. The API server has a ReplicaSet in each, and
// answers reads by a function.
func newTestCache(read readFunc) *Cache {
	watched, server := fake.NewClientBuilder(), fake.NewClientBuilder()
	for _, name := range []string{"noisy", "quiet"} {
		watched.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		server.WithObjects(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "web", UID: "web"}})
	}
	return New(watched.Build(), server.WithInterceptorFuncs(interceptor.Funcs{Get: read}).Build(), clock.RealClock{}, ForAdmission())
}

var web = world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web"}

// found fails the test if the ReplicaSet of a namespace is not found.
func found(t *testing.T, c *Cache, by, namespace string) {
	t.Helper()
	if w, err := c.Workload(AskedBy(t.Context(), by), namespace, web); w == nil || err != nil {
		t.Errorf("the ReplicaSet of %s, asked for by %q: %v, %v", namespace, by, w, err)
	}
}

// Kinds that somebody invents cost few discoveries and goroutines, and nobody waits for them.
func TestInventedKinds(t *testing.T) { synctest.Test(t, testInventedKinds) }

func testInventedKinds(t *testing.T) {
	discovered := make(chan struct{})
	var asked, under atomic.Int64
	c := newTestCache(func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		m, ok := obj.(*metav1.PartialObjectMetadata)
		if !ok {
			return c.Get(ctx, key, obj, opts...)
		}
		asked.Add(1)
		under.Add(1)
		defer under.Add(-1)
		<-discovered // no context ends a discovery
		return &meta.NoKindMatchError{GroupKind: m.GroupVersionKind().GroupKind(), SearchedVersions: []string{m.GroupVersionKind().Version}}
	})
	ctx, cancel := context.WithTimeout(AskedBy(t.Context(), "stranger"), 5*time.Second)
	defer cancel()
	begin := clock.RealClock{}.Now()
	var all sync.WaitGroup
	for i := range 600 {
		all.Go(func() {
			ref := world.Ref{APIVersion: fmt.Sprintf("invented-%d.example/v1", i), Kind: "Invented", Name: "x", UID: "x"}
			if w, err := c.Workload(ctx, "noisy", ref); w != nil || err == nil {
				t.Errorf("%v, %v", w, err)
			}
		})
	}
	all.Wait()
	if n := under.Load(); n > kindsAtOnce {
		t.Errorf("%d discoveries are under way after all have given up", n)
	}
	if d := (clock.RealClock{}).Since(begin); d > time.Second {
		t.Errorf("they gave up after %s", d)
	}
	found(t, c, "stranger", "noisy")
	found(t, c, "api-server", "quiet")
	close(discovered)
	synctest.Wait()
	if n := asked.Load(); n > 20 {
		t.Errorf("%d discoveries for 600 kinds", n)
	}
}

// A pod gets its seat although the API server takes most of the time that an admission has.
func TestSlowRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			select {
			case <-clock.RealClock{}.After(1500 * time.Millisecond):
				return c.Get(ctx, key, obj, opts...)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		found(t, c, "api-server", "quiet")
	})
}

// A review waits for its turn no longer than it has time. Another one that asked for the same object goes on.
func TestTurnsEndWithTheReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan struct{})
		c := newTestCache(func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if key.Name != web.Name {
				<-taken
			}
			return c.Get(ctx, key, obj, opts...)
		})
		var others, waiting sync.WaitGroup
		for i := range 2 * ForAdmission().AtOnce {
			others.Go(func() {
				_, _ = c.Workload(AskedBy(t.Context(), fmt.Sprint("client-", i)), "noisy", world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprint("other-", i)})
			})
		}
		synctest.Wait() // the others have all turns
		begin := clock.RealClock{}.Now()
		short, cancel := context.WithTimeout(AskedBy(t.Context(), "api-server"), 300*time.Millisecond)
		defer cancel()
		waiting.Go(func() {
			if w, err := c.Workload(short, "quiet", web); w != nil || err == nil || (clock.RealClock{}).Since(begin) > 300*time.Millisecond {
				t.Errorf("%v, %v after %s", w, err, clock.RealClock{}.Since(begin))
			}
		})
		synctest.Wait()
		waiting.Go(func() { found(t, c, "another", "quiet") })
		<-clock.RealClock{}.After(time.Second)
		close(taken)
		waiting.Wait()
		others.Wait()
	})
}

// Whoever asks for owners that do not exist causes few reads, and takes nothing from anybody else.
func TestInventedOwners(t *testing.T) {
	for name, tc := range map[string]struct {
		flood         func(i int) (by, namespace string)
		by, namespace string // who asks then
	}{
		"another namespace":               {func(int) (string, string) { return "api-server", "noisy" }, "api-server", "quiet"},
		"another client of the namespace": {func(int) (string, string) { return "stranger", "quiet" }, "api-server", "quiet"},
		"namespaces that are invented":    {func(i int) (string, string) { return "api-server", fmt.Sprint("invented-", i) }, "api-server", "quiet"},
		"Stowage itself":                  {func(int) (string, string) { return "api-server", "quiet" }, "", "quiet"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int64
				c := newTestCache(func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					reads.Add(1)
					return c.Get(ctx, key, obj, opts...)
				})
				for i := range 5000 {
					by, namespace := tc.flood(i)
					if w, _ := c.Workload(AskedBy(t.Context(), by), namespace, world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: types.UID(fmt.Sprint(i))}); w != nil {
						t.Fatal("an invented owner was found")
					}
				}
				if n := reads.Load(); n < 100 || n > 1100 {
					t.Errorf("5000 invented owners cost %d reads", n)
				}
				found(t, c, tc.by, tc.namespace)
			})
		})
	}
}

// No reference keeps another one's object from being found, however its parts are cut.
func TestForgedReference(t *testing.T) {
	rollout := world.Ref{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "web", UID: "u"}
	for name, tc := range map[string]struct {
		namespace string
		ref       world.Ref
	}{
		"the version in the kind":        {"shop", world.Ref{APIVersion: "argoproj.io", Kind: "v1alpha1/Rollout", Name: "web", UID: "u"}},
		"each part one place further on": {"Rollout", world.Ref{APIVersion: "argoproj.io", Kind: "v1alpha1", Name: "shop/web", UID: "u"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCache(func(_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
				m := obj.(*metav1.PartialObjectMetadata)
				if m.GroupVersionKind() != schema.FromAPIVersionAndKind(rollout.APIVersion, rollout.Kind) {
					return &meta.NoKindMatchError{GroupKind: m.GroupVersionKind().GroupKind()}
				}
				m.Namespace, m.Name, m.UID = key.Namespace, key.Name, rollout.UID
				return nil
			})
			if w, err := c.Workload(t.Context(), tc.namespace, tc.ref); w != nil || err != nil {
				t.Errorf("the forged reference: %v, %v", w, err)
			}
			if w, err := c.Workload(t.Context(), "shop", rollout); w == nil || err != nil {
				t.Errorf("the Rollout is hidden: %v, %v", w, err)
			}
		})
	}
}

// What no object can be called is not asked for.
func TestImpossibleNames(t *testing.T) {
	c := newTestCache(func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
		t.Errorf("%.300s was read", key)
		return nil
	})
	long := strings.Repeat("x", 300)
	for name, read := range map[string]func() (bool, error){
		"a namespace": func() (bool, error) {
			ns, err := c.Namespace(t.Context(), long)
			return ns == nil, client.IgnoreNotFound(err)
		},
		"a node": func() (bool, error) { n, err := c.Node(t.Context(), long); return n == nil, client.IgnoreNotFound(err) },
		"the namespace of an owner": func() (bool, error) {
			w, err := c.Workload(t.Context(), long, web)
			return w == nil, err
		},
		"the version of an owner": func() (bool, error) {
			w, err := c.Workload(t.Context(), "quiet", world.Ref{APIVersion: "../..", Kind: "Secret", Name: "x", UID: "u"})
			return w == nil, err
		},
	} {
		if none, err := read(); !none || err != nil {
			t.Errorf("%s: %v, %v", name, none, err)
		}
	}
}
