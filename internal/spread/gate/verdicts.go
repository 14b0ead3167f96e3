package gate

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// verdicts are the owners about some of whose pods nobody can decide as things are. Since when that holds is kept for the next leader.
type verdicts struct {
	mu    sync.Mutex
	last  map[ledger.OwnerKey]time.Time // when it was found last
	since map[ledger.OwnerKey]time.Time // and first
	// known says that since has what earlier leaders kept, and dirty that it has changed since it was written. Nothing is read or written
	// before retry.
	known, dirty bool
	retry        time.Time
}

// How many owners are kept for the next leader, in all and of one namespace. Whoever creates pods can make owners about which nobody can
// decide. What is older than verdictsFor is not taken over. A ConfigMap that cannot be read or written is tried again after keepRetry.
const (
	mostVerdicts            = 1000
	mostVerdictsOfNamespace = 100
	verdictsFor             = time.Hour
	verdictsEvery           = 2 * time.Second
	keepRetry               = 30 * time.Second
)

// Verdicts are since when nobody can decide about pods of some owners, by namespace and UID of the owner.
type Verdicts map[string]metav1.Time

func newVerdicts() *verdicts {
	return &verdicts{last: map[ledger.OwnerKey]time.Time{}, since: map[ledger.OwnerKey]time.Time{}}
}

// undecidable reports whether nobody could decide about a pod of an owner, and whether that was found just now.
func (v *verdicts) undecidable(owner ledger.OwnerKey, now time.Time) (known, fresh bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last, known := v.last[owner]
	return known, known && now.Sub(last) < retryEvery
}

// note notes that nobody can decide about a pod of an owner.
func (v *verdicts) note(owner ledger.OwnerKey, now time.Time) {
	if owner.UID == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last[owner] = now
	v.add(owner, now)
}

// add notes since when nobody can decide about a pod of an owner, if there is room.
func (v *verdicts) add(owner ledger.OwnerKey, since time.Time) {
	known, have := v.since[owner]
	if have && !since.Before(known) || !have && len(v.since) >= mostVerdicts {
		return
	}
	of := 0
	for other := range v.since {
		if other.Namespace == owner.Namespace {
			of++
		}
	}
	if have || of < mostVerdictsOfNamespace {
		v.since[owner], v.dirty = since, true
	}
}

// clear notes that a pod of an owner was decided about, or that nobody could say: then the minute begins anew.
func (v *verdicts) clear(owner ledger.OwnerKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.last, owner)
	if _, known := v.since[owner]; known {
		delete(v.since, owner)
		v.dirty = true
	}
}

// began returns since when nobody can decide about a pod. That is the first verdict on it in this term, or an earlier one on its owner's
// pods, but never before the pod was created.
func (v *verdicts) began(w *waiting) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	since := v.since[w.ownerKey()]
	if created := time.Unix(w.created, 0); created.After(since) && !since.IsZero() {
		since = created
	}
	if since.IsZero() || since.After(w.undecidable) { // by a clock that is ahead of ours
		return w.undecidable
	}
	return since
}

// inherit takes over what earlier leaders kept. Nobody waits for it.
func (r *run) inherit(ctx context.Context) {
	v, now := r.verdicts, r.Clock.Now()
	if v.known || now.Before(v.retry) { // only one goroutine uses these
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	kept, err := r.API.Verdicts(ctx)
	if err != nil {
		v.retry = now.Add(keepRetry)
		r.Log.Error(err, "what earlier leaders kept of pods at the gate was not read")
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = true
	for key, since := range kept {
		if now.Sub(since.Time) <= verdictsFor {
			namespace, uid, _ := strings.Cut(key, "/")
			v.add(ledger.OwnerKey{Namespace: namespace, UID: types.UID(uid)}, since.Time)
		}
	}
}

// keep writes for the next leader what has changed.
func (r *run) keep(ctx context.Context) {
	v, now := r.verdicts, r.Clock.Now()
	v.mu.Lock()
	maps.DeleteFunc(v.last, func(_ ledger.OwnerKey, last time.Time) bool { return now.Sub(last) > undecidableFor })
	before := len(v.since)
	maps.DeleteFunc(v.since, func(owner ledger.OwnerKey, _ time.Time) bool {
		return now.Sub(r.began) >= undecidableFor && !r.waiting.waits(owner) // before, the watch may not have shown them yet
	})
	v.dirty = v.dirty || len(v.since) != before
	due := v.known && v.dirty && !now.Before(v.retry)
	all := Verdicts{}
	if due {
		v.dirty, v.retry = false, now.Add(verdictsEvery)
		for owner, since := range v.since {
			all[owner.Namespace+"/"+string(owner.UID)] = metav1.NewTime(since)
		}
	}
	v.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := r.API.KeepVerdicts(ctx, all); err != nil {
		r.Log.Error(err, "since when pods at the gate cannot be decided about was not kept for the next leader")
		v.mu.Lock()
		v.dirty, v.retry = true, now.Add(keepRetry)
		v.mu.Unlock()
	}
}
