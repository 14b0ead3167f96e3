package spill

import (
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// What is special to pools that are divided over domains.

// CellsOfPool returns how many states each pool of a strategy has: one, or one for each domain.
func CellsOfPool(s *sequence.Strategy) int {
	if a := s.Across(); a != nil {
		return len(a.Domains)
	}
	return 1
}

// MergeCells returns the states of pools. Each has so many cells. A pool has no room if none of its cells has. Then it has as many seats as they
// have together. What else is known of cells is not known of the pool.
func MergeCells(cells []Pool, each int) []Pool {
	if each == 1 {
		return cells
	}
	out := make([]Pool, len(cells)/each)
	for i := range out {
		of := cells[i*each : (i+1)*each]
		if slices.ContainsFunc(of, func(c Pool) bool { return !c.closed() }) {
			out[i].Phase = Available
			continue
		}
		out[i].Phase = Exhausted
		for j := range of {
			out[i].Max += of[j].Max
			out[i].LeftOut = max(out[i].LeftOut, of[j].LeftOut)
		}
	}
	return out
}

// Limits returns how many seats each cell has, for [domain.Homes.Assign], or nil if all have room.
func Limits(cells []Pool, each int) (limits [][]int64) {
	if !slices.ContainsFunc(cells, func(p Pool) bool { return p.closed() }) {
		return nil
	}
	for i := range cells {
		if i%each == 0 {
			limits = append(limits, nil)
		}
		limit := domain.Open
		if cells[i].closed() {
			limit = cells[i].Max
		}
		limits[i/each] = append(limits[i/each], limit)
	}
	return limits
}

// endTries ends the tries of the other cells of a pool without any room once one of them was in vain. Otherwise a pod would try one cell
// after the other and never go to another pool. A cell that has a pod of its try, or in which there is proven room, goes on.
func endTries(v View, was, is []Pool) {
	each := CellsOfPool(v.Strategy)
	whole := MergeCells(is, each)
	for i := range is {
		if failed := is[i].Phase == Exhausted && was[i].Phase == Probing; !failed || !whole[i/each].closed() {
			continue
		}
		for j := i / each * each; j < (i/each+1)*each; j++ {
			p, t := &is[j], count(v, j)
			if j == i || v.Room[j] > 0 || p.Phase == Probing && (t.waiting > 0 || t.placed > p.Max-p.Step) {
				continue
			}
			if p.Phase == Probing {
				p.Phase, p.Since, p.Max, p.Step, p.Tries = Exhausted, v.Now, p.Max-p.Step, 0, max(p.Tries, is[i].Tries)
			}
			if p.Next.Before(is[i].Next) {
				p.Next = is[i].Next
			}
		}
	}
}

// leaveOut notes how many seats of pools are left out whose last cell has just lost its room.
func leaveOut(v View, was, is []Pool) {
	each := CellsOfPool(v.Strategy)
	before, after := MergeCells(was, each), MergeCells(is, each)
	for i := range after {
		if after[i].closed() && before[i].closed() {
			continue
		}
		left := int64(0)
		if after[i].closed() {
			left = v.Rules[i].LeftOut(v.Strategy, i, after[i].Max, v.Replicas)
		}
		for j := i * each; j < (i+1)*each; j++ {
			is[j].LeftOut = left
		}
	}
}

// movesWithin returns the pods to evict of one pool whose successors go to other cells of it. Some pods are gone already.
func movesWithin(domains *domain.Assignment, cells []Pool, pods []Pod, pool int, gone map[int]bool) (out []int) {
	each := domains.Len()
	waiting := waitingIn(pods, func(pod *Pod) bool { return pod.Seat.Pool == pool && cells[pod.at(each)].closed() })
	if len(waiting) == 0 {
		return nil
	}
	held, surplus := map[int64]int{}, make([]int64, each)
	for i := range pods {
		if pods[i].Seat.Pool == pool && !gone[i] {
			held[pods[i].Seat.Ordinal]++
			surplus[pods[i].Domain]++
		}
	}
	for i := range surplus { // those within the maximum are the try of a cell
		surplus[i] -= max(0, domains.Limit(pool, i))
	}
	free := int64(1)
	for _, i := range waiting {
		if gone[i] || surplus[pods[i].Domain] <= 0 {
			continue
		}
		own := pods[i].Seat.Ordinal
		for held[free] > 0 && (free != own || held[free] > 1) {
			free++
		}
		if domains.HasRoom(pool, free) && domains.Domain(pool, free) != pods[i].Domain {
			surplus[pods[i].Domain]--
			held[own]--
			held[free]++ // its successor's
			free = min(free, own)
			out = append(out, i)
		}
	}
	return out
}
