package layout

import (
	"maps"
	"slices"
	"strconv"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Ordinals are the ordinals of a StatefulSet's pods, with what is recorded of where some of them are. Records name cells as
// [Layout.CellName] does, by the ordinal as text.
type Ordinals struct {
	First int64 // the ordinal of the first pod
	// Moved are pods whose own cell has no room.
	Moved map[string]string
	// Held are pods whose volumes do not reach their own cell, by their rank.
	Held map[int64]sequence.Cell
	// Moves says that the policy lets pods move. Otherwise what Moved says holds for their domains alone.
	Moves bool
}

// FirstOrdinal is the ordinal of the owner's first pod, where pods have an ordinal of their own.
func (l *Layout) FirstOrdinal() int64 {
	if l.workload.Ordinals == nil {
		return 0
	}
	return l.workload.Ordinals.First
}

// record returns the record of a pod, by its rank.
func (o *Ordinals) record(of map[string]string, rank int64) (cell string, ok bool) {
	cell, ok = of[strconv.FormatInt(rank+o.First-1, 10)]
	return cell, ok
}

// recorded returns the cell in which a pod with an ordinal of its own is held, or to which it moved, by its rank. It returns false for other pods.
func (l *Layout) recorded(rank int64) (at sequence.Cell, ok bool) {
	o := l.workload.Ordinals
	if o == nil || rank <= 0 {
		return at, false
	}
	if at, held := o.Held[rank]; held {
		return at, true
	}
	text, _ := o.record(o.Moved, rank)
	return l.CellOf(text)
}

// Keeping reports whether volumes hold some pods in other cells than their own.
func (l *Layout) Keeping() bool {
	return l != nil && l.workload.Ordinals != nil && len(l.workload.Ordinals.Held) > 0
}

// HeldPods returns the cells in which pods are held, by their rank.
func (l *Layout) HeldPods() map[int64]sequence.Cell {
	if !l.Keeping() {
		return nil
	}
	return l.workload.Ordinals.Held
}

// Holding returns the layout of the same workload with pods that are held, by their rank: see [Ordinals.Held].
func (l *Layout) Holding(in map[int64]sequence.Cell, memo Memo) *Layout {
	w, o := l.workload, Ordinals{}
	if w.Ordinals != nil {
		o = *w.Ordinals
	}
	held := maps.Clone(o.Held)
	if held == nil {
		held = map[int64]sequence.Cell{}
	}
	maps.Copy(held, in)
	o.Held = held
	w.Ordinals = &o
	return l.written.For(w, memo)
}

// Away reports whether a cell is neither the one that a pod with an ordinal of its own has, by its rank, nor the one that it had by the former
// order of the domains.
func (l *Layout) Away(rank int64, at sequence.Cell) bool {
	own, err := l.OfOrdinal(rank)
	return err != nil || own.Pool != at.Pool || l.DomainOf(own) != at.Domain && l.FormerDomainOf(own) != at.Domain
}

// WithinOrdinal returns the seat of a pod with an ordinal of its own whose volumes reach some cells, by its rank, and the domain. It is its own; else
// it is in its own pool in another domain; else in the first pool of the strategy that they reach. It returns false if they reach none.
func (l *Layout) WithinOrdinal(rank int64, reached [][]bool) (seat sequence.Seat, domain int, ok bool) {
	own, err := l.OfOrdinal(rank)
	if err != nil {
		return own, 0, false
	}
	for _, domain := range []int{l.DomainOf(own), l.FormerDomainOf(own)} {
		if reached[own.Pool][domain] {
			return own, domain, true
		}
	}
	pools := []int{own.Pool}
	for i := range l.Len() {
		pools = append(pools, i)
	}
	for _, pool := range pools {
		for domain, is := range reached[pool] {
			if is && l.SuitsCell(sequence.Cell{Pool: pool, Domain: domain}) {
				return sequence.Seat{Pool: pool, Ordinal: sequence.MovedOrdinals + rank}, domain, true
			}
		}
	}
	return own, 0, false
}

// OfOrdinal returns the seat of a pod with an ordinal of its own, by its rank. While the pod's pool has no room, the pod may have a seat in
// another one. A pod that is held has it where its volume is.
func (l *Layout) OfOrdinal(rank int64) (sequence.Seat, error) {
	o := l.workload.Ordinals
	if o == nil {
		return l.Own(rank)
	}
	if at, held := o.Held[rank]; held {
		return sequence.Seat{Pool: at.Pool, Ordinal: sequence.MovedOrdinals + rank}, nil
	}
	if name, _ := o.record(o.Moved, rank); o.Moves {
		if at, known := l.CellOf(name); known {
			return sequence.Seat{Pool: at.Pool, Ordinal: sequence.MovedOrdinals + rank}, nil
		}
	}
	return l.Own(rank)
}

// Own returns the seat of a pod with an ordinal of its own, by its rank, wherever its volume is and whatever has no room. It is the one
// of the strategy, unless that is in an unsuitable pool. Then the other pools take the pod, and all other pods keep their seats: their
// volumes may be there.
func (l *Layout) Own(rank int64) (sequence.Seat, error) {
	if l.displaced == nil {
		return l.whole.Nth(rank)
	}
	own, err := l.written.Nth(rank)
	if err != nil || l.Suits(own.Pool) {
		return own, err
	}
	other, err := l.displaced.Nth(l.displacedOf(rank))
	return sequence.Seat{Pool: other.Pool, Ordinal: sequence.MovedOrdinals + rank}, err
}

// displacedOf returns how many of the first n seats are in unsuitable pools, as the strategy is written.
func (l *Layout) displacedOf(n int64) (count int64) {
	for i := range l.Len() {
		if !l.Suits(i) {
			count += l.written.Target(i, n)
		}
	}
	return count
}

// ordinalTargets fills in how many of n pods with ordinals of their own each pool should have where that does not follow from the strategy
// alone.
func (l *Layout) ordinalTargets(targets []int64, n int64) {
	for i := range targets {
		if l.displaced == nil {
			targets[i] = l.whole.Target(i, n)
			continue
		}
		targets[i] = l.displaced.Target(i, l.displacedOf(n))
		if l.Suits(i) {
			targets[i] += l.written.Target(i, n)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(l.workload.Ordinals.Held)) {
		if rank > n {
			continue
		}
		if own, err := l.Own(rank); err == nil {
			targets[own.Pool]--
		}
		targets[l.workload.Ordinals.Held[rank].Pool]++
	}
}
