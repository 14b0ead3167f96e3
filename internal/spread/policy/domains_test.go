package policy

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
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
		p := Compile(d).Unbound()
		p.BindDomains("ns", world.Chain{Refs: []world.Ref{{Kind: "Deployment", Name: "web", UID: "u"}}})
		if p.Err == nil || !strings.Contains(p.Err.Error(), want) || p.Whole != nil || p.Domains != nil {
			t.Errorf("the error is %v, want %s", p.Err, want)
		}
		rs := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs"}, Namespace: "ns", Controller: &world.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u"}}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{rs}, PodDistributors: []versprei.PodDistributor{*d}}), Settings{})
		for range 2 { // computed, and remembered
			found, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref})
			if err != nil || found == nil || found.Err == nil || found.Strategy != nil {
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
		root := world.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: types.UID(fmt.Sprint("uid-", i))}
		rs := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs"}, Namespace: "ns", Controller: &root}
		var before *Policy
		for _, known := range [][]*world.Workload{{rs}, {rs, {Ref: root, Namespace: "ns"}}} {
			f := NewFinder(manifests.New(world.Objects{Workloads: known}), Settings{})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref, Annotations: text})
			if err != nil || p == nil || p.Domains == nil {
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
