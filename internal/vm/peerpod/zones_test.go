package peerpod_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// terms returns terms of a required affinity. Terms are separated by "|", and their expressions on the zone by ";", such as "In a b;NotIn b".
func terms(text string) (out []corev1.NodeSelectorTerm) {
	for term := range strings.SplitSeq(text, "|") {
		t := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}}}}
		for e := range strings.SplitSeq(term, ";") {
			if fields := strings.Fields(e); len(fields) > 0 {
				t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOperator(fields[0]), Values: fields[1:]})
			}
		}
		out = append(out, t)
	}
	return out
}

// The zones in which a pod may run are those that its node selector or each term of its required affinity names.
func TestZones(t *testing.T) {
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("zone-%02d", i))
	}
	for name, tc := range map[string]struct {
		selector, affinity string
		want               []string
	}{
		"it says nothing":              {want: nil},
		"a node selector":              {selector: "a", want: []string{"a"}},
		"a node selector and affinity": {selector: "a", affinity: "In a b", want: []string{"a"}},
		"one zone":                     {affinity: "In a", want: []string{"a"}},
		"two zones":                    {affinity: "In b a", want: []string{"a", "b"}},
		"two terms":                    {affinity: "In b|In a b", want: []string{"a", "b"}},
		"a term without zones":         {affinity: "In b|", want: nil},
		"zones that it excludes":       {affinity: "NotIn b", want: nil},
		"two expressions":              {affinity: "In a b;In b c", want: []string{"b"}},
		"three expressions":            {affinity: "In a;In b;In a", want: nil},
		"zones, and one it excludes":   {affinity: "In a b;NotIn b", want: []string{"a", "b"}},
		"16 zones":                     {affinity: "In " + strings.Join(many[:16], " "), want: many[:16]},
		"17 zones":                     {affinity: "In " + strings.Join(many, " "), want: nil},
		"one zone 17 times":            {affinity: strings.Repeat("In a|", 16) + "In a", want: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := peerpod.DefaultConfig()
			p := pod().Container("c", "", "cpu=1").View(t)
			if tc.selector != "" {
				p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: tc.selector}
			}
			if tc.affinity != "" {
				p.Spec.Affinity = &podpatch.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms(tc.affinity)}}}
			}
			was := p.Clone()
			out, _ := convert(t, &cfg, p)
			m, err := cfg.Machine(out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, m.Need.Zones); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(was.RequiredTerms(), p.RequiredTerms()); diff != "" {
				t.Errorf("the pod was changed (-want +got):\n%s", diff)
			}
		})
	}
}
