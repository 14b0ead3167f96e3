package gate

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// The waits before a pod is looked at again. A pod about which nobody can decide now is tried soon, and its owner's other pods with it.
// One that was refused, or about which nobody can decide as things are, is tried every [retryEvery], and later every [rareRetry].
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
	retryEvery = 5 * time.Second
	rareRetry  = time.Minute
)

// perTurn is how many pods of one owner are seated in a turn.
const perTurn = 50

// keptBytes is how much of pods is kept, as they are encoded. Decoded, they may take ten times as much. Whoever creates pods chooses how
// many there are, and how large. Others are read when it is their turn.
const keptBytes = 8 << 20

// waiting is a pod that waits at the gate.
type waiting struct {
	namespace, name string
	uid, owner      types.UID // the owner is "" of a pod without a controller
	created         int64     // seconds since 1970

	// undecidable is since when nobody could decide about the pod as things were, or the API server refused its seat. It is zero
	// otherwise. Only the goroutine that has taken the pod from the queue uses it.
	undecidable time.Time
	// beyond is since when its owner asks for no more pods than have seats, or zero.
	beyond time.Time

	// These are guarded by the queue.
	gone bool
	pod  *corev1.Pod // as it was seen last, or nil if it is not kept
	size int         // of what is kept
}

func (w *waiting) ownerKey() ledger.OwnerKey {
	return ledger.OwnerKey{Namespace: w.namespace, UID: w.owner}
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
	counts     map[ledger.OwnerKey]int // of the pods of each owner, also those that were taken
	kept       int                     // bytes
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
	busy   bool      // it has its turn now
}

func newQueue() *queue {
	return &queue{pods: map[types.UID]*waiting{}, namespaces: map[string]*owners{}, counts: map[ledger.OwnerKey]int{}}
}

// put adds a pod as it is now, unless it is there already. It reports whether it did.
func (q *queue) put(w waiting, pod *corev1.Pod) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if have := q.pods[w.uid]; have != nil {
		q.keepPod(have, pod)
		return false
	}
	q.pods[w.uid] = &w
	q.counts[w.ownerKey()]++
	q.keepPod(&w, pod)
	o := q.ownerOf(&w)
	o.ready, o.sorted = append(o.ready, &w), false
	return true
}

// keepPod keeps a pod, if there is room. Nil forgets it.
func (q *queue) keepPod(w *waiting, pod *corev1.Pod) {
	q.kept -= w.size
	w.pod, w.size = nil, 0
	if pod == nil {
		return
	}
	if size := pod.Size(); q.kept+size <= keptBytes {
		w.pod, w.size = pod, size
		q.kept += size
	}
}

// bytes returns how much of pods is kept.
func (q *queue) bytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.kept
}

// known returns a pod as it was seen last, or nil if it is not kept.
func (q *queue) known(w *waiting) *corev1.Pod {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.pod
}

// forget has a pod read anew when it is its turn.
func (q *queue) forget(w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keepPod(w, nil)
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
		q.remove(w)
	}
}

func (q *queue) remove(w *waiting) {
	w.gone = true
	q.keepPod(w, nil)
	delete(q.pods, w.uid)
	if q.counts[w.ownerKey()]--; q.counts[w.ownerKey()] == 0 {
		delete(q.counts, w.ownerKey())
	}
}

// waits reports whether a pod of an owner waits.
func (q *queue) waits(owner ledger.OwnerKey) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts[owner] > 0
}

// keep drops all pods but these.
func (q *queue) keep(there map[types.UID]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid, w := range q.pods {
		if !there[uid] {
			q.remove(w)
		}
	}
}

// take returns the pods of the owner in a namespace whose turn it is. If it is nobody's, it returns when it is, or zero if that is not
// known. Whoever takes pods drops those that wait no more, gives back the others (see [queue.later] and [queue.again]), and calls
// [queue.done].
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
		if !o.tidy(now) && !o.busy {
			delete(ns.byUID, o.uid)
			continue
		}
		ns.turns = append(ns.turns, o)
		if o.busy {
			continue
		}
		if due := o.due(); now.Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		n := min(perTurn, len(o.ready))
		batch = slices.Clone(o.ready[:n])
		o.ready, o.busy = o.ready[n:], true
		return batch, time.Time{}
	}
	if len(ns.turns) == 0 {
		delete(q.namespaces, namespace)
	}
	return nil, next
}

// done ends the turn of an owner.
func (q *queue) done(w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ownerOf(w).busy = false
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

// later gives back pods of one turn that are to be tried again soon. Their owner has its next turn after a while.
func (q *queue) later(now time.Time, pods []*waiting) {
	if len(pods) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.ownerOf(pods[0])
	o.ready, o.sorted = append(o.ready, pods...), false
	o.after = now.Add(min(firstRetry<<min(o.tries, 10), lastRetry))
	o.tries++
}

// again gives back a pod that was tried, and is to be tried again after [retryEvery]. One that has been undecidable for long, because the API
// server refuses to let it through, is tried after [rareRetry].
func (q *queue) again(now time.Time, w *waiting) {
	after := retryEvery
	if !w.undecidable.IsZero() && now.Sub(w.undecidable) > 2*undecidableFor {
		after = rareRetry
	}
	q.wait(now.Add(after), w)
}

// wait gives back a pod that is to be tried at a time, with the others of its owner that wait for one.
func (q *queue) wait(at time.Time, w *waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.ownerOf(w)
	if len(o.tried) == 0 {
		o.retry = at
	}
	o.tried = append(o.tried, w)
}

// written notes that a pod of an owner was decided about and written.
func (q *queue) written(w *waiting) {
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
