// Package repair decides what to do about pods of a workload that are not where its
// strategy wants them: those that came without a seat because no webhook was there,
// ordinals with gaps, and pools that have too many.
//
// A plan depends only on what it is given; package controllers/workload looks and acts. It
// promises that a plan
//   - is empty while the workload moves;
//   - never makes a pod that runs in one of the pools go, unless eviction was asked for or the pod
//     came before its policy and is not in use yet;
//   - makes at most one pod go at a time.
package repair

import (
	"cmp"
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread"
)

// Pod is a live pod of the workload.
type Pod struct {
	Name    string
	Created time.Time
	Ready   bool
	Running bool // it has a node
	Volume  bool // it uses a PersistentVolumeClaim, whose volume may be where the pod runs
	// Seat is what the pod holds; Pool is -1 if it holds none.
	Seat spread.Seat
	// Claimed says that the pod got its seat as it was created.
	Claimed bool
	// OwnRank is the rank of a pod that has an ordinal of its own, or 0.
	OwnRank int64
	// Foreign says, of a pod without a seat, that it had one in a pool which the
	// strategy does not have any more.
	Foreign bool
	// NodePool is the pool that the pod's node is in, or one of the constants below.
	NodePool int
	// Ours says, of a pod without a seat, that it should have come through us.
	Ours bool
	// BeforePolicy says that the pod was created a little before the policy that concerns it.
	BeforePolicy bool
	// Rank is the one for which Stowage wrote the pod's deletion cost, 0 if somebody else wrote the cost,
	// or placement.OldCost.
	Rank int64
}

// Where a pod's node is, if it is in no pool.
const (
	NoNode    = -1 // the pod waits for a node
	OtherNode = -2 // the node is in no pool
)

// State is a workload as it is.
type State struct {
	Strategy *spread.Strategy
	Pods     []Pod
	// Replicas is how many pods the workload asks for.
	Replicas int64
	// Settled says that the workload asks for nothing and that nothing ends.
	Settled bool
	// RollingOut says that another revision of the workload has pods.
	RollingOut bool
	// Keep says that no pod may be removed: a Job's have work to lose.
	Keep  bool
	Mode  stowage.Repair
	Evict bool
	// Young says that the whole workload was created moments ago, so that its pods may be
	// evicted although they are ready.
	Young bool
	// Available reports for each pool whether one of its nodes has room for one more pod.
	Available []bool
	// Reached is when the webhook last gave a seat to a pod that the same registration selects, of this or of
	// another workload. A pod that was created later than that may have bypassed a webhook that still cannot
	// be reached.
	Reached time.Time
}

// own returns the seat of a pod that has an ordinal of its own, and false if the strategy has no such seat.
func (s *State) own(pod *Pod) (spread.Seat, bool) {
	seat, err := s.Strategy.SeatAt(pod.OwnRank)
	return seat, err == nil
}

// lacksSeat reports whether a pod has no seat and should have one.
func (s *State) lacksSeat(pod *Pod) bool {
	if pod.Seat.Pool >= 0 || !pod.Ours {
		return false
	}
	if pod.OwnRank > 0 {
		_, ok := s.own(pod)
		return ok
	}
	return true
}

// free reports whether a pool has a node with room for one more pod.
func (s *State) free(pool int) bool { return pool >= 0 && pool < len(s.Available) && s.Available[pool] }

// NoRank is the rank of a seat that the sequence does not have, such as a second one in
// a pool of a base of one and no weight: such pods go before all others that have a seat.
const NoRank = 10_000_000

// RankOf returns a seat's rank, or NoRank.
func RankOf(s *spread.Strategy, seat spread.Seat) int64 {
	if rank, ok := s.Rank(seat); ok {
		return min(rank, NoRank)
	}
	return NoRank
}

// Move gives a seat to a pod, with the rank that its deletion cost is to stand for.
type Move struct {
	Pod  int // index in State.Pods
	Seat spread.Seat
	Rank int64
}

// Plan is what to do, and what is to be said.
type Plan struct {
	Adopt    []Move // pods without a seat
	Renumber []Move // pods with another seat, or another rank, than they should have
	Recreate int    // index of a pod to remove, so that its owner recreates it; or -1
	Evict    int    // index of a pod to evict, so that another pool gets it; or -1
	// To is the pool that gets the successor of the pod to remove, if that pod has a node; or -1.
	To int
	// BeforePolicy says that the pod to remove was created before its policy and is not in use yet.
	// The repair mode Recreate allows this without a request to rebalance.
	BeforePolicy bool

	Counts   []int64 // pods with a seat in each pool, after the moves
	Targets  []int64
	Unseated int // pods without a seat, after the moves, that should have one
}

// Balanced reports whether each pool has what it should have.
func (p *Plan) Balanced() bool { return p.Unseated == 0 && slices.Equal(p.Counts, p.Targets) }

// Distance is how many pods are in a pool that has too many, or in none.
func (p *Plan) Distance() int64 {
	d := int64(p.Unseated)
	for i := range p.Counts {
		d += max(0, p.Counts[i]-p.Targets[i])
	}
	return d
}

// Make returns the plan for a workload.
func Make(s State) Plan {
	p := Plan{Recreate: -1, Evict: -1, To: -1, Counts: make([]int64, s.Strategy.Len()), Targets: make([]int64, s.Strategy.Len())}
	for i := range p.Targets {
		p.Targets[i] = s.Strategy.Target(i, s.Replicas)
	}
	ordinals := false
	for i := range s.Pods {
		pod := &s.Pods[i]
		ordinals = ordinals || pod.OwnRank > 0
		switch {
		case pod.Seat.Pool >= 0:
			p.Counts[pod.Seat.Pool]++
		case s.lacksSeat(pod):
			p.Unseated++
		}
	}
	// Beyond the pools' maxima pods have no seat, and need none. Which ones follows from their own ordinals, if
	// they have any.
	if beyond := s.Replicas - s.Strategy.Capacity(); beyond > 0 && !ordinals {
		p.Unseated = max(0, p.Unseated-int(beyond))
	}
	if !s.Settled || s.Mode == stowage.RepairOff {
		return p
	}

	// 1. Who runs in a pool belongs to it.
	s.adopt(&p)

	// 2. A pod that was created before its policy is removed while it is not in use.
	if len(p.Adopt) == 0 && s.Mode == stowage.RepairRecreate && !s.Keep && !s.RollingOut {
		if p.Recreate, p.Evict = s.evictEarly(&p); p.Recreate >= 0 || p.Evict >= 0 {
			p.BeforePolicy = true
			return p
		}
	}

	// 3. A pod without a seat that is in no pool is recreated, if a later pod shows that this helps.
	if p.Unseated > 0 && s.Mode == stowage.RepairRecreate && !s.Keep {
		p.Recreate = s.recreate(&p)
	}

	// 4. Ordinals without gaps, and costs that agree with them.
	if len(p.Adopt) == 0 {
		p.Renumber = s.renumber()
	}

	// 5. A pod goes from a pool that has too many, if that was asked for.
	if s.Evict && !s.Keep && len(p.Adopt) == 0 && p.Recreate < 0 && len(p.Renumber) == 0 {
		p.Evict = s.evict(&p)
	}
	return p
}

// adopt gives a seat to pods without one that run in a pool. The pool that lacks most pods comes first. A pool gets
// more pods than its maximum only if too few others are without a seat.
func (s *State) adopt(p *Plan) {
	seats := newTable(s)
	running := make([][]int, s.Strategy.Len())
	outside := 0
	for i := range s.Pods {
		pod := &s.Pods[i]
		switch {
		case !s.lacksSeat(pod):
		case pod.NodePool < 0:
			outside++
		case pod.OwnRank == 0:
			running[pod.NodePool] = append(running[pod.NodePool], i)
		default:
			if own, _ := s.own(pod); own.Pool == pod.NodePool {
				p.Adopt = append(p.Adopt, Move{Pod: i, Seat: own, Rank: RankOf(s.Strategy, own)})
				p.Counts[own.Pool]++
				p.Unseated--
			}
		}
	}
	for p.Unseated > 0 {
		best := -1
		for pool := range running {
			if len(running[pool]) > 0 && (best < 0 || p.Targets[pool]-p.Counts[pool] > p.Targets[best]-p.Counts[best]) {
				best = pool
			}
		}
		if best < 0 {
			return
		}
		if limit := s.Strategy.Pool(best).Max; limit > 0 && p.Counts[best] >= limit && p.Unseated <= outside {
			return
		}
		seat := spread.Seat{Pool: best, Ordinal: seats.takeLowest(best)}
		p.Adopt = append(p.Adopt, Move{Pod: running[best][0], Seat: seat, Rank: RankOf(s.Strategy, seat)})
		running[best] = running[best][1:]
		p.Counts[best]++
		p.Unseated--
	}
}

// evictEarly returns a pod to remove that was created before its policy and that nobody uses yet: it is
// not ready, or its whole workload is young. Recreate is one without a seat, evict one in a pool that
// has too many; the other is -1. Pods with an ordinal of their own stay.
func (s *State) evictEarly(p *Plan) (recreate, evict int) {
	recreate, evict = -1, -1
	over := mostOver(p)
	for i, pod := range s.Pods {
		if !pod.BeforePolicy || pod.OwnRank > 0 || pod.Ready && !s.Young {
			continue
		}
		switch {
		case pod.Seat.Pool < 0 && pod.Ours && pod.NodePool < 0 && p.Unseated > 0:
			if recreate < 0 || s.Pods[recreate].Ready && !pod.Ready {
				recreate = i
			}
		case pod.Seat.Pool >= 0 && pod.Seat.Pool == over && !pod.Claimed:
			if evict < 0 || s.Pods[evict].Ready && !pod.Ready ||
				s.Pods[evict].Ready == pod.Ready && pod.Seat.Ordinal > s.Pods[evict].Seat.Ordinal {
				evict = i
			}
		}
	}
	if recreate >= 0 {
		if to := s.successor(p.Counts, &s.Pods[recreate]); s.free(to) {
			p.goes(&s.Pods[recreate], to)
			return recreate, -1
		}
	}
	if evict >= 0 {
		if to := s.another(p.Counts, over); to >= 0 {
			p.goes(&s.Pods[evict], to)
			return -1, evict
		}
	}
	return -1, -1
}

// goes notes the pool that the successor of a pod gets, if the pod has a node.
func (p *Plan) goes(pod *Pod, to int) {
	if pod.Running {
		p.To = to
	}
}

// recreate returns a pod without a seat that is older than one to which the webhook gave a seat: one that waits for a
// node before one that runs, and of those the youngest. Pods that run stay while another is not ready, while the
// workload rolls out, and where the pool of their successor has no room.
func (s *State) recreate(p *Plan) int {
	var last time.Time
	ready := true
	if !s.Reached.IsZero() {
		last = s.Reached.Add(-time.Second) // times are whole seconds, and another workload's pod proves nothing for its own second
	}
	for _, pod := range s.Pods {
		if pod.Claimed && pod.Created.After(last) {
			last = pod.Created
		}
		ready = ready && pod.Ready
	}
	if last.IsZero() {
		return -1
	}
	best := -1
	for i := range s.Pods {
		pod := &s.Pods[i]
		if !s.lacksSeat(pod) {
			continue
		}
		// Times are whole seconds. A pod of the same second may be the later one; then
		// its removal helps nothing, and no other follows.
		if pod.Created.After(last) {
			return -1 // the webhook is not reached, again
		}
		if pod.NodePool >= 0 || pod.Foreign {
			continue
		}
		if mayGo := ready && !s.RollingOut && s.free(s.successor(p.Counts, pod)); pod.NodePool == OtherNode && !mayGo {
			continue
		}
		if best < 0 || pod.NodePool == NoNode && s.Pods[best].NodePool != NoNode ||
			pod.NodePool == s.Pods[best].NodePool && pod.Created.After(s.Pods[best].Created) {
			best = i
		}
	}
	if best >= 0 {
		p.goes(&s.Pods[best], s.successor(p.Counts, &s.Pods[best]))
	}
	return best
}

// successor returns the pool that gets the successor of a pod, or -1 if none does. A seat that the pod holds is no longer
// in the counts.
func (s *State) successor(counts []int64, pod *Pod) int {
	if pod.OwnRank > 0 {
		if own, ok := s.own(pod); ok {
			return own.Pool
		}
		return -1
	}
	next, err := s.Strategy.Next(counted(counts))
	if err != nil {
		return -1
	}
	return next.Pool
}

// counted shows counts to a strategy.
type counted []int64

func (c counted) Count(pool int) int64      { return c[pool] }
func (c counted) LowestFree(pool int) int64 { return c[pool] + 1 }

// renumber returns the moves after which each pool's ordinals are 1 to their number and
// each pod's deletion cost is that of its rank.
func (s *State) renumber() []Move {
	var out []Move
	for pool := range s.Strategy.Len() {
		var pods []int
		for i := range s.Pods {
			if s.Pods[i].Seat.Pool == pool && s.Pods[i].OwnRank == 0 {
				pods = append(pods, i)
			}
		}
		slices.SortStableFunc(pods, func(a, b int) int {
			return cmp.Or(cmp.Compare(s.Pods[a].Seat.Ordinal, s.Pods[b].Seat.Ordinal), s.Pods[a].Created.Compare(s.Pods[b].Created), cmp.Compare(s.Pods[a].Name, s.Pods[b].Name))
		})
		// Those that fit keep their ordinals; the others, the highest ones and the
		// younger of two that share one, fill the gaps.
		taken := make([]bool, len(pods)+1)
		var misplaced []int
		seat := make(map[int]int64, len(pods))
		for _, i := range pods {
			if o := s.Pods[i].Seat.Ordinal; o <= int64(len(pods)) && !taken[o] {
				taken[o], seat[i] = true, o
			} else {
				misplaced = append(misplaced, i)
			}
		}
		free := 1
		for _, i := range misplaced {
			for taken[free] {
				free++
			}
			taken[free], seat[i] = true, int64(free)
		}
		for _, i := range pods {
			to := spread.Seat{Pool: pool, Ordinal: seat[i]}
			rank := RankOf(s.Strategy, to)
			if to != s.Pods[i].Seat || s.Pods[i].Rank != 0 && s.Pods[i].Rank != rank {
				out = append(out, Move{Pod: i, Seat: to, Rank: rank})
			}
		}
	}
	return out
}

// evict returns a pod that is to go to another pool, if the one that gets the next pod
// is another and has a node for it: one whose pool is no more, then the highest ordinal
// of the pool that has most too many. All pods must be ready.
func (s *State) evict(p *Plan) int {
	if s.RollingOut || int64(len(s.Pods)) != s.Replicas || slices.ContainsFunc(s.Pods, func(pod Pod) bool { return !pod.Ready }) {
		return -1
	}
	over := mostOver(p)
	best := -1
	for i := range s.Pods {
		pod := &s.Pods[i]
		switch {
		case pod.OwnRank > 0:
			// It comes back with the same ordinal, and goes where that belongs.
			own, ok := s.own(pod)
			elsewhere := pod.Foreign || pod.Seat.Pool >= 0 && own.Pool != pod.Seat.Pool || s.lacksSeat(pod) && pod.NodePool >= 0 && own.Pool != pod.NodePool && !pod.Volume
			if ok && elsewhere && s.free(own.Pool) {
				p.goes(pod, own.Pool)
				return i
			}
		case pod.Foreign && pod.Seat.Pool < 0:
			if to := s.successor(p.Counts, pod); s.free(to) {
				p.goes(pod, to)
				return i
			}
		case over >= 0 && pod.Seat.Pool == over && (best < 0 || pod.Seat.Ordinal > s.Pods[best].Seat.Ordinal):
			best = i
		}
	}
	if best < 0 {
		return -1
	}
	to := s.another(p.Counts, over)
	if to < 0 {
		return -1
	}
	p.goes(&s.Pods[best], to)
	return best
}

// mostOver returns the pool that has most too many pods, or -1.
func mostOver(p *Plan) int {
	over := -1
	for i := range p.Counts {
		surplus := p.Counts[i] - p.Targets[i]
		if surplus > 0 && (over < 0 || surplus > p.Counts[over]-p.Targets[over]) {
			over = i
		}
	}
	return over
}

// another returns the pool that gets the successor of a pod that leaves a pool, or -1 if that is the same pool or one
// without room.
func (s *State) another(counts []int64, pool int) int {
	counts = slices.Clone(counts)
	counts[pool]--
	next, err := s.Strategy.Next(counted(counts))
	if err != nil || next.Pool == pool || !s.free(next.Pool) {
		return -1
	}
	return next.Pool
}

// table is which ordinals of each pool are held.
type table []ordinals

type ordinals struct {
	held map[int64]bool
	low  int64 // no ordinal up to it is free
}

func newTable(s *State) table {
	t := make(table, s.Strategy.Len())
	for i := range t {
		t[i].held = map[int64]bool{}
	}
	for _, pod := range s.Pods {
		if pod.Seat.Pool >= 0 {
			t[pod.Seat.Pool].held[pod.Seat.Ordinal] = true
		}
	}
	return t
}

func (t table) takeLowest(pool int) int64 {
	o := &t[pool]
	o.low++
	for o.held[o.low] {
		o.low++
	}
	o.held[o.low] = true
	return o.low
}
