package supply

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// use is what some VMs have and cost.
type use struct{ vms, vcpus, memory, price int64 } // memory in bytes, the price of an hour in millionths

func (u use) plus(o use) use {
	return use{u.vms + o.vms, add(u.vcpus, o.vcpus), add(u.memory, o.memory), add(u.price, o.price)}
}

// add adds two amounts that are not negative, up to the largest number.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// place is a namespace and a type in it; "" for pods without one that a catalog has.
type place struct{ namespace, name string }

// Counts are the VMs of the pods of one catalog.
type Counts struct {
	total  use
	byType map[string]use
	in     map[place]use
	unfit  *stowage.UnfitPods
}

// Count counts the VMs of pods with a catalog.
func Count(of *catalog.Catalog, peers []*Peer) *Counts {
	c := &Counts{byType: map[string]use{}, in: map[place]use{}}
	for _, p := range peers {
		if !p.Active {
			continue
		}
		t := of.Type(p.Type)
		if t == nil && p.Type == "" && !p.Need.Nothing() {
			c.addUnfit(of, p)
		}
		if !p.HasNode {
			continue
		}
		one, name := use{vms: 1}, ""
		one.vcpus, one.memory = p.amounts(t)
		if t != nil {
			one.price, name = t.Price.Micros(), t.Name
			c.total, c.byType[name] = c.total.plus(one), c.byType[name].plus(one)
		}
		at := place{p.Namespace, name}
		c.in[at] = c.in[at].plus(one)
	}
	return c
}

// mostMessage is how many bytes the status has of why no type fits.
const mostMessage = 512

// addUnfit notes a pod without a type, if no type fits it.
func (c *Counts) addUnfit(of *catalog.Catalog, p *Peer) {
	if of.Choose(p.Need, p.Namespace, nil).Type != nil {
		return // it was created before the type was in the catalog
	}
	if c.unfit == nil {
		c.unfit = &stowage.UnfitPods{}
	}
	c.unfit.Count++
	// The first by name, so that the status stays as it is while the pods do.
	if first := c.unfit.Namespace + "/" + c.unfit.Name; c.unfit.Count == 1 || p.Namespace+"/"+p.Name < first {
		c.unfit.Namespace, c.unfit.Name, c.unfit.Message = p.Namespace, p.Name, bounded.Text(of.Unfit(p.Need), mostMessage)
	}
}

// Unfit are the pods for which no type is large enough, or nil.
func (c *Counts) Unfit() *stowage.UnfitPods { return c.unfit }

// Use is the VMs of the pods of a namespace with one type, or of pods without one, with what they have and cost.
type Use struct {
	Namespace, Type    string
	VMs, VCPUs, Memory int64 // memory in bytes
	Price              int64 // of an hour, in millionths
}

// Uses are the VMs by namespace and type, in no order.
func (c *Counts) Uses() (out []Use) {
	for at, u := range c.in {
		out = append(out, Use{at.namespace, at.name, u.vms, u.vcpus, u.memory, u.price})
	}
	return out
}

// Total adds up uses.
func Total(uses []Use) (sum Use) {
	for _, u := range uses {
		sum.VMs, sum.VCPUs, sum.Memory, sum.Price = sum.VMs+u.VMs, add(sum.VCPUs, u.VCPUs), add(sum.Memory, u.Memory), add(sum.Price, u.Price)
	}
	return sum
}

// Into writes what was counted into a status.
func (c *Counts) Into(s *stowage.VMCatalogStatus) {
	s.VMs, s.VCPUs, s.Memory, s.PricePerHour = c.total.vms, c.total.vcpus, catalog.Memory(c.total.memory), catalog.Money(c.total.price)
	s.Types = nil
	for name, u := range c.byType {
		s.Types = append(s.Types, stowage.VMTypeStatus{Name: name, VMs: u.vms, VCPUs: u.vcpus, Memory: catalog.Memory(u.memory), PricePerHour: catalog.Money(u.price)})
	}
	slices.SortFunc(s.Types, func(a, b stowage.VMTypeStatus) int {
		return cmp.Or(cmp.Compare(b.VMs, a.VMs), strings.Compare(a.Name, b.Name))
	})
	s.Unfit = c.unfit
}

// Standing is whether a catalog holds for a RuntimeClass whose pods run in VMs, as [stowage.ReasonCounted], or why it does not.
func Standing(all []*catalog.Catalog, of *catalog.Catalog, targets []string) (reason stowage.ConditionReason, message string) {
	var names, others []string
	for _, class := range targets {
		if !of.Names(class) {
			continue
		}
		if holds := catalog.For(all, class); holds != of {
			others = append(others, fmt.Sprintf("%s (VMCatalog %s)", class, holds.Name))
			continue
		}
		names = append(names, class)
	}
	switch {
	case len(names) > 0:
		message = "the catalog holds for pods of RuntimeClass " + strings.Join(names, ", ")
		if len(others) > 0 {
			message += "; older catalogs hold for " + strings.Join(others, ", ")
		}
		return stowage.ReasonCounted, message
	case len(others) > 0:
		return stowage.ReasonSuperseded, "older catalogs hold for " + strings.Join(others, ", ") + "; give the catalogs other runtimeClasses, or delete one of them"
	}
	return stowage.ReasonNoTarget, fmt.Sprintf("pods of none of its RuntimeClasses run in VMs; those that do are %s (--target-runtimeclass)", strings.Join(targets, ", "))
}
