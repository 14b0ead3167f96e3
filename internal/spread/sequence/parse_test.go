package sequence_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func TestParse(t *testing.T) {
	cases := map[string]struct {
		text string
		n    int64
		want []int64
	}{
		"the documented strategy": {
			text: "nodesize=od4vcpu16gb,base=1,weight=0:nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1",
			n:    10, want: []int64{1, 4, 5},
		},
		"Karpenter's label":     {text: "karpenter.sh/capacity-type=on-demand,base=2,weight=1:karpenter.sh/capacity-type=spot,weight=3", n: 10, want: []int64{4, 6}},
		"spaces":                {text: " a=b , base = 1 : c=d , weight=1 ", n: 3, want: []int64{1, 2}},
		"several labels":        {text: "a=b,c=d,weight=1:a=b,c=e,weight=1", n: 4, want: []int64{2, 2}},
		"an empty label value":  {text: "a=,weight=1", n: 4, want: []int64{4}},
		"an absent label":       {text: "!spot,weight=1:spot=true,weight=4", n: 5, want: []int64{1, 4}},
		"other values":          {text: "type != spot , type!=gpu,weight=1:type=spot,weight=1", n: 2, want: []int64{1, 1}},
		"settings in any order": {text: "weight=1,a=b,base=3:weight=1,a=c", n: 5, want: []int64{4, 1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := sequence.Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, targets(s, tc.n)); diff != "" {
				t.Errorf("target(%d) (-want +got):\n%s", tc.n, diff)
			}
		})
	}
}

// The longest text and the most pools are taken, and pools are called by their places.
func TestParseAtItsLimits(t *testing.T) {
	var parts []string
	for i := range sequence.MaxPools {
		parts = append(parts, fmt.Sprintf("p=%d,weight=1", i))
	}
	text := strings.Join(parts, ":")
	s, err := sequence.Parse(text + strings.Repeat(" ", sequence.MaxText-len(text)))
	if err != nil || s.Len() != sequence.MaxPools {
		t.Fatalf("%d pools: %v", s.Len(), err)
	}
	if first, last := s.Pool(0).Name, s.Pool(sequence.MaxPools-1).Name; first != "0" || last != "31" {
		t.Errorf("the pools are called %s to %s", first, last)
	}
}

// A pool of thousands of labels, which a text of the longest length can have, is refused before any of them is looked at.
func TestParseIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("weight=1")
	for i := 0; b.Len() < sequence.MaxText-10; i++ {
		fmt.Fprintf(&b, ",k%x=1", i)
	}
	var err error
	if n := testing.AllocsPerRun(1, func() { _, err = sequence.Parse(b.String()) }); n > 50 {
		t.Errorf("%d labels make %v allocations", strings.Count(b.String(), ","), n)
	}
	if want := "settings; it may have 34: base, weight, 16 node labels and"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want it to contain %s", err, want)
	}
}

func TestParseRefuses(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"nothing":               {"", `pool 0 (""): it is empty`},
		"an empty pool":         {"a=b,weight=1:", `pool 1 (""): it is empty`},
		"no equals sign":        {"a=b,weight", `pool 0 ("a=b,weight"): "weight" has no equals sign`},
		"a word for a number":   {"a=b,weight=much", `weight is "much"; expected a whole number from 0`},
		"a negative base":       {"a=b,base=-1,weight=1", `base is "-1"`},
		"a fraction":            {"a=b,weight=0.5", `weight is "0.5"`},
		"no label":              {"base=1,weight=1", "it has no node label"},
		"a label key":           {"a b=c,weight=1", `"a b" is no label key`},
		"a label value":         {"a=b/c,weight=1", `"b/c" is no value of label a`},
		"a key given twice":     {"a=b,a=c,weight=1", "a is given twice"},
		"a long key":            {strings.Repeat("a", 600) + "=b,weight=1", "a setting has 602 characters; it may have 512"},
		"17 labels":             {"weight=1,a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1,n=1,o=1,p=1,q=1", "there are 17 node labels; there may be 16"},
		"two pools, both wrong": {"a=b,weight=x:weight=1", `pool 1 ("weight=1"): it has no node label`},
		"too many pools":        {strings.Repeat("p=a,weight=1:", 100) + "p=a,weight=1", "there are 101 pools; expected at most 32"},
		"too long a text":       {"p=a,weight=1" + strings.Repeat(" ", sequence.MaxText), "it has more than 8192 characters"},
		"no base and no weight": {"a=b:c=d,weight=0", "no pool ever gets a pod"},
		"an absent base":        {"!base,weight=1", "base is no label here; expected base=1"},
		"no value of weight":    {"a=b,weight!=3", "weight is no label here; expected weight=1"},
		"an absent label twice": {"!a,!a,weight=1", "!a is given twice"},
		"an absent key":         {"!a b,weight=1", `"a b" is no label key`},
		"no other value":        {"a!=b/c,weight=1", `"b/c" is no value of label a`},
		"a contradiction":       {"a=b,a!=b,weight=1", `pool 0 ("a=b,a!=b,weight=1"): no node can meet both a=b and a!=b`},
		"absent and there":      {"a=b,!a,weight=1", "no node can meet both a=b and !a"},
		"equal other pools":     {"!a,weight=1:! a,base=1", "pool 1: has the same node labels as pool 0"},
		"equal pools":           {"a=b,weight=1:a=b,base=1", "pool 1: has the same node labels as pool 0"},
		"a weight over the top": {"a=b,weight=1001", "pool 0: weight is 1001; it must be 0 to 1000"},
		"a number over the top": {"a=b,weight=99999999999999999999", `weight is "99999999999999999999"`},
		"a huge base":           {"a=b,base=9999999999", "base is 9999999999; it must be 0 to 2147483647"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := sequence.Parse(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want it to contain %s", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nodesize=a,base=1,weight=0:nodesize=b,weight=1")
	f.Add(":::,,,===")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := sequence.Parse(text)
		if err != nil {
			return
		}
		var sum int64
		for _, n := range targets(s, 1000) {
			sum += n
		}
		if sum != min(1000, s.Capacity()) {
			t.Errorf("target(1000) of %q adds up to %d", text, sum)
		}
	})
}
