package repair

import (
	"sync"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// adoptionRate is how many pods that were there before a policy get a seat in a second, in the whole cluster. A policy may select
// hundreds of workloads at once.
const adoptionRate = 20

// adoptions gives turns to workloads of policies whose pods are to be adopted: namespace after namespace, and within one workload
// after workload.
type adoptions struct {
	mu         sync.Mutex
	namespaces []string // in the order of their turns
	waiting    map[string][]adoption
	granted    map[ledger.OwnerKey]int
}

// adoption is a workload that waits for a turn, with its pods to adopt.
type adoption struct {
	owner ledger.Owner
	pods  int
}

func newAdoptions() *adoptions {
	return &adoptions{waiting: map[string][]adoption{}, granted: map[ledger.OwnerKey]int{}}
}

// take returns how many pods of a workload may be adopted now, of so many. If it is none, the workload waits for a turn.
func (a *adoptions) take(owner ledger.Owner, pods int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := min(pods, a.granted[owner.Key()]); n > 0 {
		delete(a.granted, owner.Key())
		return n
	}
	of := a.waiting[owner.Namespace]
	for i := range of {
		if of[i].owner.Key() == owner.Key() {
			of[i].pods = pods
			return 0
		}
	}
	if len(of) == 0 {
		a.namespaces = append(a.namespaces, owner.Namespace)
	}
	a.waiting[owner.Namespace] = append(of, adoption{owner, pods})
	return 0
}

// waits reports whether a workload waits for its turn.
func (a *adoptions) waits(owner ledger.Owner) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.granted[owner.Key()] > 0 {
		return false
	}
	for _, w := range a.waiting[owner.Namespace] {
		if w.owner.Key() == owner.Key() {
			return true
		}
	}
	return false
}

// next returns the workloads whose turn it is, which may adopt [adoptionRate] pods together. Turns that were not used are lost.
func (a *adoptions) next() (due []ledger.Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.granted)
	for pods := adoptionRate; pods > 0 && len(a.namespaces) > 0; {
		namespace := a.namespaces[0]
		a.namespaces = a.namespaces[1:]
		of := a.waiting[namespace]
		first := of[0]
		if of = of[1:]; len(of) > 0 {
			a.waiting[namespace] = of
			a.namespaces = append(a.namespaces, namespace)
		} else {
			delete(a.waiting, namespace)
		}
		n := min(pods, first.pods)
		a.granted[first.owner.Key()] = n
		pods -= n
		due = append(due, first.owner)
	}
	return due
}
