package shortage

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/world"
)

// memory is what a leader has seen of a workload. A new leader begins anew, so that clocks start again. Only the reconciler
// uses it, but for the pools, which the lock of the run guards.
type memory struct {
	workload world.Object
	waits    map[types.UID]*wait
	examples map[exampleKey]*example
	misfits  map[exampleKey]bool // those about which there was an event
	// waited is when a pod was last seen to wait for a pool or cell, and looked when room was looked for, by its name.
	waited map[string]time.Time
	looked map[string]poolroom.Checkpoint
	judged map[string]judged // by the name of a pool or cell
	limit  *rate.Limiter
	pools  map[place]bool // with metrics
	// outdated are the pods that wait for nodes of no cell, and when each may be recreated.
	outdated map[types.UID]time.Time
	looks    int // how many looks for outdated pods there were
	// corrected says that one was recreated since a new one was found, and again is how often a new one was found after that.
	corrected bool
	again     int
	// correctedAt is when one was recreated last. The lock of the run guards it.
	correctedAt time.Time
	pruned      time.Time // when the API server last left out what it does not know of the PoolState
}

// wait is for how long a pod has waited.
type wait struct {
	total time.Duration // without the time in which room was on its way
	onWay time.Duration
	seen  time.Time
}

// longestOnWay is how long room may be on its way. A node that does not come in this time does not stop the clock any more.
const longestOnWay = 15 * time.Minute

// pass notes that a pod still waits, and returns for how long it has.
func (m *memory) pass(pod types.UID, now time.Time, onWay bool) time.Duration {
	w := m.waits[pod]
	if w == nil {
		w = &wait{seen: now}
		m.waits[pod] = w
	}
	elapsed := now.Sub(w.seen)
	w.seen = now
	if onWay && w.onWay < longestOnWay {
		w.onWay += elapsed
	} else {
		w.total += elapsed
	}
	return w.total
}

// forgetPods drops the pods that do not wait any more.
func (m *memory) forgetPods(now time.Time) {
	for uid, w := range m.waits {
		if w.seen.Before(now) {
			delete(m.waits, uid)
		}
	}
}

// forget drops what is known of a workload, with its metrics.
func (r *run) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.known[uid]; m != nil {
		for pool := range m.pools {
			r.Metrics.gone(m.workload, pool)
		}
		delete(r.known, uid)
	}
}

// exampleKey names the pods of one owner in one pool or cell. They have one template, so one of them stands for all.
type exampleKey struct {
	owner        ledger.OwnerKey
	pool, domain string
}

// example is what is known of a pod that waits, read from the API server.
type example struct {
	at       time.Time
	requests corev1.ResourceList // of such a pod
	misfit   string              // why such pods do not wait for room, or ""
	group    bool                // they belong to a scheduling group
	// stays says that Stowage may not move such pods now.
	stays bool
}

// exampleAfter is how long a pod waits until one of its siblings is read. Most pods have a node before that.
const exampleAfter = 5 * time.Second

// exampleFor is for how long an example stands for its siblings.
const exampleFor = 30 * time.Second

func (r *run) memoryOf(w world.Object) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.known[w.UID]
	if m == nil {
		m = &memory{
			workload: w, waits: map[types.UID]*wait{}, examples: map[exampleKey]*example{}, misfits: map[exampleKey]bool{}, waited: map[string]time.Time{}, looked: map[string]poolroom.Checkpoint{}, judged: map[string]judged{},
			limit: rate.NewLimiter(workloadRate, workloadRate), pools: map[place]bool{}, outdated: map[types.UID]time.Time{},
		}
		r.known[w.UID] = m
	}
	return m
}
