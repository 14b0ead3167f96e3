package sequence

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
)

var limitedWeights = flag.Int64("limited-weights", 3, "the largest weight that the tests of percentages try")

// limitedPools calls use with pools of all weights, bases and percentages. At least one of them has no percentage.
func limitedPools(t *testing.T, count int, use func(pools []Pool)) {
	t.Helper()
	pools := make([]Pool, count)
	var fill func(i int)
	fill = func(i int) {
		if i == count {
			free := false
			for _, p := range pools {
				free = free || p.MaxShare == 0
			}
			if free {
				use(append([]Pool(nil), pools...))
			}
			return
		}
		for w := int64(1); w <= *limitedWeights; w++ {
			for base := range int64(2) {
				for _, percent := range []int64{0, 10, 25, 33, 50, 75} {
					pools[i] = Pool{Name: fmt.Sprint("p", i), Labels: map[string]string{"p": fmt.Sprint(i)}, Weight: w, Base: base, MaxShare: percent}
					fill(i + 1)
				}
			}
		}
	}
	fill(0)
}

// keepsLimits checks the targets of a strategy up to n. Shut is a pool without room, or -1.
func keepsLimits(t *testing.T, s *Strategy, pools []Pool, n int64, shut int, bases int64) (worst float64) {
	t.Helper()
	before := make([]int64, len(pools))
	for m := range n + 1 {
		sum, grown := int64(0), 0
		for i, p := range pools {
			now := s.Target(i, m)
			sum += now
			if now < before[i] || now > before[i]+1 {
				t.Fatalf("%+v, shut %d: pool %d has %d of %d seats, and %d of one less", pools, shut, i, now, m, before[i])
			}
			if now > before[i] {
				grown++
			}
			before[i] = now
			if limit := p.Base + p.MaxShare*max(0, m-bases)/100; p.MaxShare > 0 && i != shut && now > limit {
				t.Fatalf("%+v, shut %d: pool %d has %d of %d seats; it may have %d", pools, shut, i, now, m, limit)
			}
			worst = max(worst, math.Abs(float64(now)-s.Share(i, m)))
		}
		if sum != m || m > 0 && grown != 1 {
			t.Fatalf("%+v, shut %d: %d seats of %d", pools, shut, sum, m)
		}
	}
	for rank := int64(1); rank <= n; rank++ {
		seat, err := s.SeatAt(rank)
		if err != nil {
			t.Fatalf("%+v, shut %d: rank %d: %v", pools, shut, rank, err)
		}
		if back, ok := s.Rank(seat); !ok || back != rank {
			t.Fatalf("%+v, shut %d: the seat %v of rank %d has rank %d", pools, shut, seat, rank, back)
		}
	}
	return worst
}

// Pools keep to their percentages at every count, grow by one seat at a time, and are near their shares.
func TestLimited(t *testing.T) {
	t.Parallel()
	for count, bound := range map[int]float64{2: 1, 3: 2} {
		worst, tried := 0., 0
		limitedPools(t, count, func(pools []Pool) {
			if count == 3 && (pools[0].Weight+pools[1].Weight*3+pools[2].Weight*5)%4 != 0 && *limitedWeights <= 3 {
				return // a quarter of them
			}
			s, err := New(pools, EarlierWins)
			if err != nil {
				t.Fatalf("%+v: %v", pools, err)
			}
			bases := int64(0)
			for _, p := range pools {
				bases += p.Base
			}
			worst = max(worst, keepsLimits(t, s, pools, 150, -1, bases))
			tried++
		})
		if t.Logf("%d pools: %d strategies, at most %.2f pods from the share", count, tried, worst); worst > bound {
			t.Errorf("%d pools: %.2f pods from the share", count, worst)
		}
	}
}

// While a pool has no room, the others keep to their percentages. What none may take are seats of the pool without room.
func TestLimitedShortage(t *testing.T) {
	t.Parallel()
	limitedPools(t, 2, func(pools []Pool) {
		if pools[0].MaxShare+pools[1].MaxShare == 0 {
			return // then ranks are those of the whole strategy
		}
		s, err := New(pools, EarlierWins)
		if err != nil {
			t.Fatal(err)
		}
		for shut := range pools {
			for _, from := range []int64{0, 1, 4} {
				gaps := make([]Gap, len(pools))
				gaps[shut] = Gap{From: from, Count: All}
				bases := int64(0)
				for i, p := range pools {
					if i == shut {
						bases += min(p.Base, from)
					} else {
						bases += p.Base
					}
				}
				short := s.Without(gaps)
				keepsLimits(t, short, pools, 120, shut, bases)
				if other := 1 - shut; pools[other].MaxShare == 0 && short.Target(shut, 120) != from {
					t.Errorf("%+v: pool %d has %d seats, and room for %d", pools, shut, short.Target(shut, 120), from)
				}
				if short.Same(s) {
					t.Error("the strategy is the same")
				}
			}
		}
	})
}

// The shares are reduced to the percentages, and the others scaled up.
func TestLimitedShares(t *testing.T) {
	t.Parallel()
	s, err := New([]Pool{
		{Name: "od", Labels: map[string]string{"p": "a"}, Weight: 20},
		{Name: "spot", Labels: map[string]string{"p": "b"}, Weight: 60, MaxShare: 50},
		{Name: "edge", Labels: map[string]string{"p": "c"}, Weight: 20, MaxShare: 30},
	}, EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Target(0, 100), s.Target(1, 100), s.Target(2, 100)); got != "25 50 25" {
		t.Errorf("100 pods are %s", got)
	}
	if got := fmt.Sprint(s.Target(0, 1), s.Target(1, 1), s.Target(1, 2)); got != "1 0 1" {
		t.Errorf("the first seats are %s", got)
	}
	// Spot has no room: its pods go to od, and to edge as far as its percentage allows.
	short := s.Without([]Gap{{}, {From: 10, Count: All}, {}})
	if got := fmt.Sprint(short.Target(0, 100), short.Target(1, 100), short.Target(2, 100)); got != "61 10 29" && got != "62 10 28" {
		t.Errorf("without room in spot, 100 pods are %s", got)
	}
	// Od has no room: the others stay at their percentages, and the rest waits for od.
	short = s.Without([]Gap{{From: 0, Count: All}, {}, {}})
	if got := fmt.Sprint(short.Target(0, 100), short.Target(1, 100), short.Target(2, 100)); got != "21 49 30" {
		t.Errorf("without room in od, 100 pods are %s", got)
	}
}

// A pool whose share is nothing, because the percentages of the others are all, has the seats that those may not have.
func TestLimitedByAHundred(t *testing.T) {
	t.Parallel()
	pools := []Pool{
		{Name: "rest", Labels: map[string]string{"p": "a"}, Weight: 1},
		{Name: "b", Labels: map[string]string{"p": "b"}, Weight: 100, MaxShare: 50},
		{Name: "c", Labels: map[string]string{"p": "c"}, Weight: 100, MaxShare: 50},
	}
	s, err := New(pools, EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	keepsLimits(t, s, pools, 200, -1, 0)
}

func TestLimitedInvalid(t *testing.T) {
	t.Parallel()
	a, b := Pool{Labels: map[string]string{"p": "a"}, Weight: 1, MaxShare: 50}, Pool{Labels: map[string]string{"p": "b"}, Weight: 1}
	for want, pools := range map[string][]Pool{
		"at least one must have none":   {a, {Labels: b.Labels, Base: 3}},
		"as a number and":               {{Labels: a.Labels, Weight: 1, Max: 3, MaxShare: 50}, b},
		"must be 1% to 99%":             {{Labels: a.Labels, Weight: 1, MaxShare: 100}, b},
		"repeats only after more than ": {{Labels: a.Labels, Weight: 997, MaxShare: 33}, {Labels: b.Labels, Weight: 83}, {Labels: map[string]string{"p": "c"}, Weight: 89}},
	} {
		if _, err := New(pools, EarlierWins); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A pool without room that has a number as its maximum gets no more seats than that, whatever percentages leave over.
func TestLimitedByNumberAndPercentage(t *testing.T) {
	t.Parallel()
	s, err := New([]Pool{
		{Name: "od", Labels: map[string]string{"p": "a"}, Weight: 20, Max: 10},
		{Name: "spot", Labels: map[string]string{"p": "b"}, Weight: 80, MaxShare: 50},
	}, EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Target(0, 100), s.Target(1, 100)); got != "10 90" {
		t.Errorf("100 pods are %s", got) // nobody else may have them
	}
	short := s.Without([]Gap{{From: 4, Count: All}, {}})
	if got := fmt.Sprint(short.Target(0, 100), short.Target(1, 100)); got != "4 96" {
		t.Errorf("without room in od, 100 pods are %s", got)
	}
}

// A pool that reaches its number before the percentages repeat gets no seat after that.
func TestLimitedFullEarly(t *testing.T) {
	t.Parallel()
	s, err := New([]Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Weight: 2, MaxShare: 10},
		{Name: "b", Labels: map[string]string{"p": "b"}, Weight: 3, Max: 6},
		{Name: "c", Labels: map[string]string{"p": "c"}, Weight: 2, MaxShare: 30},
	}, EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Target(1, 100); got != 6 {
		t.Errorf("of 100 pods, b has %d", got)
	}
}
