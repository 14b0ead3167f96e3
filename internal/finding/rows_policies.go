package finding

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// ofPolicies are the rows about policies, their settings, and what reaches their pods.
var ofPolicies = map[Reason]row{
	InvalidPolicy: {
		means: "A strategy is invalid, so that it divides no pods.",
		sentence: func(f *Finding) string {
			return ifElse(f.Source == "", "is", "the "+f.Source+" is") + " invalid, so that it divides no pods: " + f.Text
		},
		remedy: func(f *Finding) string {
			if f.Source != "" {
				return "correct the strategy"
			}
			return "correct it, or delete it: kubectl " + ifElse(f.Namespace == "", "", "-n "+f.Namespace+" ") + "edit " + strings.ToLower(f.Kind) + " " + f.Name
		},
		example: Finding{Namespace: "shop", Kind: "PodDistributor", Name: "web", Values: Values{Text: "spec.distribution: every weight is 0"}},
	},
	SupersededPolicy: {
		means: "Another PodDistributor has the same target.",
		sentence: func(f *Finding) string {
			return "divides no pods, because PodDistributor " + f.Other + " is older and has the same target"
		},
		remedy:  func(f *Finding) string { return fmt.Sprintf("delete it, or delete %s to use it", f.Other) },
		example: Finding{Namespace: "shop", Kind: "PodDistributor", Name: "web-2", Values: Values{Other: "web"}},
	},
	TargetMissing: {
		means:    "The target of a PodDistributor does not exist.",
		sentence: func(f *Finding) string { return "its target " + f.Other + " does not exist" },
		remedy:   always("create the target, or correct spec.target"),
		example:  Finding{Namespace: "shop", Kind: "PodDistributor", Name: "web", Values: Values{Other: "apps/v1 Deployment web"}},
	},
	IgnoredSetting: {
		means:    "A setting has no effect.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   func(f *Finding) string { return f.Fix },
		example: Finding{Namespace: "shop", Kind: "Deployment", Name: "web", Values: Values{
			Text: stowage.SpreadStrategyAnnotation + " has no effect without " + stowage.SpreadSwitchAnnotation + ": 'true'", Fix: "correct or remove the setting",
		}},
	},
	ClassMissing: {
		means: "A pool gives its pods a PriorityClass that does not exist, so they keep theirs.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("pool %s has priorityClassName %s, and there is no such PriorityClass, so new pods keep theirs", f.Pool, f.Other)
		},
		remedy:  always("create the PriorityClass, or correct priorityClassName"),
		example: Finding{Namespace: "shop", Kind: "PodDistributor", Name: "web", Values: Values{Pool: "spot", Other: "batch"}},
	},
	LeftOut: {
		means: "The registration of the webhook leaves pods out.",
		sentence: func(f *Finding) string {
			if f.Other != "" {
				return "its selectors or match conditions leave out the pods of namespace " + f.Other
			}
			return "has a strategy, and the webhook's registration leaves its pods out"
		},
		remedy: func(f *Finding) string {
			if f.Other != "" {
				return "change its selectors, or check another namespace (-n)"
			}
			return "change the selectors of the registration, or set " + stowage.ModeKey + " to Off where that is intended"
		},
		example: Finding{Namespace: "shop", Kind: "Deployment", Name: "web"},
	},
}
