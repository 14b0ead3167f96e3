package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// Policies are the same value until one of them changes. Those of one namespace do not change with those of another, and a write of a
// status changes nothing.
func TestPolicies(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	p := c.policies
	seen := func(o *stowage.SpreadPolicy) {
		o = o.DeepCopy()
		o.Spec.Pools = []stowage.PolicyPool{{Name: "a"}}
		if kept, err := p.transform(o); err != nil || len(kept.(*stowage.SpreadPolicy).Spec.Pools) > 0 {
			t.Errorf("the informer keeps %+v, %v", kept, err)
		}
	}
	of := func(namespace string) *world.Policies {
		got, err := c.Policies(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	named := func(namespace, name string, generation int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: generation}
	}
	clone := stowage.OwnerKind{Group: "apps.kruise.io", Kind: "CloneSet"}
	ref := world.Ref{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}
	a := &stowage.SpreadPolicy{ObjectMeta: named("ns", "a", 1), Spec: stowage.SpreadPolicySpec{Kinds: []stowage.OwnerKind{clone}}}
	b := &stowage.SpreadPolicy{ObjectMeta: named("other", "b", 1)}
	all := &stowage.ClusterSpreadPolicy{ObjectMeta: named("", "all", 1)}
	if of("ns") != nil || of("") != nil || p.names(ref) {
		t.Error("there are policies before there is one")
	}
	seen(a)
	seen(a) // the event may come twice
	p.replace(nil, all)
	was, cluster := of("ns"), of("")
	if len(was.Namespaced) != 1 || was.Namespaced[0].UID != a.UID || len(cluster.Cluster) != 1 || !p.names(ref) {
		t.Errorf("the policies are %+v and %+v", was, cluster)
	}
	seen(b)
	written := a.DeepCopy()
	written.Status.Workloads = 3
	seen(written)
	if of("ns") != was || of("") != cluster {
		t.Error("the policies change with those of another namespace, or with a status")
	}
	edited := a.DeepCopy()
	edited.Generation, edited.Spec.Kinds = 2, nil
	seen(edited)
	if now := of("ns"); now == was || len(now.Namespaced) != 1 || now.Namespaced[0].Generation != 2 || was.Namespaced[0].UID != a.UID || p.names(ref) {
		t.Errorf("after an edit the policies are %+v, those of before %+v, and the kinds %v", now.Namespaced[0], was.Namespaced[0], p.kinds)
	}
	if got := c.AllPolicies(); len(got.Namespaced) != 2 || len(got.Cluster) != 1 {
		t.Errorf("all policies are %+v", got)
	}
	again := edited.DeepCopy()
	again.UID = "another"
	p.gone(again) // of the same name, and deleted before
	if of("ns") == nil {
		t.Error("a policy is gone with one that had its name before")
	}
	p.gone(edited)
	p.replace(all, nil)
	if of("ns") != nil || of("") != nil || of("other") == nil {
		t.Error("a policy that is gone is there")
	}
}

// ClusterSpreadPolicies are replaced one by one, and the kinds that policies name are counted over all of them.
func TestClusterPolicies(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	p := c.policies
	clone := world.Ref{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}
	of := func(name string, generation int64, kinds ...stowage.OwnerKind) *stowage.ClusterSpreadPolicy {
		return &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: generation}, Spec: stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: stowage.SpreadPolicySpec{Kinds: kinds}}}
	}
	kind := stowage.OwnerKind{Group: "apps.kruise.io", Kind: "CloneSet"}
	check := func(moment string, named bool, want ...string) *world.Policies {
		t.Helper()
		now, _ := c.Policies(t.Context(), "")
		var got []string
		if now != nil {
			for _, o := range now.Cluster {
				got = append(got, fmt.Sprint(o.Name, o.Generation))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || p.names(clone) != named {
			t.Errorf("%s, the policies are %v, want %v; the kind is named: %t", moment, got, want, p.names(clone))
		}
		return now
	}
	p.replace(nil, of("a", 1, kind))
	p.replace(nil, of("b", 1, kind))
	before := check("after two", true, "a1", "b1")
	p.replace(of("a", 1, kind), of("a", 1, kind)) // its status was written
	if check("after a status", true, "a1", "b1") != before {
		t.Error("a status makes other policies")
	}
	p.replace(of("a", 1, kind), of("a", 2))
	check("after an edit of one", true, "b1", "a2")
	if before.Cluster[0].Generation != 1 {
		t.Error("what was given out has changed")
	}
	p.replace(of("b", 1, kind), nil)
	check("after one is gone", false, "a2")
	p.replace(of("b", 1, kind), nil) // the event may come twice
	check("and again", false, "a2")
	recreated := of("a", 2, kind)
	recreated.UID = "another"
	p.replace(nil, recreated)
	check("after it was created again", true, "a2")
	p.replace(recreated, nil)
	check("at the end", false)
	c.ReadTemplates()
	check("for somebody who asks once", true)
	if len(p.kinds) > 0 {
		t.Errorf("the kinds %v are counted", p.kinds)
	}
	if got := PoliciesOf(nil, nil); got != nil {
		t.Errorf("of no policies: %v", got)
	}
	all := PoliciesOf([]stowage.SpreadPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, {ObjectMeta: metav1.ObjectMeta{Name: "y"}}}, []stowage.ClusterSpreadPolicy{*of("z", 1)})
	if len(all.Namespaced) != 2 || all.Namespaced[1].Name != "y" || len(all.Cluster) != 1 || all.Cluster[0].Name != "z" {
		t.Errorf("of three policies: %+v", all)
	}
}

// Where the API server does not have the kinds, there are no policies, and nobody waits for them.
func TestPoliciesOfAnOlderCluster(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	if synced, _ := c.PoliciesSynced(); synced {
		t.Error("policies are known before anybody looked")
	}
	served, err := c.FollowPolicies(t.Context(), meta.NewDefaultRESTMapper(nil), nil)
	if served || err != nil {
		t.Errorf("the kinds are served: %t, %v", served, err)
	}
	if synced, served := c.PoliciesSynced(); !synced || served {
		t.Errorf("synced %t, served %t", synced, served)
	}
}

// Of a tenant's thousands of policies, the first hundred count, and nothing but the rank is kept of the others. When one goes, the next one
// is read.
func TestManyPoliciesKeepLittle(t *testing.T) {
	const policies = 2000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	one := func(i int) *stowage.SpreadPolicy {
		o := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%04d", i), UID: types.UID(fmt.Sprint(i)), Generation: 1}}
		o.Spec.Priority = int32(i) // each comes before all that were there
		o.Spec.Pools = []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}}}
		r := stowage.Requirement{Key: "k", Operator: metav1.LabelSelectorOpIn}
		for j := range 64 {
			r.Values = append(r.Values, versprei.LabelValue(fmt.Sprintf("%060d", j)))
		}
		o.Spec.Selector.MatchExpressions = []stowage.Requirement{r}
		return o
	}
	scheme := apiruntime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&stowage.SpreadPolicy{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} })
	for i := range policies {
		stored.WithObjects(one(i))
	}
	c := New(nil, stored.Build(), clock.RealClock{}, Limits{Timeout: time.Minute})
	p := c.policies
	before := heap()
	for i := range policies {
		p.keep(one(i))
	}
	whole := int64(world.PolicyBytes(&one(0).Spec))
	if got, most := int64(heap())-int64(before), 4*min(world.MostPolicies*whole, world.MostPolicyBytes)+policies*600; got > most {
		t.Errorf("%d policies of %d bytes take %d bytes, want at most %d", policies, whole, got, most)
	}
	counting := func() (out []string) {
		of, err := c.Policies(t.Context(), "ns")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range of.Namespaced {
			out = append(out, o.Name)
		}
		return out
	}
	names := counting()
	if len(names) != world.MostPolicies || names[0] != "p1999" || names[99] != "p1900" {
		t.Fatalf("%d policies count: %v", len(names), names)
	}
	if lacking := p.lacking(); len(lacking) > 0 {
		t.Errorf("%v have to be read", lacking)
	}
	beyond := c.PoliciesBeyond()
	for _, name := range beyond {
		if name.Name >= "p1900" {
			t.Errorf("%s does not count", name)
		}
	}
	if len(beyond) != policies-world.MostPolicies {
		t.Errorf("%d policies do not count", len(beyond))
	}

	p.gone(one(1950))
	if names := counting(); len(names) != world.MostPolicies-1 {
		t.Errorf("%d policies count before the next one is read", len(names))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- c.ReadSpecs(ctx) }()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		names := counting()
		return len(names) == world.MostPolicies && names[99] == "p1899", nil
	})
	if err != nil {
		t.Errorf("the next policy was not read: %v", counting())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A policy was deleted and created again while the spec of the first one was read. That spec is not the second one's.
func TestPolicyThatIsReadLate(t *testing.T) {
	scheme := apiruntime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	was := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "was"}, Spec: stowage.SpreadPolicySpec{Pools: []stowage.PolicyPool{{Name: "a"}}}}
	stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(was).WithIndex(&stowage.SpreadPolicy{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} })
	c := New(nil, stored.Build(), clock.RealClock{}, Limits{Timeout: time.Minute})
	is := was.DeepCopy()
	is.UID = "is"
	c.policies.keep(is)
	if err := c.readSpec(t.Context(), client.ObjectKeyFromObject(was)); err != nil {
		t.Fatal(err)
	}
	if of := c.policies.of["ns"].Namespaced; len(of) != 1 || of[0].UID != "is" {
		t.Errorf("the policies are %v", of)
	}
}

// Large policies have room for fewer.
func TestPoliciesCountByBytes(t *testing.T) {
	p := NewWatchedPolicies()
	for i := range 10 {
		o := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		o.Spec.Pools = []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": versprei.LabelValue(strings.Repeat("x", world.MostPolicyBytes/4))}}}
		p.keep(o)
	}
	if n := len(p.of["ns"].Namespaced); n != 3 {
		t.Errorf("%d policies count, want 3", n)
	}
}

// A policy that only the transform has seen, in a list that broke off, is forgotten. One that is on its way into the store is not.
func TestGhostsOfPolicies(t *testing.T) {
	scheme := apiruntime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "there", UID: "there"}, Spec: stowage.SpreadPolicySpec{Pools: []stowage.PolicyPool{{Name: "a"}}}}
	c := New(fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).Build(), nil, clock.RealClock{}, Limits{})
	c.policies.known, c.policies.served = true, true
	ghost := stored.DeepCopy()
	ghost.Name, ghost.UID = "ghost", "ghost"
	c.policies.keep(stored)
	c.policies.keep(ghost)
	for pass, want := range []int{2, 1, 1} {
		c.dropGhosts(t.Context())
		if n := len(c.policies.of["ns"].Namespaced); n != want {
			t.Errorf("after pass %d, %d policies are known, want %d", pass+1, n, want)
		}
	}
	if c.policies.of["ns"].Namespaced[0].Name != "there" {
		t.Error("the wrong one is forgotten")
	}
}

// The specs of policies that have come to count are read one after the other, and again where that fails. What is gone meanwhile stays away.
func TestReadSpecs(t *testing.T) {
	scheme := apiruntime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&stowage.SpreadPolicy{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} })
	c := New(nil, nil, clock.RealClock{}, Limits{Timeout: time.Minute})
	p := c.policies
	for _, name := range []string{"a", "b", "gone"} {
		o := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: stowage.SpreadPolicySpec{Pools: []stowage.PolicyPool{{Name: name}}}}
		if p.keep(o); name != "gone" {
			builder.WithObjects(o)
		}
	}
	clear(p.ranked["ns"].whole) // as of policies that did not count
	p.mu.Lock()
	p.count("ns", nil)
	p.mu.Unlock()
	if n := len(p.lacking()); n != 3 {
		t.Fatalf("%d specs are to be read", n)
	}
	var failures atomic.Int32
	failures.Store(2)
	c.uncached = interceptor.NewClient(builder.Build(), interceptor.Funcs{List: func(ctx context.Context, stored client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if failures.Add(-1) >= 0 {
			return errors.New("no answer")
		}
		return stored.List(ctx, list, opts...)
	}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.ReadSpecs(ctx) }()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		of, err := c.Policies(ctx, "ns")
		return of != nil && len(of.Namespaced) == 2, err
	})
	stop()
	if err != nil || <-ended != nil {
		t.Fatal("the specs were not read", err)
	}
	if lacking := p.lacking(); len(lacking) != 1 || lacking[0].Name != "gone" {
		t.Errorf("%v are to be read", lacking)
	}
}
