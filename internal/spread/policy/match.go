package policy

import (
	"cmp"
	"strconv"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// match is the source that divides the pods of a workload. The zero value is none.
type match struct {
	Distributor *versprei.PodDistributor
	// Text is a strategy in annotations, and Source names what carries them. It is empty without annotations.
	Text, Source string
}

// matchOf returns which source divides the pods of a workload. Template are the annotations of its pod template. The first of
// these wins, and nothing is merged:
//
//  1. A PodDistributor that targets the workload or what made it. Of several, the oldest wins, then the first by name.
//  2. Annotations of the pod template.
//  3. Annotations of the uppermost workload.
//
// A Job's pods are divided by a PodDistributor alone. A source that does not compile still wins, so that an error is seen.
func matchOf(chain world.Chain, template map[string]string, distributors []versprei.PodDistributor) match {
	if d := winner(distributors, chain); d != nil {
		return match{Distributor: d}
	}
	if chain.Refs[0].IsJob() {
		return match{}
	}
	if text, ok := StrategyText(template); ok {
		return match{Text: text, Source: "the pod template"}
	}
	if root := chain.Top(); root != nil {
		if text, ok := StrategyText(root.Annotations); ok {
			return match{Text: text, Source: root.Kind + " " + root.Name}
		}
	}
	return match{}
}

// None reports whether nothing divides the pods.
func (m *match) None() bool { return m.Distributor == nil && m.Source == "" }

// winner returns the PodDistributor that divides the pods of one of some objects.
func winner(list []versprei.PodDistributor, chain world.Chain) *versprei.PodDistributor {
	var best *versprei.PodDistributor
	for i := range list {
		d := &list[i]
		if !chain.IncludesName(d.Spec.Target.Name) { // nearly all of a long list, cheaply
			continue
		}
		if chain.Includes(TargetOf(d).Ref) && (best == nil || Older(d, best)) {
			best = d
		}
	}
	return best
}

// TargetOf returns a PodDistributor's target.
func TargetOf(d *versprei.PodDistributor) world.Object {
	t := &d.Spec.Target
	return world.Object{Namespace: d.Namespace, Ref: world.Ref{APIVersion: t.APIVersion, Kind: t.Kind, Name: t.Name}}
}

// Older reports whether one PodDistributor wins over another of the same target. The older one does, or the first by
// name if both are of the same second.
func Older(a, b *versprei.PodDistributor) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// StrategyText returns the strategy that annotations give, if they give one.
func StrategyText(annotations map[string]string) (string, bool) {
	if len(annotations) == 0 {
		return "", false
	}
	on, _ := strconv.ParseBool(annotations[stowage.SpreadSwitchAnnotation])
	if text, ok := annotations[stowage.SpreadStrategyAnnotation]; ok && on {
		return text, true
	}
	text, ok := annotations[stowage.SpreadStrategyAliasAnnotation]
	return text, ok
}

// invented reports whether the pod's owner does not exist, in the version that its reference has. Whoever creates a pod can
// write any owner reference into it, and the API server checks none of them before admission.
func invented(chain world.Chain) bool {
	if b := chain.Bottom(); b != nil {
		return b.APIVersion != chain.Refs[0].APIVersion
	}
	return !chain.Unverified
}
