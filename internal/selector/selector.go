// Package selector compiles the selectors of policies.
package selector

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
)

const (
	// MostText is how many bytes a label key has at most, and so any text that is matched with a pattern: to match one takes some hundred bytes of
	// memory for each of its own.
	MostText = 253 + 1 + 63
	// mostErrors is how many errors of a selector are told. Each quotes a text, and whoever reaches the port of the webhook chooses how many there are.
	mostErrors = 16
)

// Compile returns the requirements of a selector, and what they are together. Field is its name for errors. A selector that is invalid selects nothing. It
// looks at no requirement of a selector that has more of them than its schema allows.
func Compile(field string, s *stowage.Selector) (labels.Selector, labels.Requirements, error) {
	all, errs := requirements(s)
	if len(errs) == 0 {
		return labels.NewSelector().Add(all...), all, nil
	}
	for i := range errs {
		errs[i] = fmt.Errorf("spec.%s: %w", field, errs[i])
	}
	return labels.Nothing(), nil, errors.Join(errs...)
}

func requirements(s *stowage.Selector) (all labels.Requirements, errs []error) {
	count := 0
	for i := range s.MatchExpressions {
		count += len(s.MatchExpressions[i].Values)
	}
	if len(s.MatchLabels) > nodeset.MostLabels || len(s.MatchExpressions) > nodeset.MostExpressions || count > nodeset.MostValues {
		return nil, []error{fmt.Errorf("there are %d matchLabels and %d matchExpressions with %d values together; there may be %d and %d with %d, so select by fewer labels",
			len(s.MatchLabels), len(s.MatchExpressions), count, nodeset.MostLabels, nodeset.MostExpressions, nodeset.MostValues)}
	}
	add := func(key string, op selection.Operator, values []string) {
		if slices.ContainsFunc(append(slices.Clip(values), key), func(s string) bool { return len(s) > MostText }) {
			errs = append(errs, fmt.Errorf("a key or value has more than %d bytes", MostText))
			return
		}
		r, err := labels.NewRequirement(key, op, values)
		if err != nil {
			errs = append(errs, err)
			return
		}
		all = append(all, *r)
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		add(key, selection.In, []string{string(s.MatchLabels[key])})
	}
	for _, r := range s.MatchExpressions {
		op, ok := operators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("the operator of %s is %q; it is In, NotIn, Exists or DoesNotExist", r.Key, r.Operator))
			continue
		}
		values := make([]string, len(r.Values))
		for i, v := range r.Values {
			values[i] = string(v)
		}
		add(r.Key, op, values)
	}
	return all, errs[:min(len(errs), mostErrors)]
}

// operators are the operators of a selector, as package labels calls them.
var operators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
	metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}
