package gate

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// verdicts are the owners about whose pods nobody can decide as things are. Pods of one owner have one template, so one of them stands
// for all: the others are not read until the verdict is [retryEvery] old. Since when it holds is kept for the next leader.
type verdicts struct {
	mu    sync.Mutex
	last  map[ledger.OwnerKey]*ownerVerdict
	since map[ledger.OwnerKey]time.Time // when the first verdict of them was
	// known says that since has what earlier leaders kept. Tried is when it was read last, and kept when it was written.
	known        bool
	dirty        bool
	tried, saved time.Time
}

// ownerVerdict is that nobody can decide about the pods of an owner.
type ownerVerdict struct {
	at    time.Time
	why   error
	owner *metav1.OwnerReference // as in the pod that was looked at
}

// How many owners are kept for the next leader, for how long without a pod that waits, and how often they are written at most. Whoever
// creates pods can make owners about which nobody can decide.
const (
	mostVerdicts  = 1000
	verdictsFor   = time.Hour
	verdictsEvery = 2 * time.Second
)

// Verdicts are since when nobody can decide about the pods of some owners.
type Verdicts map[string]metav1.Time

func newVerdicts() *verdicts {
	return &verdicts{last: map[ledger.OwnerKey]*ownerVerdict{}, since: map[ledger.OwnerKey]time.Time{}}
}

// of returns the verdict on the pods of an owner, and whether it is still to be gone by. It is nil if there is none.
func (v *verdicts) of(owner ledger.OwnerKey, now time.Time) (last *ownerVerdict, fresh bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last = v.last[owner]
	return last, last != nil && now.Sub(last.at) < retryEvery
}

// note notes that nobody can decide about a pod.
func (v *verdicts) note(d *decision, now time.Time) {
	if d.owner == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	owner := d.ownerKey()
	v.last[owner] = &ownerVerdict{now, d.why, metav1.GetControllerOfNoCopy(d.pod)}
	if v.since[owner].IsZero() && len(v.since) < mostVerdicts {
		v.since[owner], v.dirty = now, true
	}
}

// clear notes that somebody has decided about a pod of an owner.
func (v *verdicts) clear(owner ledger.OwnerKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.last, owner)
	if _, known := v.since[owner]; known {
		delete(v.since, owner)
		v.dirty = true
	}
}

// began returns since when nobody can decide about a pod: since the first verdict on its owner's pods, if that was after its creation.
// The pod's own first verdict in this term is given.
func (v *verdicts) began(w *waiting, own time.Time) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	since := v.since[w.ownerKey()]
	if since.IsZero() || since.After(own) {
		return own
	}
	if created := time.Unix(w.created, 0); created.After(since) {
		since = created
	}
	if since.After(own) { // by a clock that is ahead of ours
		return own
	}
	return since
}

// standIn is a pod without what only a decision needs.
func (v *ownerVerdict) standIn(w *waiting, version string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name, UID: w.uid, ResourceVersion: version}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
	if v.owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*v.owner}
	}
	return pod
}

// inherit takes over what earlier leaders kept. Where that cannot be read, it is tried again later, and nobody waits for it.
func (r *run) inherit(ctx context.Context) {
	v, now := r.verdicts, r.Clock.Now()
	v.mu.Lock()
	due := !v.known && now.Sub(v.tried) >= retryEvery
	if due {
		v.tried = now
	}
	v.mu.Unlock()
	if !due {
		return
	}
	kept, err := r.API.Verdicts(ctx)
	if err != nil {
		r.Log.Error(err, "what earlier leaders kept of pods at the gate was not read")
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = true
	for key, since := range kept {
		owner := ownerKeyOf(key)
		if own := v.since[owner]; own.IsZero() && len(v.since) < mostVerdicts || since.Time.Before(own) {
			v.since[owner] = since.Time
		}
	}
}

// keep writes for the next leader what has changed.
func (r *run) keep(ctx context.Context) {
	v, now := r.verdicts, r.Clock.Now()
	v.mu.Lock()
	due := v.known && v.dirty && now.Sub(v.saved) >= verdictsEvery
	var all Verdicts
	if due {
		v.dirty, v.saved, all = false, now, Verdicts{}
		maps.DeleteFunc(v.since, func(owner ledger.OwnerKey, since time.Time) bool {
			return now.Sub(since) > verdictsFor && !r.waiting.waits(owner)
		})
		for owner, since := range v.since {
			all[owner.Namespace+"/"+string(owner.UID)] = metav1.NewTime(since)
		}
	}
	maps.DeleteFunc(v.last, func(_ ledger.OwnerKey, last *ownerVerdict) bool { return now.Sub(last.at) > undecidableFor })
	v.mu.Unlock()
	if !due {
		return
	}
	if err := r.API.KeepVerdicts(ctx, all); err != nil && ctx.Err() == nil {
		r.Log.Error(err, "since when pods at the gate cannot be decided about was not kept for the next leader")
		v.mu.Lock()
		v.dirty = true
		v.mu.Unlock()
	}
}

// ownerKeyOf is the owner that a key of [Verdicts] names, by namespace and UID.
func ownerKeyOf(key string) ledger.OwnerKey {
	namespace, uid, _ := strings.Cut(key, "/")
	return ledger.OwnerKey{Namespace: namespace, UID: types.UID(uid)}
}
