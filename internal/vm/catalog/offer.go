package catalog

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Offer is what a catalog has for a pod, for people.
type Offer struct {
	Catalog string `json:"catalog"`
	// Type is the type that the pod has, and PricePerHour what a VM of it costs, if that is known. Own says that somebody else than Stowage
	// chose the type.
	Type         string `json:"type,omitempty"`
	PricePerHour Price  `json:"pricePerHour,omitzero"`
	Own          bool   `json:"own,omitempty"`
	// Fits are the first types that fit, the cheapest first, and More is how many others do.
	Fits []OfferedType `json:"fits,omitempty"`
	More int           `json:"more,omitempty"`
	// Unfit says why none does.
	Unfit string `json:"unfit,omitempty"`
	// Asks is what the pod asks for.
	Asks string `json:"asks,omitempty"`
}

// OfferedType is a type that fits a pod.
type OfferedType struct {
	Type         string `json:"type"`
	Size         string `json:"size"`
	PricePerHour Price  `json:"pricePerHour,omitzero"`
	// Closed says why no new pod gets the type, if so.
	Closed string `json:"closed,omitempty"`
}

// mostOffered is how many types an [Offer] names.
const mostOffered = 4

// Offer returns what the catalog has for a pod of a namespace that has a type, or "".
func (c *Catalog) Offer(n *Need, namespace, name string, own bool) *Offer {
	o := &Offer{Catalog: c.Name, Type: name, Own: own, Asks: n.text()}
	if t := c.Type(name); t != nil {
		o.PricePerHour = t.Price
	}
	if n.Nothing() {
		return o
	}
	fitting := c.Fitting(n)
	if len(fitting) == 0 {
		o.Unfit = c.Unfit(n)
		return o
	}
	o.More = max(0, len(fitting)-mostOffered)
	for _, t := range fitting[:len(fitting)-o.More] {
		offered := OfferedType{Type: t.Name, Size: t.size(), PricePerHour: t.Price}
		var closed []string
		for _, closure := range c.closures(n, t.Name, namespace) {
			closed = append(closed, closure.Text())
		}
		offered.Closed = strings.Join(closed, "; ")
		o.Fits = append(o.Fits, offered)
	}
	return o
}

// Text says where and why a type is closed, and until when.
func (c *Closure) Text() string {
	if c.Phase == Trying {
		return "tried again by the next pod" + c.In() + ": " + c.Why
	}
	return fmt.Sprintf("closed%s, and not tried again before %s: %s", c.In(), c.Next.UTC().Format("15:04:05 MST"), c.Why)
}

// text is what a pod asks for.
func (n *Need) text() string {
	var parts []string
	if n.NanoCPU > 0 {
		parts = append(parts, resource.NewScaledQuantity(n.NanoCPU, resource.Nano).String()+" CPU")
	}
	if n.MilliMemory > 0 {
		parts = append(parts, Memory(n.MilliMemory/1000+min(1, n.MilliMemory%1000))+" of memory")
	}
	if n.VCPUs > 0 {
		parts = append(parts, fmt.Sprintf("a VM of %d vCPU%s", n.VCPUs, plural(n.VCPUs)))
	}
	if n.Memory > 0 {
		parts = append(parts, "a VM of "+Memory(n.Memory))
	}
	if n.GPUs > 0 {
		parts = append(parts, fmt.Sprintf("%d GPU%s", n.GPUs, plural(n.GPUs)))
	}
	return strings.Join(parts, ", ")
}

// Sentences say which type a pod has, why, what it costs, and what each next type would cost.
func (o *Offer) Sentences() (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if o.Own {
		say("Its type is %s%s, which is its own and not chosen by Stowage.", o.Type, costs(o.PricePerHour))
	}
	switch {
	case o.Asks == "" && o.Own:
		return out
	case o.Asks == "":
		say("It asks for nothing, so VMCatalog %s gives it no type: it has the default type of the program that makes VMs.", o.Catalog)
		return out
	case o.Unfit != "":
		say("No type of VMCatalog %s fits %s: %s.", o.Catalog, o.Asks, o.Unfit)
		return out
	case o.Own:
	case o.Type == "":
		say("It has no type; a new pod like it would get one of VMCatalog %s.", o.Catalog)
	default:
		say("Its type is %s%s.", o.Type, costs(o.PricePerHour))
	}
	say("Of VMCatalog %s, these fit %s, the cheapest first: %s.", o.Catalog, o.Asks, o.list())
	return out
}

// costs is what a VM costs, after the name of its type.
func costs(price Price) string {
	if !price.Known {
		return ", whose price is not known"
	}
	return ", at " + price.String() + " an hour"
}

// list names the types that fit.
func (o *Offer) list() string {
	var parts []string
	for _, t := range o.Fits {
		text := t.Type + " (" + t.Size
		if t.PricePerHour.Known {
			text += ", " + t.PricePerHour.String() + " an hour"
		}
		if t.Closed != "" {
			text += "; " + t.Closed
		}
		parts = append(parts, text+")")
	}
	text := strings.Join(parts, ", ")
	if o.More > 0 {
		text += fmt.Sprintf(", and %d more", o.More)
	}
	return text
}
