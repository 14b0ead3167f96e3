package spill

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stowage-dev/stowage/internal/spread"
)

// twoPools returns a strategy over two pools.
func twoPools(t *testing.T, first, second int64) *spread.Strategy {
	t.Helper()
	s, err := spread.New([]spread.Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Weight: first}, {Name: "b", Labels: map[string]string{"p": "b"}, Weight: second},
	}, spread.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A rule with a limit leaves out so many seats that other pools take that part of the pods, for as many pods as there are or
// will be.
func TestLeftOut(t *testing.T) {
	s := twoPools(t, 20, 80)
	const spot = 1
	for name, tc := range map[string]struct {
		limit  intstr.IntOrString
		placed int64 // pods of spot that have a node
		n      int64 // when spot is exhausted
		later  int64
		want   int64 // pods that spot keeps later, with a node or without
	}{
		"half of 24":                        {intstr.FromString("50%"), 10, 30, 30, 12},
		"all of 24":                         {intstr.FromString("100%"), 0, 30, 30, 0},
		"five":                              {intstr.FromInt32(5), 10, 30, 30, 19},
		"more than wait":                    {intstr.FromInt32(20), 10, 30, 30, 10},
		"more than wait, of which 20 later": {intstr.FromInt32(20), 10, 30, 100, 61}, // one less moves, by rounding
		"one of one":                        {intstr.FromString("1%"), 0, 1, 2, 1},
		"pods that come later wait":         {intstr.FromInt32(5), 10, 30, 100, 75},
	} {
		t.Run(name, func(t *testing.T) {
			pools := make([]Pool, 2)
			pools[spot] = Pool{Phase: Exhausted, Epoch: 1, Max: tc.placed, LeftOut: Rule{MaxSpill: &tc.limit}.LeftOut(s, spot, tc.placed, tc.n)}
			if got := s.Without(Gaps(pools)).Target(spot, tc.later); got != tc.want {
				t.Errorf("with %d seats left out spot keeps %d of %d, not %d", pools[spot].LeftOut, got, tc.later, tc.want)
			}
		})
	}
	if got := (Rule{}).LeftOut(s, spot, 1, 10); got != 0 {
		t.Errorf("without a limit %d seats are left out, not all", got)
	}
}
