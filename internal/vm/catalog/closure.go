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

// Pod is a peer pod with a node and a type.
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
	Now  time.Time
	Pods []Pod
}

// Waits reports whether the VM of a pod is being made.
func (v *View) Waits() bool {
	return slices.ContainsFunc(v.Pods, func(p Pod) bool { return p.Made.IsZero() })
}

// tally counts the pods of one type, in one namespace.
type tally struct {
	waiting int // pods whose VM is being made
	ripe    int // of these, those that have waited too long
	// began is when the last of those that are ripe got its node, and made when the last VM was made.
	began, made time.Time
}

// enough reports whether so many pods have waited too long that no VM of the type can be made.
func (s *tally) enough() bool { return s.ripe > 0 && s.ripe >= min(enoughPods, s.waiting) }

// summary is what the pods show, by type and namespace. Made is when the last VM of whatever type was made, by namespace, and waits are the namespaces
// with pods whose VM is being made.
type summary struct {
	*View
	failAfter time.Duration
	of        map[Key]*tally
	made      map[string]time.Time
	waits     map[string]bool
}

// sum sums up the pods. A VM that takes longer than failAfter has failed.
func (v *View) sum(failAfter time.Duration) *summary {
	s := &summary{View: v, failAfter: failAfter, of: map[Key]*tally{}, made: map[string]time.Time{}, waits: map[string]bool{}}
	for i := range v.Pods {
		p := &v.Pods[i]
		of := s.of[Key{p.Type, p.Namespace}]
		if of == nil {
			of = &tally{}
			s.of[Key{p.Type, p.Namespace}] = of
		}
		if !p.Made.IsZero() {
			of.made = latest(of.made, p.Made)
			s.made[p.Namespace] = latest(s.made[p.Namespace], p.Made)
			continue
		}
		s.waits[p.Namespace] = true
		of.waiting++
		if p.waits(v.Now) >= failAfter {
			of.ripe++
			of.began = latest(of.began, p.Began)
		}
	}
	return s
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
// either way, decides about that namespace alone; about all, only what more namespaces show than show the opposite.
func (c *Catalog) Next(v View, timing tries.Timing) []Closure {
	if c.FailAfter <= 0 {
		return nil
	}
	s := v.sum(c.FailAfter)
	next := map[Key]*Closure{}
	for _, closure := range c.Closures() {
		if c.Type(closure.Type) == nil { // it was taken out of the catalog
			continue
		}
		if closure.step(s, timing); closure.Phase != "" {
			next[closure.Key] = &closure
		}
	}
	// 1. A namespace whose pods have waited, and got no VM of the type meanwhile.
	for key, of := range s.of {
		known := next[key] != nil || next[Key{Type: key.Type}] != nil || c.Type(key.Type) == nil
		if !known && of.enough() && v.Now.Sub(of.made) >= c.FailAfter {
			next[key] = &Closure{
				Key: key, Phase: Closed, Since: v.Now, Next: v.Now.Add(timing.First), Waited: v.Now,
				Why: fmt.Sprintf("%d pod(s) have waited for a VM for %s", of.ripe, c.FailAfter),
			}
		}
	}
	// 2. All, where several namespaces show it, and more than have got a VM.
	for name, bad := range s.closedNamespaces(next) {
		if bad >= enoughNamespaces && bad > s.goodNamespaces(name) {
			s.closeForAll(next, name, fmt.Sprintf("pods of %d namespaces have waited for a VM for %s", bad, c.FailAfter), timing)
		}
	}
	return bounded(next)
}

// step takes what closes a type from phase to phase. Without a phase, the type is as any other.
//
// A try takes the next pod, which may be the successor of one that has waited in vain for another type. So the type is tried only once VMs of
// other types are made; or, where none is, after a long time.
func (c *Closure) step(s *summary, timing tries.Timing) {
	found, failed, waits := c.tried(s, timing)
	if waits {
		c.Waited = s.Now
	}
	switch {
	case c.opens(found, failed, s):
		c.Phase = ""
	case c.Phase == Closed && !s.Now.Before(c.Next) && (c.othersFound(s) || s.Now.Sub(c.Next) >= timing.Last):
		c.Phase, c.Since = Trying, s.Now
	case c.Phase == Trying && failed > 0 && failed >= found:
		c.Tries++
		c.Why = fmt.Sprintf("%d tries have found none", c.Tries)
		c.Phase, c.Since, c.Next = Closed, s.Now, s.Now.Add(timing.After(c.Tries))
	case c.Phase == Trying && s.Now.Sub(latest(c.Since, c.Waited)) >= timing.Forget: // no pod tries it
		c.Phase = ""
	}
}

// othersFound reports whether the pods that were moved have VMs, of whatever type: the namespace has got one since or, for all, more namespaces have
// than have pods that wait.
func (c *Closure) othersFound(s *summary) bool {
	if c.Namespace != "" {
		return s.made[c.Namespace].After(c.Since)
	}
	found, wait := 0, 0
	for _, at := range s.made {
		if at.After(c.Since) {
			found++
		}
	}
	for namespace := range s.waits {
		if !s.made[namespace].After(c.Since) {
			wait++
		}
	}
	return found > wait
}

// opens reports whether VMs of the type can be made again. For a namespace, one VM says so, whether a pod tried it or had waited all the time. For
// all, more namespaces must have got one in a try than have failed, once each try had its time; or several.
func (c *Closure) opens(found, failed int, s *summary) bool {
	if c.Namespace != "" {
		return found > 0
	}
	return c.Phase == Trying && found > failed && (found >= enoughNamespaces || s.Now.Sub(c.Since) >= s.failAfter)
}

// closed returns when the type was closed last, before a try or in vain by one.
func (c *Closure) closed(timing tries.Timing) time.Time {
	if c.Phase == Closed {
		return c.Since
	}
	return c.Next.Add(-timing.After(c.Tries))
}

// tried counts the namespaces that have got a VM of the type, and those where a pod that began since the phase began has waited too long. A VM counts
// for all if it was made since the phase began. For a namespace it counts if it was made since the type was closed: it is seen late, and its time is in
// whole seconds, so that a try may have begun meanwhile. Waits is whether a pod has waited too long at all.
func (c *Closure) tried(s *summary, timing tries.Timing) (found, failed int, waits bool) {
	since := c.Since
	if c.Namespace != "" {
		since = c.closed(timing)
	}
	count := func(of *tally) {
		waits = waits || of.ripe > 0
		switch {
		case of.made.After(since):
			found++
		case of.ripe > 0 && of.began.After(c.Since):
			failed++
		}
	}
	if c.Namespace != "" {
		if of := s.of[c.Key]; of != nil {
			count(of)
		}
		return found, failed, waits
	}
	for key, of := range s.of {
		if key.Type == c.Type {
			count(of)
		}
	}
	return found, failed, waits
}

// closedNamespaces counts, by type, the namespaces for which it is closed, and whose pods have waited within [Catalog.FailAfter].
func (s *summary) closedNamespaces(closures map[Key]*Closure) map[string]int {
	count := map[string]int{}
	for key, c := range closures {
		if key.Namespace != "" && s.Now.Sub(c.Waited) < s.failAfter {
			count[key.Type]++
		}
	}
	return count
}

// goodNamespaces counts the namespaces that have got a VM of a type within [Catalog.FailAfter].
func (s *summary) goodNamespaces(name string) (n int) {
	for key, of := range s.of {
		if key.Type == name && !of.made.IsZero() && s.Now.Sub(of.made) < s.failAfter {
			n++
		}
	}
	return n
}

// closeForAll closes a type for all namespaces.
func (s *summary) closeForAll(closures map[Key]*Closure, name, why string, timing tries.Timing) {
	all := Key{Type: name}
	if closures[all] == nil {
		closures[all] = &Closure{Key: all, Phase: Closed, Since: s.Now, Next: s.Now.Add(timing.First), Waited: s.Now, Why: why}
	}
	for key := range closures { // those of the namespaces say no more
		if key.Type == name && key.Namespace != "" {
			delete(closures, key)
		}
	}
}

// bounded returns what is kept, sorted: all that holds for all, which is of types of the catalog alone; and of each namespace so much that no tenant
// takes the place of others.
func bounded(closures map[Key]*Closure) (kept []Closure) {
	for _, c := range closures {
		kept = append(kept, *c)
	}
	slices.SortFunc(kept, func(a, b Closure) int { // the oldest first, so that what is closed stays so
		return cmp.Or(a.Since.Compare(b.Since), byKey(a, b))
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
	slices.SortFunc(kept, byKey)
	return kept
}

// byKey orders what closes types.
func byKey(a, b Closure) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Namespace, b.Namespace))
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
	return choice.Type != nil && !choice.AllClosed && choice.Type.Name != p.Type
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
