package sizing

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Template is a FlexDaemonsetTemplate that was checked.
type Template struct {
	Name string
	// Shares are the resources that pods get a share of, at most one for each.
	Shares []Share
	// Excluded are the names of containers that keep what they have.
	Excluded []string
	// NoLimits is whether containers keep their own limits.
	NoLimits bool
	// Ceiling is whether a pod gets at most what it declares.
	Ceiling bool
	// InPlace is whether running pods follow a change.
	InPlace bool
	// Warnings name fields that have no effect.
	Warnings []string
}

// Sizes reports whether the template sizes a resource of a container.
func (t *Template) Sizes(container string, r corev1.ResourceName) bool {
	return !slices.Contains(t.Excluded, container) && slices.ContainsFunc(t.Shares, func(s Share) bool { return s.Resource == r })
}

// Share is the share of one resource that a pod gets. The amounts are in thousandths of
// a CPU, or in bytes.
type Share struct {
	Resource corev1.ResourceName
	Percent  int64 // 1 to 100, of what the node has allocatable
	Min      int64
	Max      int64 // math.MaxInt64 if there is none
}

// Compile checks a template. It reports every mistake, joined, although the API server
// refuses each of them: the template may be older than those checks.
func Compile(t *flexdaemonsets.FlexDaemonsetTemplate) (*Template, error) {
	out := &Template{
		Name: t.Name, Excluded: t.Spec.ExcludeContainers,
		NoLimits: t.Spec.Limits == flexdaemonsets.LimitsNone,
		Ceiling:  t.Spec.Ceiling == flexdaemonsets.CeilingTemplate,
		InPlace:  t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace,
	}
	var errs []error
	s := &t.Spec
	for _, r := range []fields{
		{corev1.ResourceCPU, "CPU", s.CPUPercentage, s.MinCPU, s.MaxCPU},
		{corev1.ResourceMemory, "Memory", s.MemoryPercentage, s.MinMemory, s.MaxMemory},
		{corev1.ResourceEphemeralStorage, "Storage", s.StoragePercentage, s.MinStorage, s.MaxStorage},
	} {
		share, wrong := r.bounded()
		errs = append(errs, wrong...)
		if r.percent == nil {
			for _, bound := range r.bounds() {
				if bound.text != "" {
					out.Warnings = append(out.Warnings, fmt.Sprintf("spec.%s%s has no effect without spec.%sPercentage", bound.name, r.field, lower(r.field)))
				}
			}
			continue
		}
		if share.Percent = int64(*r.percent); share.Percent < 1 || share.Percent > 100 {
			errs = append(errs, fmt.Errorf("spec.%sPercentage: %d is not a percentage from 1 to 100", lower(r.field), share.Percent))
		}
		out.Shares = append(out.Shares, share)
	}
	if len(out.Shares) == 0 {
		errs = append(errs, errors.New("spec: it has no percentage"))
	}
	for _, c := range []struct {
		field, value, must string
		known              []string
	}{
		{"limits", string(s.Limits), "Equal or None", []string{string(flexdaemonsets.LimitsEqual), string(flexdaemonsets.LimitsNone)}},
		{"ceiling", string(s.Ceiling), "Template or left out", []string{string(flexdaemonsets.CeilingTemplate)}},
		{"updatePolicy", string(s.UpdatePolicy), "OnCreate or InPlace", []string{string(flexdaemonsets.UpdateOnCreate), string(flexdaemonsets.UpdateInPlace)}},
	} {
		if c.value != "" && !slices.Contains(c.known, c.value) {
			errs = append(errs, fmt.Errorf("spec.%s: %q must be %s", c.field, c.value, c.must))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// fields are what a template says of one resource.
type fields struct {
	resource corev1.ResourceName
	field    string // the end of the fields' names
	percent  *int32
	min, max flexdaemonsets.Amount
}

// bound is a minimum or a maximum.
type bound struct {
	name string
	text flexdaemonsets.Amount
}

func (f *fields) bounds() [2]bound { return [2]bound{{"min", f.min}, {"max", f.max}} }

// bounded returns the bounds of a share, and what is wrong with them.
func (f *fields) bounded() (share Share, wrong []error) {
	share = Share{Resource: f.resource, Max: math.MaxInt64}
	for i, to := range []*int64{&share.Min, &share.Max} {
		bound := f.bounds()[i]
		if bound.text == "" {
			continue
		}
		q, err := podpatch.Quantity(bound.text).Parse()
		if err == nil && q.Sign() < 0 {
			err = fmt.Errorf("%q is negative", bound.text)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("spec.%s%s: %w", bound.name, f.field, err))
			continue
		}
		*to = units(f.resource, q)
	}
	if share.Min > share.Max {
		wrong = append(wrong, fmt.Errorf("spec.min%s: %s is above max%[1]s, %[3]s", f.field, f.min, f.max))
	}
	return share, wrong
}

// lower is the beginning of the name of a field of a resource.
func lower(field string) string {
	switch field {
	case "CPU":
		return "cpu"
	case "Memory":
		return "memory"
	}
	return "storage"
}

// Of returns the share of what a node has allocatable.
func (s *Share) Of(allocatable int64) int64 {
	// The product needs more than 64 bits; the quotient does not.
	hi, lo := bits.Mul64(uint64(allocatable), uint64(s.Percent))
	amount, _ := bits.Div64(hi, lo, 100)
	return min(max(int64(amount), s.Min), s.Max)
}

// Explain says how a share of a node comes about, such as "10% of 4 is 400m". It is empty
// where the node has none of the resource.
func (s *Share) Explain(allocatable corev1.ResourceList) string {
	q, ok := allocatable[s.Resource]
	if !ok || q.Sign() <= 0 {
		return ""
	}
	there := unitsDown(s.Resource, q)
	plain := Share{Percent: s.Percent, Max: math.MaxInt64}
	out := fmt.Sprintf("%d%% of %s is %s", s.Percent, &q, text(s.Resource, plain.Of(there)))
	switch n := s.Of(there); {
	case n > plain.Of(there):
		out += fmt.Sprintf(", which is raised to the minimum, %s", text(s.Resource, n))
	case n < plain.Of(there):
		out += fmt.Sprintf(", which is cut to the maximum, %s", text(s.Resource, n))
	}
	return out
}

// Split divides a total among containers in proportion to their weights, evenly where
// all of them are 0. The parts add up to the total.
//
// It is the method of Jefferson and D'Hondt, of those that keep a part from shrinking when the total grows (M.
// Balinski and H. P. Young, "Fair Representation", 1982). Each container gets its exact part, rounded down. What is
// left goes unit by unit to the container with the largest weight for each unit it would then have, the first of
// equals. A total and weights must not be negative.
func Split(total int64, weights []int64) []int64 {
	if len(weights) == 0 {
		return nil
	}
	w := make([]uint64, len(weights))
	var sum uint64
	for i, x := range weights {
		w[i] = uint64(min(x, maxWeight/int64(len(weights))))
		sum += w[i]
	}
	if sum == 0 {
		for i := range w {
			w[i] = 1
		}
		sum = uint64(len(w))
	}
	parts := make([]int64, len(w))
	left := total
	for i := range w {
		hi, lo := bits.Mul64(uint64(total), w[i])
		q, _ := bits.Div64(hi, lo, sum) // hi < sum, because w[i] <= sum and total < 1<<63
		parts[i] = int64(q)
		left -= parts[i]
	}
	for ; left > 0; left-- { // fewer than there are containers
		best := -1
		for i := range w {
			if w[i] > 0 && (best < 0 || moreForEach(w[i], parts[i]+1, w[best], parts[best]+1)) {
				best = i
			}
		}
		parts[best]++
	}
	return parts
}

// maxWeight bounds the sum of the weights.
const maxWeight = math.MaxInt64

// moreForEach reports whether a/m > b/n.
func moreForEach(a uint64, m int64, b uint64, n int64) bool {
	leftHi, leftLo := bits.Mul64(a, uint64(n))
	rightHi, rightLo := bits.Mul64(b, uint64(m))
	return leftHi > rightHi || leftHi == rightHi && leftLo > rightLo
}

// units returns a quantity in thousandths of a CPU or in bytes, rounded up, at most
// math.MaxInt64. A negative quantity, which the API server refuses later, is 0.
func units(r corev1.ResourceName, q resource.Quantity) int64 {
	scale := resource.Scale(0)
	if r == corev1.ResourceCPU {
		scale = resource.Milli
	}
	if q.Sign() <= 0 {
		return 0
	}
	// A quantity beyond an int64 would come out wrapped.
	if q.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) >= 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(scale)
}

// unitsDown is units, rounded down.
func unitsDown(r corev1.ResourceName, q resource.Quantity) int64 {
	n := units(r, q)
	if n > 0 && n < math.MaxInt64 && amount(r, n).Cmp(q) > 0 {
		n--
	}
	return n
}

// amount returns units as a quantity.
func amount(r corev1.ResourceName, n int64) *resource.Quantity {
	if r == corev1.ResourceCPU {
		return resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	if n%1024 != 0 {
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

// text returns units as the API server writes them.
func text(r corev1.ResourceName, n int64) podpatch.Quantity {
	return podpatch.Quantity(amount(r, n).String())
}
