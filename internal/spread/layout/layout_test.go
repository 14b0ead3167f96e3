package layout_test

import (
	"testing"

	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// No pool gets more pods of a StatefulSet than it may have, and no base twice, whichever pools are unsuitable.
func TestDisplacedPodsKeepMaxima(t *testing.T) {
	whole, err := sequence.New([]sequence.Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Base: 2, Weight: 1, Max: 5}, {Name: "b", Labels: map[string]string{"p": "b"}, Base: 1, Weight: 2},
		{Name: "c", Labels: map[string]string{"p": "c"}, Weight: 1},
	}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	l := testkit.Layout(whole, layout.Workload{Ordinals: &layout.Ordinals{}, Unsuitable: []string{"", "no", ""}})
	have := make([]int64, 3)
	for rank := int64(1); rank <= 100; rank++ {
		seat, err := l.OfOrdinal(rank)
		if err != nil {
			t.Fatalf("pod %d has no seat: %v", rank, err)
		}
		have[seat.Pool]++
	}
	if have[0] != 5 || have[1] != 0 || have[2] != 95 {
		t.Errorf("the pools have %v of 100 pods", have)
	}
	if got := whole.Displaced([]bool{false, true, true}); got.Capacity() != 0 {
		t.Errorf("%d more pods get a seat beside the five of a", got.Capacity())
	}
}
