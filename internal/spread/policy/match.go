package policy

import (
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
	Policy       *SpreadPolicy
}

// matchOf returns which source divides the pods of a workload. Template are the annotations of its pod template, and d is the
// PodDistributor that targets the workload or what made it, or nil. The first of these wins, and nothing is merged:
//
//  1. The PodDistributor.
//  2. Annotations of the pod template.
//  3. Annotations of the uppermost workload.
//  4. A SpreadPolicy, and then a ClusterSpreadPolicy. They are looked up only where the others are missing: see [Finder.policyFor].
//
// A Job's pods are divided by a PodDistributor alone. A source that does not compile still wins, so that an error is seen.
func matchOf(chain world.Chain, template map[string]string, d *versprei.PodDistributor) match {
	if d != nil {
		return match{Distributor: d}
	}
	if chain.Refs[0].IsJob() {
		return match{}
	}
	if text, ok := StrategyText(template); ok {
		return match{Text: text, Source: "the pod template"}
	}
	if highest := chain.Highest(); highest != nil {
		if text, ok := StrategyText(highest.Annotations); ok {
			return match{Text: text, Source: highest.Kind + " " + highest.Name}
		}
	}
	return match{}
}

// None reports whether nothing divides the pods.
func (m *match) None() bool { return m.Distributor == nil && m.Source == "" && m.Policy == nil }

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
