package seats

import (
	"math"
	"strconv"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/world"
)

// Held returns how many pods of an owner have a seat in a pool. It counts those that were given a seat and are not
// seen yet. It leaves out those that are sure to be removed now: see [Pods.Leaving]. It leaves nothing behind where
// nothing is known of the owner.
func (l *Service) Held(owner *world.Workload, pool string) (n int64) {
	key := OwnerOf(owner).Key()
	if l.knows(key) {
		l.with(key, func(now time.Duration, e *entry) { n = e.book.Held(now, pool) })
		n = max(0, n-l.pods.Leaving(key, pool, owner.Replicas))
	}
	return n
}

// HeldIn returns how many pods of an owner that were seen have a seat in each domain of each pool.
func (l *Service) HeldIn(owner *world.Workload) map[ledger.Cell]int64 {
	return l.pods.byCell(OwnerOf(owner).Key())
}

// Leaving returns how many pods of a pool a ReplicaSet is sure to remove now, because it asks for so few. It removes pods
// without a node first, then those that are not ready, then those of the lowest cost. Of these, the pods of other pools
// count as removed before.
func (p *Pods) Leaving(owner ledger.OwnerKey, pool string, replicas int64) int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o := p.byOwner[owner]
	if o == nil || replicas < 0 || int64(len(o.pods)) <= replicas {
		return 0
	}
	excess, lowest := -replicas, int64(math.MaxInt64)
	for _, r := range o.pods {
		if r.Active {
			excess++
		}
		if r.Active && r.Node != "" && r.Ready {
			lowest = min(lowest, costOf(r.Cost))
		}
	}
	var here, others int64
	for _, r := range o.pods {
		switch {
		case !r.Active || r.Node != "" && r.Ready && costOf(r.Cost) > lowest:
		case r.Pool == pool:
			here++
		default:
			others++
		}
	}
	return max(0, min(here, excess-others))
}

// byCell returns how many pods of an owner have a seat in each domain of each pool.
func (p *Pods) byCell(owner ledger.OwnerKey) map[ledger.Cell]int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := map[ledger.Cell]int64{}
	if o := p.byOwner[owner]; o != nil {
		for _, r := range o.pods {
			if r.Active {
				out[ledger.Cell{Pool: r.Pool, Domain: r.Domain}]++
			}
		}
	}
	return out
}

// costOf is a deletion cost as a ReplicaSet reads it.
func costOf(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return n
}
