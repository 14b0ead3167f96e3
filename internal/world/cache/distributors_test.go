package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/stowage-dev/stowage/api"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// following returns a cache whose index follows an informer.
func following(t testing.TB) (*Cache, *controllertest.FakeInformer) {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: scheme}
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	out := New(c, c, clock.RealClock{}, Limits{})
	if err := out.FollowDistributors(t.Context(), informers); err != nil {
		t.Fatal(err)
	}
	informer, err := informers.FakeInformerFor(t.Context(), &versprei.PodDistributor{})
	if err != nil {
		t.Fatal(err)
	}
	return out, informer
}

func distributor(namespace, name, target string, age time.Duration) *versprei.PodDistributor {
	return &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
		Spec:       versprei.PodDistributorSpec{Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: target}},
	}
}

// The index answers as a look at all PodDistributors would, after any events.
func TestPodDistributorIndex(t *testing.T) {
	c, informer := following(t)
	random := rand.New(rand.NewPCG(1, 2))
	there := map[string]*versprei.PodDistributor{} // by namespace and name
	for n := range 5000 {
		namespace, name := fmt.Sprint("ns", random.IntN(2)), fmt.Sprint("d", random.IntN(12))
		key := namespace + "/" + name
		was := there[key]
		switch is := distributor(namespace, name, fmt.Sprint("web", random.IntN(3)), time.Duration(random.IntN(4))*time.Hour); {
		case was == nil:
			there[key] = is
			informer.Add(is)
		case random.IntN(3) > 0:
			there[key] = is
			informer.Update(was, is)
		default:
			delete(there, key)
			informer.Delete(was)
		}
		for _, namespace := range []string{"ns0", "ns1"} {
			var list []versprei.PodDistributor
			for _, d := range there {
				if d.Namespace == namespace {
					list = append(list, *d)
				}
			}
			for _, targets := range [][]world.Ref{
				{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web0"}},
				{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web1"}, {APIVersion: "apps/v2", Kind: "Deployment", Name: "web1"}},
				{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web2"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "web1"}},
				{{APIVersion: "other/v1", Kind: "Deployment", Name: "web0"}},
			} {
				got, err := c.PodDistributor(t.Context(), namespace, targets)
				if err != nil {
					t.Fatal(err)
				}
				want := world.Winner(list, targets)
				if (got == nil) != (want == nil) || got != nil && got.Name != want.Name {
					t.Fatalf("after %d events %v has %v and not %v", n+1, targets, got, want)
				}
			}
		}
	}
}

// However many PodDistributors a namespace has, of whatever target, a pod asks for the same time. Before the index, they were
// listed.
func BenchmarkPodDistributor(b *testing.B) {
	const many = 20000
	targets := []world.Ref{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	for _, bc := range []struct {
		name   string
		n      int
		target func(n int) string
		listed bool
	}{
		{"one", 1, func(int) string { return "web" }, false},
		{"20000, of other workloads", many, func(n int) string { return []string{"web", fmt.Sprint("w", n)}[min(n, 1)] }, false},
		{"20000, of the same workload", many, func(int) string { return "web" }, false},
		{"20000, listed", many, func(int) string { return "web" }, true},
	} {
		b.Run(bc.name, func(b *testing.B) {
			c, informer := following(b)
			var list []versprei.PodDistributor
			for n := range bc.n {
				d := distributor("ns", fmt.Sprint("d", n), bc.target(n), time.Hour)
				list = append(list, *d)
				informer.Add(d)
			}
			b.ReportAllocs()
			for b.Loop() {
				var d *versprei.PodDistributor
				if bc.listed {
					d = world.Winner(append([]versprei.PodDistributor(nil), list...), targets)
				} else {
					d, _ = c.PodDistributor(b.Context(), "ns", targets)
				}
				if d == nil {
					b.Fatal("none")
				}
			}
		})
	}
}
