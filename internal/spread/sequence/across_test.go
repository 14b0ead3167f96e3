package sequence

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseAcross(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"topology.kubernetes.io/zone: zone-a, zone-b, zone-c=2": "topology.kubernetes.io/zone [{zone-a 1} {zone-b 1} {zone-c 2}]",
		"zone:a":             "zone [{a 1}]",
		" zone : a = 3 , b ": "zone [{a 3} {b 1}]",
		"zone a":             "it must be a label key, a colon and values",
		"":                   "it must be a label key, a colon and values",
		"zone: a=x":          `the weight of a is "x"`,
		"zone: a=":           `the weight of a is ""`,
		"zone: a" + strings.Repeat(" ", MaxAcross): "it must be a label key, a colon and values",
	} {
		a, err := ParseAcross(text)
		got := fmt.Sprint(a.Key, " ", a.Domains)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

func TestWithDomains(t *testing.T) {
	t.Parallel()
	s, err := Parse("type=default,weight=1:type=spot,weight=4")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		across Across
		want   string
	}{
		"a bad key":     {Across{Key: "a b", Domains: []Domain{{"a", 1}}}, `the topology key is "a b"`},
		"no domain":     {Across{Key: "zone"}, "there are 0 domains"},
		"an empty name": {Across{Key: "zone", Domains: []Domain{{"", 1}}}, `domain 1 is ""`},
		"a name twice":  {Across{Key: "zone", Domains: []Domain{{"a", 1}, {"a", 1}}}, `domain 2 is "a", as an earlier one is`},
		"a weight of 0": {Across{Key: "zone", Domains: []Domain{{"a", 0}}}, "weight is 0; it must be 1 to 100"},
		"a pool's key":  {Across{Key: "type", Domains: []Domain{{"a", 1}}}, "pool 0 has the label type"},
	} {
		if _, err := s.WithDomains(tc.across); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	over, err := s.WithDomains(Across{Key: "zone", Domains: []Domain{{"a", 1}, {"b", 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if over.Same(s) || over.Without([]Gap{{}, {Count: All}}).Across() == nil || over.WithoutPools([]bool{true, false}).Across() == nil {
		t.Error("the domains are no part of the strategy, or of one that follows from it")
	}
	for node, want := range map[string]int{"type=spot,zone=a": 1, "type=spot,zone=c": -1, "type=spot": -1, "type=other,zone=a": -1} {
		labels := map[string]string{}
		for label := range strings.SplitSeq(node, ",") {
			k, v, _ := strings.Cut(label, "=")
			labels[k] = v
		}
		if got := over.PoolOfNode(labels); got != want {
			t.Errorf("a node with %s is in pool %d, want %d", node, got, want)
		}
	}
	if got := fmt.Sprint(over.Nodes(1, 1), over.Nodes(1, -1), over.Keys(0)); got != "type=spot,zone=b type=spot [type zone]" {
		t.Errorf("the selectors are %s", got)
	}
}

// Each cell has its place in a list of all, pool by pool.
func TestCells(t *testing.T) {
	pools, err := Parse("p=a,weight=1:p=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	over, err := pools.WithDomains(Across{Key: "zone", Domains: []Domain{{Value: "x", Weight: 1}, {Value: "y", Weight: 1}, {Value: "z", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[*Strategy]int{pools: 1, over: 3, over.Without([]Gap{{From: 1, Count: All}, {}}): 3} {
		cells := s.Cells()
		if cells.OfPool() != want || cells.Len() != 2*want {
			t.Errorf("there are %d cells, %d in a pool; want %d", cells.Len(), cells.OfPool(), want)
		}
		for i := range cells.Len() {
			at := cells.At(i)
			if at != (Cell{i / want, i % want}) || cells.Index(at) != i {
				t.Errorf("cell %d is %v, whose place is %d", i, at, cells.Index(at))
			}
			selector := s.NodesOf(at)
			if selector.Labels["p"] != []string{"a", "b"}[at.Pool] || want == 3 && selector.Labels["zone"] != []string{"x", "y", "z"}[at.Domain] {
				t.Errorf("the nodes of %v have the labels %v", at, selector)
			}
		}
	}
}
