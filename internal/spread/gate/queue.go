package gate

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The waits before a pod is looked at again. A pod about which nobody can decide now is tried soon, and its owner's other pods with it.
// One that was refused, or about which nobody can decide as things are, is tried every [retryEvery].
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
	retryEvery = 5 * time.Second
)

// perTurn is how many pods of one owner are seated in a turn.
const perTurn = 20

// waiting is a pod that waits at the gate. Of a pod, no more is kept than this: whoever creates pods chooses how many there are.
type waiting struct {
	namespace, name string
	uid, owner      types.UID // the owner is "" of a pod without a controller
	created         int64     // seconds since 1970

	// hopeless is since when nobody could decide about the pod as things were, or the API server refused its seat. It is zero
	// otherwise. Only who has taken the pod from the queue uses it.
	hopeless time.Time
	gone     bool // guarded by the queue
}

func (w *waiting) compare(o *waiting) int {
	return cmp.Or(cmp.Compare(w.created, o.created), strings.Compare(w.name, o.name))
}

// queue is the pods that wait at the gate, by namespace. Within a namespace, owners take turns; within an owner, pods go by the time
// of their creation. Its methods may be called at once.
type queue struct {
	mu         sync.Mutex
	pods       map[types.UID]*waiting
	namespaces map[string]*owners
}

// owners are those of one namespace. The first one is next.
type owners struct {
	turns []*owner
	byUID map[types.UID]*owner
}

type owner struct {
	uid    types.UID
	ready  []*waiting // by creation, if sorted
	sorted bool
	tried  []*waiting // to be tried again at retry
	retry  time.Time
	after  time.Time // no turn before
	tries  int       // turns in a row after which nobody could decide
}

func newQueue() *queue {
	return &queue{pods: map[types.UID]*waiting{}, namespaces: map[string]*owners{}}
}

// put adds a pod, unless it is there already. It reports whether it did.
func (q *queue) put(w waiting) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pods[w.uid] != nil {
		return false
	}
	q.pods[w.uid] = &w
	o := q.ownerOf(&w)
	o.ready, o.sorted = append(o.ready, &w), false
	return true
}

func (q *queue) ownerOf(w *waiting) *owner {
	ns := q.namespaces[w.namespace]
	if ns == nil {
		ns = &owners{byUID: map[types.UID]*owner{}}
		q.namespaces[w.namespace] = ns
	}
	o := ns.byUID[w.owner]
	if o == nil {
		o = &owner{uid: w.owner}
		ns.byUID[w.owner] = o
		ns.turns = append(ns.turns, o)
	}
	return o
}

// drop removes a pod, also one that was taken.
func (q *queue) drop(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.pods[uid]; w != nil {
		w.gone = true
		delete(q.pods, uid)
	}
}

// keep drops all pods but these.
func (q *queue) keep(there map[types.UID]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid, w := range q.pods {
		if !there[uid] {
			w.gone = true
			delete(q.pods, uid)
		}
	}
}

// take returns the pods of the owner in a namespace whose turn it is. If it is nobody's, it returns when it is, or zero if no pod
// waits. Whoever takes pods drops those that wait no more, and gives back the others: see [queue.back], [queue.later] and [queue.again].
func (q *queue) take(namespace string, now time.Time) (batch []*waiting, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ns := q.namespaces[namespace]
	if ns == nil {
		return nil, time.Time{}
	}
	for range len(ns.turns) {
		o := ns.turns[0]
		ns.turns = ns.turns[1:]
		if !o.tidy(now) {
			delete(ns.byUID, o.uid)
			continue
		}
		ns.turns = append(ns.turns, o)
		if due := o.due(); now.Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		n := min(perTurn, len(o.ready))
		batch = slices.Clone(o.ready[:n])
		o.ready = o.ready[n:]
		return batch, time.Time{}
	}
	if len(ns.turns) == 0 {
		delete(q.namespaces, namespace)
	}
	return nil, next
}

// tidy forgets the pods that are gone, and puts the ready ones in order. It reports whether there are pods.
func (o *owner) tidy(now time.Time) bool {
	isGone := func(w *waiting) bool { return w.gone }
	if len(o.ready) < perTurn || !o.sorted {
		o.ready, o.tried = slices.DeleteFunc(o.ready, isGone), slices.DeleteFunc(o.tried, isGone)
	}
	if len(o.tried) > 0 && !now.Before(o.retry) {
		o.ready, o.tried, o.sorted = append(o.ready, o.tried...), nil, false
	}
	if !o.sorted {
		slices.SortFunc(o.ready, (*waiting).compare)
		o.sorted = true
	}
	return len(o.ready) > 0 || len(o.tried) > 0
}

// due is when an owner with pods may have its next turn.
func (o *owner) due() time.Time {
	if len(o.ready) == 0 && o.retry.After(o.after) {
		return o.retry
	}
	return o.after
}

// back gives back pods that were not tried.
func (q *queue) back(pods []*waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range pods {
		o := q.ownerOf(w)
		o.ready, o.sorted = append(o.ready, w), false
	}
}

// later gives back a pod that is to be tried again soon. Its owner has its next turn after a while.
func (q *queue) later(now time.Time, w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.ownerOf(w)
	o.ready, o.sorted = append(o.ready, w), false
	if after := now.Add(min(firstRetry<<min(o.tries, 10), lastRetry)); after.After(o.after) {
		o.after = after
		o.tries++
	}
}

// again gives back a pod that is to be tried again after [retryEvery].
func (q *queue) again(now time.Time, w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.ownerOf(w)
	if len(o.tried) == 0 {
		o.retry = now.Add(retryEvery)
	}
	o.tried = append(o.tried, w)
}

// went notes that a pod of an owner was decided about and written.
func (q *queue) went(w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ownerOf(w).tries = 0
}

// state returns how many pods wait, and when the oldest of them was created.
func (q *queue) state() (n int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := int64(0)
	for _, w := range q.pods {
		if first == 0 || w.created < first {
			first = w.created
		}
	}
	if first == 0 {
		return len(q.pods), time.Time{}
	}
	return len(q.pods), time.Unix(first, 0)
}
