package nodeset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// is is a requirement: "key", an operator, and values.
func is(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

const (
	in, notIn, exists, doesNotExist = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist
	gt, lt                          = corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt
)

// What is too much is refused before it is looked at: the time for many labels or expressions does not grow with their square.
func TestNewIsBounded(t *testing.T) {
	const many = 1000
	equal := map[string]string{}
	for i := range many {
		if equal[fmt.Sprint("k", i)] = ""; len(equal) == MostLabels {
			if s, err := New(equal, nil); err != nil || len(s.Labels) != MostLabels {
				t.Fatalf("%d labels: %v", MostLabels, err)
			}
		}
	}
	var err error
	if n := testing.AllocsPerRun(1, func() { _, err = New(equal, nil) }); n > 20 {
		t.Errorf("%d labels make %v allocations", many, n)
	}
	if want := "there are 1000 node labels; there may be 16, so select the nodes by fewer labels"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	bad := slices.Repeat([]corev1.NodeSelectorRequirement{{}}, many)
	if n := testing.AllocsPerRun(1, func() { _, err = New(nil, bad) }); n > 20 || err == nil {
		t.Errorf("%d expressions make %v allocations, and the error %v", many, n, err)
	}
}

func TestNew(t *testing.T) {
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprint("v", i)
	}
	for name, tc := range map[string]struct {
		labels      map[string]string
		expressions []corev1.NodeSelectorRequirement
		want, err   string
	}{
		"equalities":                    {labels: map[string]string{"b": "2", "a": "1"}, want: "a=1,b=2"},
		"In with one value is equality": {expressions: []corev1.NodeSelectorRequirement{is("a", in, "1")}, want: "a=1"},
		"every operator": {map[string]string{"z": ""}, []corev1.NodeSelectorRequirement{
			is("f", lt, "9"), is("e", gt, "4"), is("d", doesNotExist), is("c", exists), is("b", notIn, "y", "x"), is("a", in, "2", "1"), is("g", notIn, "x")},
			"z=,a in (1,2),b notin (x,y),c,!d,e>4,f<9,g!=x", ""},
		"twice":                        {nil, []corev1.NodeSelectorRequirement{is("a", exists), is("a", exists)}, "a", ""},
		"an equality says more":        {map[string]string{"a": "1"}, []corev1.NodeSelectorRequirement{is("a", exists), is("a", in, "1", "2"), is("a", notIn, "3")}, "a=1", ""},
		"an equality contradicted":     {map[string]string{"a": "1"}, []corev1.NodeSelectorRequirement{is("a", notIn, "1")}, "", "no node can meet both a=1 and a!=1"},
		"two equalities":               {map[string]string{"a": "1"}, []corev1.NodeSelectorRequirement{is("a", in, "2")}, "", "no node can meet both a=1 and a=2"},
		"there and not there":          {nil, []corev1.NodeSelectorRequirement{is("a", exists), is("a", doesNotExist)}, "", "no node can meet both !a and a"},
		"a number and not there":       {nil, []corev1.NodeSelectorRequirement{is("a", gt, "1"), is("a", doesNotExist)}, "", "no node can meet both !a and a>1"},
		"no number between":            {nil, []corev1.NodeSelectorRequirement{is("a", gt, "4"), is("a", lt, "5")}, "", "no node can meet both a>4 and a<5"},
		"a number between":             {nil, []corev1.NodeSelectorRequirement{is("a", gt, "4"), is("a", lt, "6")}, "a>4,a<6", ""},
		"above all numbers":            {nil, []corev1.NodeSelectorRequirement{is("a", gt, "9223372036854775807")}, "", "no node can meet all of a>9223372036854775807"},
		"In, each value excluded":      {nil, []corev1.NodeSelectorRequirement{is("a", in, "1", "2"), is("a", notIn, "1"), is("a", notIn, "2")}, "", "no node can meet all of a in (1,2) and a!=1 and a!=2"},
		"In, no value above the bound": {nil, []corev1.NodeSelectorRequirement{is("a", in, "1", "x"), is("a", gt, "1")}, "", "no node can meet both a>1 and a in (1,x)"},
		"not there and not a value":    {nil, []corev1.NodeSelectorRequirement{is("a", doesNotExist), is("a", notIn, "1")}, "!a,a!=1", ""},
		"there and not a value":        {nil, []corev1.NodeSelectorRequirement{is("a", exists), is("a", notIn, "1")}, "a,a!=1", ""},
		"Gt of a word":                 {nil, []corev1.NodeSelectorRequirement{is("cores", gt, "many")}, "", `Gt of label cores is "many"; it must be a whole number`},
		"Gt of nothing":                {nil, []corev1.NodeSelectorRequirement{is("cores", gt)}, "", "Gt of label cores has 0 values; it must have one whole number"},
		"In of nothing":                {nil, []corev1.NodeSelectorRequirement{is("a", in)}, "", "In of label a has 0 values; it must have 1 to 64"},
		"100 values":                   {nil, []corev1.NodeSelectorRequirement{is("a", notIn, many...)}, "", "there are 1 expressions with 100 values together; there may be 16 with 64"},
		"Exists with a value":          {nil, []corev1.NodeSelectorRequirement{is("a", exists, "1")}, "", "Exists of label a has values; it must have none"},
		"no operator":                  {nil, []corev1.NodeSelectorRequirement{is("a", "Is", "1")}, "", `"Is" of label a is no operator; it must be In, NotIn, Exists, DoesNotExist, Gt or Lt`},
		"no key":                       {nil, []corev1.NodeSelectorRequirement{is("a b", exists)}, "", `"a b" is no label key: `},
		"no value of a label":          {nil, []corev1.NodeSelectorRequirement{is("a", in, "x y")}, "", `"x y" is no value of label a: `},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tc.labels, tc.expressions)
			if tc.err == "" && (err != nil || s.String() != tc.want) {
				t.Errorf("got %q, %v, want %q", s, err, tc.want)
			}
			if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got %q, %v, want the error %q", s, err, tc.err)
			}
		})
	}
}

// A set has the nodes that the scheduler takes for a pod with its requirements, and has none only where New says so.
func TestHasAsTheScheduler(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 61))
	keys, values := []string{"a", "b", "c"}, []string{"1", "2", "3", "x", ""}
	pick := func(of []string) string { return of[rng.IntN(len(of))] }
	var nodes []map[string]string // each combination of two labels
	for _, a := range append(values, "-") {
		for _, b := range append(values, "-") {
			node := map[string]string{}
			if a != "-" {
				node["a"] = a
			}
			if b != "-" {
				node["b"] = b
			}
			nodes = append(nodes, node)
		}
	}
	contradicted, some := 0, 0
	for range 5000 {
		labels, expressions := map[string]string{}, []corev1.NodeSelectorRequirement(nil)
		if rng.IntN(3) == 0 {
			labels[pick(keys)] = pick(values)
		}
		for range rng.IntN(4) {
			switch op := []corev1.NodeSelectorOperator{in, notIn, exists, doesNotExist, gt, lt}[rng.IntN(6)]; op {
			case in, notIn:
				expressions = append(expressions, is(pick(keys), op, pick(values), pick(values)))
			case gt, lt:
				expressions = append(expressions, is(pick(keys), op, pick([]string{"0", "1", "2", "3"})))
			default:
				expressions = append(expressions, is(pick(keys), op))
			}
		}
		s, err := New(labels, expressions)
		term := corev1.NodeSelectorTerm{MatchExpressions: s.Requirements()}
		written := corev1.NodeSelectorTerm{MatchExpressions: append(Set{Labels: labels}.Requirements(), expressions...)}
		if len(written.MatchExpressions) == 0 {
			continue
		}
		has := 0
		for _, node := range nodes {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node}}
			for _, of := range []corev1.NodeSelectorTerm{term, written} {
				selector, parsed := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{of}})
				if parsed != nil {
					t.Fatal(parsed)
				}
				if got, want := s.Has(node), selector.Match(n); err == nil && got != want {
					t.Fatalf("%s has the node %v: %t, and the scheduler says %t", s, node, got, want)
				}
				if selector.Match(n) {
					has++
				}
			}
		}
		if err != nil {
			if contradicted++; has > 0 {
				t.Fatalf("%v: a node meets %v %v", err, labels, expressions)
			}
		} else if has > 0 {
			some++
		}
	}
	if contradicted < 300 || some < 300 {
		t.Errorf("%d sets were contradictory and %d had nodes", contradicted, some)
	}
}

func TestSet(t *testing.T) {
	s, err := New(map[string]string{"type": "spot"}, []corev1.NodeSelectorRequirement{is("zone", in, "a", "b", "c"), is("zone", notIn, "b"), is("arm", doesNotExist)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Keys()); got != "[arm type zone]" {
		t.Errorf("the keys are %s", got)
	}
	for key, want := range map[string]string{"type": "[spot] true", "zone": "[a c] true", "arm": "[] false", "other": "[] false"} {
		if values, fixed := s.Values(key); fmt.Sprint(values, fixed) != want {
			t.Errorf("values of %s: %v %t, want %s", key, values, fixed, want)
		}
		if s.Names(key) != (key != "other") {
			t.Errorf("a requirement on %s: %t", key, s.Names(key))
		}
	}
	cell := s.With("disk", "ssd")
	if cell.String() != "disk=ssd,"+s.String() || s.Names("disk") || s.Equal(cell) || !cell.Equal(s.With("disk", "ssd")) {
		t.Errorf("with a label it is %s", cell)
	}
	if (Set{}).Has(nil) != true || !(Set{}).Empty() || s.Empty() || s.Equalities() || !(Set{}).Equalities() {
		t.Error("a set without requirements has all nodes")
	}
}
