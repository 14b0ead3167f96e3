package sizing

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Violations lists what in a sized pod a LimitRange refuses, for the resources that the
// template sizes. The rules are those of the API server's LimitRanger: a bound demands
// an entry, and keeps it between min and max; a pod counts like its containers together,
// or its largest init container.
func (t *Template) Violations(lr *corev1.LimitRange, pod *podpatch.Pod) []string {
	var out []string
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		for _, s := range t.Shares {
			switch r := s.Resource; item.Type {
			case corev1.LimitTypeContainer:
				for c := range pod.AllContainers() {
					out = append(out, violations(item, r, entriesOf(c.Resources, r), fmt.Sprintf("container %q", c.Name))...)
				}
			case corev1.LimitTypePod:
				out = append(out, violations(item, r, podEntries(pod, r), "the pod")...)
			}
		}
	}
	return out
}

// entries are the request and the limit of one resource, in units; -1 is none.
type entries struct{ request, limit int64 }

func entriesOf(res *podpatch.Resources, r corev1.ResourceName) entries {
	e := entries{-1, -1}
	if res == nil {
		return e
	}
	for _, one := range []struct {
		list podpatch.ResourceList
		to   *int64
	}{{res.Requests, &e.request}, {res.Limits, &e.limit}} {
		if text, ok := one.list[r]; ok {
			if q, err := text.Parse(); err == nil {
				*one.to = units(r, q)
			}
		}
	}
	return e
}

// Requested returns what a pod's containers request of a resource at the same time, or
// nil if none of them requests any.
func Requested(pod *podpatch.Pod, r corev1.ResourceName) *resource.Quantity {
	if e := podEntries(pod, r); e.request >= 0 {
		return amount(r, e.request)
	}
	return nil
}

func podEntries(pod *podpatch.Pod, r corev1.ResourceName) entries {
	e := entries{-1, -1}
	plus := func(a, b int64) int64 {
		if b < 0 {
			return a
		}
		s := sum(max(a, 0))
		s.add(b)
		return int64(s)
	}
	for c := range sideBySide(pod) {
		one := entriesOf(c.Resources, r)
		e.request, e.limit = plus(e.request, one.request), plus(e.limit, one.limit)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; !c.IsSidecar() {
			one := entriesOf(c.Resources, r)
			e.request, e.limit = max(e.request, one.request), max(e.limit, one.limit)
		}
	}
	return e
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
