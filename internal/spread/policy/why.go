package policy

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/stowage-dev/stowage/internal/world"
)

// whyNot says why a policy does not select an owner, for people.
func (p *SpreadPolicy) whyNot(o *owner) string {
	switch {
	case p.err != nil:
		return "it is invalid"
	case p.namespaces != nil && !p.namespaces.Matches(labels.Set(o.labels)):
		return "of the namespace, " + unmet(p.namespaces, o.labels)
	case !p.templates.Matches(labels.Set(o.template)):
		return "of the pod template, " + unmet(p.templates, o.template)
	case !p.divides(o.ref):
		return fmt.Sprintf("it divides no pods of a %s (spec.kinds)", o.ref.Kind)
	}
	return ""
}

// unmet says which requirement of a selector labels do not meet.
func unmet(s labels.Selector, of map[string]string) string {
	requirements, selectable := s.Requirements()
	if !selectable {
		return "no labels are selected"
	}
	for _, r := range requirements {
		if r.Matches(labels.Set(of)) {
			continue
		}
		value, has := of[r.Key()]
		values := strings.Join(r.ValuesUnsorted(), " or ")
		switch {
		case !has && r.Operator() == selection.In:
			return fmt.Sprintf("label %s is missing (it must be %s)", r.Key(), values)
		case !has:
			return "label " + r.Key() + " is missing"
		case r.Operator() == selection.DoesNotExist:
			return "label " + r.Key() + " must not be there"
		case r.Operator() == selection.NotIn:
			return fmt.Sprintf("label %s must not be %s", r.Key(), value)
		}
		return fmt.Sprintf("label %s is %s (it must be %s)", r.Key(), value, values)
	}
	return "labels differ"
}

// mostUnselecting is how many policies are named that do not select a workload.
const mostUnselecting = 5

// Unselecting returns the policies that do not select the workload of a pod, and why.
func (f *Finder) Unselecting(ctx context.Context, pod Pod) (out []Other, err error) {
	chain, err := world.Owners(ctx, f.World, pod.Namespace, pod.Owner)
	if err != nil {
		return nil, err
	}
	o, indexes, err := f.ownerOf(ctx, pod.Namespace, chain)
	if o == nil || err != nil {
		return nil, err
	}
	add := func(p *SpreadPolicy) {
		if why := p.whyNot(o); why != "" && len(out) < mostUnselecting {
			out = append(out, Other{p.String(), why})
		}
	}
	for _, index := range indexes {
		if index == nil {
			continue
		}
		for _, p := range index.of.Namespaced {
			add(FromSpreadPolicy(p))
		}
		for _, p := range index.of.Cluster {
			add(FromClusterSpreadPolicy(p))
		}
	}
	return out, nil
}
