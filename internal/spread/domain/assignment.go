package domain

import (
	"errors"
	"math"
	"slices"
	"sort"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// ErrNone means that a cell has no such seat.
var ErrNone = errors.New("the cell has no such seat")

// Open is the limit of a cell that has none.
const Open = int64(-1)

// Assignment is where seats are while some cells have no room. Without such cells, each seat is at home.
type Assignment struct {
	*Homes
	// pools has what cells without room change, for each pool. It is nil if all cells have room.
	pools []assignedPool
}

// assignedPool is a pool with cells that may have no room.
type assignedPool struct {
	// limits is, for each cell, how many of its seats are given there, or [Open].
	limits []int64
	// substitutes is one period of the open domains, which take the seats of cells without room. It is empty if no domain is open.
	substitutes run
	// Without an open domain, the first seats are divided over all domains by their limits, and all is how many these are. Each domain
	// takes some that are not at home there: spare.
	all   int64
	spare []int64
}

// Assign returns where seats are: see [Assignment]. The limits are how many seats of each cell are given there, or [Open]; nil is all open.
func (h *Homes) Assign(limits [][]int64) *Assignment {
	a := &Assignment{Homes: h}
	for pool, cells := range limits {
		p := assignedPool{limits: cells}
		for _, limit := range cells {
			p.all += max(0, limit)
		}
		if slices.Contains(cells, Open) {
			p.substitutes = h.substitutes(cells)
		} else {
			p.spare = make([]int64, len(cells))
			for i, limit := range cells {
				p.spare[i] = max(0, limit-h.Count(pool, i, p.all))
			}
		}
		a.pools = append(a.pools, p)
	}
	return a
}

// substitutes deals one period of seats to the open domains of a pool.
func (h *Homes) substitutes(limits []int64) (r run) {
	sum := int64(0)
	for i, limit := range limits {
		if limit == Open {
			sum += h.weights[i]
		}
	}
	given := make([]int64, len(limits))
	for n := int64(1); n <= sum; n++ {
		best, lack := -1, int64(math.MinInt64)
		for k := range limits {
			i := h.order.at(k, len(limits))
			if l := n*h.weights[i] - sum*given[i]; limits[i] == Open && l > lack {
				best, lack = i, l
			}
		}
		given[best]++
		r.order = append(r.order, uint8(best))
	}
	r.place(len(limits))
	return r
}

// Limit returns how many seats of a cell there is room for, or [Open].
func (a *Assignment) Limit(pool, domain int) int64 {
	if a.pools == nil {
		return Open
	}
	return a.pools[pool].limits[domain]
}

// Domain returns the domain of a seat. It is the home, unless that cell has no room and the seat is beyond those that are given there.
// Then it is one of the pool's open domains. If none is open, it is one that has fewer seats at home than room. Beyond the
// room of all domains, it is the home.
func (a *Assignment) Domain(pool int, ordinal int64) int {
	home := a.Of(pool, ordinal)
	limit := a.Limit(pool, home)
	if limit == Open || a.Count(pool, home, ordinal) <= limit {
		return home
	}
	p := &a.pools[pool]
	if n := int64(len(p.substitutes.order)); n > 0 {
		return int(p.substitutes.order[(a.moved(pool, ordinal)-1)%n])
	}
	if ordinal > p.all {
		return home
	}
	n := a.moved(pool, ordinal)
	for i, spare := range p.spare {
		if n <= spare {
			return i
		}
		n -= spare
	}
	return home // never: as many seats are spare as are not at home
}

// HasRoom reports whether there is room for a seat in its domain.
func (a *Assignment) HasRoom(pool int, ordinal int64) bool {
	return a.pools == nil || len(a.pools[pool].substitutes.order) > 0 || ordinal <= a.pools[pool].all
}

// moved returns how many of a pool's first n seats are not given at home.
func (a *Assignment) moved(pool int, n int64) (count int64) {
	for i, limit := range a.pools[pool].limits {
		if limit != Open {
			count += max(0, a.Count(pool, i, n)-limit)
		}
	}
	return count
}

// Given returns how many of a pool's first n seats are in a domain.
func (a *Assignment) Given(pool, domain int, n int64) int64 {
	if a.pools == nil {
		return a.Count(pool, domain, n)
	}
	p := &a.pools[pool]
	limit, count := p.limits[domain], a.Count(pool, domain, n)
	switch {
	case limit == Open:
		return count + (&Homes{pools: []run{p.substitutes}}).Count(0, domain, a.moved(pool, n))
	case len(p.substitutes.order) > 0:
		return min(count, limit)
	case n > p.all:
		return limit + count - a.Count(pool, domain, p.all)
	}
	before := int64(0)
	for i := range domain {
		before += p.spare[i]
	}
	return min(count, limit) + min(max(0, a.moved(pool, n)-before), p.spare[domain])
}

// Division returns how many of a pool's first n seats are in each domain.
func (a *Assignment) Division(pool int, n int64) []int64 {
	out := make([]int64, a.Len())
	for i := range out {
		out[i] = a.Given(pool, i, n)
	}
	return out
}

// Targets are how many pods each domain of each pool should have. Former is by the order that the domains had for the workload in a release
// before. Pods that run by it stay. Both are nil where that is not known.
type Targets struct{ Now, Former [][]int64 }

// Without returns the targets without one pod for each of some cells.
func (t Targets) Without(cells []sequence.Cell) Targets {
	lower := func(targets [][]int64) [][]int64 {
		out := make([][]int64, len(targets))
		for i := range out {
			out[i] = slices.Clone(targets[i])
		}
		for _, at := range cells {
			if at.Pool < len(out) && at.Domain < len(out[at.Pool]) {
				out[at.Pool][at.Domain] = max(0, out[at.Pool][at.Domain]-1)
			}
		}
		return out
	}
	if t.Now == nil || len(cells) == 0 {
		return t
	}
	return Targets{Now: lower(t.Now), Former: lower(t.Former)}
}

// Surplus returns how many pods each domain of a pool has beyond its target; below 0 it lacks some. None has a surplus where the pods stand as
// the former order has them. Former is nil where there is none.
func Surplus(current, target, former []int64) []int64 {
	out, stands := make([]int64, len(current)), former != nil
	for i, n := range current {
		out[i] = n - target[i]
		stands = stands && n <= former[i]
	}
	for i := range out {
		if stands {
			out[i] = min(0, out[i])
		}
	}
	return out
}

// Seat returns the ordinal of the k-th seat of a pool that is in a domain. It returns ErrNone if there are fewer.
func (a *Assignment) Seat(pool, domain int, k int64) (int64, error) {
	if a.pools == nil {
		return a.Nth(pool, domain, k), nil
	}
	p := &a.pools[pool]
	limit, most := p.limits[domain], p.all
	switch {
	case limit == Open:
		most = a.Nth(pool, domain, k) // at home alone it would be that one
	case len(p.substitutes.order) > 0 && k > limit:
		return 0, ErrNone
	case len(p.substitutes.order) > 0:
		return a.Nth(pool, domain, k), nil
	case k > limit:
		return a.Nth(pool, domain, k-limit+a.Count(pool, domain, p.all)), nil
	}
	return int64(1 + sort.Search(int(most)-1, func(i int) bool { return a.Given(pool, domain, int64(i+1)) >= k })), nil
}
