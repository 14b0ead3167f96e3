// Package nodeset says which nodes a pool has: those whose labels meet all of its requirements.
//
// A requirement is one of Kubernetes' node affinity, with the same meaning: NotIn and DoesNotExist hold where the label is missing
// (https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#operators). An equality is In with one value. The package is pure.
package nodeset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Set is a set of nodes. The zero value has all nodes. A set does not change.
type Set struct {
	// Labels are the equalities.
	Labels map[string]string `json:"nodeLabels,omitempty"`
	// Expressions are the other requirements, in order and each once, as [New] returns them.
	Expressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
}

// New returns the set of the nodes that have some labels and meet some expressions. The error says what is wrong with a requirement, or that no
// node can meet all of them; then the set has no nodes.
func New(equal map[string]string, expressions []corev1.NodeSelectorRequirement) (Set, error) {
	if err := bounded(equal, expressions); err != nil {
		return Set{Labels: map[string]string{}}, err
	}
	s := Set{Labels: maps.Clone(equal)}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	var errs []error
	for _, r := range expressions {
		if err := Check(&r); err != nil {
			errs = append(errs, err)
			continue
		}
		values := slices.Compact(slices.Sorted(slices.Values(r.Values)))
		if has, taken := s.Labels[r.Key]; r.Operator == corev1.NodeSelectorOpIn && len(values) == 1 && (!taken || has == values[0]) {
			s.Labels[r.Key] = values[0]
			continue
		}
		s.Expressions = append(s.Expressions, corev1.NodeSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: values})
	}
	slices.SortFunc(s.Expressions, compare)
	s.Expressions = slices.CompactFunc(s.Expressions, func(a, b corev1.NodeSelectorRequirement) bool { return compare(a, b) == 0 })
	if len(errs) == 0 {
		errs = append(errs, s.possible())
	}
	s.Expressions = slices.DeleteFunc(s.Expressions, func(r corev1.NodeSelectorRequirement) bool { // of which an equality says more
		value, equal := s.Labels[r.Key]
		return equal && allows(&r, value)
	})
	return s, errors.Join(errs...)
}

func compare(a, b corev1.NodeSelectorRequirement) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
}

// The most labels that a set is made of, the most expressions, and the most values of all expressions together. The schemas of pools have the same
// bounds (MaxProperties, MaxItems). A strategy in an annotation has no schema, and neither has what a stranger sends to the webhook.
const (
	MostLabels      = 16
	MostExpressions = 16
	MostValues      = 64
)

// bounded reports requirements that are too many. It comes before anything else is done with them, because they are of strangers.
func bounded(equal map[string]string, expressions []corev1.NodeSelectorRequirement) error {
	if len(equal) > MostLabels {
		return fmt.Errorf("there are %d node labels; there may be %d, so select the nodes by fewer labels", len(equal), MostLabels)
	}
	count := 0
	for i := range expressions {
		count += len(expressions[i].Values)
	}
	if count > MostValues || len(expressions) > MostExpressions {
		return fmt.Errorf("there are %d expressions with %d values together; there may be %d with %d", len(expressions), count, MostExpressions, MostValues)
	}
	return nil
}

// Check reports what the API server would refuse in a node affinity.
func Check(r *corev1.NodeSelectorRequirement) error {
	if msgs := validation.IsQualifiedName(r.Key); len(msgs) > 0 {
		return fmt.Errorf("%q is no label key: %s", r.Key, strings.Join(msgs, "; "))
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 || len(r.Values) > MostValues {
			return fmt.Errorf("%s of label %s has %d values; it must have 1 to %d", r.Operator, r.Key, len(r.Values), MostValues)
		}
		for _, v := range r.Values {
			if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
				return fmt.Errorf("%q is no value of label %s: %s", v, r.Key, strings.Join(msgs, "; "))
			}
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			return fmt.Errorf("%s of label %s has values; it must have none", r.Operator, r.Key)
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return fmt.Errorf("%s of label %s has %d values; it must have one whole number", r.Operator, r.Key, len(r.Values))
		}
		if _, err := strconv.ParseInt(r.Values[0], 10, 64); err != nil {
			return fmt.Errorf("%s of label %s is %q; it must be a whole number", r.Operator, r.Key, r.Values[0])
		}
	default:
		return fmt.Errorf("%q of label %s is no operator; it must be In, NotIn, Exists, DoesNotExist, Gt or Lt", r.Operator, r.Key)
	}
	return nil
}

// With returns the nodes of the set that also have a label.
func (s Set) With(key, value string) Set {
	out := Set{Labels: make(map[string]string, len(s.Labels)+1), Expressions: s.Expressions}
	maps.Copy(out.Labels, s.Labels)
	out.Labels[key] = value
	return out
}

// Equalities reports whether the set is one of label equalities alone, which a node selector can say.
func (s Set) Equalities() bool { return len(s.Expressions) == 0 }

// Empty reports whether the set has no requirement, so that it has all nodes.
func (s Set) Empty() bool { return len(s.Labels) == 0 && len(s.Expressions) == 0 }

// Equal reports whether two sets have the same requirements.
func (s Set) Equal(other Set) bool {
	return maps.Equal(s.Labels, other.Labels) && slices.EqualFunc(s.Expressions, other.Expressions, func(a, b corev1.NodeSelectorRequirement) bool { return compare(a, b) == 0 })
}

// Has reports whether a node with these labels is in the set.
func (s Set) Has(node map[string]string) bool {
	for key, value := range s.Labels {
		if has, ok := node[key]; !ok || has != value {
			return false
		}
	}
	for i := range s.Expressions {
		if !Meets(&s.Expressions[i], node) {
			return false
		}
	}
	return true
}

// Meets reports whether labels meet a requirement.
func Meets(r *corev1.NodeSelectorRequirement, node map[string]string) bool {
	value, has := node[r.Key]
	switch r.Operator {
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, value)
	}
	return has && allows(r, value)
}

// allows reports whether a label that is there may have a value.
func allows(r *corev1.NodeSelectorRequirement, value string) bool {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return true
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		is, err := strconv.ParseInt(value, 10, 64)
		bound, badBound := strconv.ParseInt(r.Values[0], 10, 64)
		if err != nil || badBound != nil {
			return false
		}
		return r.Operator == corev1.NodeSelectorOpGt && is > bound || r.Operator == corev1.NodeSelectorOpLt && is < bound
	}
	return false
}

// Bytes is about how many bytes the requirements take.
func (s Set) Bytes() (n int) {
	for k, v := range s.Labels {
		n += len(k) + len(v) + 64
	}
	for i := range s.Expressions {
		n += len(s.Expressions[i].Key) + 64
		for _, v := range s.Expressions[i].Values {
			n += len(v) + 3
		}
	}
	return n
}

// Requirements are all requirements, the equalities first, in the order of their keys.
func (s Set) Requirements() []corev1.NodeSelectorRequirement {
	out := make([]corev1.NodeSelectorRequirement, 0, len(s.Labels)+len(s.Expressions))
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		out = append(out, equality(k, s.Labels[k]))
	}
	return append(out, s.Expressions...)
}

// Of returns the requirements on one label.
func (s Set) Of(key string) (out []corev1.NodeSelectorRequirement) {
	if value, ok := s.Labels[key]; ok {
		out = append(out, equality(key, value))
	}
	for _, r := range s.Expressions {
		if r.Key == key {
			out = append(out, r)
		}
	}
	return out
}

// equality is the requirement that a label has a value.
func equality(key, value string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
}

// Names reports whether a requirement is on a label.
func (s Set) Names(key string) bool {
	if _, ok := s.Labels[key]; ok {
		return true
	}
	return slices.ContainsFunc(s.Expressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == key })
}

// Keys are the labels on which there are requirements, in order.
func (s Set) Keys() []string {
	keys := slices.Collect(maps.Keys(s.Labels))
	for i := range s.Expressions {
		keys = append(keys, s.Expressions[i].Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Values are the values that a label of the nodes can have. It returns false where they may have any.
func (s Set) Values(key string) (values []string, fixed bool) {
	if v, ok := s.Labels[key]; ok {
		return []string{v}, true
	}
	for i := range s.Expressions {
		if r := &s.Expressions[i]; r.Key == key && r.Operator == corev1.NodeSelectorOpIn {
			all := s.Of(key)
			return slices.DeleteFunc(slices.Clone(r.Values), func(v string) bool { return !allAllow(all, v) }), true
		}
	}
	return nil, false
}

// String is the set as kubectl writes a selector: type=spot,!key,key>4.
func (s Set) String() string {
	if s.Equalities() {
		return labels.Set(s.Labels).String()
	}
	texts := make([]string, 0, len(s.Labels)+len(s.Expressions))
	for _, r := range s.Requirements() {
		texts = append(texts, Text(&r))
	}
	return strings.Join(texts, ",")
}

// Text is a requirement as kubectl writes it.
func Text(r *corev1.NodeSelectorRequirement) string {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 1 {
			return r.Key + "=" + r.Values[0]
		}
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")"
	case corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 1 {
			return r.Key + "!=" + r.Values[0]
		}
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")"
	case corev1.NodeSelectorOpDoesNotExist:
		return "!" + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + ">" + strings.Join(r.Values, "")
	case corev1.NodeSelectorOpLt:
		return r.Key + "<" + strings.Join(r.Values, "")
	}
	return r.Key
}

// possible reports requirements that no node can meet together, two of them where two are enough. An equality alone can be met, so that only the
// keys of expressions are looked at.
func (s Set) possible() error {
	for i := range s.Expressions { // in the order of their keys
		key := s.Expressions[i].Key
		if i > 0 && s.Expressions[i-1].Key == key {
			continue
		}
		all := s.Of(key)
		if Satisfiable(all) {
			continue
		}
		for i := range all {
			for j := range all[:i] {
				if !Satisfiable([]corev1.NodeSelectorRequirement{all[j], all[i]}) {
					return fmt.Errorf("no node can meet both %s and %s", Text(&all[j]), Text(&all[i]))
				}
			}
		}
		texts := make([]string, len(all))
		for i := range all {
			texts[i] = Text(&all[i])
		}
		return fmt.Errorf("no node can meet all of %s", strings.Join(texts, " and "))
	}
	return nil
}

// Satisfiable reports whether a label, or its absence, can meet some requirements on it.
func Satisfiable(all []corev1.NodeSelectorRequirement) bool {
	if !slices.ContainsFunc(all, func(r corev1.NodeSelectorRequirement) bool { return !Meets(&r, nil) }) {
		return true // the label may be missing
	}
	above, below := int64(-1), int64(math.MaxInt64) // no label has a negative number
	for i := range all {
		switch r := &all[i]; r.Operator {
		case corev1.NodeSelectorOpDoesNotExist:
			return false
		case corev1.NodeSelectorOpIn:
			return slices.ContainsFunc(r.Values, func(value string) bool { return allAllow(all, value) })
		case corev1.NodeSelectorOpGt:
			n, _ := strconv.ParseInt(r.Values[0], 10, 64)
			above = max(above, n)
		case corev1.NodeSelectorOpLt:
			n, _ := strconv.ParseInt(r.Values[0], 10, 64)
			below = min(below, n)
		}
	}
	return above < below && above+1 < below // a number may be written in several ways, so that NotIn excludes none for sure
}

// allAllow reports whether a label that is there may have a value.
func allAllow(all []corev1.NodeSelectorRequirement, value string) bool {
	return !slices.ContainsFunc(all, func(r corev1.NodeSelectorRequirement) bool { return !allows(&r, value) })
}

// Require returns a required node affinity that asks for some requirements, too. They are added to each term, because terms are alternatives. An
// empty term matches no node, and stays so. Without an affinity, which is nil, they are the only term. The given one is not changed.
func Require(affinity *corev1.NodeSelector, requirements []corev1.NodeSelectorRequirement) *corev1.NodeSelector {
	if affinity == nil || len(affinity.NodeSelectorTerms) == 0 {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: slices.Clone(requirements)}}}
	}
	out := &corev1.NodeSelector{NodeSelectorTerms: slices.Clone(affinity.NodeSelectorTerms)}
	for i := range out.NodeSelectorTerms {
		t := &out.NodeSelectorTerms[i]
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			continue
		}
		t.MatchExpressions = slices.Clone(t.MatchExpressions)
		for _, r := range requirements {
			if !In(t.MatchExpressions, &r) {
				t.MatchExpressions = append(t.MatchExpressions, r)
			}
		}
	}
	return out
}

// Without returns a required node affinity without some requirements. A term that had nothing else goes, and so does the affinity if that was
// its only term. The given one is not changed.
func Without(affinity *corev1.NodeSelector, drop func(*corev1.NodeSelectorRequirement) bool) *corev1.NodeSelector {
	if affinity == nil {
		return nil
	}
	out := &corev1.NodeSelector{}
	for _, t := range affinity.NodeSelectorTerms {
		left := slices.DeleteFunc(slices.Clone(t.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool { return drop(&r) })
		if len(left) == 0 && len(t.MatchExpressions) > 0 && len(t.MatchFields) == 0 {
			continue
		}
		t.MatchExpressions = left
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, t)
	}
	if len(out.NodeSelectorTerms) == 0 {
		return nil
	}
	return out
}

// In reports whether a requirement is one of some.
func In(requirements []corev1.NodeSelectorRequirement, r *corev1.NodeSelectorRequirement) bool {
	return slices.ContainsFunc(requirements, func(have corev1.NodeSelectorRequirement) bool { return compare(have, *r) == 0 })
}

// Selector is the set as a selector of objects.
func (s Set) Selector() labels.Selector {
	selector := labels.SelectorFromSet(s.Labels)
	for i := range s.Expressions {
		r := &s.Expressions[i]
		is, err := labels.NewRequirement(r.Key, selections[r.Operator], r.Values)
		if err != nil {
			return labels.Nothing() // New has checked it
		}
		selector = selector.Add(*is)
	}
	return selector
}

// selections are the operators of node affinity as selectors of objects call them.
var selections = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// Answer is whether nodes meet a requirement.
type Answer int

// The answers. Some says that nothing is known: some may, and others may not.
const (
	None Answer = iota
	Some
	All
)

// Meet returns whether the nodes of the set meet a requirement, as far as the set says it.
func (s Set) Meet(r *corev1.NodeSelectorRequirement) Answer {
	on := s.Of(r.Key)
	if !Satisfiable(append(slices.Clip(on), *r)) {
		return None
	}
	if values, fixed := s.Values(r.Key); fixed {
		if slices.ContainsFunc(values, func(v string) bool { return !allows(r, v) }) {
			return Some
		}
		return All
	}
	if not, ok := opposites[r.Operator]; ok && !Satisfiable(append(slices.Clip(on), corev1.NodeSelectorRequirement{Key: r.Key, Operator: not, Values: r.Values})) {
		return All
	}
	return Some
}

// opposites are the operators that hold where others do not.
var opposites = map[corev1.NodeSelectorOperator]corev1.NodeSelectorOperator{
	corev1.NodeSelectorOpIn: corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpNotIn: corev1.NodeSelectorOpIn,
	corev1.NodeSelectorOpExists: corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpDoesNotExist: corev1.NodeSelectorOpExists,
}
