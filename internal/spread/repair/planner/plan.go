// Package planner decides what to do about pods of a workload that are not where its strategy wants them. Some came
// without a seat because no webhook was there; some ordinals have gaps; some pools have too many.
//
// A plan depends only on what it is given; package repair looks and acts. It
// promises that a plan
//   - is empty while the workload moves;
//   - never makes a pod that runs in one of the pools go, unless eviction was asked for or the pod
//     came before its policy and is not in use yet;
//   - never makes a pod go that is held where it runs;
//   - makes at most one pod go at a time.
package planner

import (
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Pod is an active pod of the workload.
type Pod struct {
	Name    string
	Created time.Time
	Ready   bool
	Running bool // it has a node
	Volume  bool // it uses a PersistentVolumeClaim, whose volume may be where the pod runs
	// Held says why a pod must stay: a volume, an annotation, or its scheduling group. It is empty if the pod may go.
	Held string
	// VolumeElsewhere says, of a pod without a seat, that its volumes reach no place for one: see [layout.Elsewhere].
	VolumeElsewhere bool
	// Seat is what the pod holds; Pool is -1 if it holds none.
	Seat sequence.Seat
	// Domain is the domain of the seat. Position is the pod's place among its pool's pods for which its deletion cost was written, or 0 if
	// that is its ordinal.
	Domain   int
	Position int64
	// Claimed says that the webhook gave the pod its seat, or the one that it had in a removed pool or domain.
	Claimed bool
	// OwnRank is the rank of a pod that has an ordinal of its own, or 0.
	OwnRank int64
	// Foreign says, of a pod without a seat, that it had one in a pool or a domain that is no longer in the strategy. DomainRemoved says
	// that the strategy has the pool still.
	Foreign, DomainRemoved bool
	// Full says, of a pod without a seat, that the webhook gave it none because every pool had its maximum.
	Full bool
	// NodePool is the pool that the pod's node is in, or one of the constants below.
	NodePool int
	// NodeDomain is the domain that the pod's node is in.
	NodeDomain int
	// Waits is for how long no node was found for a pod without a seat.
	Waits time.Duration
	// Ours says, of a pod without a seat, that it should have come through us.
	Ours bool
	// BeforePolicy says that the pod was created a little before the policy that concerns it.
	BeforePolicy bool
	// Rank is the one for which Stowage wrote the pod's deletion cost, or 0 if somebody else wrote the cost. CostGone says that the pod has no cost.
	Rank     int64
	CostGone bool
}

// Where a pod's node is, if it is in no pool.
const (
	NoNode    = -1 // the pod waits for a node
	OtherNode = -2 // the node is in no pool
)

// State is a workload as it is.
type State struct {
	// Layout says where the pods go. Without domains, those of pods mean nothing.
	Layout *layout.Layout
	Pods   []Pod
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
	// EvictEarly says that a pod that was created before its policy and is not in use yet may be evicted with [stowage.RepairAdopt], too.
	EvictEarly bool
	// Young says that the whole workload was created moments ago, so that its pods may be
	// evicted although they are ready.
	Young bool
	// Available reports for each pool whether one of its nodes takes such a pod, as far as is known. Room on a node
	// is proven only for the pool that a plan names.
	Available []bool
	// NoRoom are pools, or domains of them, in which no room was found for a pod with an ordinal of its own.
	NoRoom []sequence.Cell
	// Short reports for each pool whether it has no room. Its pods that have a node are not evicted to lower their number.
	Short []bool
	// Reached is when the webhook last gave a seat to a pod that the same registration selects, of this or of
	// another workload. A pod that was created later than that may have bypassed a webhook that still cannot
	// be reached.
	Reached time.Time
	// Yields reports for each pool whether its pods are to be removed first. Then the pool has no room, and a newer
	// revision of the workload needs their places.
	Yields []bool
}

// own returns the seat of a pod that has an ordinal of its own, and false if it has none.
func (s *State) own(pod *Pod) (sequence.Seat, bool) {
	seat, err := s.Layout.OfOrdinal(pod.OwnRank)
	return seat, err == nil
}

// lacksSeat reports whether a pod has no seat and should have one.
func (s *State) lacksSeat(pod *Pod) bool {
	if pod.Seat.Pool >= 0 || !pod.Ours || pod.VolumeElsewhere {
		return false
	}
	if pod.OwnRank > 0 {
		_, ok := s.own(pod)
		return ok
	}
	return true
}

// Misplaced reports whether a pod would go, in time, if nothing held it.
func (s *State) Misplaced(p *Plan, pod *Pod) bool {
	early := pod.BeforePolicy && s.evictsEarly()
	switch {
	case s.Keep:
		return false
	case pod.Seat.Pool < 0:
		if former := pod.Foreign && pod.OwnRank == 0; former && s.Evict {
			return true
		}
		outside := pod.NodePool == OtherNode && (early || s.Mode == stowage.RepairRecreate)
		return s.lacksSeat(pod) && (outside || s.elsewhere(p, pod, pod.NodePool))
	case pod.OwnRank > 0:
		return s.Evict && s.elsewhere(p, pod, pod.Seat.Pool)
	case s.Evict, early:
		surplus := p.Counts[pod.Seat.Pool] > p.Targets[pod.Seat.Pool]
		return surplus || pod.Seat.Ordinal > p.Counts[pod.Seat.Pool] && s.crowded(p, pod)
	}
	return false
}

// elsewhere reports whether a pod with an ordinal of its own is in another pool than its own or, with a seat, in another domain.
func (s *State) elsewhere(p *Plan, pod *Pod, pool int) bool {
	own, ok := s.own(pod)
	if !ok || pod.OwnRank == 0 || pool < 0 {
		return false
	}
	return own.Pool != pool || pod.Seat.Pool >= 0 && s.inOtherDomain(p, pod, own)
}

// inOtherDomain reports whether a pod with an ordinal of its own is to leave its domain. It stays in the one that a release before gave
// it, unless that has too many of the pool's pods.
func (s *State) inOtherDomain(p *Plan, pod *Pod, own sequence.Seat) bool {
	if s.Layout.DomainOf(own) == pod.Domain {
		return false
	}
	return s.Layout.FormerDomainOf(own) != pod.Domain || s.crowded(p, pod)
}

// crowded reports whether the domain of a pod with a seat has too many of the pool's pods.
func (s *State) crowded(p *Plan, pod *Pod) bool {
	return p.inDomains != nil && p.inDomains[pod.Seat.Pool][pod.Domain] > 0
}

// Lacks reports whether a domain of a pool has fewer pods than it should have.
func (p *Plan) Lacks(pool, domain int) bool {
	return p.inDomains != nil && p.inDomains[pool][domain] < 0
}

// domainSurplus returns the [domain.Surplus] of each pool, or nil without domains.
func (s *State) domainSurplus(counts []int64) [][]int64 {
	domains, former := s.Layout.Domains(), s.Layout.Former()
	if domains == nil {
		return nil
	}
	out := make([][]int64, len(counts))
	for pool := range out {
		out[pool] = make([]int64, domains.Len())
	}
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.Seat.Pool >= 0 {
			out[pod.Seat.Pool][pod.Domain]++
		}
	}
	for pool, n := range counts {
		out[pool] = domain.Surplus(out[pool], domains.Division(pool, n), former.Division(pool, n))
	}
	return out
}

// takes reports whether a pool takes one more pod: see [State.Available].
func (s *State) takes(pool int) bool {
	return pool < len(s.Available) && s.Available[pool]
}

// Move gives a seat to a pod, with the rank that its deletion cost is to stand for.
type Move struct {
	Pod  int // index in State.Pods
	Seat sequence.Seat
	Rank int64
	// Domain is the domain of the seat: the one in which the pod runs. Position is the pod's place among the pods of its pool in the order
	// of their ordinals, or 0 if that is its ordinal. The rank is that of the seat with this ordinal.
	Domain   int
	Position int64
}

// Reason is why a pod is removed.
type Reason string

// The reasons, which are also the names of the removals in metrics and logs.
const (
	Unseated  Reason = "recreate" // it has no seat, so its owner is to recreate it
	Misplaced Reason = "evict"    // another pool is to get one
)

// Removal is a pod to remove. Its owner makes another one.
type Removal struct {
	Pod    int // index in State.Pods
	Reason Reason
	// NeedsRoom says that the pod has a node. So room for its successor in the pool To is to be found first.
	NeedsRoom bool
	To        int
	// Domain is the domain of the successor's seat.
	Domain int
	// BeforePolicy says that the pod was created before its policy and is not in use yet.
	// The repair mode Recreate allows this without a request to rebalance.
	BeforePolicy bool
}

// removal is the removal of a pod whose successor goes to a pool.
func (s *State) removal(pod int, why Reason, to int) *Removal {
	return &Removal{Pod: pod, Reason: why, NeedsRoom: s.Pods[pod].Running, To: to, Domain: s.successorDomain(pod, to)}
}

// successorDomain returns the domain of the seat that the successor of a pod gets in a pool.
func (s *State) successorDomain(pod, to int) int {
	switch rank := s.Pods[pod].OwnRank; {
	case s.Layout.Domains() == nil:
		return 0
	case rank > 0:
		own, _ := s.own(&s.Pods[pod])
		return s.Layout.DomainOf(own)
	}
	t := newTable(s)
	if seat := s.Pods[pod].Seat; seat.Pool == to {
		delete(t[to].held, seat.Ordinal)
	}
	return s.Layout.Domains().Domain(to, t.takeLowest(to))
}

// Plan is what to do, and what is to be said.
type Plan struct {
	Adopt    []Move // pods without a seat
	Renumber []Move // pods with another seat, or another rank, than they should have
	Remove   *Removal
	Counts   []int64 // pods with a seat in each pool, after the moves
	Targets  []int64
	Unseated int // pods without a seat, after the moves, that should have one
	// Elsewhere are pods that lower the targets.
	Elsewhere layout.Elsewhere
	// DomainSurplus is how many pods are in a domain that has too many of their pool's pods.
	DomainSurplus int64
	inDomains     [][]int64 // see [State.domainSurplus]
}

// Balanced reports whether each pool has what it should have. Domains are not looked at.
func (p *Plan) Balanced() bool { return p.Unseated == 0 && slices.Equal(p.Counts, p.Targets) }

// Distance is how many pods are in a pool that has too many, or in none.
func (p *Plan) Distance() int64 {
	d := int64(p.Unseated)
	for i := range p.Counts {
		d += max(0, p.Counts[i]-p.Targets[i])
	}
	return d
}

// volumesElsewhere returns the pods whose volumes are elsewhere.
func (s *State) volumesElsewhere() (e layout.Elsewhere) {
	for i := range s.Pods {
		switch pod := &s.Pods[i]; {
		case !pod.VolumeElsewhere:
		case pod.OwnRank == 0:
			e.Others++
		default:
			own, ok := s.own(pod)
			if s.Layout.FollowsStrategy() { // then one that has moved counts in the pool that the strategy gives it
				seat, err := s.Layout.SeatAt(pod.OwnRank)
				own, ok = seat, err == nil
			}
			if ok {
				e.Own = append(e.Own, s.Layout.Cell(own))
			}
		}
	}
	return e
}

// count returns a plan without moves: what there is and what there should be.
func (s *State) count() Plan {
	p := Plan{Counts: make([]int64, s.Layout.Len())}
	p.Elsewhere = s.volumesElsewhere()
	p.Targets = s.Layout.Targets(s.Replicas, p.Elsewhere)
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
	p.inDomains = s.domainSurplus(p.Counts)
	for _, domains := range p.inDomains {
		for _, surplus := range domains {
			if !ordinals { // theirs follow from each one's own
				p.DomainSurplus += max(0, surplus)
			}
		}
	}
	// Beyond the pools' maxima pods have no seat, and need none. Which ones follows from their own ordinals, if
	// they have any.
	if beyond := s.Replicas - p.Elsewhere.Others - s.Layout.Seats(); beyond > 0 && !ordinals {
		p.Unseated = max(0, p.Unseated-int(beyond))
	}
	return p
}

// Make returns the plan for a workload.
func Make(s State) Plan {
	p := s.count()
	if !s.Settled || s.Mode == stowage.RepairOff {
		return p
	}

	// 1. Pods that run in a pool get a seat of it.
	s.adopt(&p)

	// 2. A pod that was created before its policy is removed while it is not in use.
	if len(p.Adopt) == 0 && s.evictsEarly() && !s.Keep && !s.RollingOut {
		if p.Remove = s.removeEarly(&p); p.Remove != nil {
			p.Remove.BeforePolicy = true
			return p
		}
	}

	// 3. A pod without a seat that is in no pool is recreated, if a later pod shows that this helps.
	if p.Unseated > 0 && s.Mode == stowage.RepairRecreate && !s.Keep {
		p.Remove = s.recreate(&p)
	}

	// 4. Ordinals without gaps, and costs that agree with them.
	if len(p.Adopt) == 0 {
		p.Renumber = s.renumber()
	}

	// 5. A pod goes from a pool that has too many, if that was asked for and nothing else is to be done.
	if idle := len(p.Adopt) == 0 && len(p.Renumber) == 0 && p.Remove == nil; idle && s.Evict && !s.Keep {
		p.Remove = s.evict(&p)
	}
	return p
}
