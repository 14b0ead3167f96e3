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
	d := divide(v, next, replicas)
	moves := d.moves(seen, counts)
	if len(moves) == 0 {
		return out
	}
	sure := divide(v, withoutVainTries(next), replicas)
	for _, i := range moves {
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

// withoutVainTries returns the states without the tries of pools and cells whose last try was in vain. A pod that has waited goes to those last.
// Otherwise it would try one after the other while another one has room.
func withoutVainTries(pools []Pool) []Pool {
	out := slices.Clone(pools)
	for i := range out {
		if p := &out[i]; p.Phase == Probing && p.Tries > 0 {
			p.Max -= p.Step
		}
	}
	return out
}

// belonging has the ordinals of the pods whose own pool or cell is the same.
type belonging struct {
	known  []int64 // pods that exist or have a record
	away   []int64 // known pods that are elsewhere, or will be
	atHome int64   // the number of known pods that are there
}

// elsewhere returns where pods are, or are to be, that are not where the strategy has them, without those that are to return. The arguments are
// those of [Ordinals].
func (v *View) elsewhere(next []Pool, pods []Pod, ordinals []int64, replicas int64, now map[int64]int) map[int64]int {
	own, of := v.ownCells(), v.Layout.Cells()
	out, home, there := map[int64]int{}, map[int64]bool{}, map[int64]bool{}
	all := make([]belonging, len(next))
	note := func(n int64, at int) (mine int, belongs bool) {
		mine, err := own(n)
		if err != nil || n >= replicas {
			return mine, false
		}
		if _, recorded := now[n]; !recorded || !there[n] { // once each
			all[mine].known = append(all[mine].known, n)
		}
		// A pod in an unsuitable cell has to leave it.
		if _, noted := out[n]; !noted && mine != at && next[mine].Phase != Available && next[at].Phase != Unsuitable {
			out[n] = at
			all[mine].away = append(all[mine].away, n)
		}
		return mine, true
	}
	for n, at := range now {
		note(n, at)
	}
	for i := range pods {
		n, at := ordinals[i], of.Index(pods[i].Cell())
		there[n] = true
		mine, belongs := note(n, at)
		if _, away := out[n]; belongs && mine == at && !away {
			all[mine].atHome++
		}
		home[n] = belongs && mine == at && pods[i].Node
	}
	for at := range all {
		for _, n := range v.returning(&all[at], at, next, replicas, home) {
			if there[n] { // else the pod that was evicted for it is still ending
				delete(out, n)
			}
		}
	}
	return out
}

// returning returns the pods that are to return to their own pool or cell, which has seats for them: first those that run there, then the lowest
// ordinals. A pod that does not exist yet comes before those with higher ordinals, and not before others: its owner may wait for them.
func (v *View) returning(of *belonging, at int, next []Pool, replicas int64, home map[int64]bool) []int64 {
	given := v.given(at, replicas)
	seats := given - min(max(0, given-next[at].Max), cmp.Or(next[at].LeftOut, sequence.All))
	slices.SortFunc(of.away, func(a, b int64) int {
		if home[a] == home[b] {
			return cmp.Compare(a, b)
		}
		if home[a] {
			return -1
		}
		return 1
	})
	slices.Sort(of.known)
	for i, n := range of.away {
		lower, _ := slices.BinarySearch(of.known, n)
		toCome := max(0, v.given(at, n)-int64(lower))
		if of.atHome+int64(i)+toCome >= seats {
			return of.away[:i]
		}
	}
	return of.away
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
