package repair

import (
	"time"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// unreachedFor is how long a workload has the same pods, and not as many as it asks for, until those are put in order.
const unreachedFor = 5 * time.Minute

// unreached is a number of pods that a workload does not reach.
type unreached struct {
	current, replicas int64
	since             time.Time
}

// Stuck implements [status.Progress]. Nothing is known outside of a term.
func (c *Controller) Stuck(owner ledger.OwnerKey, current, replicas int64) bool {
	r := c.term.Load()
	return r != nil && r.stuck(owner, current, replicas)
}

// stuck reports whether a workload has had the same pods for some minutes, and another number than it asks for. A quota is the usual
// reason. The pods that there are may then be all that there will be.
func (r *run) stuck(owner ledger.OwnerKey, current, replicas int64) bool {
	newest := int64(0)
	if current != replicas {
		records := r.Seats.Pods().Of(owner)
		for i := range records {
			newest = max(newest, records[i].Created)
		}
	}
	now := r.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if current == replicas {
		if h := r.history[owner]; h != nil {
			h.unreached = unreached{}
		}
		return false
	}
	u := &r.historyOf(owner).unreached
	if u.since.IsZero() || u.current != current || u.replicas != replicas {
		*u = unreached{current, replicas, now}
	}
	return now.Sub(u.since) >= unreachedFor && r.Time.Since(time.Unix(newest, 0)) >= unreachedFor
}
