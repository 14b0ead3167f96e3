package nodeset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
		equal, expressions := map[string]string{}, []corev1.NodeSelectorRequirement(nil)
		if rng.IntN(3) == 0 {
			equal[pick(keys)] = pick(values)
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
		s, err := New(equal, expressions)
		term := corev1.NodeSelectorTerm{MatchExpressions: s.Requirements()}
		written := corev1.NodeSelectorTerm{MatchExpressions: append(Set{Labels: equal}.Requirements(), expressions...)}
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
				t.Fatalf("%v: a node meets %v %v", err, equal, expressions)
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

// At its bound a set is taken whole, and one more is refused.
func TestBoundsOfSets(t *testing.T) {
	var values []string
	for i := range MostValues {
		values = append(values, fmt.Sprint("v", i))
	}
	var expressions []corev1.NodeSelectorRequirement
	for i := range MostExpressions {
		expressions = append(expressions, is(fmt.Sprint("k", i), exists))
	}
	for name, tc := range map[string]struct {
		of  []corev1.NodeSelectorRequirement
		bad bool
	}{
		"as many values as may be":      {of: []corev1.NodeSelectorRequirement{is("a", notIn, values...)}},
		"a value more, in two":          {of: []corev1.NodeSelectorRequirement{is("a", notIn, values...), is("b", notIn, "x")}, bad: true},
		"as many expressions as may be": {of: expressions},
		"an expression more":            {of: append(slices.Clone(expressions), is("other", exists)), bad: true},
	} {
		if s, err := New(nil, tc.of); (err != nil) != tc.bad || !tc.bad && len(s.Expressions) != len(tc.of) {
			t.Errorf("%s: %d of %d, %v", name, len(s.Expressions), len(tc.of), err)
		}
	}
	if err := Check(&corev1.NodeSelectorRequirement{Key: "a", Operator: in, Values: append(values, "x")}); err == nil {
		t.Error("a value more than may be is right")
	}
}

// All that is wrong is said at once.
func TestNewSaysAllErrors(t *testing.T) {
	_, err := New(nil, []corev1.NodeSelectorRequirement{is("a", in), is("b", exists, "1"), is("b", exists)})
	for _, want := range []string{"In of label a has 0 values", "Exists of label b has values"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not say %q", err, want)
		}
	}
	// A key whose requirements can be met does not hide the next one.
	_, err = New(nil, []corev1.NodeSelectorRequirement{is("a", exists), is("a", notIn, "1"), is("b", exists), is("b", doesNotExist)})
	if want := "no node can meet both !b and b"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// Gt and Lt compare decimal numbers, and nothing else.
func TestNumbers(t *testing.T) {
	for _, tc := range []struct {
		of    corev1.NodeSelectorRequirement
		value string
		want  bool
	}{
		{is("a", gt, "10"), "11", true}, {is("a", gt, "10"), "10", false}, {is("a", lt, "10"), "9", true}, {is("a", lt, "10"), "10", false},
		{is("a", gt, "9"), "1a", false}, {is("a", lt, "99"), "1a", false}, {is("a", gt, "1a"), "99", false},
	} {
		if got := Meets(&tc.of, map[string]string{"a": tc.value}); got != tc.want {
			t.Errorf("%s of a node with %s: %t", Text(&tc.of), tc.value, got)
		}
	}
	if Satisfiable([]corev1.NodeSelectorRequirement{is("a", gt, "9"), is("a", lt, "11"), is("a", exists)}) != true {
		t.Error("ten is between 9 and 11")
	}
	if Satisfiable([]corev1.NodeSelectorRequirement{is("a", lt, "0")}) || !Satisfiable([]corev1.NodeSelectorRequirement{is("a", lt, "1")}) {
		t.Error("no label has a negative number, and one has zero")
	}
}

// The selector of a set has the objects that the set has, and what a set says of a requirement is true of each of its nodes.
func TestSelectorAndMeet(t *testing.T) {
	values := []string{"-", "1", "2", "3", "x"}
	requirements := []corev1.NodeSelectorRequirement{
		is("a", in, "1"), is("a", in, "1", "2"), is("a", in, "x"), is("a", notIn, "1"), is("a", notIn, "1", "2"), is("a", exists), is("a", doesNotExist), is("a", gt, "1"), is("a", lt, "3"),
	}
	answers := map[Answer]int{}
	for i := range requirements {
		for j := range requirements {
			s, err := New(map[string]string{"b": "1"}, []corev1.NodeSelectorRequirement{requirements[i], requirements[j]})
			if err != nil {
				continue
			}
			for k := range requirements {
				met, unmet := 0, 0
				for _, value := range values {
					node := map[string]string{"b": "1"}
					if value != "-" {
						node["a"] = value
					}
					if got := s.Selector().Matches(labels.Set(node)); got != s.Has(node) {
						t.Fatalf("%s: the selector has %v: %t", s, node, got)
					}
					if !s.Has(node) {
						continue
					}
					if Meets(&requirements[k], node) {
						met++
					} else {
						unmet++
					}
				}
				got := s.Meet(&requirements[k])
				answers[got]++
				if got == None && met > 0 || got == All && unmet > 0 {
					t.Errorf("of %s, nodes meet %s: %d; of its nodes %d do and %d do not", s, Text(&requirements[k]), got, met, unmet)
				}
				if _, fixed := s.Values("a"); fixed && got == Some && (met == 0 || unmet == 0) {
					t.Errorf("of %s, whose values are known, only some nodes meet %s", s, Text(&requirements[k]))
				}
			}
		}
	}
	for _, a := range []Answer{None, Some, All} {
		if answers[a] < 50 {
			t.Errorf("the answer %d was given %d times", a, answers[a])
		}
	}
	present, err := New(nil, []corev1.NodeSelectorRequirement{is("a", exists)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		of   corev1.NodeSelectorRequirement
		want Answer
	}{{is("a", exists), All}, {is("a", doesNotExist), None}, {is("a", in, "1"), Some}, {is("b", exists), Some}, {is("a", gt, "1"), Some}} {
		if got := present.Meet(&tc.of); got != tc.want {
			t.Errorf("nodes with a meet %s: %d, want %d", Text(&tc.of), got, tc.want)
		}
	}
}

// An affinity without some requirements has what else it had, and the given one stays as it was.
func TestWithout(t *testing.T) {
	field := []corev1.NodeSelectorRequirement{is("metadata.name", in, "n")}
	spot, arch := is("type", in, "spot"), is("arch", exists)
	term := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	affinity := func(terms ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	for name, tc := range map[string]struct{ given, want *corev1.NodeSelector }{
		"none":                            {nil, nil},
		"its only requirement":            {affinity(term(spot)), nil},
		"one of two":                      {affinity(term(arch, spot)), affinity(term(arch))},
		"one of two terms":                {affinity(term(spot), term(arch, spot)), affinity(term(arch))},
		"a term of fields stays":          {affinity(corev1.NodeSelectorTerm{MatchExpressions: term(spot).MatchExpressions, MatchFields: field}), affinity(corev1.NodeSelectorTerm{MatchExpressions: term().MatchExpressions, MatchFields: field})},
		"an empty term stays, as no node": {affinity(term(), term(spot)), affinity(term())},
		"nothing of it":                   {affinity(term(arch)), affinity(term(arch))},
	} {
		before := tc.given.DeepCopy()
		got := Without(tc.given, func(r *corev1.NodeSelectorRequirement) bool { return r.Key == "type" })
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before, tc.given); diff != "" {
			t.Errorf("%s: the given one changed (-was +is):\n%s", name, diff)
		}
	}
	given := affinity(term(arch))
	if got := Require(given, []corev1.NodeSelectorRequirement{spot, arch}); len(got.NodeSelectorTerms[0].MatchExpressions) != 2 || len(given.NodeSelectorTerms[0].MatchExpressions) != 1 {
		t.Errorf("%v requires %v, too: %v", given, spot, got)
	}
}

// What a set takes grows with all that is in it: at least the bytes of its texts, and some for each part.
func TestBytes(t *testing.T) {
	s, err := New(map[string]string{"key": "value"}, []corev1.NodeSelectorRequirement{is("other", in, "one", "three")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Bytes(), 3+5+64+5+64+3+3+5+3; got != want {
		t.Errorf("a set takes %d bytes, want %d", got, want)
	}
	p := Pins{Selector: s.Labels, Terms: []corev1.NodeSelectorTerm{{MatchExpressions: s.Expressions, MatchFields: s.Expressions}}}
	if got, want := p.Bytes(), 3+5+64+64+2*(5+64+3+3+5+3); got != want {
		t.Errorf("pins take %d bytes, want %d", got, want)
	}
	if got := (*Pins)(nil).Bytes(); got != 0 {
		t.Errorf("no pins take %d bytes", got)
	}
}
