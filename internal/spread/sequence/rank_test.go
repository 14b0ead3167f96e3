package sequence

import (
	"cmp"
	"slices"
	"strconv"
	"testing"
)

func TestRankOfCost(t *testing.T) {
	for name, tc := range map[string]struct {
		cost        string
		own, signed int64
		want        int64
	}{
		"the seat's rank":                            {"9999993", 7, 7, 7},
		"a claim without a rank":                     {"9999993", 7, 0, 7},
		"the rank before the strategy changed":       {"9999991", 7, 9, 9},
		"the same, and the claim has no rank":        {"9999991", 7, 0, 0},
		"the first rank before the strategy changed": {"9999999", 7, 1, 1},
		"a user's":                                             {"100", 7, 7, 0},
		"a user's, as the largest that there is":               {"2147483647", 7, 7, 0},
		"a user's, after ours":                                 {"5", 7, 7, 0},
		"a user's, as that of no rank":                         {"10000000", 7, 0, 0},
		"the same, of a pod whose seat is not in the sequence": {"10000000", 10_000_000, 0, 0},
		"a rank below the first":                               {"10000001", 7, -1, 0},
		"a number below none":                                  {"-5", 7, 7, 0},
		"no number":                                            {"many", 7, 7, 0},
		"none":                                                 {"", 7, 7, 0},
	} {
		if got := RankOfCost(tc.cost, tc.own, tc.signed); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	for _, rank := range []int64{10_000_000, 1 << 40} {
		if got := DeletionCost(rank); got != "1" {
			t.Errorf("the cost of rank %d is %s; a pod without a rank has cost 0 and must go before it", rank, got)
		}
	}
}

// The last pods of the sequence stay longer than the first of the overflow, and these longer than pods that have no rank.
func TestOrderOfRanks(t *testing.T) {
	whole, err := New([]Pool{{Name: "a", Base: 3, Overflow: 1, Labels: map[string]string{"p": "a"}}, {Name: "b", Base: 1, Labels: map[string]string{"p": "b"}}, {Name: "c", Weight: 1, Labels: map[string]string{"p": "c"}}}, EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	s := whole.Without([]Gap{{}, {}, {Count: All}})
	seats := []Seat{{0, 1}, {0, 3}, {1, 1}, {0, 4}, {0, 1000}, {1, 2}}
	var costs []int64
	for _, seat := range seats {
		cost, err := strconv.ParseInt(DeletionCost(s.RankOrNone(seat)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		costs = append(costs, cost)
	}
	if !slices.IsSortedFunc(costs, func(a, b int64) int { return cmp.Compare(b, a) }) || costs[len(costs)-1] != 1 || len(slices.Compact(costs)) < len(seats) {
		t.Errorf("the seats %v, in the order in which they are to stay, have the costs %v", seats, costs)
	}
	if rank, ok := s.Rank(Seat{0, 4}); !ok || rank <= OverflowRank {
		t.Errorf("the first overflow seat has rank %d, %t", rank, ok)
	}
}
