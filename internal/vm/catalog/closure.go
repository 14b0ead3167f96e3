package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/tries"
)

// Phase says what is known of a type that was closed.
type Phase string

// The phases. A type that nothing closes has none.
const (
	Closed Phase = "Closed" // no new pod gets the type
	Trying Phase = "Trying" // the next pod gets the type
)

// Key is what is closed: a type, for the pods of a namespace on the nodes of a zone. Nodes without a zone are in zone "".
type Key struct{ Type, Namespace, Zone string }

// In says in which zone, if there is one.
func (k *Key) In() string {
	if k.Zone == "" {
		return ""
	}
	return in([]string{k.Zone})
}

// Closure is what closes a type.
type Closure struct {
	Key
	Phase Phase
	// Since is when the phase began.
	Since time.Time
	// Tries is how many tries were in vain, and Next when the next one begins.
	Tries int
	Next  time.Time
	// Waited is when a pod last waited for a VM of the type for too long.
	Waited time.Time
	Why    string
}

// The limits of what is kept: of one namespace, whose tenants decide about it, and of all.
const (
	mostOfNamespace = 16
	mostClosures    = 500
)

// enoughPods is how many pods must have waited too long to close a type, if so many wait at all. One pod alone may have a reason of its own.
const enoughPods = 3

// Pod is a peer pod with a type, and with a node in a zone.
type Pod struct {
	Key
	// Began is when the pod got its node: from then on its VM is made.
	Began time.Time
	// Made is when its VM was there; zero while it is not.
	Made time.Time
}

// waits reports for how long the VM of a pod has been made, or 0 if it is there.
func (p *Pod) waits(now time.Time) time.Duration {
	if !p.Made.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.Began))
}

// View is what is seen of the pods of a catalog.
type View struct {
	Now  time.Time
	Pods []Pod
}

// Waits reports whether the VM of a pod is being made.
func (v *View) Waits() bool {
	return slices.ContainsFunc(v.Pods, func(p Pod) bool { return p.Made.IsZero() })
}

// tally counts the pods of one type, namespace and zone.
type tally struct {
	waiting int // pods whose VM is being made
	ripe    int // of these, those that have waited too long
	// began is when the last of those that are ripe got its node, and made when the last VM was made.
	began, made time.Time
}

// enough reports whether so many pods have waited too long that no VM of the type can be made.
func (s *tally) enough() bool { return s.ripe > 0 && s.ripe >= min(enoughPods, s.waiting) }

// sum sums up the pods. A VM that takes longer than failAfter has failed.
func (v *View) sum(failAfter time.Duration) map[Key]*tally {
	sums := map[Key]*tally{}
	for i := range v.Pods {
		p := &v.Pods[i]
		of := sums[p.Key]
		if of == nil {
			of = &tally{}
			sums[p.Key] = of
		}
		if !p.Made.IsZero() {
			of.made = latest(of.made, p.Made)
			continue
		}
		of.waiting++
		if p.waits(v.Now) >= failAfter {
			of.ripe++
			of.began = latest(of.began, p.Began)
		}
	}
	return sums
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Next returns what closes types from now on. It is to be stored before a pod is evicted for it: see [Catalog.Moves].
//
// A tenant can make pods wait, with a ConfigMap that is missing, and can write the type of pods that run. So what the pods of a namespace show,
// either way, decides about that namespace alone. Each namespace finds out by itself.
func (c *Catalog) Next(v View, timing tries.Timing) []Closure {
	if c.FailAfter <= 0 {
		return nil
	}
	sums, next := v.sum(c.FailAfter), map[Key]*Closure{}
	for _, closure := range c.Closures() {
		if c.Type(closure.Type) == nil { // it was taken out of the catalog
			continue
		}
		if closure.step(sums, v.Now, timing); closure.Phase != "" {
			next[closure.Key] = &closure
		}
	}
	for key, of := range sums { // those whose pods have waited, and that got no VM of the type meanwhile
		if next[key] == nil && c.Type(key.Type) != nil && of.enough() && v.Now.Sub(of.made) >= c.FailAfter {
			next[key] = &Closure{
				Key: key, Phase: Closed, Since: v.Now, Next: v.Now.Add(timing.First), Waited: v.Now,
				Why: fmt.Sprintf("%d pod(s) have waited for a VM for %s", of.ripe, c.FailAfter),
			}
		}
	}
	return bounded(next)
}

// step takes what closes a type from phase to phase. Without a phase, the type is as any other.
//
// One VM opens the type, whether a pod tried the type or had waited all the time. The VM counts if it was made since the type was closed: it is seen
// late, and its time is in whole seconds, so that a try may have begun meanwhile.
//
// A try takes the next pod, which may be the successor of one that has waited in vain for another type. So the type is tried only once VMs of
// other types are made in the zone; or, where none is, after a long time.
func (c *Closure) step(sums map[Key]*tally, now time.Time, timing tries.Timing) {
	of := cmp.Or(sums[c.Key], &tally{})
	if of.ripe > 0 {
		c.Waited = now
	}
	switch {
	case of.made.After(c.closed(timing)):
		c.Phase = ""
	case c.Phase == Closed && !now.Before(c.Next) && (c.othersMade(sums) || now.Sub(c.Next) >= timing.Last):
		c.Phase, c.Since = Trying, now
	case c.Phase == Trying && of.began.After(c.Since):
		c.Tries++
		c.Why = fmt.Sprintf("%d tries have found none", c.Tries)
		c.Phase, c.Since, c.Next = Closed, now, now.Add(timing.After(c.Tries))
	case c.Phase == Trying && now.Sub(latest(c.Since, c.Waited)) >= timing.Forget: // no pod tries it
		c.Phase = ""
	}
}

// othersMade reports whether the namespace got VMs of other types in the zone since the phase began, as its pods do that were moved. VMs of other
// zones say nothing of the pods that wait in this one.
func (c *Closure) othersMade(sums map[Key]*tally) bool {
	for key, of := range sums {
		if key.Namespace == c.Namespace && key.Zone == c.Zone && of.made.After(c.Since) {
			return true
		}
	}
	return false
}

// closed returns when the type was closed last, before a try or in vain by one.
func (c *Closure) closed(timing tries.Timing) time.Time {
	if c.Phase == Closed {
		return c.Since
	}
	return c.Next.Add(-timing.After(c.Tries))
}

// bounded returns what is kept, sorted: of each namespace so much that no tenant takes the place of others.
func bounded(closures map[Key]*Closure) (kept []Closure) {
	for _, c := range closures {
		kept = append(kept, *c)
	}
	slices.SortFunc(kept, func(a, b Closure) int { // the oldest first, so that what is closed stays so
		return cmp.Or(a.Since.Compare(b.Since), byKey(a, b))
	})
	count := map[string]int{}
	kept = slices.DeleteFunc(kept, func(c Closure) bool {
		count[c.Namespace]++
		return count[c.Namespace] > mostOfNamespace
	})
	kept = kept[:min(len(kept), mostClosures)]
	slices.SortFunc(kept, byKey)
	return kept
}

// byKey orders what closes types.
func byKey(a, b Closure) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Zone, b.Zone))
}

// Moves reports whether a pod is to be evicted: its VM was not made for too long, its type is closed in the zone that the pod is in, and its
// successor gets another type, which is closed in no zone in which the successor may run. So an eviction helps, and a pod is not evicted again and
// again between two zones.
func (c *Catalog) Moves(p *Pod, n *Need, now time.Time) bool {
	if c.FailAfter <= 0 || p.waits(now) < c.FailAfter {
		return false
	}
	closures := c.closed[Key{Type: p.Type, Namespace: p.Namespace}]
	at := slices.IndexFunc(closures, func(c *Closure) bool { return c.Zone == p.Zone })
	if at < 0 || closures[at].Phase == Trying && p.Began.After(closures[at].Since) { // it is the one that tries
		return false
	}
	choice := c.Choose(n, p.Namespace, nil)
	return choice.Type != nil && !choice.AllClosed && choice.Type.Name != p.Type
}

// closureOf reads what a status has of a closed type.
func closureOf(o *stowage.ClosedVMType) Closure {
	c := Closure{
		Key: Key{o.Type, o.Namespace, o.Zone}, Phase: Phase(o.Phase), Since: o.Since.Time, Tries: int(o.Tries), Waited: o.Waited.Time, Why: o.Why,
	}
	if o.NextTry != nil {
		c.Next = o.NextTry.Time
	}
	return c
}

// Status writes what closes a type into a status. Times are in seconds there.
func (c *Closure) Status() stowage.ClosedVMType {
	o := stowage.ClosedVMType{
		Type: c.Type, Namespace: c.Namespace, Zone: c.Zone, Phase: stowage.VMTypePhase(c.Phase), Since: metav1.NewTime(c.Since).Rfc3339Copy(), Tries: int32(min(c.Tries, 1<<20)),
		Waited: metav1.NewTime(c.Waited).Rfc3339Copy(), Why: c.Why,
	}
	if !c.Next.IsZero() {
		o.NextTry = new(metav1.NewTime(c.Next).Rfc3339Copy())
	}
	return o
}
