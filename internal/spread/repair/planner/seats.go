package planner

import (
	"cmp"
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

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
				p.Adopt = append(p.Adopt, Move{Pod: i, Seat: own, Rank: s.Strategy.RankOrNone(own)})
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
		seat := sequence.Seat{Pool: best, Ordinal: seats.takeLowest(best)}
		p.Adopt = append(p.Adopt, Move{Pod: running[best][0], Seat: seat, Rank: s.Strategy.RankOrNone(seat)})
		running[best] = running[best][1:]
		p.Counts[best]++
		p.Unseated--
	}
}

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
			to := sequence.Seat{Pool: pool, Ordinal: seat[i]}
			rank := s.rankOf(to)
			if to != s.Pods[i].Seat || s.Pods[i].Rank != 0 && s.Pods[i].Rank != rank {
				out = append(out, Move{Pod: i, Seat: to, Rank: rank})
			}
		}
	}
	return out
}

// rankOf returns the rank that the deletion cost of a seat's pod is to stand for.
func (s *State) rankOf(seat sequence.Seat) int64 {
	if seat.Pool < len(s.Yields) && s.Yields[seat.Pool] {
		return sequence.NoRank
	}
	return s.Strategy.RankOrNone(seat)
}

// Yield returns the moves after which the pods of yielding pools are removed first. They keep their seats. Other than a plan,
// it does not wait until the workload is settled: a rollout removes pods at once.
func (s *State) Yield() (moves []Move) {
	for i := range s.Pods {
		pod := &s.Pods[i]
		if pod.Seat.Pool >= 0 && pod.OwnRank == 0 && pod.Rank != 0 && pod.Rank != sequence.NoRank && s.rankOf(pod.Seat) == sequence.NoRank {
			moves = append(moves, Move{Pod: i, Seat: pod.Seat, Rank: sequence.NoRank})
		}
	}
	return moves
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
