package sequence

import (
	"math"
	"slices"
	"sort"
)

// segment is a part of the sequence in which the same pools take part: the seats
// from start+1 to end. It ends where a pool reaches its maximum; the next one goes
// on with the rest, as a new sequence.
type segment struct {
	start, end int64 // end is math.MaxInt64 for the last one, if no maximum ends it
	// order is one period: the pool of each seat.
	order []uint8
	// places holds, for each pool, the places in order that are its own, from 1 and
	// ascending. A pool that does not take part has none.
	places [][]int32
}

// newSegments returns the weighted part of a sequence. room is what each pool may
// still take, and is changed. Gaps are those of pools without room, if a percentage limits pools; otherwise nil.
func newSegments(pools []Pool, room []int64, start int64, tie Tie, gaps []Gap) []segment {
	var out []segment
	var next *segment // the part that repeats, if the last one comes only once
	for {
		weights := make([]int64, len(pools))
		for i, p := range pools {
			if room[i] > 0 {
				weights[i] = p.Weight
			}
		}
		var seg segment
		rest := takers(pools, weights, room, gaps)
		switch {
		case next != nil:
			seg, next = *next, nil
		case !anyPositive(weights) && !anyPositive(rest):
			return out
		case gaps != nil || isLimited(pools, weights):
			once, again := newLimited(pools, weights, rest, tie).segments()
			if seg = again; once != nil {
				seg, next = *once, &again
			}
		default:
			seg = newSegment(weights, tie)
		}
		seg.start, seg.end = start, math.MaxInt64
		if next != nil {
			seg.end = start + seg.period()
		}
		if seg.endWhereFull(room) {
			next = nil
		}
		out = append(out, seg)
		if seg.end == math.MaxInt64 {
			return out
		}
		for i := range pools {
			if room[i] < math.MaxInt64 {
				room[i] -= seg.count(i, seg.end-start)
			}
		}
		start = seg.end
	}
}

// endWhereFull ends a segment where the first pool is full, and reports whether one is before the segment's end.
func (s *segment) endWhereFull(room []int64) (full bool) {
	for i := range room {
		if len(s.places[i]) > 0 && room[i] < math.MaxInt64 {
			if last, ok := s.rank(i, room[i]); ok { // or another pool is full before
				s.end, full = s.start+last, true
			}
		}
	}
	return full
}

func anyPositive(weights []int64) bool {
	return slices.ContainsFunc(weights, func(w int64) bool { return w > 0 })
}

// takers returns the weights of the pools that take the seats which others may not take because of their percentages. It returns nil
// if a pool without a percentage is there. They are pools with an overflow or, without those, the pools without room: their pods wait.
func takers(pools []Pool, weights, room []int64, gaps []Gap) []int64 {
	for i, w := range weights {
		if w > 0 && pools[i].MaxShare == 0 {
			return nil
		}
	}
	if gaps == nil {
		return nil
	}
	overflow, closed, found := make([]int64, len(pools)), make([]int64, len(pools)), false
	for i, p := range pools {
		switch {
		case gaps[i].Count > 0 && p.Max > 0: // it may not have them, either
		case gaps[i].Count > 0:
			if closed[i] = p.Weight; p.Weight == 0 && p.Base > 0 {
				closed[i] = 1
			}
		case p.Overflow > 0 && room[i] > 0:
			overflow[i], found = p.Overflow, true
		}
	}
	if found {
		return overflow
	}
	return closed
}

// newSegment computes one period of the chairman assignment over the pools with a
// positive weight.
func newSegment(weights []int64, tie Tie) segment {
	l := &limited{percent: make([]int64, len(weights)), counts: make([]int64, len(weights)), tie: tie}
	l.share(weights)
	l.order = make([]uint8, 0, l.sum)
	for range l.sum {
		l.take()
	}
	return *segmentOf(l.order, len(weights))
}

// Reduced returns weights over their greatest common divisor, and their sum. The weights are not all 0.
func Reduced(weights []int64) (reduced []int64, sum int64) {
	var divisor int64
	for _, w := range weights {
		divisor = gcd(divisor, w)
	}
	reduced = make([]int64, len(weights))
	for i, w := range weights {
		reduced[i] = w / divisor
		sum += reduced[i]
	}
	return reduced, sum
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (s *segment) period() int64 { return int64(len(s.order)) }

// count returns how many of the segment's first n seats a pool has.
func (s *segment) count(pool int, n int64) int64 {
	places := s.places[pool]
	if len(places) == 0 {
		return 0
	}
	full, rest := n/s.period(), n%s.period()
	within := sort.Search(len(places), func(i int) bool { return int64(places[i]) > rest })
	return full*int64(len(places)) + int64(within)
}

// rank returns the place, from 1, of a pool's n-th seat in the segment. It returns false if the pool has fewer seats
// before the segment's end.
func (s *segment) rank(pool int, n int64) (int64, bool) {
	places := int64(len(s.places[pool]))
	if places == 0 || n < 1 || (n-1)/places >= math.MaxInt64/s.period()-1 {
		return 0, false
	}
	r := (n-1)/places*s.period() + int64(s.places[pool][(n-1)%places])
	if r > s.end-s.start {
		return 0, false
	}
	return r, true
}

// Repeats returns from which rank on the sequence repeats itself, counted from 0, and after how many seats. The period is 0 if it
// ends there. It is meant for a strategy without seats that are left out.
func (s *Strategy) Repeats() (start, period int64) {
	if n := len(s.segments); n > 0 && s.segments[n-1].end == math.MaxInt64 {
		return s.segments[n-1].start, s.segments[n-1].period()
	}
	return s.Capacity(), 0
}
