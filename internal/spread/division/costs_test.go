package division

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Pods a1, b1, a2 and b2 have the ranks 1 to 4 of the pools a and b, and the costs that a case gives them. A cost of 0 is none.
func TestCosts(t *testing.T) {
	t.Parallel()
	const ours = 100 // minus the rank
	for name, tc := range map[string]struct {
		costs [4]int64  // of a1, b1, a2, b2
		nodes [4]string // of them
		want  Costs
	}{
		"ours":                                      {costs: [4]int64{99, 98, 97, 96}},
		"a foreign one in the same order":           {costs: [4]int64{99, 98, 50, 40}, want: Costs{Foreign: 2}},
		"those of one pool are gone":                {costs: [4]int64{0, 98, 0, 96}, want: Costs{Foreign: 2, Uneven: true}},
		"those of the last pods are gone":           {costs: [4]int64{99, 98, 97, 0}, want: Costs{Foreign: 1}},
		"two that are gone, of two pools":           {costs: [4]int64{99, 98, 0, 0}, want: Costs{Foreign: 2, Uneven: true}},
		"two of one pool change places":             {costs: [4]int64{50, 98, 99, 96}, want: Costs{Foreign: 2, Uneven: true}},
		"the first would go last, as the third":     {costs: [4]int64{97, 98, 200, 96}, want: Costs{Foreign: 2}},
		"a pod of another pool goes first":          {costs: [4]int64{1, 98, 97, 96}, want: Costs{Foreign: 1, Uneven: true}},
		"negative, the same on each node":           {costs: [4]int64{-2, 98, -2, 96}, nodes: [4]string{"n", "s", "n", "s"}, want: Costs{Foreign: 2, Uneven: true, ByNode: true}},
		"negative by node, and the others are gone": {costs: [4]int64{-2, 0, -1, 0}, nodes: [4]string{"n", "s", "m", "s"}, want: Costs{Foreign: 4, Uneven: true, ByNode: true}},
		"negative, and not the same on a node":      {costs: [4]int64{-2, 98, -1, 96}, nodes: [4]string{"n", "s", "n", "s"}, want: Costs{Foreign: 2, Uneven: true}},
		"negative by node, and one that is not":     {costs: [4]int64{-2, 7, -2, 96}, nodes: [4]string{"n", "s", "n", "s"}, want: Costs{Foreign: 3, Uneven: true}},
	} {
		var pods []Pod
		for i, cost := range tc.costs {
			rank := int64(i + 1)
			pods = append(pods, Pod{Pool: []string{"a", "b"}[i%2], NodeName: tc.nodes[i], Cost: cost, Rank: rank, ForeignCost: cost != ours-rank})
		}
		if diff := cmp.Diff(tc.want, costsOf(pods)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCostsOfOwners(t *testing.T) {
	t.Parallel()
	byNode, other := Costs{Foreign: 2, Uneven: true, ByNode: true}, Costs{Foreign: 1}
	for name, tc := range map[string]struct {
		of   []Costs
		want Costs
	}{
		"none":                    {of: []Costs{{}, {}}},
		"of one":                  {of: []Costs{{}, byNode, {}}, want: byNode},
		"all by node":             {of: []Costs{byNode, byNode}, want: Costs{Foreign: 4, Uneven: true, ByNode: true}},
		"another one, then these": {of: []Costs{other, byNode}, want: Costs{Foreign: 3, Uneven: true}},
		"these, then another one": {of: []Costs{byNode, other}, want: Costs{Foreign: 3, Uneven: true}},
	} {
		var got Costs
		for _, c := range tc.of {
			got.add(c)
		}
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
