package nodeset

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Every term that is not empty must ask for the set. An empty term matches no node, so it does not count.
func TestPinsAskFor(t *testing.T) {
	t.Parallel()
	spot := corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: []string{"cheap", "spot"}}
	other := corev1.NodeSelectorRequirement{Key: "arch", Operator: corev1.NodeSelectorOpExists}
	expressions, err := New(nil, []corev1.NodeSelectorRequirement{spot})
	if err != nil {
		t.Fatal(err)
	}
	labels, err := New(map[string]string{"type": "spot"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	with := func(requirements ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: requirements}
	}
	field := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}
	for name, tc := range map[string]struct {
		pins *Pins
		of   Set
		want bool
	}{
		"none, of a set":                   {nil, labels, false},
		"none, of all nodes":               {nil, Set{}, true},
		"the labels":                       {&Pins{Selector: map[string]string{"type": "spot", "a": "b"}}, labels, true},
		"another value":                    {&Pins{Selector: map[string]string{"type": "od"}}, labels, false},
		"the labels as a term":             {&Pins{Terms: []corev1.NodeSelectorTerm{with(spot)}}, labels, false},
		"no term":                          {&Pins{Selector: map[string]string{"type": "spot"}}, expressions, false},
		"the term":                         {&Pins{Terms: []corev1.NodeSelectorTerm{with(other, spot)}}, expressions, true},
		"the term and an empty one":        {&Pins{Terms: []corev1.NodeSelectorTerm{{}, with(spot)}}, expressions, true},
		"the term and another one":         {&Pins{Terms: []corev1.NodeSelectorTerm{with(spot), with(other)}}, expressions, false},
		"the term and one of fields alone": {&Pins{Terms: []corev1.NodeSelectorTerm{with(spot), field}}, expressions, false},
		"another term":                     {&Pins{Terms: []corev1.NodeSelectorTerm{with(other)}}, expressions, false},
	} {
		if got := tc.pins.AskFor(tc.of); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// An empty term matches no node, and must not come to match nodes.
func TestRequireLeavesEmptyTerms(t *testing.T) {
	t.Parallel()
	spot := corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpExists}
	field := []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}
	given := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}, {MatchFields: field}, {MatchExpressions: []corev1.NodeSelectorRequirement{spot}}}}
	want := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{}, {MatchFields: field, MatchExpressions: []corev1.NodeSelectorRequirement{spot}}, {MatchExpressions: []corev1.NodeSelectorRequirement{spot}},
	}}
	if diff := cmp.Diff(want, Require(given, []corev1.NodeSelectorRequirement{spot})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, none := range map[string]*corev1.NodeSelector{"nil": nil, "no term": {}} {
		if got := Require(none, []corev1.NodeSelectorRequirement{spot}); len(got.NodeSelectorTerms) != 1 || len(got.NodeSelectorTerms[0].MatchExpressions) != 1 {
			t.Errorf("%s becomes %v", name, got)
		}
	}
}

// What pins name, by selector and by any term.
func TestPinsName(t *testing.T) {
	t.Parallel()
	p := &Pins{Selector: map[string]string{"a": ""}, Terms: []corev1.NodeSelectorTerm{{}, {MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "b"}}}}}
	for key, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if got := p.Name(key); got != want {
			t.Errorf("%s: %t, want %t", key, got, want)
		}
	}
	if (*Pins)(nil).Name("a") {
		t.Error("a pod without pins names a label")
	}
}

// What a pod asks of its node is its selector and what its affinity requires, or nothing.
func TestPinsOf(t *testing.T) {
	t.Parallel()
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "b"}}}}
	required := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	selector := map[string]string{"a": "1"}
	for name, tc := range map[string]struct {
		pod  corev1.PodSpec
		want *Pins
	}{
		"nothing":               {corev1.PodSpec{}, nil},
		"no node affinity":      {corev1.PodSpec{Affinity: &corev1.Affinity{}}, nil},
		"no required one":       {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}, nil},
		"a selector":            {corev1.PodSpec{NodeSelector: selector}, &Pins{Selector: selector}},
		"an affinity":           {corev1.PodSpec{Affinity: required}, &Pins{Terms: terms}},
		"selector and affinity": {corev1.PodSpec{NodeSelector: selector, Affinity: required}, &Pins{Selector: selector, Terms: terms}},
	} {
		if diff := cmp.Diff(tc.want, PinsOf(&tc.pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
