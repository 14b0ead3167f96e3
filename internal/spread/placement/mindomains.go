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

// IgnoringConstraint returns the key of a constraint that pods with a seat may never satisfy, or "". It counts the nodes of all pools, and
// the pods select those of one.
func IgnoringConstraint(pod *podpatch.Pod, s *sequence.Strategy) string {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule || c.Honors() {
			continue
		}
		for pool := range s.Len() {
			if s.Values(c.TopologyKey, pool) > 0 {
				return c.TopologyKey
			}
		}
	}
	return ""
}

// TooManyDomains returns a constraint that asks for more domains than the strategy has, and how many that is; nil if there is none. Each pod
// with a seat has one eligible domain, so that only maxSkew pods of a domain find a node.
func TooManyDomains(pod *podpatch.Pod, s *sequence.Strategy) (c *podpatch.SpreadConstraint, has int) {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if c.MinDomains == nil || !c.Honors() {
			continue
		}
		for pool := range s.Len() {
			if n := s.Values(c.TopologyKey, pool); n > 0 && n < int(*c.MinDomains) {
				return c, n
			}
		}
	}
	return nil, 0
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
