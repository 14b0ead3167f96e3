package sequence

import (
	"math"
	"slices"
	"sort"
)

// Gap is the seats of a pool without room that are left out: Count seats after the first From ones.
type Gap struct {
	From, Count int64
}

// All is the count of a gap without an end.
const All = math.MaxInt64

// shortage is a sequence of which some seats are left out. The others keep their order and their ranks, so that a
// scale-down that removes the highest rank first is exact, whatever is left out. Where the sequence has no seat left,
// a sequence over the pools' overflow weights follows.
type shortage struct {
	full *Strategy
	gaps []Gap
	// kept is how many seats of the sequence each pool keeps in all, and sum their sum; math.MaxInt64 is no limit.
	kept []int64
	sum  int64
	// overflow is the sequence over the overflow weights. It is empty where sum has no limit.
	overflow []segment
	base     int64 // the rank after which its seats come
}

// Without returns the strategy with seats left out: gaps[i] are those of pool i. Ranks are those of the whole strategy,
// so they have gaps, too. The ordinals of a pool have none: after a gap of Count seats, the next seat of the whole
// strategy is the next ordinal. A pool with a gap gets no overflow.
//
// Where percentages limit pools, the sequence is built anew over the pools with room, so that they keep to their percentages. Then a seat
// that none of them may take is one of a pool without room, and its pod waits. Ranks are those of the new sequence.
//
// This is how a workload uses other pools while one has no room: see package spill.
func (s *Strategy) Without(gaps []Gap) *Strategy {
	if !slices.ContainsFunc(gaps, func(g Gap) bool { return g.Count > 0 }) {
		return s
	}
	if slices.ContainsFunc(s.pools, func(p Pool) bool { return p.MaxShare > 0 }) {
		out := newClosed(s.pools, s.tie, gaps).across(s.domains)
		out.fingerprint = s.fingerprint.without(gaps)
		return out
	}
	const everything = 1 << 50 // more than a workload has pods, and small enough to count with
	x := &shortage{full: s, gaps: gaps, kept: make([]int64, s.Len())}
	for i := range x.kept {
		n := x.keep(i, s.Target(i, everything))
		if gaps[i].Count != All && s.Target(i, everything) > everything/2/int64(MaxPools*MaxWeight) {
			n = math.MaxInt64
		}
		x.kept[i] = n
		if x.sum = min(x.sum, math.MaxInt64-n) + n; n == math.MaxInt64 {
			x.sum = n
		}
	}
	if x.sum < math.MaxInt64 {
		pools, room := slices.Clone(s.pools), make([]int64, s.Len())
		for i := range pools {
			pools[i].Weight = pools[i].Overflow
			switch {
			case gaps[i].Count > 0: // no room
			case pools[i].Max > 0:
				room[i] = pools[i].Max - x.kept[i]
			default:
				room[i] = math.MaxInt64
			}
		}
		x.overflow = newSegments(pools, room, 0, s.tie, nil)
		x.base = max(OverflowRank, x.prefix(x.sum))
	}
	out := *s
	out.short, out.fingerprint = x, s.fingerprint.without(gaps)
	return &out
}

// SeatsToLeaveOut returns how many seats of a pool a gap must have, so that the pool gets exactly keep of n pods. It returns 0
// if the other pools have no seats for the rest.
func (s *Strategy) SeatsToLeaveOut(pool int, n, keep int64) int64 {
	const most = 1 << 40
	// The last of the other pools' seats that are then taken.
	rank := n + int64(sort.Search(most, func(i int) bool { return n+int64(i)-s.Target(pool, n+int64(i)) >= n-keep }))
	if rank >= most {
		return 0
	}
	return max(0, s.Target(pool, rank)-keep)
}

// keep returns how many of the first n seats of a pool are not left out.
func (x *shortage) keep(pool int, n int64) int64 {
	g := x.gaps[pool]
	return n - min(max(0, n-g.From), g.Count)
}

// original returns the ordinal that a seat has in the whole strategy.
func (x *shortage) original(pool int, ordinal int64) int64 {
	g := x.gaps[pool]
	if ordinal <= g.From {
		return ordinal
	}
	return ordinal + min(g.Count, math.MaxInt64-ordinal)
}

// count returns how many of the first seats of the whole strategy are not left out.
func (x *shortage) count(rank int64) int64 {
	n := int64(0)
	for i := range x.gaps {
		n += x.keep(i, x.full.Target(i, rank))
	}
	return n
}

// prefix returns the rank up to which the whole strategy has n seats that are not left out. There must be so many.
func (x *shortage) prefix(n int64) int64 {
	low, high := n, max(n, 1)
	for x.count(high) < n {
		low, high = high, 2*high
	}
	return low + int64(sort.Search(int(high-low), func(i int) bool { return x.count(low+int64(i)) >= n }))
}

func (x *shortage) capacity() int64 {
	if x.sum == math.MaxInt64 {
		return x.sum
	}
	if n := len(x.overflow); n > 0 {
		return x.sum + min(x.overflow[n-1].end, math.MaxInt64-x.sum)
	}
	return x.sum
}

func (x *shortage) target(pool int, n int64) int64 {
	if n <= x.sum {
		return x.keep(pool, x.full.Target(pool, x.prefix(n)))
	}
	return x.kept[pool] + x.spilled(pool, n-x.sum)
}

// spilled returns how many of the overflow's first n seats a pool has.
func (x *shortage) spilled(pool int, n int64) int64 {
	count := int64(0)
	for i := range x.overflow {
		if seg := &x.overflow[i]; n > seg.start {
			count += seg.count(pool, min(n, seg.end)-seg.start)
		}
	}
	return count
}

func (x *shortage) seatAt(rank int64) (Seat, error) {
	if rank <= x.base || len(x.overflow) == 0 {
		seat, err := x.full.SeatAt(rank)
		if err != nil {
			return Seat{}, err
		}
		ordinal := x.keep(seat.Pool, seat.Ordinal)
		if x.original(seat.Pool, ordinal) != seat.Ordinal {
			return Seat{}, ErrFull // it is left out
		}
		return Seat{Pool: seat.Pool, Ordinal: ordinal}, nil
	}
	rank -= x.base
	for i := range x.overflow {
		if seg := &x.overflow[i]; rank <= seg.end {
			pool := int(seg.order[(rank-seg.start-1)%seg.period()])
			return Seat{Pool: pool, Ordinal: x.kept[pool] + x.spilled(pool, rank)}, nil
		}
	}
	return Seat{}, ErrFull
}

func (x *shortage) nth(n int64) (Seat, error) {
	switch {
	case n <= x.sum:
		return x.seatAt(x.prefix(n))
	case len(x.overflow) == 0 || n-x.sum > math.MaxInt64-x.base:
		return Seat{}, ErrFull
	}
	return x.seatAt(x.base + n - x.sum)
}

// seats returns how many pods have a seat, with those that wait in seats that are left out.
func (x *shortage) seats() int64 {
	all := x.full.Capacity()
	if n := len(x.overflow); n > 0 {
		all += min(x.overflow[n-1].end, math.MaxInt64-all)
	}
	return all
}

func (x *shortage) rank(seat Seat) (int64, bool) {
	if seat.Pool < 0 || seat.Pool >= len(x.gaps) || seat.Ordinal < 1 {
		return 0, false
	}
	if seat.Ordinal <= x.kept[seat.Pool] {
		return x.full.Rank(Seat{Pool: seat.Pool, Ordinal: x.original(seat.Pool, seat.Ordinal)})
	}
	left := seat.Ordinal - x.kept[seat.Pool]
	if g := x.gaps[seat.Pool]; g.Count > 0 { // the pool gets no overflow: a pod that waits there has the rank of a seat that is left out
		if left > g.Count {
			return 0, false
		}
		return x.full.Rank(Seat{Pool: seat.Pool, Ordinal: g.From + min(left, math.MaxInt64-g.From)})
	}
	for i := range x.overflow {
		seg := &x.overflow[i]
		if rank, ok := seg.rank(seat.Pool, left); ok && rank <= math.MaxInt64-x.base-seg.start {
			return x.base + seg.start + rank, true
		}
		left -= seg.count(seat.Pool, seg.end-seg.start)
	}
	return 0, false
}
