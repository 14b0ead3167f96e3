package sequence_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// pool is a pool whose label says its name.
func pool(name string, base, weight, max int64) sequence.Pool {
	return sequence.Pool{Name: name, Labels: map[string]string{"pool": name}, Base: base, Weight: weight, Max: max}
}

func strategy(t interface {
	Helper()
	Fatal(...any)
}, tie sequence.Tie, pools ...sequence.Pool) *sequence.Strategy {
	t.Helper()
	s, err := sequence.New(pools, tie)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func targets(s *sequence.Strategy, n int64) []int64 {
	out := make([]int64, s.Len())
	for i := range out {
		out[i] = s.Target(i, n)
	}
	return out
}

func TestKnownTargets(t *testing.T) {
	sizes := []sequence.Pool{pool("od4", 1, 0, 0), pool("spot4", 0, 1, 0), pool("spot8", 0, 1, 0)}
	eighty := []sequence.Pool{pool("default", 0, 80, 0), pool("spot", 0, 20, 0)}
	capacity := []sequence.Pool{pool("on-demand", 2, 1, 0), pool("spot", 0, 3, 0)}
	capped := []sequence.Pool{pool("a", 1, 1, 3), pool("b", 0, 1, 0), pool("c", 0, 2, 2)}
	cases := map[string]struct {
		tie   sequence.Tie
		pools []sequence.Pool
		n     int64
		want  []int64
	}{
		"the documented sizes at 10":              {sequence.LaterWins, sizes, 10, []int64{1, 4, 5}},
		"the documented sizes at 1":               {sequence.LaterWins, sizes, 1, []int64{1, 0, 0}},
		"80:20 at 10":                             {sequence.EarlierWins, eighty, 10, []int64{8, 2}},
		"80:20 at 3":                              {sequence.EarlierWins, eighty, 3, []int64{2, 1}},
		"80:20 at 25":                             {sequence.EarlierWins, eighty, 25, []int64{20, 5}},
		"a base of two, then 1:3, at 10":          {sequence.LaterWins, capacity, 10, []int64{4, 6}},
		"nothing at 0":                            {sequence.LaterWins, capacity, 0, []int64{0, 0}},
		"a tie goes to the later pool":            {sequence.LaterWins, sizes[1:], 1, []int64{0, 1}},
		"a tie goes to the earlier pool":          {sequence.EarlierWins, sizes[1:], 1, []int64{1, 0}},
		"full pools leave the rest to others":     {sequence.EarlierWins, capped, 12, []int64{3, 7, 2}},
		"a pool switched off gets nothing":        {sequence.EarlierWins, []sequence.Pool{pool("a", 0, 100, 0), pool("b", 0, 0, 0)}, 7, []int64{7, 0}},
		"one pool takes all":                      {sequence.EarlierWins, []sequence.Pool{pool("a", 0, 7, 0)}, 1_000_000, []int64{1_000_000}},
		"beyond the capacity nothing is added":    {sequence.EarlierWins, []sequence.Pool{pool("a", 0, 1, 2), pool("b", 3, 0, 0)}, 99, []int64{2, 3}},
		"a base above the maximum is cut":         {sequence.EarlierWins, []sequence.Pool{pool("a", 5, 1, 2), pool("b", 0, 1, 0)}, 10, []int64{2, 8}},
		"bases are filled in the listed order":    {sequence.EarlierWins, []sequence.Pool{pool("a", 2, 0, 0), pool("b", 2, 1, 0)}, 3, []int64{2, 1}},
		"large numbers do not overflow":           {sequence.EarlierWins, []sequence.Pool{pool("a", math.MaxInt32, 1000, math.MaxInt32), pool("b", 0, 999, 0)}, math.MaxInt32 + 5, []int64{math.MaxInt32, 5}},
		"weights that need a divisor are reduced": {sequence.EarlierWins, []sequence.Pool{pool("a", 0, 1000, 0), pool("b", 0, 500, 0)}, 3, []int64{2, 1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, targets(strategy(t, tc.tie, tc.pools...), tc.n)); diff != "" {
				t.Errorf("target(%d) (-want +got):\n%s", tc.n, diff)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := sequence.New([]sequence.Pool{
		{Name: "x", Base: -1, Weight: 1001, Max: -1, Overflow: 1001},
		pool("x", 0, 0, 0),
		pool("y", 1, 0, 0), {Name: "z", Labels: map[string]string{"pool": "y"}, Weight: 1},
	}, sequence.EarlierWins)
	for _, part := range []string{
		"pool 0: has no node label", "pool 0: base is -1", "pool 0: weight is 1001", "pool 0: overflow is 1001", "pool 0: the maximum is -1",
		`pool 1: has the same name as pool 0, "x"`, "pool 3: has the same node labels as pool 2",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in %v", part, err)
		}
	}
	if _, err := sequence.New([]sequence.Pool{pool("a", 0, 0, 0), pool("b", 0, 0, 0)}, sequence.EarlierWins); err == nil || !strings.Contains(err.Error(), "no pool ever gets a pod") {
		t.Errorf("pools that never get a pod: %v", err)
	}
	negative, most := pool("a", 0, 1, 0), pool("a", math.MaxInt32, sequence.MaxWeight, math.MaxInt32)
	negative.Overflow, most.Overflow = -1, sequence.MaxWeight
	if _, err := sequence.New([]sequence.Pool{negative}, sequence.EarlierWins); err == nil || !strings.Contains(err.Error(), "overflow is -1") {
		t.Errorf("a negative overflow: %v", err)
	}
	if _, err := sequence.New([]sequence.Pool{most}, sequence.EarlierWins); err != nil {
		t.Errorf("the largest numbers there may be: %v", err)
	}
	if _, err := sequence.New(nil, sequence.EarlierWins); err == nil {
		t.Error("a strategy without pools is accepted")
	}
	var many []sequence.Pool
	for i := range sequence.MaxPools + 1 {
		many = append(many, pool(fmt.Sprint(i), 0, 1, 0))
	}
	if _, err := sequence.New(many[:sequence.MaxPools], sequence.EarlierWins); err != nil {
		t.Errorf("the most pools there may be: %v", err)
	}
	if _, err := sequence.New(many, sequence.EarlierWins); err == nil || !strings.Contains(err.Error(), "there are 33 pools") {
		t.Errorf("one pool too many: %v", err)
	}
}

// weightsGen draws 1 to 8 weights between 1 and 100.
var weightsGen = rapid.SliceOfN(rapid.Int64Range(1, 100), 1, 8)

func weighted(weights []int64) []sequence.Pool {
	pools := make([]sequence.Pool, len(weights))
	for i, w := range weights {
		pools[i] = pool(fmt.Sprint(i), 0, w, 0)
	}
	return pools
}

// poolsGen draws any pools, with bases and maxima.
var poolsGen = rapid.Custom(func(t *rapid.T) []sequence.Pool {
	pools := make([]sequence.Pool, rapid.IntRange(1, 8).Draw(t, "pools"))
	for i := range pools {
		p := pool(fmt.Sprint(i), rapid.Int64Range(0, 4).Draw(t, "base"), rapid.Int64Range(0, 100).Draw(t, "weight"), 0)
		if rapid.IntRange(0, 2).Draw(t, "has a maximum") == 0 {
			p.Max = rapid.Int64Range(1, 60).Draw(t, "maximum")
		}
		pools[i] = p
	}
	if !slices.ContainsFunc(pools, func(p sequence.Pool) bool { return p.Base+p.Weight > 0 }) {
		pools[0].Weight = 1
	}
	return pools
})

var tieGen = rapid.Map(rapid.Bool(), func(later bool) sequence.Tie { return sequence.Tie(later) })

// No pool is ever further from its share than 1 - 1/(2k-2), and a period is exact.
func TestWeightsAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := weightsGen.Draw(t, "weights")
		s := strategy(t, tieGen.Draw(t, "tie"), weighted(weights)...)
		var sum int64
		for _, w := range weights {
			sum += w
		}
		k := int64(len(weights))
		for n := int64(0); n <= 3*sum; n++ {
			for i, w := range weights {
				// |count - n*w/sum| <= 1 - 1/(2k-2), times sum*(2k-2); one
				// pool is exact.
				off := s.Target(i, n)*sum - n*w
				if off < 0 {
					off = -off
				}
				if k == 1 && off != 0 || k > 1 && off*(2*k-2) > (2*k-3)*sum {
					t.Fatalf("target(%d) is %v of weights %v", n, targets(s, n), weights)
				}
				if n%sum == 0 && off != 0 {
					t.Fatalf("after whole periods, target(%d) is %v of weights %v", n, targets(s, n), weights)
				}
			}
		}
	})
}

// target grows by one seat at a time; ranks, seats and targets agree.
func TestSequenceIsHouseMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := strategy(t, tieGen.Draw(t, "tie"), poolsGen.Draw(t, "pools")...)
		last := min(s.Capacity(), 500)
		before := targets(s, 0)
		for n := int64(1); n <= last; n++ {
			seat, err := s.SeatAt(n)
			if err != nil {
				t.Fatalf("seat %d of %d: %v", n, s.Capacity(), err)
			}
			want := append([]int64(nil), before...)
			want[seat.Pool]++
			got := targets(s, n)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("target(%d) is not target(%d) and seat %v:\n%s", n, n-1, seat, diff)
			}
			if seat.Ordinal != got[seat.Pool] {
				t.Fatalf("seat %d is %v, but the pool has %d", n, seat, got[seat.Pool])
			}
			if rank, ok := s.Rank(seat); !ok || rank != n {
				t.Fatalf("the rank of seat %v is %d (%t), want %d", seat, rank, ok, n)
			}
			if p := s.Pool(seat.Pool); p.Max > 0 && got[seat.Pool] > p.Max {
				t.Fatalf("pool %d has %d pods of at most %d", seat.Pool, got[seat.Pool], p.Max)
			}
			before = got
		}
		if last == s.Capacity() {
			if _, err := s.SeatAt(last + 1); !errors.Is(err, sequence.ErrFull) {
				t.Fatalf("a seat beyond the capacity: %v", err)
			}
			if diff := cmp.Diff(before, targets(s, last+10)); diff != "" {
				t.Fatalf("target grows beyond the capacity:\n%s", diff)
			}
			for i := range s.Len() {
				if rank, ok := s.Rank(sequence.Seat{Pool: i, Ordinal: before[i] + 1}); ok {
					t.Fatalf("a seat beyond the capacity has rank %d", rank)
				}
			}
		}
	})
}

// chairs is the assignment as the paper has it, in rational numbers.
func chairs(weights []int64, steps int64, tie sequence.Tie) []int {
	k := int64(len(weights))
	var sum int64
	for _, w := range weights {
		sum += w
	}
	out := make([]int, 0, steps)
	counts := make([]int64, k)
	for n := int64(1); n <= steps; n++ {
		best, deadline := -1, new(big.Rat)
		for i, w := range weights {
			if k == 1 {
				best = i
				break
			}
			share, slack := big.NewRat(w, sum), big.NewRat(1, 2*k-2)
			due := new(big.Rat).Mul(share, new(big.Rat).SetInt64(n))
			due.Sub(due, new(big.Rat).SetInt64(counts[i]))
			if due.Cmp(slack) < 0 {
				continue
			}
			d := new(big.Rat).Sub(big.NewRat(1, 1), slack)
			d.Sub(d, due)
			d.Quo(d, share)
			if c := d.Cmp(deadline); best < 0 || c < 0 || c == 0 && tie == sequence.LaterWins {
				best, deadline = i, d
			}
		}
		counts[best]++
		out = append(out, best)
	}
	return out
}

func TestSequenceEqualsThePaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights, tie := weightsGen.Draw(t, "weights"), tieGen.Draw(t, "tie")
		s := strategy(t, tie, weighted(weights)...)
		const steps = 200
		for i, want := range chairs(weights, steps, tie) {
			seat, err := s.SeatAt(int64(i + 1))
			if err != nil {
				t.Fatal(err)
			}
			if seat.Pool != want {
				t.Fatalf("seat %d of weights %v is in pool %d, want %d", i+1, weights, seat.Pool, want)
			}
		}
	})
}

// Webster's divisor method, which other systems round by, is off by more than a pod
// here; the sequence is not. (The example that the design names.)
func TestWhereDivisorMethodsFail(t *testing.T) {
	weights := []int64{3, 24, 1, 8, 73}
	s := strategy(t, sequence.EarlierWins, weighted(weights)...)
	for n := int64(1); n <= 109; n++ {
		for i, w := range weights {
			if off := s.Target(i, n)*109 - n*w; off > 109*7/8 || off < -109*7/8 {
				t.Errorf("target(%d) is %v", n, targets(s, n))
			}
		}
	}
}

// held is the slow, obvious Held.
type held []map[int64]bool

func (h held) Count(pool int) int64 { return int64(len(h[pool])) }

func (h held) LowestFree(pool int) int64 {
	for n := int64(1); ; n++ {
		if !h[pool][n] {
			return n
		}
	}
}

// From any seats that n pods hold, filling up to R pods without deletions gives the
// first R seats, if no pool had more than its part of them.
func TestNextHealsHoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := strategy(t, tieGen.Draw(t, "tie"), poolsGen.Draw(t, "pools")...)
		replicas := min(s.Capacity(), int64(rapid.IntRange(1, 80).Draw(t, "replicas")))
		h := make(held, s.Len())
		for i := range h {
			h[i] = map[int64]bool{}
		}
		for n := int64(1); n <= replicas; n++ { // all, less some at random
			if seat, err := s.SeatAt(n); err == nil && rapid.Bool().Draw(t, "is there") {
				h[seat.Pool][seat.Ordinal] = true
			}
		}
		for {
			var n int64
			for i := range h {
				n += h.Count(i)
			}
			if n == replicas {
				break
			}
			seat, err := s.Next(h)
			if err != nil {
				t.Fatal(err)
			}
			if h[seat.Pool][seat.Ordinal] {
				t.Fatalf("seat %v is taken twice", seat)
			}
			h[seat.Pool][seat.Ordinal] = true
		}
		for i := range h {
			if h.Count(i) != s.Target(i, replicas) || h.LowestFree(i) != s.Target(i, replicas)+1 {
				t.Fatalf("pool %d holds %v, want 1 to %d", i, h[i], s.Target(i, replicas))
			}
		}
		if replicas == s.Capacity() {
			if _, err := s.Next(h); !errors.Is(err, sequence.ErrFull) {
				t.Fatalf("one more pod than there is room for: %v", err)
			}
		}
	})
}

// Next takes the pool that lacks most, and of two that lack the same the one that the
// tie says.
func TestNextTakesTheLargestDeficit(t *testing.T) {
	abc := []sequence.Pool{pool("a", 0, 1, 0), pool("b", 0, 1, 0), pool("c", 0, 2, 0)}
	cases := map[string]struct {
		tie  sequence.Tie
		held counts
		want int
	}{
		// target(8) is 2, 2, 4 and target(9) one more somewhere.
		"the last lacks most":         {sequence.EarlierWins, counts{2, 1, 1}, 2},
		"the first lacks most":        {sequence.LaterWins, counts{0, 3, 4}, 0},
		"the middle lacks most":       {sequence.LaterWins, counts{1, 0, 4}, 1},
		"two lack the same, earlier":  {sequence.EarlierWins, counts{0, 0, 7}, 0},
		"two lack the same, later":    {sequence.LaterWins, counts{0, 0, 7}, 1},
		"a pool that is over is left": {sequence.LaterWins, counts{1, 9, 1}, 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := strategy(t, tc.tie, abc...)
			got, err := s.Next(tc.held)
			if err != nil {
				t.Fatal(err)
			}
			if want := (sequence.Seat{Pool: tc.want, Ordinal: tc.held[tc.want] + 1}); got != want {
				t.Errorf("got %v, want %v; target is %v", got, want, targets(s, tc.held[0]+tc.held[1]+tc.held[2]+1))
			}
		})
	}
}

// Where a pool reaches its maximum, the sequence goes on as a new one over the rest.
func TestEachSegmentIsASequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights, tie := rapid.SliceOfN(rapid.Int64Range(1, 20), 2, 5).Draw(t, "weights"), tieGen.Draw(t, "tie")
		pools := weighted(weights)
		left := make([]int64, len(pools)) // what each pool may still take; 0 is full
		for i := range pools {
			left[i] = math.MaxInt64
			if i > 0 { // one pool has no maximum
				pools[i].Max = rapid.Int64Range(1, 30).Draw(t, "maximum")
				left[i] = pools[i].Max
			}
		}
		s := strategy(t, tie, pools...)
		for rank := int64(1); rank <= 200; {
			var open []int // the pools of this segment
			var rest []int64
			for i := range pools {
				if left[i] > 0 {
					open, rest = append(open, i), append(rest, weights[i])
				}
			}
			for _, c := range chairs(rest, 200, tie) {
				want := open[c]
				seat, err := s.SeatAt(rank)
				if err != nil {
					t.Fatal(err)
				}
				if seat.Pool != want {
					t.Fatalf("seat %d is in pool %d, want %d", rank, seat.Pool, want)
				}
				rank++
				if left[want]--; left[want] == 0 || rank > 200 {
					break
				}
			}
		}
	})
}

func TestSeatsThatDoNotExist(t *testing.T) {
	s := strategy(t, sequence.EarlierWins, pool("a", 1, 0, 0), pool("b", 0, 1, 0))
	for _, seat := range []sequence.Seat{{Pool: -1, Ordinal: 1}, {Pool: 2, Ordinal: 1}, {Pool: 0, Ordinal: 0}, {Pool: 0, Ordinal: 2}} {
		if rank, ok := s.Rank(seat); ok || rank != 0 {
			t.Errorf("seat %v has rank %d", seat, rank)
		}
	}
	alone := strategy(t, sequence.EarlierWins, pool("a", 0, 1, 0))
	for ordinal, want := range map[int64]int64{math.MaxInt64 - 1: math.MaxInt64 - 1, math.MaxInt64: 0} { // the last one is no rank
		if rank, ok := alone.Rank(sequence.Seat{Ordinal: ordinal}); rank != want || ok != (want > 0) {
			t.Errorf("ordinal %d of the only pool has rank %d, %t", ordinal, rank, ok)
		}
	}
	capped := strategy(t, sequence.EarlierWins, pool("a", 0, 1, 5), pool("b", 0, 100, 5))
	for _, s := range []*sequence.Strategy{s, capped} {
		for _, ordinal := range []int64{1 << 58, math.MaxInt64 - 1, math.MaxInt64} {
			for i := range s.Len() {
				if rank, ok := s.Rank(sequence.Seat{Pool: i, Ordinal: ordinal}); ok && rank < ordinal {
					t.Errorf("ordinal %d of pool %d has rank %d", ordinal, i, rank)
				}
			}
		}
	}
	for _, rank := range []int64{0, -1} {
		if seat, err := s.SeatAt(rank); !errors.Is(err, sequence.ErrFull) {
			t.Errorf("rank %d is seat %v, %v", rank, seat, err)
		}
	}
}

// counts is a Held without holes.
type counts []int64

func (c counts) Count(pool int) int64      { return c[pool] }
func (c counts) LowestFree(pool int) int64 { return c[pool] + 1 }

func TestDecisionsDoNotAllocate(t *testing.T) {
	s := strategy(t, sequence.LaterWins, pool("a", 1, 80, 40), pool("b", 0, 20, 0), pool("c", 0, 7, 0))
	var h sequence.Held = counts{30, 10, 4}
	if n := testing.AllocsPerRun(100, func() {
		seat, err := s.Next(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Rank(seat); !ok {
			t.Fatal("no rank")
		}
	}); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}

// The cost of a decision does not grow with the number of pods.
func BenchmarkNext(b *testing.B) {
	s := strategy(b, sequence.LaterWins, pool("a", 1, 0, 0), pool("b", 0, 80, 0), pool("c", 0, 20, 0))
	for _, n := range []int64{10, 1_000, 1_000_000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			var h sequence.Held = counts(targets(s, n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Next(h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Shares add up to the pods, and a target is its share in whole pods.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pools := make([]sequence.Pool, rapid.IntRange(1, 6).Draw(t, "pools"))
		for i := range pools {
			pools[i] = pool(fmt.Sprint(i), rapid.Int64Range(0, 5).Draw(t, "base"), rapid.Int64Range(1, 100).Draw(t, "weight"), 0)
		}
		s := strategy(t, sequence.EarlierWins, pools...)
		n := rapid.Int64Range(0, 1000).Draw(t, "n")
		sum := 0.0
		for i := range pools {
			share, target := s.Share(i, n), float64(s.Target(i, n))
			sum += share
			if math.Abs(share-target) >= 1 {
				t.Errorf("pool %d has a share of %v and a target of %v of %d", i, share, target, n)
			}
		}
		if math.Abs(sum-float64(n)) > 1e-6 {
			t.Errorf("the shares of %d add up to %v", n, sum)
		}
	})
}

func TestSharesOfFullPools(t *testing.T) {
	// 1 base, then 1:1:2 until c has its 2, then 1:1 until a has its 3.
	s := strategy(t, sequence.EarlierWins, pool("a", 1, 1, 3), pool("b", 0, 1, 0), pool("c", 0, 2, 2))
	var got []float64
	for i := range s.Len() {
		got = append(got, s.Share(i, 12))
	}
	sum := got[0] + got[1] + got[2]
	if math.Abs(sum-12) > 1e-9 || math.Abs(got[0]-3) > 1 || math.Abs(got[2]-2) > 1 {
		t.Errorf("shares are %v", got)
	}
}
