package repair

import (
	"maps"
	"sync"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// adoptionRate is how many pods that were there before a policy get a seat in a second, in the whole cluster. A policy may select
// hundreds of workloads at once.
const adoptionRate = 20

// adoptionBurst is how many may be adopted at once after seconds in which nobody could: a workload is left alone for some after each part.
const adoptionBurst = 5 * adoptionRate

// adoptions gives turns to workloads of policies whose pods are to be adopted: namespace after namespace, and within one workload
// after workload.
type adoptions struct {
	mu         sync.Mutex
	namespaces []string // in the order of their turns
	waiting    map[string][]adoption
	granted    map[ledger.OwnerKey]grant
	left       int // how many may be adopted now
	seconds    int // since the first turn
}

// grant is a turn: how many pods of a workload may be adopted, and in which second that was granted.
type grant struct{ pods, at int }

// grantLives is for how many seconds a turn that is not used lives. The leader comes to a workload whose turn it is when it has looked at all that were
// due before: in a large cluster after minutes. The turn of a workload that is gone costs the others nothing.
const grantLives = 600

// adoption is a workload that waits for a turn, with its pods to adopt.
type adoption struct {
	owner ledger.Owner
	pods  int
}

func newAdoptions() *adoptions {
	return &adoptions{waiting: map[string][]adoption{}, granted: map[ledger.OwnerKey]grant{}}
}

// take returns how many pods of a workload may be adopted now, of so many. If it is none, the workload waits for a turn.
func (a *adoptions) take(owner ledger.Owner, pods int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if granted := a.granted[owner.Key()].pods; granted > 0 && pods > 0 {
		n := min(pods, granted)
		a.left += granted - n
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
	if a.granted[owner.Key()].pods > 0 {
		return false
	}
	for _, w := range a.waiting[owner.Namespace] {
		if w.owner.Key() == owner.Key() {
			return true
		}
	}
	return false
}

// next returns the workloads whose turn it is, once in a second. They may adopt [adoptionRate] pods together, and what was left of the
// seconds before, up to [adoptionBurst].
func (a *adoptions) next() (due []ledger.Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seconds++
	maps.DeleteFunc(a.granted, func(_ ledger.OwnerKey, g grant) bool { return a.seconds-g.at > grantLives })
	a.left = min(a.left+adoptionRate, adoptionBurst)
	for a.left > 0 && len(a.namespaces) > 0 {
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
		n := min(a.left, first.pods)
		a.granted[first.owner.Key()] = grant{n, a.seconds}
		a.left -= n
		due = append(due, first.owner)
	}
	return due
}
