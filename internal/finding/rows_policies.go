package finding

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
	KindNotReadable: {
		means: "Stowage may not read objects of a kind that a policy names, so that their pods get no seat.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("Stowage may not get %s, so pods of %s get no seat", f.Objects, ifElse(f.Several, "these kinds", "this kind"))
		},
		remedy: func(f *Finding) string {
			return "add a ClusterRole for its ServiceAccounts with " + f.Fix + ": kubectl stowage check prints it"
		},
		example: Finding{Namespace: "shop", Kind: "SpreadPolicy", Name: "web", Values: OfUnreadable([]stowage.UnreadableKind{
			{OwnerKind: stowage.OwnerKind{Group: "example.net", Kind: "PipelineSet"}, Lacks: []string{"pipelinesets.example.net"}},
		})},
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
	ScaleDownStalled: {
		means:    "A ScaleDownPolicy or ClusterScaleDownPolicy has no effect.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   always("correct its selectors, or remove others of its namespace"),
		example:  Finding{Namespace: "shop", Kind: "ScaleDownPolicy", Name: "web", Values: Values{Text: "the policy concerns no pods: spec.selector: a key is invalid", Other: string(stowage.ReasonInvalid)}},
	},
	ScaleDownNotKept: {
		means:    "The next scale-down of a workload with a ScaleDownPolicy does not keep its spread, because deletion costs are another writer's or are refused.",
		sentence: func(f *Finding) string { return f.Text },
		remedy: func(f *Finding) string {
			if f.Other == string(stowage.ReasonRefused) {
				return "have whoever refuses them (a webhook or a ValidatingAdmissionPolicy) allow Stowage's account the annotations stowage.dev/scale-down-cost and controller.kubernetes.io/pod-deletion-cost"
			}
			return "have one writer of deletion costs: remove the cost from the pod template, or Karpenter's feature gate PodDeletionCostManagement, or leave these workloads out of the policy's selector"
		},
		example: Finding{Namespace: "shop", Kind: "ScaleDownPolicy", Name: "web", Values: Values{
			Text:  "2 pods have a deletion cost that another writer has set, such as pod shop/web-1 has 7 from karpenter; 1 workloads lose their spread at the next step",
			Other: string(stowage.ReasonOtherCosts),
		}},
	},
}

// Grantable reports whether to propose the right to read a kind. Of the core group, only ReplicationControllers make pods. So a tenant cannot have an
// administrator grant Secrets.
func Grantable(u stowage.UnreadableKind) bool {
	return len(u.Lacks) > 0 && !slices.ContainsFunc(u.Lacks, func(lack string) bool {
		of := schema.ParseGroupResource(lack)
		resource, _, _ := strings.Cut(of.Resource, "/")
		return of.Group == "" && resource != "replicationcontrollers"
	})
}

// OfUnreadable returns what a finding says of kinds that Stowage may not read. It leaves out kinds that are not [Grantable].
func OfUnreadable(kinds []stowage.UnreadableKind) (v Values) {
	var lacks, rules []string
	for i := range kinds {
		if !Grantable(kinds[i]) {
			continue
		}
		lacks = append(lacks, kinds[i].Lacks...)
		group, resources := Rule(kinds[i].Lacks)
		rules = append(rules, fmt.Sprintf("apiGroups: [%s], resources: [%s], verbs: [get]", ifElse(group == "", `""`, group), strings.Join(resources, ", ")))
	}
	return Values{Objects: strings.Join(lacks, " and "), Several: len(rules) > 1, Fix: strings.Join(rules, "; and ")}
}

// Rule splits resources of one API group, such as pipelinesets.example.net, into the group and the names that a rule of a ClusterRole has.
func Rule(lacks []string) (group string, resources []string) {
	for _, lack := range lacks {
		resource, of, _ := strings.Cut(lack, ".")
		group, resources = of, append(resources, resource)
	}
	return group, resources
}
