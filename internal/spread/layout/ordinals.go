package layout

import (
	"errors"
	"strconv"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// ErrKept means that a pod gets no seat, because its volume may be where no pool is.
var ErrKept = errors.New("its volume may be outside all pools")

// Ordinals are the ordinals of a StatefulSet's pods, with what is recorded of where some of them are. Records name cells as
// [Layout.CellName] does, by the ordinal as text.
type Ordinals struct {
	First int64 // the ordinal of the first pod
	// Moved are pods whose own cell has no room. Kept are pods whose volume may be where they ran before their policy came.
	Moved, Kept map[string]string
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

// recorded returns the cell that is recorded for a pod with an ordinal of its own, by its rank. It returns false for other pods.
func (l *Layout) recorded(rank int64) (at sequence.Cell, ok bool) {
	o := l.workload.Ordinals
	if o == nil || rank <= 0 {
		return at, false
	}
	text, _ := o.record(o.Moved, rank)
	if kept, _ := o.record(o.Kept, rank); kept != "" {
		text = kept
	}
	return l.CellOf(text)
}

// Keeping reports whether volumes keep some pods.
func (l *Layout) Keeping() bool {
	return l != nil && l.workload.Ordinals != nil && len(l.workload.Ordinals.Kept) > 0
}

// OfOrdinal returns the seat of a pod with an ordinal of its own, by its rank. While the pod's pool has no room, the pod may have a seat in
// another one. A pod whose volume may be where it ran before the policy came keeps that pool. It returns ErrKept if that was none of the
// pools.
func (l *Layout) OfOrdinal(rank int64) (sequence.Seat, error) {
	o := l.workload.Ordinals
	if o == nil {
		return l.Own(rank)
	}
	if name, ok := o.record(o.Kept, rank); ok {
		at, known := l.CellOf(name)
		if !known {
			return sequence.Seat{}, ErrKept
		}
		if own, err := l.Own(rank); err == nil && own.Pool == at.Pool && l.homeOf(own) == at.Domain {
			return own, nil
		}
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

// homeOf returns the home of a seat, or 0 without domains.
func (l *Layout) homeOf(seat sequence.Seat) int {
	if l.domains == nil {
		return 0
	}
	return l.domains.Of(seat.Pool, seat.Ordinal)
}

// ordinalTargets fills in how many of n pods with ordinals of their own each pool should have where that does not follow from the strategy
// alone. It returns how many their volumes leave without a seat.
func (l *Layout) ordinalTargets(targets []int64, n int64) (outside int64) {
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
	o := l.workload.Ordinals
	for text, name := range o.Kept {
		ordinal, err := strconv.ParseInt(text, 10, 64)
		rank := ordinal - o.First + 1
		if err != nil || rank < 1 || rank > n {
			continue
		}
		if own, err := l.Own(rank); err == nil {
			targets[own.Pool]--
		}
		if at, known := l.CellOf(name); known {
			targets[at.Pool]++
		} else {
			outside++
		}
	}
	return outside
}
