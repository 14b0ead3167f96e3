package admit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// chooser chooses from a catalog for the pods of a namespace.
type chooser struct {
	*catalog.Catalog
	namespace string
	take      func(catalog.Try) bool // nil where the pod may try nothing
}

var _ peerpod.Chooser = chooser{}

// Choose implements [peerpod.Chooser].
func (c chooser) Choose(need *catalog.Need) (t *catalog.Type, warnings []string) {
	if need.Nothing() {
		return nil, nil
	}
	choice := c.Catalog.Choose(need, c.namespace, c.take)
	switch {
	case choice.Type == nil:
		return nil, []string{fmt.Sprintf("no type of VMCatalog %s fits this pod: %s; the pod gets the VM that is chosen by its size", c.Name, c.Unfit(need))}
	case choice.AllClosed:
		return choice.Type, []string{fmt.Sprintf("all types of VMCatalog %s that fit this pod are closed, because their VMs could not be made; it gets %s and may wait", c.Name, choice.Type.Text())}
	case len(choice.Closed) > 0:
		var names []string
		for _, closed := range choice.Closed[:min(3, len(choice.Closed))] {
			names = append(names, closed.Name)
		}
		return choice.Type, []string{fmt.Sprintf("this pod gets a VM of type %s, because VMs of %s, which cost less, could not be made: see VMCatalog %s", choice.Type.Text(), strings.Join(names, ", "), c.Name)}
	}
	return choice.Type, nil
}

// Closed implements [peerpod.Chooser].
func (c chooser) Closed(name string, need *catalog.Need) bool {
	return c.IsClosed(need, name, c.namespace)
}

// Check implements [peerpod.Chooser].
func (c chooser) Check(name string, need *catalog.Need) []string {
	switch t := c.Type(name); {
	case t == nil:
		return []string{fmt.Sprintf("annotation %s is %q, which VMCatalog %s does not have; the VM counts without a price", stowage.MachineTypeAnnotation, name, c.Name)}
	case !t.Fits(need):
		return []string{fmt.Sprintf("annotation %s is %q, and a VM of that type is too small for this pod, or of another zone or GPU model", stowage.MachineTypeAnnotation, name)}
	}
	return nil
}

// chooser returns what chooses the type of VM of a pod, or nil if no catalog is for its RuntimeClass. Where the catalogs cannot be read, there
// are none.
func (f *Feature) chooser(ctx context.Context, req *feature.Request) (peerpod.Chooser, []string) {
	if f.Catalogs == nil {
		return nil, nil
	}
	all, err := f.Catalogs(ctx)
	if err != nil {
		return nil, []string{fmt.Sprintf("no type of VM was chosen, because the VMCatalogs cannot be read: %v", err)}
	}
	of := catalog.For(all, req.Pod.Spec.RuntimeClassName)
	if of == nil {
		return nil, nil
	}
	c := chooser{Catalog: of, namespace: req.Namespace}
	if f.Tries != nil && !req.Traceless() {
		c.take = func(try catalog.Try) bool { return f.Tries.take(of, try) }
	}
	return c, nil
}

// Tries gives types that are closed to single pods, which try whether VMs of them can be made again. Each replica gives a type to one pod of each
// namespace for each try in a zone: so a try takes as many pods of a namespace as there are replicas, at most.
type Tries struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	given map[triedType]given
}

type triedType struct {
	catalog string
	catalog.Key
}

type given struct{ since, at time.Time }

// mostTries is how many tries are remembered. Beyond that all are forgotten, and a few more pods try.
const mostTries = 10000

// NewTries returns what gives types to single pods.
func NewTries(c clock.PassiveClock) *Tries {
	return &Tries{clock: c, given: map[triedType]given{}}
}

// take reports whether a pod is the one that tries a type. The pod that was given it last may never come to be, so another one is
// given it once a VM has had its time.
func (t *Tries) take(of *catalog.Catalog, try catalog.Try) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, now := triedType{of.Name, try.Key}, t.clock.Now()
	if last, ok := t.given[key]; ok && last.since.Equal(try.Since) && now.Sub(last.at) < of.FailAfter {
		return false
	}
	if len(t.given) >= mostTries {
		clear(t.given)
	}
	t.given[key] = given{try.Since, now}
	return true
}
