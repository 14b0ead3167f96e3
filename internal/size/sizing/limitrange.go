package sizing

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Violations lists what in a sized pod a LimitRange refuses, for the resources that the template sizes. The rules are
// those of the API server's LimitRanger. A bound demands an entry, and keeps it between min and max. A pod counts
// like its containers together, or its largest init container.
func (t *Template) Violations(lr *corev1.LimitRange, pod *podpatch.Pod) []string {
	var out []string
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		for _, s := range t.Shares {
			switch r := s.Resource; item.Type {
			case corev1.LimitTypeContainer:
				for c := range pod.AllContainers() {
					if e, err := entriesOf(c.Resources, r); err == nil {
						out = append(out, violations(item, r, e, fmt.Sprintf("container %q", c.Name))...)
					}
				}
			case corev1.LimitTypePod:
				out = append(out, violations(item, r, podEntries(pod, r), "the pod")...)
			}
		}
	}
	return out
}

// Requested returns what a pod's containers request of a resource at the same time, or
// nil if none of them requests any.
func Requested(pod *podpatch.Pod, r corev1.ResourceName) *resource.Quantity {
	if e := podEntries(pod, r); e.request >= 0 {
		return amount(r, e.request)
	}
	return nil
}

// podEntries adds a pod's entries up as the LimitRanger does: what runs side by side, or the largest init container
// beside the sidecars before it. Where the pod as a whole has an entry, that counts.
func podEntries(pod *podpatch.Pod, r corev1.ResourceName) entries {
	plus := func(a, b entries) entries {
		return entries{plusUnits(a.request, b.request), plusUnits(a.limit, b.limit)}
	}
	larger := func(a, b entries) entries { return entries{max(a.request, b.request), max(a.limit, b.limit)} }
	of := func(res *podpatch.Resources) entries {
		e, err := entriesOf(res, r)
		if err != nil {
			return entries{-1, -1} // the API server refuses it for that
		}
		return e
	}
	e, before, initially := entries{-1, -1}, entries{-1, -1}, entries{-1, -1}
	for i := range pod.Spec.Containers {
		e = plus(e, of(pod.Spec.Containers[i].Resources))
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		one := of(c.Resources)
		if c.IsSidecar() {
			e, before = plus(e, one), plus(before, one)
			one = before
		} else {
			one = plus(one, before)
		}
		initially = larger(initially, one)
	}
	e = larger(e, initially)
	if whole := of(pod.Spec.Resources); r != corev1.ResourceEphemeralStorage {
		if whole.request >= 0 {
			e.request = whole.request
		}
		if whole.limit >= 0 {
			e.limit = whole.limit
		}
	}
	return e
}

// plusUnits adds units, of which -1 is none, up to math.MaxInt64.
func plusUnits(a, b int64) int64 {
	if a < 0 || b < 0 {
		return max(a, b)
	}
	s := sum(a)
	s.add(b)
	return int64(s)
}

// violations compares entries with the bounds of one resource.
func violations(item *corev1.LimitRangeItem, r corev1.ResourceName, have entries, who string) []string {
	var out []string
	refuse := func(bound, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s.%s (%s): %s %s", bound, r, item.Type, who, fmt.Sprintf(format, args...)))
	}
	if q, ok := item.Min[r]; ok {
		if least := units(r, q); have.request < least {
			refuse("min", "requests %s, less than %s", show(r, have.request), &q)
		} else if have.limit >= 0 && have.limit < least {
			refuse("min", "has a limit of %s, less than %s", show(r, have.limit), &q)
		}
	}
	if q, ok := item.Max[r]; ok {
		if most := units(r, q); have.limit < 0 {
			refuse("max", "has no limit")
		} else if have.limit > most {
			refuse("max", "has a limit of %s, more than %s", show(r, have.limit), &q)
		}
	}
	if q, ok := item.MaxLimitRequestRatio[r]; ok {
		// limit / request > q, where q is a number without a unit
		ratio := q.DeepCopy()
		if ratio.Mul(max(have.request, 0)); have.request <= 0 || have.limit <= 0 || ratio.CmpInt64(have.limit) < 0 {
			refuse("maxLimitRequestRatio", "has a limit of %s and requests %s", show(r, have.limit), show(r, have.request))
		}
	}
	return out
}

func show(r corev1.ResourceName, n int64) string {
	if n < 0 {
		return "nothing"
	}
	return amount(r, n).String()
}
