package planner

import (
	"cmp"
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// adopt gives a seat to pods without one that run in a pool. The pool that lacks most pods comes first. A pool gets
// more pods than its maximum only if too few others are without a seat.
func (s *State) adopt(p *Plan) {
	seats := newTable(s)
	running := make([][]int, s.Layout.Len())
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
				p.Adopt = append(p.Adopt, Move{Pod: i, Seat: own, Rank: s.Layout.RankOrNone(own), Domain: pod.NodeDomain})
				p.Counts[own.Pool]++
				p.Unseated--
			}
		}
	}
	for p.Unseated > 0 {
		best := p.lacksMost(running)
		if best < 0 {
			return
		}
		if limit := s.Layout.Pool(best).Max; limit > 0 && p.Counts[best] >= limit && p.Unseated <= outside {
			return
		}
		pod := running[best][0]
		seat := sequence.Seat{Pool: best}
		if in := s.Pods[pod].NodeDomain; s.Layout.Domains() == nil {
			seat.Ordinal = seats.takeLowest(best)
			p.Adopt = append(p.Adopt, Move{Pod: pod, Seat: seat, Rank: s.Layout.RankOrNone(seat)})
		} else {
			seat.Ordinal = seats.takeLowestIn(s.Layout.Domains(), best, in)
			position := p.Counts[best] + 1 // the last one, until all are numbered
			p.Adopt = append(p.Adopt, Move{Pod: pod, Seat: seat, Rank: s.rankAt(best, position), Domain: in, Position: positionOf(seat.Ordinal, position)})
		}
		running[best] = running[best][1:]
		p.Counts[best]++
		p.Unseated--
	}
}

// lacksMost returns the pool that lacks most pods, of those in which some run that have no seat, or -1.
func (p *Plan) lacksMost(running [][]int) int {
	best := -1
	for pool := range running {
		if len(running[pool]) > 0 && (best < 0 || p.Targets[pool]-p.Counts[pool] > p.Targets[best]-p.Counts[best]) {
			best = pool
		}
	}
	return best
}

// renumber returns the moves after which each pool's ordinals are 1 to their number and each pod's deletion cost is that of its rank. With
// domains, the pods of a cell have the lowest ordinals of that domain, so that some ordinals may be left out. The deletion cost follows
// the pod's place among its pool's pods, so that the pools are exact all the same.
func (s *State) renumber() []Move {
	var out []Move
	for pool := range s.Layout.Len() {
		var pods []int
		for i := range s.Pods {
			if s.Pods[i].Seat.Pool == pool && s.Pods[i].OwnRank == 0 {
				pods = append(pods, i)
			}
		}
		slices.SortStableFunc(pods, func(a, b int) int {
			return cmp.Or(cmp.Compare(s.Pods[a].Seat.Ordinal, s.Pods[b].Seat.Ordinal), s.Pods[a].Created.Compare(s.Pods[b].Created), cmp.Compare(s.Pods[a].Name, s.Pods[b].Name))
		})
		ordinals := map[int]int64{}
		if s.Layout.Domains() == nil {
			s.assignLowest(pods, func(k int64) int64 { return k }, nil, ordinals)
		} else {
			s.assignInCells(pool, pods, ordinals)
		}
		slices.SortStableFunc(pods, func(a, b int) int { return cmp.Compare(ordinals[a], ordinals[b]) })
		for k, i := range pods {
			pod, to := &s.Pods[i], sequence.Seat{Pool: pool, Ordinal: ordinals[i]}
			position := positionOf(to.Ordinal, int64(k+1))
			rank := s.rankAt(pool, int64(k+1))
			cost := pod.Rank != 0 && pod.Rank != rank || pod.CostGone && rank != sequence.NoRank // without a cost, a pod goes first, too
			if to != pod.Seat || position != pod.Position || cost {
				out = append(out, Move{Pod: i, Seat: to, Rank: rank, Domain: pod.Domain, Position: position})
			}
		}
	}
	return out
}

// positionOf returns the [Pod.Position] of a pod that is the n-th one of its pool.
func positionOf(ordinal, n int64) int64 {
	if n == ordinal {
		return 0
	}
	return n
}

// assignLowest gives ordinals to pods, which are in order: the first ones of a sequence that no other pod has. Those that fit keep their ordinals. The
// others, the highest ones and the younger of two that share one, fill the gaps.
func (s *State) assignLowest(pods []int, nth func(k int64) int64, taken map[int64]bool, out map[int]int64) {
	fits, free := make(map[int64]bool, len(pods)), make([]int64, 0, len(pods))
	for k := int64(1); len(free) < len(pods); k++ {
		if o := nth(k); !taken[o] {
			fits[o] = true
			free = append(free, o)
		}
	}
	for _, i := range pods {
		if o := s.Pods[i].Seat.Ordinal; fits[o] {
			out[i] = o
			delete(fits, o)
		}
	}
	next := 0
	for _, i := range pods {
		if _, ok := out[i]; ok {
			continue
		}
		for !fits[free[next]] {
			next++
		}
		out[i] = free[next]
		delete(fits, free[next])
	}
}

// assignInCells gives ordinals to the pods of a pool, each in its own domain. In a cell without room, those that have a node come first. The
// others get later ordinals, whose home it is, as if it had room.
func (s *State) assignInCells(pool int, pods []int, out map[int]int64) {
	taken := map[int64]bool{}
	var beyond [][]int
	for in := range s.Layout.Domains().Len() {
		var here []int
		for _, i := range pods {
			if s.Pods[i].Domain == in {
				here = append(here, i)
			}
		}
		limit := s.Layout.Domains().Limit(pool, in)
		if limit != domain.Open && int64(len(here)) > limit {
			slices.SortStableFunc(here, func(a, b int) int {
				switch {
				case s.Pods[a].Running == s.Pods[b].Running:
					return 0
				case s.Pods[a].Running:
					return -1
				}
				return 1
			})
			beyond, here = append(beyond, here[limit:]), here[:limit]
		}
		s.assignLowest(here, func(k int64) int64 { o, _ := s.Layout.Domains().Seat(pool, in, k); return o }, taken, out)
		for _, i := range here {
			taken[out[i]] = true
		}
	}
	for _, rest := range beyond {
		in := s.Pods[rest[0]].Domain
		s.assignLowest(rest, func(k int64) int64 {
			if o, err := s.Layout.Domains().Seat(pool, in, s.Layout.Domains().Limit(pool, in)+k); err == nil {
				return o
			}
			return s.Layout.Domains().Nth(pool, in, k)
		}, taken, out)
		for _, i := range rest {
			taken[out[i]] = true
		}
	}
}

// rankAt returns the rank that the deletion cost of a pod is to stand for, by its position in a pool.
func (s *State) rankAt(pool int, position int64) int64 {
	if pool < len(s.Yields) && s.Yields[pool] {
		return sequence.NoRank
	}
	return s.Layout.RankOrNone(sequence.Seat{Pool: pool, Ordinal: position})
}

// Yield returns the moves after which the pods of yielding pools are removed first. They keep their seats. Other than a plan,
// it does not wait until the workload is settled: a rollout removes pods at once.
func (s *State) Yield() (moves []Move) {
	for i := range s.Pods {
		pod := &s.Pods[i]
		counts := pod.Seat.Pool >= 0 && pod.OwnRank == 0
		if ours := pod.Rank != 0 && pod.Rank != sequence.NoRank; !counts || !ours {
			continue
		}
		if s.rankAt(pod.Seat.Pool, cmp.Or(pod.Position, pod.Seat.Ordinal)) == sequence.NoRank {
			moves = append(moves, Move{Pod: i, Seat: pod.Seat, Rank: sequence.NoRank, Domain: pod.Domain, Position: pod.Position})
		}
	}
	return moves
}

// table is which ordinals of each pool are held.
type table []ordinals

type ordinals struct {
	held map[int64]bool
	low  int64         // no ordinal up to it is free
	next map[int]int64 // how many seats of each domain are not free
}

func newTable(s *State) table {
	t := make(table, s.Layout.Len())
	for i := range t {
		t[i].held, t[i].next = map[int64]bool{}, map[int]int64{}
	}
	for _, pod := range s.Pods {
		if pod.Seat.Pool >= 0 {
			t[pod.Seat.Pool].held[pod.Seat.Ordinal] = true
		}
	}
	return t
}

// takeLowestIn takes the lowest ordinal of a pool's domain that is free. Beyond what a domain without room has, it takes one whose home that is.
func (t table) takeLowestIn(m *domain.Assignment, pool, in int) int64 {
	for k := t[pool].next[in] + 1; ; k++ { // those before are held
		o, err := m.Seat(pool, in, k)
		if err != nil {
			o = m.Nth(pool, in, k)
		}
		if !t[pool].held[o] {
			t[pool].held[o], t[pool].next[in] = true, k
			return o
		}
	}
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
