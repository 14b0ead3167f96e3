package layers_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stowage-dev/stowage/internal/scaledown/layers"
)

func TestStep(t *testing.T) {
	pods := []layers.Ranked{{"a", -2}, {"a", -1}, {"b", -1}, {"c", 0}, {"a", 5}}
	for n, want := range map[int]string{0: "[]", 1: "[4]", 2: "[3 4]", 3: "[2 3 4]", 4: "[1 2 3 4]", 5: "[0 1 2 3 4]", 9: "[0 1 2 3 4]"} {
		if got := fmt.Sprint(layers.Step(pods, n)); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// The least skew is that of taking pods one by one from a value that has most.
func TestLeastSkew(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 79))
	for range 2000 {
		counts, sum := map[string]int{}, 0
		for v := range 1 + r.IntN(5) {
			counts[fmt.Sprint(v)] = r.IntN(9)
			sum += counts[fmt.Sprint(v)]
		}
		left := maps.Clone(counts)
		for n := sum; n >= 0; n-- {
			if got, want := layers.LeastSkew(counts, n), layers.Skew(left); got != want {
				t.Fatalf("%d of %v: %d, want %d, as in %v", n, counts, got, want, left)
			}
			most := ""
			for v, n := range left {
				if most == "" || n > left[most] {
					most = v
				}
			}
			left[most]--
		}
	}
}

func TestSkew(t *testing.T) {
	for want, counts := range map[int]map[string]int{0: nil, 1: {"a": 3, "b": 4}, 5: {"a": 5, "b": 0}, 2: {"a": 3, "b": 5, "c": 4}} {
		if got := layers.Skew(counts); got != want {
			t.Errorf("%v: %d, want %d", counts, got, want)
		}
	}
}
