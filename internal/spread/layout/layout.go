// Package layout says where the pods of a workload go, as things are known now.
//
// A source, such as a PodDistributor, gives a strategy for all of its workloads: [Written]. A [Layout] is made of it for the pods of one
// owner. It knows
//
//   - the cells: pools or, where these are divided over domains, each domain of each pool;
//   - the order of the domains, which each workload has for itself;
//   - pools that are unsuitable for the pods, and gaps and limits where there is no room;
//   - for pods with an ordinal of their own, where those are that cannot be where the strategy has them.
//
// The webhook, the controllers and the views ask it, and nothing else says where a pod goes. The package is pure. Package sequence has the
// strategies, package domain the division of a pool over domains, and package policy finds what is known of a workload.
package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Layout is where the pods of one owner go. It does not change, and several goroutines may use it at once. An invalid source has none: of a nil
// Layout, nothing is unsuitable, held or divided over domains.
type Layout struct {
	// Strategy has the seats that are given now: those of [Layout.Whole] for which their pools have room.
	*sequence.Strategy

	written  *Written
	whole    *sequence.Strategy
	workload Workload
	domains  *domain.Assignment
	former   func() *domain.Assignment // computed when it is asked for: the webhook hardly ever does
	// displaced is the strategy of the pods with an ordinal of their own whose seats are in unsuitable pools, or nil.
	displaced *sequence.Strategy
}

// Workload is what is known of the workload of a [Layout].
type Workload struct {
	// Orders are those of the domains. If they are nil, no seat has a domain.
	Orders *Orders
	// Ordinals are those of a StatefulSet's pods; nil is for pods without an ordinal of their own.
	Ordinals *Ordinals
	// Unsuitable says for each cell why no pod of the workload can run there, or "". Nil is none.
	Unsuitable []string
	// Gaps are the seats for which pools have no room, and Limits how many seats cells have: see [domain.Homes.Assign]. Both are nil while
	// all have room. Pods with an ordinal of their own do not look at them.
	Gaps   []sequence.Gap
	Limits [][]int64
}

// Orders are the orders of the domains of a workload. Former is the one that it had before 27 November 2026. Pods that run by it stay. It can go
// with the second minor release.
type Orders struct{ Now, Former domain.Order }

// Memo returns a strategy that follows from another one, computed once.
type Memo func(key Key, compute func() *sequence.Strategy) *sequence.Strategy

// Key identifies a computed strategy.
type Key struct {
	Of   sequence.Fingerprint
	What string
}

// compute is a [Memo] that keeps nothing.
func compute(_ Key, compute func() *sequence.Strategy) *sequence.Strategy { return compute() }

// For returns the layout of a workload. The function memo may be nil.
func (w *Written) For(of Workload, memo Memo) *Layout {
	if memo == nil {
		memo = compute
	}
	l := &Layout{Strategy: w.Strategy, written: w, whole: w.Strategy, workload: of}
	if left := l.leftPools(); slices.Contains(left, true) {
		l.whole = memo(Key{w.Fingerprint(), fmt.Sprint("without", left)}, func() *sequence.Strategy { return w.WithoutPools(left) })
		if of.Ordinals != nil {
			l.displaced = memo(Key{w.Fingerprint(), fmt.Sprint("displaced", left)}, func() *sequence.Strategy { return w.Displaced(left) })
		}
	}
	if w.homes != nil && of.Orders != nil {
		l.assign(l.limits())
	}
	if l.Strategy = l.whole; of.Ordinals == nil && of.Gaps != nil {
		l.Strategy = memo(Key{l.whole.Fingerprint(), fmt.Sprint(of.Gaps)}, func() *sequence.Strategy { return l.whole.Without(of.Gaps) })
	}
	return l
}

// Whole returns the strategy with all seats. In it, unsuitable pools are for nobody.
func (l *Layout) Whole() *sequence.Strategy { return l.whole }

// AsWritten returns the strategy as its source has it, with the pools that are unsuitable for the workload.
func (l *Layout) AsWritten() *sequence.Strategy { return l.written.Strategy }

// Suits reports whether pods of the workload can run in some cell of a pool, as far as is known.
func (l *Layout) Suits(pool int) bool {
	unsuitable := l.Unsuitable()
	if unsuitable == nil {
		return true
	}
	of := l.Cells()
	first := of.Index(sequence.Cell{Pool: pool})
	return slices.Contains(unsuitable[first:first+of.OfPool()], "")
}

// SuitsCell reports whether pods of the workload can run in a cell, as far as is known.
func (l *Layout) SuitsCell(at sequence.Cell) bool {
	unsuitable := l.Unsuitable()
	return unsuitable == nil || unsuitable[l.Cells().Index(at)] == ""
}

// leftPools reports for each pool whether no pod of the workload can run there. It is nil if that holds for all, or for none.
func (l *Layout) leftPools() []bool {
	if l.workload.Unsuitable == nil || l.Nowhere() {
		return nil
	}
	left := make([]bool, l.whole.Len())
	for i := range left {
		left[i] = !l.Suits(i)
	}
	return left
}

// limits returns how many seats each cell has: see [Workload.Limits]. An unsuitable cell has none, unless all are.
func (l *Layout) limits() [][]int64 {
	limits := l.workload.Limits
	if l.workload.Ordinals != nil {
		limits = nil
	}
	if l.workload.Unsuitable == nil || l.Nowhere() {
		return limits
	}
	out, of := make([][]int64, l.whole.Len()), l.Cells()
	for i := range of.Len() {
		at, limit := of.At(i), domain.Open
		if limits != nil {
			limit = limits[at.Pool][at.Domain]
		}
		if !l.SuitsCell(at) {
			limit = 0
		}
		out[at.Pool] = append(out[at.Pool], limit)
	}
	return out
}

// Unsuitable says for each cell why no pod of the workload can run there, or "". It is nil if all cells are suitable.
func (l *Layout) Unsuitable() []string {
	if l == nil {
		return nil
	}
	return l.workload.Unsuitable
}

// Nowhere reports whether the pods of the workload can run in no cell.
func (l *Layout) Nowhere() bool {
	unsuitable := l.Unsuitable()
	return unsuitable != nil && !slices.Contains(unsuitable, "")
}

// Cell returns the cell of a seat.
func (l *Layout) Cell(seat sequence.Seat) sequence.Cell {
	return sequence.Cell{Pool: seat.Pool, Domain: l.DomainOf(seat)}
}

// Reached reports for each pool and domain whether a function does, and whether it does of all.
func (l *Layout) Reached(reaches func(at sequence.Cell) bool) (reached [][]bool, all bool) {
	all, reached = true, make([][]bool, l.Len())
	of := l.Cells()
	for i := range of.Len() {
		at := of.At(i)
		is := reaches(at)
		reached[at.Pool] = append(reached[at.Pool], is)
		all = all && is
	}
	return reached, all
}

// Within returns a layout that gives seats only in some pools and domains: in those that are reached. What has no room keeps its limits. It
// returns nil if none is reached in which pods of the workload can run.
func (l *Layout) Within(reached [][]bool, memo Memo) *Layout {
	if memo == nil {
		memo = compute
	}
	of, left, limits := *l, make([]bool, len(reached)), make([][]int64, len(reached))
	for i, cells := range reached {
		left[i] = true
		for k, is := range cells {
			limit := int64(0)
			if is && l.SuitsCell(sequence.Cell{Pool: i, Domain: k}) {
				if limit = domain.Open; l.domains != nil {
					limit = l.domains.Limit(i, k)
				}
			}
			left[i] = left[i] && limit == 0
			limits[i] = append(limits[i], limit)
		}
	}
	if !slices.Contains(left, false) {
		return nil
	}
	if slices.Contains(left, true) {
		of.whole = memo(Key{l.whole.Fingerprint(), fmt.Sprint("without", left)}, func() *sequence.Strategy { return l.whole.WithoutPools(left) })
		if of.Strategy = of.whole; l.workload.Gaps != nil {
			of.Strategy = memo(Key{of.whole.Fingerprint(), fmt.Sprint(l.workload.Gaps)}, func() *sequence.Strategy { return of.whole.Without(l.workload.Gaps) })
		}
	}
	if l.domains != nil {
		of.assign(limits)
	}
	return &of
}

// Elsewhere are pods without a seat whose volumes reach no place for one. They need none, and the others are divided around them.
type Elsewhere struct {
	Own    []sequence.Cell // the places of those that have an ordinal of their own
	Others int64
}

// Any reports whether there are such pods.
func (e *Elsewhere) Any() bool { return len(e.Own) > 0 || e.Others > 0 }

// FollowsStrategy reports whether the targets of pools follow from the strategy alone, because all pools are suitable and no volume keeps a pod that
// has an ordinal of its own.
func (l *Layout) FollowsStrategy() bool {
	return l.workload.Ordinals == nil || l.displaced == nil && !l.Keeping()
}

// Targets returns how many of n pods each pool should have now, without those that are elsewhere.
func (l *Layout) Targets(n int64, e Elsewhere) []int64 { return l.targets(l.Strategy, n, e) }

func (l *Layout) targets(s *sequence.Strategy, n int64, e Elsewhere) []int64 {
	targets := make([]int64, l.Len())
	if l.FollowsStrategy() {
		for i := range targets {
			targets[i] = s.Target(i, max(0, n-e.Others))
		}
	} else {
		l.ordinalTargets(targets, n)
	}
	for _, at := range e.Own {
		if at.Pool < len(targets) {
			targets[at.Pool] = max(0, targets[at.Pool]-1)
		}
	}
	return targets
}

// Division is how n pods of an owner are to be divided.
type Division struct {
	Replicas int64
	// Pools has the pods of each pool. While a pool has no room it is what it should have with room.
	Pools []int64
	// Domains are those of the pools; nil where that is not known.
	Domains domain.Targets
}

// Divide returns how n pods of the owner are to be divided. Indexed are the seats of the pods of an Indexed Job: those that have ended are not
// there, so the indexes of the others decide.
func (l *Layout) Divide(n int64, indexed []sequence.Seat, e Elsewhere) Division {
	d := Division{Replicas: n}
	d.Pools = l.targets(l.whole, n, e)
	if len(indexed) > 0 {
		clear(d.Pools)
		for _, seat := range indexed {
			d.Pools[seat.Pool]++
		}
	}
	d.Domains = l.domainTargets(n, d.Pools, indexed).Without(e.Own)
	return d
}

// cellMark separates the pool from the domain where a cell is named. No pool's key has one.
const cellMark = "/"

// CellName names a pool, or a domain of it, in the records of the API: see [Layout.CellOf].
func (l *Layout) CellName(at sequence.Cell) string {
	if l.Across() == nil {
		return l.PoolKey(at.Pool)
	}
	return l.PoolKey(at.Pool) + cellMark + l.DomainName(at.Domain)
}

// CellOf returns the cell that a record of the API names.
func (l *Layout) CellOf(name string) (at sequence.Cell, known bool) {
	key, in, _ := strings.Cut(name, cellMark)
	return l.CellNamed(key, in)
}
