package ledger

import (
	"slices"
	"time"
)

// What a book does about the replica count of its owner.

// ReplicasRead notes the answer to ReadReplicas: the owner's replica count, or -1 if
// it has none.
func (b *Book) ReplicasRead(now time.Duration, replicas int64) {
	b.readingCount, b.countFailures = false, 0
	b.replicas, b.replicasSince, b.replicasAt = replicas, b.replicasStart, now
}

// ReplicasFailed notes that the replica count could not be read. What was read before stays.
func (b *Book) ReplicasFailed(now time.Duration) {
	b.readingCount, b.countAt = false, b.timing.later(now, b.timing.Retry<<min(b.countFailures, 5))
	b.countFailures++
}

// withoutCount reports whether a request has waited long enough for a replica count that cannot be read. Where reads
// keep failing, no request waits.
func (b *Book) withoutCount(now time.Duration, r *Request) bool {
	if b.countFailures == 0 || r.claim != nil {
		return false
	}
	until := min(r.arrived+b.timing.patience(b.settle), r.Deadline-b.timing.Reserve)
	if b.countFailures >= brokenAfter || now >= until {
		return true
	}
	b.wakeAt(until)
	return false
}

// replicasHold reports whether the replica count is new enough to give seats by it. No pod may have ended since it was read: a scale-down may be
// why. The count may be older in a burst, and while a request waits because the count was reached.
func (b *Book) replicasHold(now time.Duration) bool {
	switch {
	case b.endedAt > b.replicasSince:
		return false
	case now-b.replicasAt <= b.timing.ReplicasFresh:
		return true
	case now-b.replicasSince >= b.timing.Ahead:
		return false
	}
	return b.fills(now) || b.recent(now) >= steady || b.spares() > 0 || slices.ContainsFunc(b.queue, func(r *Request) bool { return r.blockedAt != 0 })
}

// fills reports whether many pods are missing and the ledger changes because they come, at whatever replica.
func (b *Book) fills(now time.Duration) bool {
	return b.missing() >= steady && now-b.changedAt <= active
}

// missing returns how many more pods the owner asks for than have a seat, as far as is known. It is 0 if its kind does not say.
func (b *Book) missing() int64 { return max(0, b.replicas-b.total) }

// replicasExpireSoon reports whether the replica count is to be read again before requests have to wait for it.
func (b *Book) replicasExpireSoon(now time.Duration) bool {
	return now < b.pausedAt() && now-b.replicasSince > 3*b.timing.Ahead/4 && b.spares() > 0
}

// readReplicas has the replica count read, unless that is under way or has just failed.
func (b *Book) readReplicas(now time.Duration, acts []Action) []Action {
	if b.readingCount || b.waitsForRoom(now) {
		return acts
	}
	if b.countFailures > 0 && now < b.countAt {
		b.wakeAt(b.countAt)
		return acts
	}
	b.readingCount, b.replicasStart = true, now
	return append(acts, Action{ReadReplicas: true})
}
