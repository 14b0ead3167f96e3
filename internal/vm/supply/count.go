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

// Use is what some VMs have, and what they cost.
type Use struct {
	VMs, VCPUs int64
	Memory     int64 // bytes
	Price      int64 // of an hour, in millionths
}

// Plus adds up two uses.
func (u Use) Plus(o Use) Use {
	return Use{u.VMs + o.VMs, add(u.VCPUs, o.VCPUs), add(u.Memory, o.Memory), add(u.Price, o.Price)}
}

// add adds two amounts that are not negative, up to the largest number.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Place is a namespace and a type in it; "" for pods without one that a catalog has.
type Place struct{ Namespace, Type string }

// Counts are the VMs of the pods of one catalog.
type Counts struct {
	In map[Place]Use
	// Unfit are the pods for which no type is large enough, or nil.
	Unfit *stowage.UnfitPods
}

// Count counts the VMs of pods with a catalog.
func Count(of *catalog.Catalog, peers []*Peer) *Counts {
	c := &Counts{In: map[Place]Use{}}
	for _, p := range peers {
		if !p.Active {
			continue
		}
		t := of.Type(p.Type)
		if t == nil && p.Type == "" && !p.Need.Nothing() {
			c.addUnfit(of, p)
		}
		if p.Node == "" {
			continue
		}
		one, at := Use{VMs: 1}, Place{Namespace: p.Namespace}
		one.VCPUs, one.Memory = p.amounts(t)
		if t != nil {
			one.Price, at.Type = t.Price.Micros, t.Name
		}
		c.In[at] = c.In[at].Plus(one)
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
	if c.Unfit == nil {
		c.Unfit = &stowage.UnfitPods{}
	}
	c.Unfit.Count++
	// The first by name, so that the status stays as it is while the pods do.
	if first := c.Unfit.Namespace + "/" + c.Unfit.Name; c.Unfit.Count == 1 || p.Namespace+"/"+p.Name < first {
		c.Unfit.Namespace, c.Unfit.Name, c.Unfit.Message = p.Namespace, p.Name, bounded.Text(of.Unfit(p.Need), mostMessage)
	}
}

// Into writes what was counted into a status. Pods without a type of the catalog are not in it.
func (c *Counts) Into(s *stowage.VMCatalogStatus) {
	total, byType := Use{}, map[string]Use{}
	for at, u := range c.In {
		if at.Type != "" {
			total, byType[at.Type] = total.Plus(u), byType[at.Type].Plus(u)
		}
	}
	s.VMs, s.VCPUs, s.Memory, s.PricePerHour = total.VMs, total.VCPUs, catalog.Memory(total.Memory), catalog.Money(total.Price)
	s.Types = nil
	for name, u := range byType {
		s.Types = append(s.Types, stowage.VMTypeStatus{Name: name, VMs: u.VMs, VCPUs: u.VCPUs, Memory: catalog.Memory(u.Memory), PricePerHour: catalog.Money(u.Price)})
	}
	slices.SortFunc(s.Types, func(a, b stowage.VMTypeStatus) int {
		return cmp.Or(cmp.Compare(b.VMs, a.VMs), strings.Compare(a.Name, b.Name))
	})
	s.Unfit = c.Unfit
}

// Effect returns [stowage.ReasonCounted] if a catalog holds for a RuntimeClass whose pods run in VMs, or else why it does not, with a sentence.
func Effect(all []*catalog.Catalog, of *catalog.Catalog, targets []string) (reason stowage.ConditionReason, message string) {
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
