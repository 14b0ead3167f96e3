package sequence

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// maxLimited is how many seats of a sequence with percentages are computed until it repeats. That many are kept, so that a strategy of
// a tenant costs little.
const maxLimited = 4000

// limited is the weighted part of a sequence in which pools may have no more than a percentage of the seats. Of its first m seats,
// such a pool has at most floor(percentage * m).
//
// First the shares are reduced to the percentages, and those of the other pools are scaled up. Then the chairman assignment goes on as
// without percentages, but that a pool at its limit is passed over. So it grows by one seat at a time.
type limited struct {
	weights []int64 // after the shares are reduced; 0 takes no part
	percent []int64 // 0 is no limit
	rest    []bool  // pools that take the seats that no other pool may take
	tie     Tie

	counts []int64
	order  []uint8
	sum    int64 // of the weights
	active int64 // how many have a weight
}

// isLimited reports whether a pool with a weight has a percentage.
func isLimited(pools []Pool, weights []int64) bool {
	for i := range pools {
		if weights[i] > 0 && pools[i].MaxShare > 0 {
			return true
		}
	}
	return false
}

// newLimited returns a sequence over pools of some weights. Pools without a percentage, and pools with a weight in rest, take the seats
// that the others may not have. Rest may be nil.
func newLimited(pools []Pool, weights, rest []int64, tie Tie) *limited {
	l := &limited{percent: make([]int64, len(pools)), rest: make([]bool, len(pools)), counts: make([]int64, len(pools)), tie: tie}
	for i, w := range weights {
		if w > 0 {
			l.percent[i] = pools[i].MaxShare
		}
		l.rest[i] = w > 0 && l.percent[i] == 0 || rest != nil && rest[i] > 0
	}
	atLimit, left, sum := l.atLimits(weights)
	if sum == 0 && rest != nil {
		weights = rest
		for _, w := range rest {
			sum += w
		}
	}
	shares := make([]int64, len(pools))
	for i, w := range weights {
		if shares[i] = w * left; atLimit[i] {
			shares[i] = l.percent[i] * max(sum, 1)
		}
	}
	l.share(shares)
	return l
}

// share has the pools share the seats by some weights, which are not all 0.
func (l *limited) share(weights []int64) {
	l.weights, l.sum = Reduced(weights)
	for _, w := range l.weights {
		if w > 0 {
			l.active++
		}
	}
}

// atLimits returns which pools get their percentages and no more, and the percentage and the sum of the weights that the others share. Each
// pool at its limit leaves more to the others.
func (l *limited) atLimits(weights []int64) (atLimit []bool, left, sum int64) {
	atLimit, left = make([]bool, len(weights)), 100
	for _, w := range weights {
		sum += w
	}
	for i := 0; i < len(weights); i++ {
		if percent := l.percent[i]; percent > 0 && !atLimit[i] && weights[i]*left > percent*sum {
			atLimit[i], left, sum = true, left-percent, sum-weights[i]
			i = -1 // from the first one again
		}
	}
	return atLimit, left, sum
}

// deal computes seats until the sequence repeats. It returns after how many the part begins that repeats, or false if that takes
// too many.
func (l *limited) deal() (once int, ok bool) {
	began := map[string]int{}
	for n := range int64(maxLimited) {
		if l.whole(n) {
			key := l.key(n)
			if at, known := began[key]; known {
				return at, true
			}
			began[key] = int(n)
		}
		l.take()
	}
	return 0, false
}

// take computes one seat more.
func (l *limited) take() {
	pool := l.next(int64(len(l.order)) + 1)
	l.counts[pool]++
	l.order = append(l.order, uint8(pool))
}

// whole reports whether each pool's percentage of n seats is a whole number, so that the limits repeat from there.
func (l *limited) whole(n int64) bool {
	return !slices.ContainsFunc(l.percent, func(p int64) bool { return p*n%100 != 0 })
}

// key is how far each pool is from its share after n seats. What follows is determined by it.
func (l *limited) key(n int64) string {
	var out []byte
	for i, c := range l.counts {
		out = binary.AppendVarint(out, c*l.sum-n*l.weights[i])
	}
	return string(out)
}

// next returns the pool of the n-th seat: of those that are due, the one with the earliest deadline. A pool that is at its limit is passed
// over. Where no pool is due, the one with the earliest deadline comes before its turn. Without percentages, one always is.
func (l *limited) next(n int64) int {
	best, first := -1, turn{}
	for i, w := range l.weights {
		if w == 0 || l.percent[i] > 0 && 100*(l.counts[i]+1) > l.percent[i]*n {
			continue
		}
		if t := l.turnOf(i, n); best < 0 || t.before(first, l.tie) {
			best, first = i, t
		}
	}
	if best < 0 {
		best = slices.Index(l.rest, true)
	}
	if best < 0 {
		best = l.leastFilled() // nobody else takes the seat, so a pool goes beyond its percentage
	}
	return best
}

// turn is how soon a pool is due for a seat, in the chairman assignment.
//
// With share s = w/sum and c seats so far, one of k pools is due if n*s - c is at least 1/(2k-2). Its deadline is
// (1 - 1/(2k-2) - (n*s - c)) / s. Everything is multiplied by sum and by 2k-2, and deadlines are compared across, so that
// nothing is ever divided. Without percentages, the largest number is below 2^42 (sum <= 32,000, w <= 1,000, 2k-2 <= 62).
type turn struct {
	due           bool
	slack, weight int64 // the deadline is slack over weight
}

// turnOf returns how soon a pool is due for the n-th seat.
func (l *limited) turnOf(pool int, n int64) turn {
	k2, w := max(2*l.active-2, 1), l.weights[pool]
	due := k2 * (n*w - l.counts[pool]*l.sum)
	return turn{due: due >= l.sum || l.active == 1, slack: k2*l.sum - l.sum - due, weight: w}
}

// before reports whether a turn comes before that of an earlier pool.
func (t turn) before(earlier turn, tie Tie) bool {
	if t.due != earlier.due {
		return t.due
	}
	its, other := t.slack*earlier.weight, earlier.slack*t.weight
	return its < other || its == other && tie == LaterWins
}

// leastFilled returns the pool with the fewest seats for its weight.
func (l *limited) leastFilled() int {
	best := -1
	for i, w := range l.weights {
		if w > 0 && (best < 0 || l.counts[i]*l.weights[best] < l.counts[best]*w) {
			best = i
		}
	}
	return best
}

// segments returns the sequence as one part that comes once, which may be empty, and one that repeats.
func (l *limited) segments() (once *segment, again segment) {
	at, ok := l.deal()
	if !ok {
		at = 0
	}
	if at > 0 {
		once = segmentOf(l.order[:at], len(l.weights))
	}
	return once, *segmentOf(l.order[at:], len(l.weights))
}

func segmentOf(order []uint8, pools int) *segment {
	seg := &segment{order: slices.Clip(order), places: make([][]int32, pools)}
	for pool := range pools {
		seg.places[pool] = make([]int32, 0, bytes.Count(order, []byte{uint8(pool)}))
	}
	for n, pool := range order {
		seg.places[pool] = append(seg.places[pool], int32(n+1))
	}
	return seg
}

// checkLimited reports what is wrong with the percentages of pools.
func checkLimited(pools []Pool) error {
	weights, any, all := make([]int64, len(pools)), false, true
	for i, p := range pools {
		if p.MaxShare < 0 || p.MaxShare > 99 {
			return fmt.Errorf("pool %d: the maximum is %d%%; it must be 1%% to 99%%", i, p.MaxShare)
		}
		if p.MaxShare > 0 && p.Max > 0 {
			return fmt.Errorf("pool %d: has a maximum as a number and as a percentage", i)
		}
		if weights[i] = p.Weight; p.Weight > 0 {
			any, all = any || p.MaxShare > 0, all && p.MaxShare > 0
		}
	}
	switch {
	case !any:
		return nil
	case all:
		return fmt.Errorf("the maximum of each pool with a weight is a percentage; at least one must have none, or a number")
	}
	if _, ok := newLimited(pools, weights, nil, EarlierWins).deal(); !ok {
		return fmt.Errorf("with these weights and percentages the division repeats only after more than %d pods; use rounder ones, such as 20 and 80, and 50%%", maxLimited)
	}
	return nil
}
