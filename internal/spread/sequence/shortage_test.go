package sequence_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func TestKnownShortages(t *testing.T) {
	eighty := []sequence.Pool{pool("default", 0, 20, 0), pool("spot", 0, 80, 0)}
	three := []sequence.Pool{pool("a", 1, 1, 0), pool("b", 0, 1, 0), pool("c", 0, 2, 0)}
	fallback := []sequence.Pool{pool("default", 2, 0, 0), pool("spot", 0, 1, 0)}
	fallback[0].Overflow = 1
	limited := []sequence.Pool{pool("a", 0, 1, 3), pool("b", 0, 1, 0), pool("c", 0, 0, 5)}
	limited[0].Overflow, limited[2].Overflow = 1, 1
	full := []sequence.Pool{pool("a", 0, 1, 4), pool("b", 0, 0, 2), pool("c", 0, 0, 5)}
	full[1].Overflow, full[2].Overflow = 1, 1
	none := sequence.Gap{}
	const unlimited = math.MaxInt64
	for name, tc := range map[string]struct {
		pools           []sequence.Pool
		gaps            []sequence.Gap
		n               int64
		want            []int64
		capacity, seats int64
	}{
		"spot holds 200 of 500":                                   {eighty, []sequence.Gap{none, {200, sequence.All}}, 500, []int64{300, 200}, unlimited, unlimited},
		"spot holds none":                                         {eighty, []sequence.Gap{none, {0, sequence.All}}, 10, []int64{10, 0}, unlimited, unlimited},
		"spot holds more than there are":                          {eighty, []sequence.Gap{none, {100, sequence.All}}, 10, []int64{2, 8}, unlimited, unlimited},
		"the others keep their ratio":                             {three, []sequence.Gap{none, none, {0, sequence.All}}, 11, []int64{6, 5}, unlimited, unlimited},
		"five seats of spot are left out, and later ones are not": {eighty, []sequence.Gap{none, {4, 5}}, 10, []int64{3, 7}, unlimited, unlimited},
		"a base without room":                                     {three, []sequence.Gap{{0, sequence.All}, none, none}, 6, []int64{0, 2, 4}, unlimited, unlimited},
		"nothing has room":                                        {eighty, []sequence.Gap{{1, sequence.All}, {2, sequence.All}}, 10, []int64{1, 2}, 3, unlimited},
		"the fall-back of a pool":                                 {fallback, []sequence.Gap{none, {3, sequence.All}}, 10, []int64{7, 3}, unlimited, unlimited},
		"no fall-back while there is room":                        {fallback, []sequence.Gap{none, {8, sequence.All}}, 10, []int64{2, 8}, unlimited, unlimited},
		"overflow within the maxima":                              {limited, []sequence.Gap{none, {1, sequence.All}, none}, 20, []int64{3, 1, 5}, 9, unlimited},
		"overflow does not go where no room is":                   {limited, []sequence.Gap{{1, sequence.All}, {1, sequence.All}, none}, 20, []int64{1, 1, 5}, 7, unlimited},
		"overflow of a strategy with a limit":                     {full, []sequence.Gap{{1, sequence.All}, none, none}, 20, []int64{1, 2, 5}, 8, 11},
	} {
		t.Run(name, func(t *testing.T) {
			s := strategy(t, sequence.EarlierWins, tc.pools...).Without(append(tc.gaps, make([]sequence.Gap, len(tc.pools)-len(tc.gaps))...))
			want := append(tc.want, make([]int64, len(tc.pools)-len(tc.want))...)
			if diff := cmp.Diff(want, targets(s, tc.n)); diff != "" {
				t.Errorf("target(%d) (-want +got):\n%s", tc.n, diff)
			}
			if s.Capacity() != tc.capacity || s.Seats() != tc.seats {
				t.Errorf("the capacity is %d, and the seats are %d", s.Capacity(), s.Seats())
			}
			for i := range want {
				if got := s.Share(i, tc.n); got != float64(want[i]) {
					t.Errorf("the share of pool %d is %v", i, got)
				}
			}
		})
	}
	whole := strategy(t, sequence.EarlierWins, eighty...)
	if whole.Without(make([]sequence.Gap, 2)) != whole {
		t.Error("without a gap it is another strategy")
	}
}

// shortageGen draws a strategy with bases, weights, maxima and overflow weights, and gaps in some of its pools.
var shortageGen = rapid.Custom(func(t *rapid.T) (s struct {
	Pools []sequence.Pool
	Gaps  []sequence.Gap
}) {
	for i := range rapid.IntRange(1, 5).Draw(t, "pools") {
		p := pool(string(rune('a'+i)), rapid.Int64Range(0, 4).Draw(t, "base"), rapid.Int64Range(0, 5).Draw(t, "weight"), rapid.SampledFrom([]int64{0, 0, 1, 7}).Draw(t, "maximum"))
		p.Overflow = rapid.Int64Range(0, 3).Draw(t, "overflow")
		s.Pools = append(s.Pools, p)
		s.Gaps = append(s.Gaps, sequence.Gap{From: rapid.Int64Range(0, 9).Draw(t, "from"), Count: rapid.SampledFrom([]int64{0, 0, 1, 4, sequence.All, sequence.All}).Draw(t, "count")})
	}
	s.Pools[0].Weight = max(1, s.Pools[0].Weight)
	return s
})

// overflowOf returns the overflow as a strategy of its own: the pools without a gap, by their overflow weights, with what room they
// have beside the pods that they have. It returns nil if no pool takes part.
func overflowOf(pools []sequence.Pool, gaps []sequence.Gap, have []int64) *sequence.Strategy {
	rest := slices.Clone(pools)
	for i := range rest {
		p := &rest[i]
		p.Base, p.Weight = 0, p.Overflow
		if gaps[i].Count > 0 || p.Max > 0 && p.Max <= have[i] {
			p.Weight = 0
		} else if p.Max > 0 {
			p.Max -= have[i]
		}
	}
	s, err := sequence.New(rest, sequence.EarlierWins)
	if err != nil { // the pools are valid, so none has a weight
		return nil
	}
	return s
}

// A strategy with gaps is the whole one, seat by seat, without the seats that are left out, and then the overflow. So
// the pods of the highest ranks are those that a scale-down to any number removes.
func TestShortageProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const seats = 120
		drawn := shortageGen.Draw(t, "strategy")
		whole := strategy(t, sequence.EarlierWins, drawn.Pools...)
		s := whole.Without(drawn.Gaps)

		// 1. The seats one after the other, by the definition.
		var model []sequence.Seat
		var ranks []int64
		have, ordinals := make([]int64, whole.Len()), make([]int64, whole.Len())
		full := whole.Capacity()
		for rank := int64(1); rank <= min(full, 50*seats) && len(model) < seats; rank++ {
			seat, err := whole.SeatAt(rank)
			if err != nil {
				t.Fatal(err)
			}
			ordinals[seat.Pool]++
			if g := drawn.Gaps[seat.Pool]; seat.Ordinal > g.From && seat.Ordinal-g.From <= g.Count {
				continue
			}
			have[seat.Pool]++
			model, ranks = append(model, sequence.Seat{Pool: seat.Pool, Ordinal: have[seat.Pool]}), append(ranks, rank)
		}
		left := slices.ContainsFunc(drawn.Gaps, func(g sequence.Gap) bool { return g.Count > 0 }) // without a gap, nothing overflows
		if overflow := overflowOf(drawn.Pools, drawn.Gaps, have); left && len(model) < seats && overflow != nil {
			for rank := int64(1); len(model) < seats; rank++ {
				seat, err := overflow.SeatAt(rank)
				if errors.Is(err, sequence.ErrFull) {
					break
				}
				have[seat.Pool]++
				model, ranks = append(model, sequence.Seat{Pool: seat.Pool, Ordinal: have[seat.Pool]}), append(ranks, sequence.OverflowRank+rank)
			}
		}
		if capacity := s.Capacity(); len(model) < seats && capacity != int64(len(model)) || len(model) == seats && capacity < seats {
			t.Fatalf("the capacity is %d, with %d seats", capacity, len(model))
		}

		// 2. Targets, ranks and seats agree with them.
		clear(have)
		for i, seat := range model {
			have[seat.Pool]++
			if got := targets(s, int64(i+1)); !slices.Equal(got, have) {
				t.Fatalf("at %d the targets are %v, not %v", i+1, got, have)
			}
			if nth, err := s.Nth(int64(i + 1)); err != nil || nth != seat {
				t.Fatalf("seat number %d is %v (%v), not %v", i+1, nth, err, seat)
			}
			if rank, ok := s.Rank(seat); !ok || rank != ranks[i] {
				t.Fatalf("seat %v has the rank %d (%t), not %d", seat, rank, ok, ranks[i])
			}
			if at, err := s.SeatAt(ranks[i]); err != nil || at != seat {
				t.Fatalf("rank %d is %v (%v), not %v", ranks[i], at, err, seat)
			}
		}
		if !slices.IsSorted(ranks) {
			t.Fatal("the ranks are not in order")
		}

		// 3. Pods one after the other get these seats.
		held := counts(make([]int64, whole.Len()))
		for i := range model {
			seat, err := s.Next(held)
			if err != nil {
				t.Fatalf("pod %d: %v", i+1, err)
			}
			held[seat.Pool]++
		}
		if got := targets(s, int64(len(model))); !slices.Equal(got, held) {
			t.Fatalf("pods one after the other are %v, not %v", held, got)
		}
		if _, err := s.Next(held); len(model) < seats && !errors.Is(err, sequence.ErrFull) {
			t.Fatalf("one pod more gets a seat: %v", err)
		}
	})
}

// With as many seats left out as SeatsToLeaveOut says, a pool keeps so many of n pods, wherever the gap begins.
func TestSeatsToLeaveOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := shortageGen.Draw(t, "strategy")
		s, err := sequence.New(drawn.Pools, sequence.EarlierWins)
		if err != nil {
			t.Skip("the drawn pools are not a valid strategy")
		}
		pool, n := rapid.IntRange(0, len(drawn.Pools)-1).Draw(t, "pool"), rapid.Int64Range(1, 200).Draw(t, "n")
		target := s.Target(pool, n)
		if target == 0 || n > s.Capacity() {
			t.Skip("the drawn pool has no pod that could move")
		}
		keep := rapid.Int64Range(0, target-1).Draw(t, "keep")
		count := s.SeatsToLeaveOut(pool, n, keep)
		if count == 0 { // the other pools have no seats for so many
			others := int64(0)
			for i := range drawn.Pools {
				if i != pool {
					others += s.Target(i, 1<<40)
				}
			}
			if others >= n-keep {
				t.Fatalf("no gap, though the other pools have %d seats", others)
			}
			return
		}
		gaps := make([]sequence.Gap, len(drawn.Pools))
		gaps[pool] = sequence.Gap{From: rapid.Int64Range(0, keep).Draw(t, "from"), Count: count}
		if got := s.Without(gaps).Target(pool, n); got != keep {
			t.Fatalf("pool %d keeps %d of %d, not %d", pool, got, n, keep)
		}
		gaps[pool].Count--
		if got := s.Without(gaps).Target(pool, n); got != keep+1 {
			t.Fatalf("with one seat less left out pool %d keeps %d of %d, not %d", pool, got, n, keep+1)
		}
		if got := s.SeatsToLeaveOut(pool, n, target); got != 0 {
			t.Fatalf("%d seats are to be left out, so that pool %d keeps what it has", got, pool)
		}
	})
}

// Seats that a shortage has, and seats that it does not have.
func TestRanksInAShortage(t *testing.T) {
	// The bases of c and d, without the second of d, and then the first of a. Then b and c take turns until b is full.
	pools := []sequence.Pool{pool("a", 0, 1, 4), pool("b", 0, 0, 2), pool("c", 1, 0, 6), pool("d", 3, 0, 0)}
	pools[1].Overflow, pools[2].Overflow = 1, 1
	s := strategy(t, sequence.EarlierWins, pools...).Without([]sequence.Gap{{1, sequence.All}, {}, {}, {1, 1}})
	type rank struct {
		seat sequence.Seat
		rank int64 // 0 is none
	}
	const overflow = sequence.OverflowRank
	for _, r := range []rank{
		{sequence.Seat{Pool: 2, Ordinal: 1}, 1},
		{sequence.Seat{Pool: 3, Ordinal: 1}, 2},
		{sequence.Seat{Pool: 3, Ordinal: 2}, 4},
		{sequence.Seat{Pool: 0, Ordinal: 1}, 5},
		{sequence.Seat{Pool: 1, Ordinal: 1}, overflow + 1},
		{sequence.Seat{Pool: 2, Ordinal: 2}, overflow + 2},
		{sequence.Seat{Pool: 1, Ordinal: 2}, overflow + 3},
		{sequence.Seat{Pool: 2, Ordinal: 3}, overflow + 4},
		{sequence.Seat{Pool: 2, Ordinal: 6}, overflow + 7},
		// No seats.
		{sequence.Seat{Pool: 1, Ordinal: 3}, 0},
		{sequence.Seat{Pool: 2, Ordinal: 7}, 0},
		{sequence.Seat{Pool: -1, Ordinal: 1}, 0},
		{sequence.Seat{Pool: 4, Ordinal: 1}, 0},
		{sequence.Seat{Pool: 2, Ordinal: 0}, 0},
	} {
		if got, ok := s.Rank(r.seat); got != r.rank || ok != (r.rank > 0) {
			t.Errorf("seat %v has the rank %d (%t), not %d", r.seat, got, ok, r.rank)
		}
		if r.rank == 0 {
			continue
		}
		if at, err := s.SeatAt(r.rank); err != nil || at != r.seat {
			t.Errorf("rank %d is %v (%v), not %v", r.rank, at, err, r.seat)
		}
	}
	// Pods that wait in a pool without room have the ranks of the seats that are left out, and no more than those.
	for _, r := range []rank{
		{sequence.Seat{Pool: 0, Ordinal: 2}, 6}, {sequence.Seat{Pool: 0, Ordinal: 4}, 8}, {sequence.Seat{Pool: 0, Ordinal: 5}, 0}, {sequence.Seat{Pool: 0, Ordinal: math.MaxInt64}, 0},
		{sequence.Seat{Pool: 3, Ordinal: 3}, 3}, {sequence.Seat{Pool: 3, Ordinal: 4}, 0},
	} {
		if got, ok := s.Rank(r.seat); got != r.rank || ok != (r.rank > 0) {
			t.Errorf("a pod that waits at %v has the rank %d (%t), not %d", r.seat, got, ok, r.rank)
		}
	}
	for _, none := range []int64{0, 3, 6, 8, 9, overflow, overflow + 8} {
		if seat, err := s.SeatAt(none); !errors.Is(err, sequence.ErrFull) {
			t.Errorf("rank %d is %v (%v)", none, seat, err)
		}
	}
	var empty *sequence.Strategy
	if got := s.Size(); got != 1+2+1 || empty.Size() != 0 { // a; b and c; c
		t.Errorf("the strategy keeps %d seats, and none keeps %d", got, empty.Size())
	}
}

// The last rank that there is.
func TestLastRank(t *testing.T) {
	last := sequence.Seat{Ordinal: math.MaxInt64}
	if rank, ok := strategy(t, sequence.EarlierWins, pool("a", 2, 1, 0)).Rank(last); !ok || rank != math.MaxInt64 {
		t.Errorf("the last seat has the rank %d (%t)", rank, ok)
	}
}

// A pool with the least share that there may be has no end, either, if later seats of it are not left out.
func TestShortageOfTheLeastPool(t *testing.T) {
	var pools []sequence.Pool
	for i := range sequence.MaxPools {
		pools = append(pools, pool(string(rune('A'+i)), 0, sequence.MaxWeight, 0))
	}
	pools[0].Weight = 1
	gaps := make([]sequence.Gap, len(pools))
	for i := range gaps {
		gaps[i].Count = sequence.All
	}
	gaps[0].Count = 3
	s := strategy(t, sequence.EarlierWins, pools...).Without(gaps)
	if got := s.Target(0, 10); s.Capacity() != math.MaxInt64 || got != 10 {
		t.Errorf("the capacity is %d, and 10 pods have %d in the pool with room", s.Capacity(), got)
	}
}

// Ranks and seats agree also where few of many seats are left.
func TestShortageOfAlmostAll(t *testing.T) {
	pools := []sequence.Pool{pool("a", 0, 1, 6000), pool("b", 0, 1000, 0), pool("c", 0, 0, 0)}
	pools[2].Overflow = 1
	s := strategy(t, sequence.EarlierWins, pools...).Without([]sequence.Gap{{}, {0, sequence.All}, {}})
	last := int64(0)
	for n := int64(1); n <= 6010; n++ {
		seat := sequence.Seat{Pool: 0, Ordinal: n}
		if n > 6000 {
			seat = sequence.Seat{Pool: 2, Ordinal: n - 6000}
		}
		rank, ok := s.Rank(seat)
		if at, err := s.SeatAt(rank); !ok || rank <= last || err != nil || at != seat {
			t.Fatalf("seat %v has rank %d (%t) after %d, where %v is (%v)", seat, rank, ok, last, at, err)
		}
		last = rank
	}
}

// Big strategies and gaps do not overflow.
func TestShortageIsLarge(t *testing.T) {
	s := strategy(t, sequence.LaterWins, pool("a", math.MaxInt32, 1000, 0), pool("b", 0, 1, math.MaxInt32)).Without([]sequence.Gap{{0, sequence.All}, {5, math.MaxInt32}})
	if got := s.Capacity(); got != 5 {
		t.Errorf("the capacity is %d", got)
	}
	if got := targets(s, math.MaxInt64); !slices.Equal(got, []int64{0, 5}) {
		t.Errorf("the targets are %v", got)
	}
}

// Pods for which a shortage leaves no seat wait in pools without room, as many as the whole strategy has seats, each with a rank
// of its own.
func TestPodsThatWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := shortageGen.Draw(t, "strategy")
		s := strategy(t, sequence.EarlierWins, drawn.Pools...).Without(drawn.Gaps)
		held, ranks := counts(make([]int64, len(drawn.Pools))), map[int64]bool{}
		for n := range int64(60) {
			_, none := s.Next(held)
			seat, err := s.Admit(held)
			if (err == nil) != (n < s.Seats()) {
				t.Fatalf("pod %d: %v; there are %d seats", n+1, err, s.Seats())
			}
			if err != nil {
				return
			}
			if none != nil && drawn.Gaps[seat.Pool].Count == 0 {
				t.Fatalf("pod %d waits in pool %d, which has room", n+1, seat.Pool)
			}
			rank, ok := s.Rank(seat)
			if !ok || ranks[rank] {
				t.Fatalf("seat %v has the rank %d (%t), which another has: %t", seat, rank, ok, ranks[rank])
			}
			ranks[rank] = true
			held[seat.Pool]++
		}
	})
}

// Pools that are for nobody get nothing, and the others are divided as if there were no others.
func TestWithoutPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := shortageGen.Draw(t, "strategy")
		whole := strategy(t, sequence.EarlierWins, drawn.Pools...)
		left := make([]bool, whole.Len())
		var others []sequence.Pool
		weights := int64(0)
		for i, p := range drawn.Pools {
			if left[i] = rapid.Bool().Draw(t, "left"); !left[i] {
				others = append(others, p)
				weights += p.Weight
			}
		}
		for i := range others {
			if weights == 0 {
				others[i].Weight = others[i].Overflow
			}
		}
		s := whole.WithoutPools(left)
		if alone, err := sequence.New(others, sequence.EarlierWins); err != nil {
			if n := s.Capacity(); n != 0 {
				t.Fatalf("%d pods have a seat, though nobody is to have any: %v", n, err)
			}
		} else {
			for n := range int64(60) {
				var got []int64
				for i := range left {
					if target := s.Target(i, n); !left[i] {
						got = append(got, target)
					} else if target != 0 {
						t.Fatalf("pool %d gets %d of %d", i, target, n)
					}
				}
				if want := targets(alone, n); !slices.Equal(got, want) {
					t.Fatalf("of %d the others get %v, not %v", n, got, want)
				}
			}
		}
		for i, p := range drawn.Pools {
			if left[i] && (p.Base > 0 || p.Weight > 0 || p.Overflow > 0) && s.Same(whole) {
				t.Fatalf("the strategy without pool %d is taken as the whole one", i)
			}
		}
	})
}
