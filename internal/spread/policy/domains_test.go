package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

func zones(count int) *versprei.Across {
	a := &versprei.Across{TopologyKey: "zone"}
	for i := range count {
		a.Domains = append(a.Domains, versprei.Domain{Value: versprei.LabelValue(fmt.Sprint("z", i))})
	}
	return a
}

// A division that is refused is an invalid strategy with its reason, wherever it is written, and nothing panics.
func TestDomainsThatAreRefused(t *testing.T) {
	t.Parallel()
	d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "d"}}
	d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	pools := func(count int, change func(*versprei.Pool)) {
		d.Spec.Distribution = nil
		for i := range count {
			d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(fmt.Sprint(i))}, Weight: 1})
		}
		change(&d.Spec.Distribution[0])
	}
	for want, change := range map[string]func(){
		"would repeat after":   func() { pools(2, func(p *versprei.Pool) { p.Base = 100_000 }); d.Spec.Across = zones(3) },
		"the most is 128 pair": func() { pools(32, func(*versprei.Pool) {}); d.Spec.Across = zones(16) },
		"has the label zone": func() {
			pools(2, func(p *versprei.Pool) { p.NodeLabel["zone"] = "z0" })
			d.Spec.Across = zones(2)
		},
		"a percentage such as": func() {
			pools(2, func(p *versprei.Pool) { p.MaxReplicas = new(intstr.FromString("0%")) })
			d.Spec.Across = nil
		},
		"cannot be in one object": func() {
			pools(2, func(p *versprei.Pool) {
				p.MaxReplicas, p.Spill = new(intstr.FromString("50%")), &versprei.Spill{MaxSpill: new(intstr.FromInt32(1))}
			})
			d.Spec.Across = zones(2)
		},
	} {
		change()
		if c := Compile(d); c.Err == nil || !strings.Contains(c.Err.Error(), want) || c.Written != nil {
			t.Errorf("the error is %v, want %s", c.Err, want)
		}
		rs := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs"}, Namespace: "ns", Controller: &world.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u"}}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{rs}, PodDistributors: []versprei.PodDistributor{*d}}), Settings{})
		for range 2 { // computed, and remembered
			found, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref})
			if err != nil || found == nil || found.Err == nil || found.Layout != nil {
				t.Errorf("%s: found %+v, %v", want, found, err)
			}
		}
	}
	text := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=997:p=b,weight=991", stowage.AcrossAnnotation: "zone: a=97, b=89"}
	rs := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs"}, Namespace: "ns"}
	f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{rs}}), Settings{})
	found, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref, Annotations: text})
	if err != nil || found == nil || found.Err == nil || !strings.Contains(found.Err.Error(), "would repeat after") {
		t.Errorf("found %+v, %v", found, err)
	}
}

// A pod is in the domain of its seat, in the order of its uppermost workload, while that is not known, too.
func TestDomainsOfWorkloads(t *testing.T) {
	t.Parallel()
	text := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1", stowage.AcrossAnnotation: "zone: a, b, c"}
	first := map[int]int{}
	for i := range 60 {
		root := world.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: fmt.Sprint("web-", i), UID: "uid"}
		rs := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs"}, Namespace: "ns", Controller: &root}
		var before *Policy
		for _, known := range [][]*world.Workload{{rs}, {rs, {Ref: root, Namespace: "ns"}}} {
			f := NewFinder(manifests.New(world.Objects{Workloads: known}), Settings{})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref, Annotations: text})
			if err != nil || p == nil || p.Domains() == nil {
				t.Fatalf("found %+v, %v", p, err)
			}
			seat := sequence.Seat{Pool: 0, Ordinal: 1}
			if before != nil && before.DomainOf(seat) != p.DomainOf(seat) {
				t.Errorf("workload %d: the first pod is in domain %d, and in %d once the Deployment is known", i, before.DomainOf(seat), p.DomainOf(seat))
			}
			before = p
		}
		first[before.DomainOf(sequence.Seat{Pool: 0, Ordinal: 1})]++
	}
	if len(first) != 3 {
		t.Errorf("the first pods are in domains %v", first)
	}
}

// How many pods each domain should have, for pods with ordinals of their own, too. What asks for billions costs nothing.
func TestDomainTargets(t *testing.T) {
	t.Parallel()
	text := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,base=1,weight=20:p=b,weight=80", stowage.AcrossAnnotation: "zone: a, b, c"}
	with := func(kind string, annotations map[string]string, states ...stowage.PoolState) *Policy {
		w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: kind, Name: "db", UID: "db"}, Namespace: "ns", Annotations: annotations}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}, PoolStates: states}), Settings{})
		p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: text})
		if err != nil || p == nil || p.Domains() == nil {
			t.Fatalf("found %+v, %v", p, err)
		}
		return p
	}
	of := func(kind string) *Policy { return with(kind, nil) }
	targets := func(p *Policy, n int64, indexed ...sequence.Seat) [][]int64 {
		return p.Divide(n, indexed, layout.Elsewhere{}).Domains.Now
	}
	sum := func(in [][]int64) (pools []int64) {
		for _, domains := range in {
			n := int64(0)
			for _, in := range domains {
				n += in
			}
			pools = append(pools, n)
		}
		return pools
	}
	for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
		p := of(kind)
		got := targets(p, 9)
		if diff := cmp.Diff([]int64{3, 6}, sum(got)); diff != "" || slices.Max(got[0]) != 1 || slices.Max(got[1]) != 2 {
			t.Errorf("%s of 9: %v", kind, got)
		}
		huge := targets(p, 1<<40)
		if (huge == nil) != (kind == "StatefulSet") {
			t.Errorf("%s of 2^40: %v", kind, huge)
		}
	}

	// 1. Two ordinals have moved: the first one, and the second one to another zone.
	to := of("StatefulSet").CellName(sequence.Cell{Pool: 1, Domain: 2})
	p := with("StatefulSet", map[string]string{stowage.SpillAnnotation: "1m"}, stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}, Ordinals: map[string]string{"0": to, "1": to}})
	before, after := targets(of("StatefulSet"), 9), targets(p, 9)
	if sum(after)[0] != sum(before)[0]-1 || after[1][2] <= before[1][2] {
		t.Errorf("targets were %v, and are %v", before, after)
	}

	// 2. Of an Indexed Job, whose first pods have ended.
	job := of("ReplicaSet")
	if got := targets(job, 9, sequence.Seat{Pool: 1, Ordinal: 5}, sequence.Seat{Pool: 1, Ordinal: 6}); sum(got)[0] != 0 || sum(got)[1] != 2 {
		t.Errorf("of two seats: %v", got)
	}
}

// A workload that is made again has the domains that it had. The order that its UID gave it before is known beside that, with and without room.
func TestFormerDomains(t *testing.T) {
	t.Parallel()
	text := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1", stowage.AcrossAnnotation: "zone: a, b, c"}
	of := func(namespace, kind, name, uid string) *Policy {
		w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(uid)}, Namespace: namespace}
		p, err := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}}), Settings{}).Find(t.Context(), Pod{Namespace: namespace, Owner: w.Ref, Annotations: text})
		if err != nil || p == nil || p.Domains() == nil {
			t.Fatalf("found %+v, %v", p, err)
		}
		return p
	}
	former := func(p *Policy) func(sequence.Seat) int { return p.FormerDomainOf }
	first := func(of func(sequence.Seat) int) (domains [6]int) {
		for i := range domains {
			domains[i] = of(sequence.Seat{Pool: i % 2, Ordinal: int64(i/2) + 1})
		}
		return domains
	}
	base := of("ns", "StatefulSet", "db", "1")
	orders, formers := map[string]bool{}, map[string]bool{}
	for i := range 60 {
		uid := fmt.Sprint(i)
		again := of("ns", "StatefulSet", "db", uid)
		if got, want := first(again.DomainOf), first(base.DomainOf); got != want {
			t.Fatalf("made again it has the domains %v, and had %v", got, want)
		}
		formers[fmt.Sprint(first(former(again)))] = true
		for _, other := range []*Policy{of("ns-"+uid, "StatefulSet", "db", "1"), of("ns", "Kind"+uid, "db", "1"), of("ns", "StatefulSet", "db-"+uid, "1")} {
			orders[fmt.Sprint(first(other.DomainOf))] = true
			if got, want := first(former(other)), first(former(base)); got != want {
				t.Fatalf("with the same UID it had the domains %v, and not %v", got, want)
			}
		}
	}
	if len(orders) != 6 || len(formers) != 6 {
		t.Errorf("there are %d orders, and %d before", len(orders), len(formers))
	}

	targets := base.Divide(4, nil, layout.Elsewhere{}).Domains
	for name, in := range map[string][][]int64{"now": targets.Now, "before": targets.Former} {
		domainOf := base.DomainOf
		if name == "before" {
			domainOf = former(base)
		}
		want := [][]int64{{0, 0, 0}, {0, 0, 0}}
		for rank := int64(1); rank <= 4; rank++ {
			seat, err := base.OfOrdinal(rank)
			if err != nil {
				t.Fatal(err)
			}
			want[seat.Pool][domainOf(seat)]++
		}
		if diff := cmp.Diff(want, in); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	// Where a cell has no room, it has none by either order.
	rs := of("ns", "ReplicaSet", "web", "7")
	rs.Layout = rs.Within([][]bool{{false, true, true}, {true, true, true}}, nil)
	for ordinal := int64(1); ordinal <= 6; ordinal++ {
		if seat := (sequence.Seat{Pool: 0, Ordinal: ordinal}); rs.DomainOf(seat) == 0 || former(rs)(seat) == 0 {
			t.Errorf("seat %d is in domain %d, and was in %d; the first one has no room", ordinal, rs.DomainOf(seat), former(rs)(seat))
		}
	}
	if targets := rs.Divide(8, nil, layout.Elsewhere{}).Domains; targets.Former[0][0] != 0 || targets.Now[0][0] != 0 {
		t.Errorf("targets %v", targets)
	}
}
