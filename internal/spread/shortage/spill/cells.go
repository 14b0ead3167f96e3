package spill

import (
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// What is special to pools that are divided over domains.

// MergeCells returns the states of pools. A pool has no room if none of its cells has. Then it has as many seats as they
// have together. What else is known of cells is not known of the pool.
func MergeCells(cells []Pool, of sequence.Cells) []Pool {
	if of.OfPool() == 1 {
		return cells
	}
	out := make([]Pool, len(cells)/of.OfPool())
	for i := range out {
		own := cellsOf(cells, of, i)
		if slices.ContainsFunc(own, func(c Pool) bool { return !c.closed() }) {
			out[i].Phase = Available
			continue
		}
		out[i].Phase = Exhausted
		for j := range own {
			out[i].Max += own[j].Max
			out[i].LeftOut = max(out[i].LeftOut, own[j].LeftOut)
		}
	}
	return out
}

// CloseUnsuitable gives the cells in which no pod of a workload can run no seats. Unsuitable says why, for each cell, or "". A pool without any
// suitable cell is left out of the strategy, and its cells stay as they are.
func CloseUnsuitable(cells []Pool, of sequence.Cells, unsuitable []string) {
	for i := range unsuitable {
		first := of.Index(sequence.Cell{Pool: of.At(i).Pool})
		if unsuitable[i] != "" && slices.Contains(unsuitable[first:first+of.OfPool()], "") {
			cells[i] = Pool{Phase: Unsuitable}
		}
	}
}

// cellsOf returns the states of a pool's cells.
func cellsOf(cells []Pool, of sequence.Cells, pool int) []Pool {
	first := of.Index(sequence.Cell{Pool: pool})
	return cells[first : first+of.OfPool()]
}

// Limits returns how many seats each cell has, for [domain.Homes.Assign], or nil if all have room.
func Limits(cells []Pool, of sequence.Cells) [][]int64 {
	if !slices.ContainsFunc(cells, func(p Pool) bool { return p.closed() }) {
		return nil
	}
	limits := make([][]int64, len(cells)/of.OfPool())
	for i := range cells {
		limit := domain.Open
		if cells[i].closed() {
			limit = cells[i].Max
		}
		pool := of.At(i).Pool
		limits[pool] = append(limits[pool], limit)
	}
	return limits
}

// endTries ends the tries of the other cells of a pool without any room once one of them was in vain. Otherwise a pod would try one cell
// after the other and never go to another pool. A cell that has a pod of its try, or in which there is proven room, goes on.
func endTries(v View, was, is []Pool) {
	of := v.Layout.Cells()
	whole := MergeCells(is, of)
	for i := range is {
		pool := of.At(i).Pool
		if failed := is[i].Phase == Exhausted && was[i].Phase == Probing; !failed || !whole[pool].closed() {
			continue
		}
		for domain := range of.OfPool() {
			j := of.Index(sequence.Cell{Pool: pool, Domain: domain})
			p, t := &is[j], count(v, j)
			goesOn := v.Room[j] > 0 || p.Phase == Probing && (t.waiting > 0 || t.placed > p.Max-p.Step)
			if j == i || goesOn {
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
	of := v.Layout.Cells()
	before, after := MergeCells(was, of), MergeCells(is, of)
	for i := range after {
		if after[i].closed() && before[i].closed() {
			continue
		}
		left := int64(0)
		if after[i].closed() {
			left = v.Rules[i].LeftOut(v.Layout.Whole(), i, after[i].Max, v.Replicas)
		}
		own := cellsOf(is, of, i)
		for j := range own {
			own[j].LeftOut = left
		}
	}
}

// movesWithin returns the pods to evict of one pool whose successors go to other cells of it. Some pods are gone already.
func movesWithin(domains *domain.Assignment, cells []Pool, of sequence.Cells, pods []Pod, pool int, gone map[int]bool) (out []int) {
	waiting := waitingIn(pods, func(pod *Pod) bool { return pod.Seat.Pool == pool && cells[of.Index(pod.Cell())].closed() })
	if len(waiting) == 0 {
		return nil
	}
	held, surplus := map[int64]int{}, make([]int64, domains.Len())
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
