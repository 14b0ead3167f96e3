// Package catalog chooses the type of VM that a peer pod gets, and decides which types are closed because their VMs cannot be made.
//
// The package is pure. A catalog is compiled once for each of its versions and does not change after that. It promises that
//   - the type is the cheapest that fits, then the one with the fewest vCPUs, the least memory, and the first name;
//   - a type that is closed is chosen only by a pod that has no other type, or to try the type again;
//   - what is seen of the pods of a namespace in a zone closes and opens a type for that namespace in that zone alone;
//   - a pod that is moved gets a type that is closed in no zone in which the pod may run.
package catalog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Type is one type of VMs.
type Type struct {
	Name   string
	VCPUs  int64
	Memory int64 // bytes
	GPUs   int64
	Model  string // of the GPUs, or ""
	Price  Price  // of an hour
	Zones  []string

	nanoCPU, milliMemory int64 // what is left for the pod
}

// Need is what a pod asks for of its VM. What it does not say is 0.
type Need struct {
	NanoCPU     int64
	MilliMemory int64 // thousandths of a byte
	// VCPUs and Memory, in bytes, are what the VM is to have as a whole, by somebody's own annotations.
	VCPUs, Memory int64
	GPUs          int64
	Model         string // of the GPUs, if the pod chooses one
	// Zones are those in which the pod may run, sorted, as far as the pod itself says. With none, it may run everywhere.
	Zones []string
}

// Nothing reports whether the pod asks for nothing. Such a pod has the default type of the program that makes VMs.
func (n *Need) Nothing() bool {
	return max(n.NanoCPU, n.MilliMemory, n.VCPUs, n.Memory, n.GPUs) <= 0
}

// String writes the need in a line, for comparing.
func (n *Need) String() string {
	return fmt.Sprintf("%d %d %d %d %d %q %q", n.NanoCPU, n.MilliMemory, n.VCPUs, n.Memory, n.GPUs, n.Model, strings.Join(n.Zones, ","))
}

// mayRunIn reports whether the pod may run on nodes of a zone, or, with "", on nodes without one.
func (n *Need) mayRunIn(zone string) bool {
	return len(n.Zones) == 0 || slices.Contains(n.Zones, zone)
}

// Catalog is the types of VMs that pods of some RuntimeClasses may have.
type Catalog struct {
	Name    string
	UID     types.UID
	Version string // of the object, as the API server counts its writes
	Created time.Time
	// FailAfter is how long a VM may take to be made; 0 is for ever.
	FailAfter time.Duration

	classes []string
	types   []Type // by price
	byName  map[string]int
	closed  map[Key][]*Closure // by type and namespace, without the zone
}

// Compile returns the catalog of an object.
func Compile(o *stowage.VMCatalog) *Catalog {
	c := &Catalog{
		Name: o.Name, UID: o.UID, Version: o.ResourceVersion, Created: o.CreationTimestamp.Time, classes: o.Spec.RuntimeClasses,
		byName: make(map[string]int, len(o.Spec.Types)), closed: map[Key][]*Closure{},
	}
	c.FailAfter, _ = time.ParseDuration(o.Spec.FailAfter) // the kind's schema has checked it
	var cpu, memory int64
	if q := o.Spec.Reserved.CPU; q != nil {
		cpu = scaled(q, resource.Nano)
	}
	if q := o.Spec.Reserved.Memory; q != nil {
		memory = scaled(q, resource.Milli)
	}
	for i := range o.Spec.Types {
		t := &o.Spec.Types[i]
		price, _ := ParsePrice(t.PricePerHour)
		c.types = append(c.types, Type{
			Name: t.Name, VCPUs: int64(t.VCPUs), Memory: scaled(&t.Memory, 0), GPUs: int64(t.GPUs), Model: t.GPUModel, Price: price, Zones: t.Zones,
			nanoCPU: int64(t.VCPUs)*1e9 - min(cpu, int64(t.VCPUs)*1e9), milliMemory: max(0, scaled(&t.Memory, resource.Milli)-memory),
		})
	}
	slices.SortFunc(c.types, compare)
	for i := range c.types {
		c.byName[c.types[i].Name] = i
	}
	for i := range o.Status.Closed {
		if closure := closureOf(&o.Status.Closed[i]); closure.Namespace != "" { // earlier versions closed types for all namespaces
			in := Key{Type: closure.Type, Namespace: closure.Namespace}
			c.closed[in] = append(c.closed[in], &closure)
		}
	}
	return c
}

// compare says which of two types a pod gets that both fit.
func compare(a, b Type) int {
	return cmp.Or(a.Price.compare(b.Price), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.Memory, b.Memory), strings.Compare(a.Name, b.Name))
}

// scaled returns a quantity in units of 10^scale, rounded up, or the largest number.
func scaled(q *resource.Quantity, scale resource.Scale) int64 {
	if q.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) >= 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(scale)
}

// Names reports whether the catalog is for a RuntimeClass.
func (c *Catalog) Names(runtimeClass string) bool {
	return len(c.classes) == 0 || slices.Contains(c.classes, runtimeClass)
}

// Type returns the type of a name, or nil.
func (c *Catalog) Type(name string) *Type {
	if at, ok := c.byName[name]; ok {
		return &c.types[at]
	}
	return nil
}

// Fits reports whether a VM of the type has what a pod asks for.
func (t *Type) Fits(n *Need) bool {
	if t.nanoCPU < n.NanoCPU || t.milliMemory < n.MilliMemory || t.VCPUs < n.VCPUs {
		return false
	}
	return t.Memory >= n.Memory && t.isFor(n)
}

// isFor reports whether the GPUs and the zones of the type are what a pod asks for.
func (t *Type) isFor(n *Need) bool {
	if len(t.Zones) > 0 && !slices.ContainsFunc(t.Zones, n.mayRunIn) {
		return false
	}
	return n.GPUs <= 0 || t.GPUs >= n.GPUs && (n.Model == "" || n.Model == t.Model)
}

// Fitting returns the types that fit, the cheapest first.
func (c *Catalog) Fitting(n *Need) (fitting []*Type) {
	for i := range c.types {
		if c.types[i].Fits(n) {
			fitting = append(fitting, &c.types[i])
		}
	}
	return fitting
}

// Try is a type that is closed, and that the next pod of a namespace gets to find out whether VMs of it can be made again.
type Try struct {
	Key
	Since time.Time // when that began
}

// Choice is the type that a pod gets.
type Choice struct {
	Type *Type // nil if none fits
	// Closed are the types that would fit, and are closed: the cheaper ones or, with AllClosed, all, and Type is one of them.
	Closed    []*Type
	AllClosed bool
}

// Choose returns the type that a pod of a namespace gets: the cheapest that fits and is closed in no zone in which the pod may run, because nobody
// knows yet in which of them the pod will be. Take is asked whether the pod is the one that tries a type which is closed; nil is no.
func (c *Catalog) Choose(n *Need, namespace string, take func(Try) bool) (choice Choice) {
	tries := func(closure *Closure) bool { return take != nil && take(Try{closure.Key, closure.Since}) }
	fewest := math.MaxInt
	for i := range c.types {
		t := &c.types[i]
		if !t.Fits(n) {
			continue
		}
		closures := c.closures(n, t.Name, namespace)
		if len(closures) == 0 || !slices.ContainsFunc(closures, isClosed) && slices.ContainsFunc(closures, tries) {
			choice.Type, choice.AllClosed = t, false
			return choice
		}
		choice.Closed = append(choice.Closed, t)
		if len(closures) < fewest { // most likely, the pod gets a VM of this one
			choice.Type, choice.AllClosed, fewest = t, true, len(closures)
		}
	}
	return choice
}

// closures returns what closes a type for pods of a namespace, in the zones in which a pod may run.
func (c *Catalog) closures(n *Need, name, namespace string) (of []*Closure) {
	for _, closure := range c.closed[Key{Type: name, Namespace: namespace}] {
		if n.mayRunIn(closure.Zone) {
			of = append(of, closure)
		}
	}
	return of
}

// IsClosed reports whether no new pod of a namespace that asks for the same gets a type, also to try it.
func (c *Catalog) IsClosed(n *Need, name, namespace string) bool {
	return slices.ContainsFunc(c.closures(n, name, namespace), isClosed)
}

func isClosed(c *Closure) bool { return c.Phase == Closed }

// Closures returns what closes types, sorted by type, namespace and zone.
func (c *Catalog) Closures() (all []Closure) {
	for _, closures := range c.closed {
		for _, closure := range closures {
			all = append(all, *closure)
		}
	}
	slices.SortFunc(all, byKey)
	return all
}

// Nearest returns the type that lacks the least of what a pod asks for that none fits, and what it lacks. A catalog without a type for the
// pod's GPUs or zone has none.
func (c *Catalog) Nearest(n *Need) (nearest *Type, lacks string) {
	least := math.Inf(1)
	for i := range c.types {
		t := &c.types[i]
		if !t.isFor(n) {
			continue
		}
		short := max(0, ratio(n.NanoCPU, t.nanoCPU)-1, ratio(n.VCPUs, t.VCPUs)-1) + max(0, ratio(n.MilliMemory, t.milliMemory)-1, ratio(n.Memory, t.Memory)-1)
		if short < least {
			nearest, least = t, short
		}
	}
	if nearest == nil {
		return nil, ""
	}
	var parts []string
	if short := max(n.NanoCPU-nearest.nanoCPU, (n.VCPUs-nearest.VCPUs)*1e9); short > 0 {
		parts = append(parts, resource.NewScaledQuantity(short/1e6+min(1, short%1e6), resource.Milli).String()+" CPU")
	}
	if short := n.MilliMemory - nearest.milliMemory; short > 0 || n.Memory > nearest.Memory {
		parts = append(parts, Memory(max(short/1000+min(1, short%1000), n.Memory-nearest.Memory))+" of memory")
	}
	return nearest, strings.Join(parts, " and ")
}

func ratio(asked, has int64) float64 {
	if asked <= 0 {
		return 0
	}
	return float64(asked) / max(1, float64(has))
}

// Unfit says why no type fits a pod.
func (c *Catalog) Unfit(n *Need) string {
	nearest, lacks := c.Nearest(n)
	switch {
	case nearest != nil:
		return fmt.Sprintf("the nearest type, %s, lacks %s", nearest.Name, lacks)
	case n.GPUs > 0 && n.Model != "":
		return fmt.Sprintf("no type has %d GPU(s) of the model %s%s", n.GPUs, n.Model, in(n.Zones))
	case n.GPUs > 0:
		return fmt.Sprintf("no type has %d GPU(s)%s", n.GPUs, in(n.Zones))
	}
	return "no type can be made" + in(n.Zones)
}

// in says in which zones, if not everywhere.
func in(zones []string) string {
	switch len(zones) {
	case 0:
		return ""
	case 1:
		return " in zone " + zones[0]
	}
	return " in the zones " + strings.Join(zones, ", ")
}

// Text names the type with its size, such as "m5.large (2 vCPUs, 8Gi)".
func (t *Type) Text() string { return fmt.Sprintf("%s (%s)", t.Name, t.size()) }

// size is what a VM of the type has.
func (t *Type) size() string {
	text := fmt.Sprintf("%d vCPU%s, %s", t.VCPUs, plural(t.VCPUs), Memory(t.Memory))
	if t.GPUs > 0 {
		text += fmt.Sprintf(", %d GPU%s", t.GPUs, plural(t.GPUs))
	}
	return text
}

func plural(n int64) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// Memory writes an amount of memory, in whole MiB or GiB.
func Memory(bytes int64) string {
	mebibytes := bytes/(1<<20) + min(1, bytes%(1<<20))
	return resource.NewQuantity(min(mebibytes, math.MaxInt64>>20)<<20, resource.BinarySI).String()
}

// For returns the catalog for a RuntimeClass: of those that name it, the first. Catalogs are in the order of [Compare]. Pods without a RuntimeClass
// have none.
func For(catalogs []*Catalog, runtimeClass string) *Catalog {
	if runtimeClass == "" {
		return nil
	}
	for _, c := range catalogs {
		if c.Names(runtimeClass) {
			return c
		}
	}
	return nil
}

// CompileAll returns the catalogs of objects, the one that holds first.
func CompileAll(objects []stowage.VMCatalog) []*Catalog {
	all := make([]*Catalog, len(objects))
	for i := range objects {
		all[i] = Compile(&objects[i])
	}
	slices.SortFunc(all, Compare)
	return all
}

// Compare orders catalogs: the oldest that names a RuntimeClass holds.
func Compare(a, b *Catalog) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
}
