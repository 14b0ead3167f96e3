package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// A pod with a seat selects nodes of one value of a label. A topology spread constraint over that label then has one eligible domain. If
// minDomains is above 1, the scheduler takes the least number of pods in a domain for 0. Then maxSkew pods find a node, and the others wait
// for ever. The division keeps what the constraint asks for, so minDomains goes while the pod has its seat.

// takes reports whether a seat in a pool takes minDomains from a constraint. One that ignores what the pod selects counts all domains and
// holds as it is.
func takes(c *podpatch.SpreadConstraint, s *sequence.Strategy, pool int) bool {
	return c.MinDomains != nil && c.Honors() && s.Values(c.TopologyKey, pool) >= int(*c.MinDomains)
}

// TakesMinDomains reports whether a seat in some pool would change a pod's constraints.
func TakesMinDomains(pod *podpatch.Pod, s *sequence.Strategy) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c podpatch.SpreadConstraint) bool {
		for pool := range s.Len() {
			if takes(&c, s, pool) {
				return true
			}
		}
		return false
	})
}

// UnmetConstraints says which topology spread constraints pods with a seat may never satisfy, for people. Each pod selects the nodes of one
// pool or domain. So it cannot keep to a constraint that counts all nodes, or that asks for more domains than the strategy has.
func UnmetConstraints(pod *podpatch.Pod, s *sequence.Strategy) (texts []string) {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		values := 0 // of the label, in the pool that has most
		for pool := range s.Len() {
			values = max(values, s.Values(c.TopologyKey, pool))
		}
		why := ""
		switch {
		case values == 0 || c.WhenUnsatisfiable != corev1.DoNotSchedule:
		case !c.Honors():
			why = "counts the nodes of all pools (nodeAffinityPolicy: Ignore)"
		case c.MinDomains != nil && int(*c.MinDomains) > values:
			why = fmt.Sprintf("asks for %d domains, and the strategy has %d", *c.MinDomains, values)
		}
		if why != "" {
			texts = append(texts, fmt.Sprintf("the topology spread constraint over %s %s, so pods may wait although their pool has room", c.TopologyKey, why))
		}
	}
	return texts
}

// takeMinDomains removes minDomains where the seat keeps the promise, and notes what it was.
func (s *Seat) takeMinDomains(pod *podpatch.Pod) {
	var taken map[string]int32
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if !takes(c, s.Strategy, s.Pool) {
			continue
		}
		if taken == nil {
			taken = minDomainsOf(pod) // of an earlier pass
		}
		taken[c.TopologyKey], c.MinDomains = *c.MinDomains, nil
	}
	if taken == nil {
		return
	}
	var text []string
	for _, key := range slices.Sorted(maps.Keys(taken)) {
		text = append(text, fmt.Sprintf("%s=%d", key, taken[key]))
	}
	pod.SetAnnotation(stowage.MinDomainsAnnotation, strings.Join(text, ","))
}

// withoutMinDomains returns the constraints of a pod as they are with a seat in a pool.
func withoutMinDomains(constraints []corev1.TopologySpreadConstraint, s *sequence.Strategy, pool int) []corev1.TopologySpreadConstraint {
	var out []corev1.TopologySpreadConstraint
	for i := range constraints {
		c := &constraints[i]
		read := podpatch.SpreadConstraint{TopologyKey: c.TopologyKey, WhenUnsatisfiable: c.WhenUnsatisfiable, MinDomains: c.MinDomains}
		if c.NodeAffinityPolicy != nil {
			read.NodeAffinityPolicy = *c.NodeAffinityPolicy
		}
		if !takes(&read, s, pool) {
			continue
		}
		if out == nil {
			out = slices.Clone(constraints)
		}
		out[i].MinDomains = nil
	}
	if out == nil {
		return constraints
	}
	return out
}

// IgnoresPin reports whether a topology spread constraint of a pod counts the nodes of all pools, over a label that the pools or domains fix. Then
// the pod may wait although its pool has room, because the division is not the constraint's.
func IgnoresPin(pod *corev1.Pod, s *sequence.Strategy) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway || c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy != corev1.NodeInclusionPolicyIgnore {
			return false
		}
		for pool := range s.Len() {
			if s.Values(c.TopologyKey, pool) > 0 {
				return true
			}
		}
		return false
	})
}

// giveBackMinDomains undoes what a seat did to a pod's constraints.
func giveBackMinDomains(pod *podpatch.Pod) {
	taken := minDomainsOf(pod)
	delete(pod.Metadata.Annotations, stowage.MinDomainsAnnotation)
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		// The API server allows minDomains only with DoNotSchedule, which one constraint of a key has.
		if n := taken[c.TopologyKey]; n > 0 && c.MinDomains == nil && cmp.Or(c.WhenUnsatisfiable, corev1.DoNotSchedule) == corev1.DoNotSchedule {
			c.MinDomains = &n
		}
	}
}

// minDomainsOf returns what seats have taken, by topology key. What does not parse is left out: anybody may write the annotation.
func minDomainsOf(pod *podpatch.Pod) map[string]int32 {
	out := map[string]int32{}
	for item := range strings.SplitSeq(pod.Metadata.Annotations[stowage.MinDomainsAnnotation], ",") {
		key, value, _ := strings.Cut(item, "=")
		if n, err := strconv.ParseInt(value, 10, 32); err == nil && n > 0 {
			out[key] = int32(n)
		}
	}
	return out
}
