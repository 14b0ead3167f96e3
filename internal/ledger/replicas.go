package ledger

import (
	"slices"
	"time"
)

// What a book does about the replica count of its owner.

// ReplicasRead notes the answer to ReadReplicas: the owner's replica count, or -1 if
// it has none or could not be read.
func (b *Book) ReplicasRead(now time.Duration, replicas int64) {
	b.readingCount = false
	b.replicas, b.replicasSince, b.replicasAt, b.replicasRead = replicas, b.replicasStart, now, true
}

// replicasHold reports whether the replica count is new enough to give seats by it. It may be older in a burst, and while a
// request waits because the count was reached. But no pod may have ended since: a scale-down may be why.
func (b *Book) replicasHold(now time.Duration) bool {
	switch {
	case !b.replicasRead:
		return false
	case now-b.replicasAt <= b.timing.ReplicasFresh:
		return true
	}
	if now-b.replicasSince >= b.timing.Ahead || b.endedAt >= b.replicasSince {
		return false
	}
	return b.recent(now) >= steady || b.spares() > 0 || slices.ContainsFunc(b.queue, func(r *Request) bool { return r.blockedAt != 0 })
}

// replicasExpireSoon reports whether the replica count is to be read again before requests have to wait for it.
func (b *Book) replicasExpireSoon(now time.Duration) bool {
	return now < b.pausedAt() && now-b.replicasSince > 3*b.timing.Ahead/4 && b.spares() > 0
}

// readReplicas has the replica count read, unless that is under way.
func (b *Book) readReplicas(now time.Duration, acts []Action) []Action {
	if b.readingCount {
		return acts
	}
	b.readingCount, b.replicasStart = true, now
	return append(acts, Action{ReadReplicas: true})
}
