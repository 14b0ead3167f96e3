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

// Key is what is closed: a type, for one namespace or, with none, for all.
type Key struct{ Type, Namespace string }

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
	mostOfNamespace = 8
	mostClosures    = 500
)

// What it takes to close a type.
const (
	// enoughPods is how many pods of a namespace must have waited too long, if so many wait at all. One pod alone may have a reason of its own.
	enoughPods = 3
	// enoughNamespaces is in how many namespaces a type must be closed to be closed for all.
	enoughNamespaces = 3
)

// Pod is a peer pod with a node and a type that Stowage chose.
type Pod struct {
	Namespace, Type string
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
	Now       time.Time
	FailAfter time.Duration // 0 closes nothing
	Pods      []Pod
}

// Waits reports whether the VM of a pod is being made.
func (v *View) Waits() bool {
	return slices.ContainsFunc(v.Pods, func(p Pod) bool { return p.Made.IsZero() })
}

// seen is what the pods of one type, in one namespace, show.
type seen struct {
	waiting int // pods whose VM is being made
	ripe    int // of these, those that have waited too long
	// began is when the last of those that are ripe got its node.
	began time.Time
}

// enough reports whether so many pods have waited too long that no VM of the type can be made.
func (s *seen) enough() bool { return s.ripe > 0 && s.ripe >= min(enoughPods, s.waiting) }

// look sums up the pods by type and namespace, and when the last VMs were made: by type, under a [Key] without a namespace; of each namespace, under
// one without a type; and of all, under neither.
func (v *View) look() (of map[Key]*seen, made map[Key]time.Time) {
	of, made = map[Key]*seen{}, map[Key]time.Time{}
	for i := range v.Pods {
		p := &v.Pods[i]
		s := of[Key{p.Type, p.Namespace}]
		if s == nil {
			s = &seen{}
			of[Key{p.Type, p.Namespace}] = s
		}
		if !p.Made.IsZero() {
			for _, key := range []Key{{Type: p.Type}, {Namespace: p.Namespace}, {}} {
				made[key] = latest(made[key], p.Made)
			}
			continue
		}
		s.waiting++
		if p.waits(v.Now) >= v.FailAfter {
			s.ripe++
			s.began = latest(s.began, p.Began)
		}
	}
	return of, made
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Next returns what closes types from now on. It is to be stored before a pod is evicted for it: see [Catalog.Moves].
//
// A type of which a VM was made lately, for whomever, is not closed: the pods that wait have another reason. A tenant can make pods wait, but
// no VM appear.
func Next(v View, closures []Closure, timing tries.Timing) []Closure {
	if v.FailAfter <= 0 {
		return nil
	}
	of, made := v.look()
	next := map[Key]*Closure{}
	for _, c := range closures {
		if c.step(&v, of, made, timing); c.Phase != "" {
			next[c.Key] = &c
		}
	}
	// 1. A namespace whose pods have waited.
	for key, s := range of {
		if next[key] == nil && next[Key{Type: key.Type}] == nil && s.enough() && v.Now.Sub(made[Key{Type: key.Type}]) >= v.FailAfter {
			next[key] = &Closure{
				Key: key, Phase: Closed, Since: v.Now, Next: v.Now.Add(timing.First), Waited: v.Now,
				Why: fmt.Sprintf("%d pod(s) have waited for a VM for %s", s.ripe, v.FailAfter),
			}
		}
	}
	// 2. All, where several namespaces show it.
	for name, namespaces := range v.namespaces(next) {
		v.closeForAll(next, name, fmt.Sprintf("pods of %d namespaces have waited for a VM for %s", namespaces, v.FailAfter), timing)
	}
	return bounded(next)
}

// step takes what closes a type from phase to phase. Without a phase, the type is as any other.
//
// A try takes the next pod, which may be the successor of one that has waited in vain for another type. So the type is tried only once those have
// found a VM, of whatever type; or, where none is made at all, after a long time.
func (c *Closure) step(v *View, of map[Key]*seen, made map[Key]time.Time, timing tries.Timing) {
	s := c.seenOf(of)
	if s.ripe > 0 {
		c.Waited = v.Now
	}
	switch {
	case made[Key{Type: c.Type}].After(c.Since): // in whatever namespace
		c.Phase = ""
	case c.Phase == Trying && v.Now.Sub(latest(c.Since, c.Waited)) >= timing.Forget: // no pod tries it
		c.Phase = ""
	case c.Phase == Closed && !v.Now.Before(c.Next) && (made[Key{Namespace: c.Namespace}].After(c.Since) || v.Now.Sub(c.Next) >= timing.Last):
		c.Phase, c.Since = Trying, v.Now
	case c.Phase == Trying && s.ripe > 0 && s.began.After(c.Since):
		c.Tries++
		c.Phase, c.Since, c.Next = Closed, v.Now, v.Now.Add(timing.After(c.Tries))
	}
}

// seenOf sums up the pods that what closes a type is about.
func (c *Closure) seenOf(of map[Key]*seen) (sum seen) {
	if c.Namespace != "" {
		if s := of[c.Key]; s != nil {
			return *s
		}
		return sum
	}
	for key, s := range of {
		if key.Type == c.Type {
			sum.ripe += s.ripe
			sum.began = latest(sum.began, s.began)
		}
	}
	return sum
}

// namespaces returns the types that are closed for enough namespaces, whose pods have waited within [View.FailAfter].
func (v *View) namespaces(closures map[Key]*Closure) map[string]int {
	count := map[string]int{}
	for key, c := range closures {
		if key.Namespace != "" && v.Now.Sub(c.Waited) < v.FailAfter {
			count[key.Type]++
		}
	}
	for name, n := range count {
		if n < enoughNamespaces {
			delete(count, name)
		}
	}
	return count
}

// closeForAll closes a type for all namespaces.
func (v *View) closeForAll(closures map[Key]*Closure, name, why string, timing tries.Timing) {
	all := Key{Type: name}
	if closures[all] == nil {
		closures[all] = &Closure{Key: all, Phase: Closed, Since: v.Now, Next: v.Now.Add(timing.First), Waited: v.Now, Why: why}
	}
	for key := range closures { // those of the namespaces say no more
		if key.Type == name && key.Namespace != "" {
			delete(closures, key)
		}
	}
}

// bounded returns what is kept, sorted: all that holds for all, and of each namespace so much that no tenant takes the place of others.
func bounded(closures map[Key]*Closure) (kept []Closure) {
	for _, c := range closures {
		kept = append(kept, *c)
	}
	slices.SortFunc(kept, func(a, b Closure) int { // the oldest first, so that what is closed stays so
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Type, b.Type), strings.Compare(a.Namespace, b.Namespace))
	})
	count, namespaced := map[string]int{}, 0
	kept = slices.DeleteFunc(kept, func(c Closure) bool {
		if c.Namespace == "" {
			return false
		}
		if count[c.Namespace] >= mostOfNamespace || namespaced >= mostClosures {
			return true
		}
		count[c.Namespace]++
		namespaced++
		return false
	})
	slices.SortFunc(kept, func(a, b Closure) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Namespace, b.Namespace))
	})
	return kept
}

// Moves reports whether a pod is to be evicted: its VM was not made for too long, its type is closed, and its successor would get another
// one, which is not closed.
func (c *Catalog) Moves(p *Pod, n *Need, now time.Time) bool {
	if c.FailAfter <= 0 || p.waits(now) < c.FailAfter {
		return false
	}
	closure := c.closure(p.Type, p.Namespace)
	if closure == nil || closure.Phase == Trying && p.Began.After(closure.Since) { // it is the one that tries
		return false
	}
	choice := c.Choose(n, p.Namespace, nil)
	return choice.Type != nil && !choice.Anyway && choice.Type.Name != p.Type
}

// closureOf reads what a status has of a closed type.
func closureOf(o *stowage.ClosedVMType) Closure {
	c := Closure{
		Key: Key{o.Type, o.Namespace}, Phase: Phase(o.Phase), Since: o.Since.Time, Tries: int(o.Tries), Waited: o.Waited.Time, Why: o.Why,
	}
	if o.NextTry != nil {
		c.Next = o.NextTry.Time
	}
	return c
}

// Status writes what closes a type into a status. Times are in seconds there.
func (c *Closure) Status() stowage.ClosedVMType {
	o := stowage.ClosedVMType{
		Type: c.Type, Namespace: c.Namespace, Phase: stowage.VMTypePhase(c.Phase), Since: metav1.NewTime(c.Since).Rfc3339Copy(), Tries: int32(min(c.Tries, 1<<20)),
		Waited: metav1.NewTime(c.Waited).Rfc3339Copy(), Why: c.Why,
	}
	if !c.Next.IsZero() {
		o.NextTry = new(metav1.NewTime(c.Next).Rfc3339Copy())
	}
	return o
}
