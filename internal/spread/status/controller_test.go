package status

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

// calm is a repair that sees nothing move.
type calm struct{}

func (calm) Moving(ledger.OwnerKey) bool                    { return false }
func (calm) Stuck(ledger.OwnerKey, int64, int64) bool       { return false }
func (calm) Hindrances(ledger.OwnerKey) []stowage.Hindrance { return nil }
func (calm) Elsewhere(ledger.OwnerKey) (e layout.Elsewhere) { return e }

// away is a repair that knows of a pod of each owner whose volume reaches no place for a seat.
type away struct{ calm }

func (away) Elsewhere(ledger.OwnerKey) layout.Elsewhere { return layout.Elsewhere{Others: 1} }

// cluster returns a run of a cluster with a PodDistributor, a ReplicaSet and a pod for each workload, and the pods.
func cluster(t *testing.T, namespaces map[string]int) (r *Run, clock *clocktesting.FakeClock, pods []any) {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	key := make(ledger.Key, ledger.KeySize)
	var objects []client.Object
	for namespace, workloads := range namespaces {
		for n := range workloads {
			name := fmt.Sprint("web", n)
			uid := types.UID(namespace + name)
			objects = append(objects, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}, &versprei.PodDistributor{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "d" + uid},
				Spec: versprei.PodDistributorSpec{
					Target:       versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name},
					Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
				},
			})
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, UID: "p" + uid, Labels: map[string]string{stowage.PoolLabel: "0", stowage.SeatLabel: "1"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: uid, Controller: new(true)}},
			}}
			pod.Annotations = map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, name, ledger.Holder{Namespace: namespace, Owner: string(uid)}, ledger.Seat{Pool: "0", Ordinal: 1})}
			pods = append(pods, pod)
		}
	}
	c := testkit.Indexed(fake.NewClientBuilder().WithScheme(scheme)).WithObjects(objects...).WithStatusSubresource(&versprei.PodDistributor{}).Build()
	clock = clocktesting.NewFakeClock(time.Unix(1e9, 0))
	service := seats.New(seats.Options{Key: key, Writer: "w", Clock: clock, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry()))})
	if err := service.Pods().Replace(pods, "1"); err != nil {
		t.Fatal(err)
	}
	reader := worldcache.New(c, c, clock, worldcache.ForAdmission())
	r = (&Controller{
		Cached: c, Uncached: c, World: reader, Seats: service, Scope: scope.New(reader, "stowage-system"), Find: owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, c, clock), Progress: calm{}, Clock: clock, Time: clock,
		Timing: Timing{Every: time.Second, All: 30 * time.Second, Rate: 50, Quiet: 2 * time.Second}, Writes: fair.NewLimiter[string](50, 100), Log: logr.Discard(),
	}).NewRun()
	r.Queue = testkit.Queue[types.NamespacedName]()
	return r, clock, pods
}

// A namespace in which many statuses change does not delay those of others.
func TestStatusesOfAnotherNamespace(t *testing.T) {
	const many = 200
	r, _, _ := cluster(t, map[string]int{"busy": many, "other": 1})
	write := func(namespace, name string) (wait time.Duration) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	waiting := 0
	for n := range many {
		if write("busy", fmt.Sprint("web", n)) > 0 {
			waiting++
		}
	}
	if waiting < many/2 {
		t.Errorf("%d of %d wait", waiting, many)
	}
	if wait := write("other", "web0"); wait > 0 {
		t.Errorf("another namespace waits for %s", wait)
	}
}

// When a node is deleted, the PodDistributors are looked at whose pods are bound to it, and no others: these pods are not ready any more.
func TestLookWhenNodeIsGone(t *testing.T) {
	r, clock, pods := cluster(t, map[string]int{"ns": 5})
	for n, node := range map[int]string{1: "lost", 2: "kept", 3: "lost"} {
		pods[n].(*corev1.Pod).Spec.NodeName = node
	}
	if err := r.Seats.Pods().Replace(pods, "2"); err != nil {
		t.Fatal(err)
	}
	looked := func() (got []string) {
		r.Look(t.Context())
		for r.Queue.Len() > 0 {
			item, _ := r.Queue.Get()
			r.Queue.Done(item)
			r.Queue.Forget(item)
			got = append(got, item.Name)
		}
		slices.Sort(got)
		return got
	}
	looked()
	clock.Step(10 * time.Second)
	if got := looked(); len(got) > 0 {
		t.Fatalf("%q are looked at though nothing changed", got)
	}
	r.nodeGone("lost")
	r.nodeGone("empty")
	if got := looked(); !slices.Equal(got, []string{"web1", "web3"}) {
		t.Errorf("%q are looked at, want those with pods on the node", got)
	}
}

// A change of one workload has its PodDistributor looked at, and not those of the other workloads of the namespace.
func TestLookByWhatChanged(t *testing.T) {
	const workloads = 200
	r, clock, pods := cluster(t, map[string]int{"ns": workloads})
	look := func(want ...string) {
		t.Helper()
		r.Look(t.Context())
		var got []string
		for r.Queue.Len() > 0 {
			item, _ := r.Queue.Get()
			r.Queue.Done(item)
			r.Queue.Forget(item)
			got = append(got, item.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%d are looked at: %.80q; want %q", len(got), fmt.Sprint(got), want)
		}
	}
	changed := func(owner string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pods[ledger.OwnerKey{Namespace: "ns", UID: types.UID("ns" + owner)}] = clock.Now()
	}
	all := make([]string, workloads)
	for n := range all {
		all[n] = fmt.Sprint("web", n)
	}
	slices.Sort(all)
	look(all...) // at the beginning of the term
	clock.Step(time.Second)
	look()

	// 1. A pod changes: its PodDistributor is looked at until repair has had its turn.
	changed("web7")
	look("web7")
	clock.Step(4 * time.Second)
	look("web7")
	clock.Step(time.Second)
	look("web7")
	clock.Step(time.Second)
	look()

	// 2. The last pod of a workload goes. Its owner is not known any more, but whose it was is.
	if err := r.Seats.Pods().Delete(pods[7]); err != nil {
		t.Fatal(err)
	}
	changed("web7")
	changed("nobody")
	clock.Step(time.Second)
	look("web7")
	clock.Step(5 * time.Second)
	look("web7")
	clock.Step(time.Second)
	look()
	if len(r.dividedBy) != 0 {
		t.Errorf("%d owners are remembered", len(r.dividedBy))
	}

	// 3. A Deployment is deleted, then its ReplicaSet, while pods are still there.
	ctx, c := t.Context(), r.Uncached
	site := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "site", UID: "site"}}
	set := &appsv1.ReplicaSet{}
	d := &versprei.PodDistributor{}
	web5 := client.ObjectKey{Namespace: "ns", Name: "web5"}
	for _, err := range []error{c.Create(ctx, site), c.Get(ctx, web5, set), c.Get(ctx, web5, d)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	set.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: site.Name, UID: site.UID, Controller: new(true)}}
	d.Spec.Target.Kind, d.Spec.Target.Name = "Deployment", site.Name
	for _, err := range []error{c.Update(ctx, set), c.Update(ctx, d)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	changed("web5")
	look("web5")
	for _, err := range []error{c.Delete(ctx, site), c.Delete(ctx, set)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	clock.Step(time.Second)
	changed("web5")
	look("web5")
	clock.Step(6 * time.Second)
	look("web5")

	// 4. The room of a workload's pods changes, or a sibling of its PodDistributor is deleted.
	r.note(world.Object{Namespace: "ns", Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web3"}})
	look("web3")

	// 5. After a while, all of them.
	clock.Step(30 * time.Second)
	look(all...)
}

// A pod whose volume reaches no place for a seat lacks none: the others are all that there should be.
func TestPodElsewhere(t *testing.T) {
	for _, progress := range []Progress{calm{}, away{}} {
		r, _, _ := cluster(t, map[string]int{"ns": 1})
		r.Progress = progress
		rs := &appsv1.ReplicaSet{}
		if err := r.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web0"}, rs); err != nil {
			t.Fatal(err)
		}
		rs.Spec.Replicas, rs.Status.Replicas = new(int32(2)), 2
		if err := r.Uncached.Update(t.Context(), rs); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web0"}); err != nil {
			t.Fatal(err)
		}
		d := &versprei.PodDistributor{}
		if err := r.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web0"}, d); err != nil {
			t.Fatal(err)
		}
		want := int32(2)
		if progress == (Progress)(away{}) {
			want = 1
		}
		if len(d.Status.Pools) != 1 || d.Status.Pools[0].Desired != want || d.Status.Pools[0].Current != 1 {
			t.Errorf("%T: the pools are %+v, want %d", progress, d.Status.Pools, want)
		}
	}
}
