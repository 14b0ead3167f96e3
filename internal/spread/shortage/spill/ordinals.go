package spill

import (
	"cmp"
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Where pods are that have an ordinal of their own.

// Ordinals returns which pods with an ordinal of their own, as those of a StatefulSet, are to be elsewhere than the strategy has them.
// Pods that wait in vain move, and stay there while their own pool or cell has no seat for them. When that one is tried, the lowest
// ordinals are to return, as many as its maximum allows: they are the try. Ordinals count from 0. The ordinals are those of the pods,
// in their order. Pools and cells are named by the index of their state.
func Ordinals(v View, next []Pool, pods []Pod, ordinals []int64, replicas int64, now map[int64]int) map[int64]int {
	// 1. Which pods are elsewhere, or are to be, and which of them return?
	out, of := v.elsewhere(next, pods, ordinals, replicas, now), v.Layout.Cells()
	// 2. Pods that have waited in vain move to where most is lacking.
	counts := make([]int64, len(next))
	seen := slices.Clone(pods)
	for i := range seen {
		if to, ok := out[ordinals[i]]; ok && to != of.Index(seen[i].Cell()) {
			cell := of.At(to)
			seen[i].Seat.Pool, seen[i].Domain, seen[i].Waits = cell.Pool, cell.Domain, 0 // where it is to be
		}
		counts[of.Index(seen[i].Cell())]++
	}
	d, sure := divide(v, next, replicas), divide(v, withoutVainTries(next), replicas)
	for _, i := range d.moves(seen, counts) {
		if ordinals[i] < 0 {
			break
		}
		best := sure.lacksMost(seen[i].Seat.Pool, counts)
		if best < 0 {
			best = d.lacksMost(seen[i].Seat.Pool, counts)
		}
		if best < 0 {
			continue
		}
		counts[of.Index(seen[i].Cell())]--
		counts[best]++
		out[ordinals[i]] = best
	}
	return out
}

// withoutVainTries returns the states as if no pool or cell were tried that was tried in vain before. A pod that has waited goes there last: otherwise it
// would try one after the other, while another one has room.
func withoutVainTries(pools []Pool) []Pool {
	out := slices.Clone(pools)
	for i := range out {
		if p := &out[i]; p.Phase == Probing && p.Tries > 0 {
			p.Max -= p.Step
		}
	}
	return out
}

// elsewhere returns where pods are, or are to be, that are not where the strategy has them, without those that are to return. The arguments are
// those of [Ordinals].
func (v *View) elsewhere(next []Pool, pods []Pod, ordinals []int64, replicas int64, now map[int64]int) map[int64]int {
	own, of := v.ownCells(), v.Layout.Cells()
	out, home, there := map[int64]int{}, map[int64]bool{}, map[int64]bool{}
	away := make([][]int64, len(next)) // by their own pool or cell
	note := func(n int64, at int) {
		if _, known := out[n]; known || n >= replicas || next[at].Phase == Unsuitable {
			return // it is to leave a cell in which it cannot run
		}
		if mine, err := own(n); err == nil && mine != at && next[mine].Phase != Available {
			out[n] = at
			away[mine] = append(away[mine], n)
		}
	}
	for n, at := range now {
		note(n, at)
	}
	known := make([][]int64, len(next)) // the ordinals of pods that are there or have a record, by their own pool or cell
	atHome := make([]int64, len(next))
	for n := range now {
		if mine, err := own(n); err == nil {
			known[mine] = append(known[mine], n)
		}
	}
	for i := range pods {
		n, at := ordinals[i], of.Index(pods[i].Cell())
		note(n, at)
		there[n] = true
		mine, err := own(n)
		if err != nil {
			continue
		}
		if _, recorded := now[n]; !recorded {
			known[mine] = append(known[mine], n)
		}
		if _, isAway := out[n]; mine == at && !isAway {
			atHome[mine]++
		}
		home[n] = mine == at && pods[i].Node
	}
	// Pods for which their own pool has seats are to return: first those that run there, then the lowest ordinals. A pod that does not exist yet comes
	// before those with higher ordinals, and not before others: its owner may wait for them.
	for at := range away {
		given := v.given(at, replicas)
		seats := given - min(max(0, given-next[at].Max), cmp.Or(next[at].LeftOut, sequence.All))
		slices.SortFunc(away[at], func(a, b int64) int {
			if home[a] == home[b] {
				return cmp.Compare(a, b)
			}
			if home[a] {
				return -1
			}
			return 1
		})
		returned := int64(0)
		for _, n := range away[at] {
			toCome := v.given(at, n)
			for _, m := range known[at] {
				if m < n {
					toCome--
				}
			}
			if atHome[at]+returned+max(0, toCome) >= seats {
				break
			}
			if returned++; there[n] { // else the pod that was evicted for it is still ending
				delete(out, n)
			}
		}
	}
	return out
}

// ownCells returns the function that returns where a pod with an ordinal of its own is while all have room.
func (v *View) ownCells() func(n int64) (int, error) {
	domains := v.Layout.Domains()
	return func(n int64) (int, error) {
		seat, err := v.Layout.Own(n + 1)
		if err != nil || domains == nil {
			return seat.Pool, err
		}
		return v.Layout.Cells().Index(sequence.Cell{Pool: seat.Pool, Domain: domains.Domain(seat.Pool, seat.Ordinal)}), nil
	}
}

// given returns how many of the first n seats are in a pool or cell while all have room.
func (v *View) given(at int, n int64) int64 {
	cell := v.Layout.Cells().At(at)
	target := v.Layout.Whole().Target(cell.Pool, n)
	if v.Layout.Domains() == nil {
		return target
	}
	return v.Layout.Domains().Given(cell.Pool, cell.Domain, target)
}

// divided is how so many pods are divided while some pools and cells have no room.
type divided struct {
	strategy *sequence.Strategy
	domains  *domain.Assignment
	cells    []Pool
	of       sequence.Cells
	targets  []int64 // of each pool or cell
	replicas int64
}

func divide(v View, cells []Pool, replicas int64) divided {
	of := v.Layout.Cells()
	d := divided{strategy: v.Layout.Whole().Without(Gaps(MergeCells(cells, of))), of: of, cells: cells, targets: make([]int64, len(cells)), replicas: replicas}
	if v.Layout.Homes() != nil {
		d.domains = v.Layout.Homes().Assign(Limits(cells, of))
	}
	for at := range d.targets {
		cell := of.At(at)
		if d.targets[at] = d.strategy.Target(cell.Pool, replicas); d.domains != nil {
			d.targets[at] = d.domains.Given(cell.Pool, cell.Domain, d.targets[at])
		}
	}
	return d
}

// moves returns the pods with ordinals of their own that are to move, by their index.
func (d *divided) moves(pods []Pod, counts []int64) []int {
	if d.domains == nil {
		return Moves(d.strategy, nil, d.cells, pods, d.replicas)
	}
	var out []int
	for at := range d.cells {
		if !d.cells[at].closed() {
			continue
		}
		waiting := waitingIn(pods, func(pod *Pod) bool { return d.of.Index(pod.Cell()) == at })
		out = append(out, waiting[:max(0, min(int64(len(waiting)), counts[at]-d.targets[at]))]...)
	}
	return out
}

// lacksMost returns the pool or cell with room that lacks most, or -1 if none lacks any. While a pool has a cell with room, its pods stay in
// the pool.
func (d *divided) lacksMost(pool int, counts []int64) int {
	within := d.domains != nil && slices.ContainsFunc(cellsOf(d.cells, d.of, pool), func(p Pool) bool { return !p.closed() })
	best, most := -1, int64(0)
	for at := range counts {
		if within && d.of.At(at).Pool != pool {
			continue
		}
		if lacks := d.targets[at] - counts[at]; lacks > most {
			best, most = at, lacks
		}
	}
	return best
}
