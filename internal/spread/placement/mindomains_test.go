package placement

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// constrained returns a pod with constraints, which are written as key=minDomains, with "!" for one that ignores what the pod selects.
func constrained(constraints ...string) *podpatch.Pod {
	pod := &podpatch.Pod{}
	for _, text := range constraints {
		c := podpatch.SpreadConstraint{WhenUnsatisfiable: corev1.DoNotSchedule}
		if rest, ignores := strings.CutPrefix(text, "!"); ignores {
			text, c.NodeAffinityPolicy = rest, corev1.NodeInclusionPolicyIgnore
		}
		key, n, _ := strings.Cut(text, "=")
		c.TopologyKey = key
		if n != "" {
			c.MinDomains = new(int32)
			_, _ = fmt.Sscan(n, c.MinDomains)
		}
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, c)
	}
	return pod
}

// constraintsOf writes them again.
func constraintsOf(pod *podpatch.Pod) string {
	var out []string
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		text := c.TopologyKey
		if !c.Honors() {
			text = "!" + text
		}
		if c.MinDomains != nil {
			text += fmt.Sprintf("=%d", *c.MinDomains)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// A required seat takes minDomains from a constraint that the division itself keeps, and gives it back when it goes.
func TestMinDomains(t *testing.T) {
	parse := func(text string) *sequence.Strategy {
		s, err := sequence.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	zones := parse("p=a,weight=1:p=b,weight=1")
	zones, err := zones.WithDomains(sequence.Across{Key: "zone", Domains: []sequence.Domain{{Value: "a", Weight: 1}, {Value: "b", Weight: 1}, {Value: "c", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	pools := parse("zone=a,weight=1:zone=b,weight=1:p=any,weight=1")
	for name, tc := range map[string]struct {
		strategy  *sequence.Strategy
		pool      int
		preferred bool
		pod       *podpatch.Pod
		want      string
		taken     string
	}{
		"over the domains":                     {strategy: zones, pod: constrained("zone=3"), want: "zone", taken: "zone=3"},
		"fewer are asked for":                  {strategy: zones, pod: constrained("zone=2"), want: "zone", taken: "zone=2"},
		"more are asked for than there are":    {strategy: zones, pod: constrained("zone=4"), want: "zone=4"},
		"over another label":                   {strategy: zones, pod: constrained("host=2"), want: "host=2"},
		"over the pools' label":                {strategy: zones, pod: constrained("p=2"), want: "p", taken: "p=2"},
		"zones as pools":                       {strategy: pools, pod: constrained("zone=2"), want: "zone", taken: "zone=2"},
		"there are fewer zones as pools":       {strategy: pools, pod: constrained("zone=3"), want: "zone=3"},
		"the pod's pool has any zone":          {strategy: pools, pool: 2, pod: constrained("zone=2"), want: "zone=2"},
		"it counts all nodes":                  {strategy: zones, pod: constrained("!zone=3"), want: "!zone=3"},
		"a preferred pool leaves all as it is": {strategy: zones, preferred: true, pod: constrained("zone=3"), want: "zone=3"},
		"several":                              {strategy: zones, pod: constrained("host=2", "zone=3", "p=2"), want: "host=2 zone p", taken: "p=2,zone=3"},
		"none":                                 {strategy: zones, pod: constrained("zone"), want: "zone"},
	} {
		t.Run(name, func(t *testing.T) {
			was := constraintsOf(tc.pod)
			before := tc.pod.Clone()
			seat := Seat{Seat: sequence.Seat{Pool: tc.pool, Ordinal: 1}, Strategy: tc.strategy, Claim: "c", Preferred: tc.preferred}
			for range 2 { // the second pass changes nothing
				seat.Apply(tc.pod)
				if got, taken := constraintsOf(tc.pod), tc.pod.Metadata.Annotations[stowage.MinDomainsAnnotation]; got != tc.want || taken != tc.taken {
					t.Errorf("the constraints are %s, and %q was taken; want %s and %q", got, taken, tc.want, tc.taken)
				}
			}
			if got := constraintsOf(before); got != was {
				t.Errorf("the pod as it was has %s", got)
			}
			if got := TakesMinDomains(before, tc.strategy); got != (tc.taken != "") && tc.pool == 0 && !tc.preferred {
				t.Errorf("a seat would change it: %t", got)
			}
			Strip(tc.pod)
			if got := constraintsOf(tc.pod); got != was || tc.pod.Metadata.Annotations[stowage.MinDomainsAnnotation] != "" {
				t.Errorf("without a seat, the constraints are %s, want %s", got, was)
			}
		})
	}

	// 1. Another webhook adds a constraint between two passes.
	pod := constrained("zone=3")
	seat := Seat{Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Strategy: zones, Claim: "c"}
	seat.Apply(pod)
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constrained("p=2").Spec.TopologySpreadConstraints...)
	seat.Apply(pod)
	if got := pod.Metadata.Annotations[stowage.MinDomainsAnnotation]; got != "p=2,zone=3" || constraintsOf(pod) != "zone p" {
		t.Errorf("%q was taken, and %s are left", got, constraintsOf(pod))
	}

	// 2. Anybody may write the annotation.
	for _, text := range []string{"", ",", "zone", "zone=", "zone=x", "zone=0", "zone=-1", "zone=99999999999", "=3", "other=3", "zone=3=3"} {
		pod := constrained("zone")
		pod.SetAnnotation(stowage.MinDomainsAnnotation, text)
		if Strip(pod); constraintsOf(pod) != "zone" {
			t.Errorf("%q gives %s", text, constraintsOf(pod))
		}
	}
	soft := constrained("zone")
	soft.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway // with which the API server refuses minDomains
	soft.SetAnnotation(stowage.MinDomainsAnnotation, "zone=3")
	if Strip(soft); constraintsOf(soft) != "zone" {
		t.Errorf("a soft constraint becomes %s", constraintsOf(soft))
	}
}

// Constraints that pods with a seat may never satisfy are said, each once.
func TestUnmetConstraints(t *testing.T) {
	s, err := sequence.Parse("p=a,weight=1:p=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	soft := constrained("!p")
	soft.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
	for name, tc := range map[string]struct {
		pod  *podpatch.Pod
		want []string
	}{
		"it counts all nodes":              {constrained("!p"), []string{"over p counts"}},
		"beside another one":               {constrained("host", "!p=2"), []string{"over p counts"}},
		"it asks for more than there are":  {constrained("p=3"), []string{"over p asks for 3 domains, and the strategy has 2"}},
		"it asks for as many as there are": {constrained("p=2"), nil},
		"it asks for none":                 {constrained("p"), nil},
		"over a label that no pool fixes":  {constrained("!host", "host=9"), nil},
		"it is soft":                       {soft, nil},
		"there is none":                    {constrained(), nil},
		"two that can not be kept":         {constrained("!p", "p=3"), []string{"over p counts", "over p asks"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := UnmetConstraints(tc.pod, s)
			if len(got) != len(tc.want) {
				t.Fatalf("it says %q", got)
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("it says %q, want %q", got[i], want)
				}
			}
		})
	}
}
