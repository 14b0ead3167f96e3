package preview

import (
	"strings"
	"testing"
)

// Where a strategy or a policy is there and pods have no seat, a warning says why. What a warning says is said once.
func TestReasons(t *testing.T) {
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: od-1, labels: {type: od}}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: spot-1, labels: {type: spot}}\n"
	policyOf := func(kind, selector, mode string) string {
		return "---\napiVersion: stowage.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: all}\n" +
			"spec: {selector: {" + selector + "}, mode: " + mode + ", pools: [{name: od, nodeSelector: {type: od}, weight: 1}, {name: spot, nodeSelector: {type: spot}, weight: 1}]}\n"
	}
	strategy := "annotations: {" + strategyText + "}"
	// workload is one of a kind whose pods have some fields.
	workload := func(kind, metadata, pod string) string {
		spec := "containers: [{name: c, image: x}]" + pod
		template := "template: {metadata: {labels: {a: b}}, spec: {" + spec + "}}"
		apiVersion, of := "apps/v1", "selector: {matchLabels: {a: b}}, "+template
		switch kind {
		case "Job":
			apiVersion, of = "batch/v1", template
		case "CronJob":
			apiVersion, of = "batch/v1", "schedule: '* * * * *', jobTemplate: {spec: {"+template+"}}"
		case "Pod":
			apiVersion, of = "v1", spec
		}
		return "---\napiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: web, " + metadata + "}\nspec: {" + of + "}\n"
	}
	const selected = "matchLabels: {a: b}"
	chooses := func(by string) string {
		return "Deployment default/web: the annotation of Deployment web has no effect: the pod chooses its nodes itself, by " + by + ", so it has no seat"
	}
	for name, tc := range map[string]struct {
		input    string
		settings func(*Settings)
		want     string // the warning; none if it is empty
	}{
		"a pod with a seat":       {input: workload("Deployment", strategy, "")},
		"no strategy":             {input: workload("Deployment", "", ", nodeSelector: {type: od}")},
		"other labels":            {input: workload("Deployment", strategy, ", nodeSelector: {other: od}")},
		"a node selector":         {input: workload("Deployment", strategy, ", nodeSelector: {type: od}"), want: chooses("node label type")},
		"a node affinity":         {input: workload("Deployment", strategy, ", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: type, operator: Exists}]}]}}}"), want: chooses("node label type")},
		"a node":                  {input: workload("Deployment", strategy, ", nodeName: od-1"), want: chooses("spec.nodeName")},
		"a policy, and a node":    {input: workload("Deployment", "", ", nodeName: od-1") + policyOf("SpreadPolicy", selected, "Enforce"), want: "Deployment default/web: the SpreadPolicy all has no effect: the pod chooses its nodes itself, by spec.nodeName, so it has no seat"},
		"the feature off":         {input: workload("Deployment", strategy, ", nodeName: od-1"), settings: func(s *Settings) { s.Spread = false }},
		"a pod of nobody":         {input: workload("Pod", "labels: {a: b}", "")},
		"one with a strategy":     {input: workload("Pod", strategy, ""), want: "Pod default/web: the strategy in its annotations has no effect: a strategy divides the pods of a workload, and nothing controls this pod"},
		"one in kube-system":      {input: workload("Pod", "namespace: kube-system, "+strategy, "")}, // the table says that it is left alone
		"one with a policy":       {input: workload("Pod", "labels: {a: b}", "") + policyOf("SpreadPolicy", selected, "Enforce"), want: "Pod default/web: the SpreadPolicy all has no effect: a strategy divides"},
		"a policy for all":        {input: workload("Pod", "labels: {a: b}", "") + policyOf("ClusterSpreadPolicy", "", "Enforce")},
		"a policy for others":     {input: workload("Pod", "labels: {a: other}", "") + policyOf("SpreadPolicy", selected, "Enforce")},
		"a policy in Audit":       {input: workload("CronJob", "", "") + policyOf("SpreadPolicy", selected, "Audit")},
		"a CronJob and a policy":  {input: workload("CronJob", "", "") + policyOf("SpreadPolicy", selected, "Enforce"), want: "CronJob default/web: the SpreadPolicy all has no effect: the pods of a CronJob are never divided"},
		"a Job and a policy":      {input: workload("Job", "", "") + policyOf("SpreadPolicy", selected, "Enforce"), want: "Job default/web: the SpreadPolicy all has no effect: a Job's pods are divided by a PodDistributor alone"},
		"a DaemonSet":             {input: node + workload("DaemonSet", strategy, ""), want: "DaemonSet default/web: the strategy in its annotations has no effect: the pods of a DaemonSet have their nodes already"},
		"a DaemonSet without one": {input: node + workload("DaemonSet", "", "")},
		"a blocked namespace": {
			input: workload("Deployment", strategy, ""), settings: func(s *Settings) { s.ExcludedNamespaces = []string{"default"} },
			want: "Deployment default/web: the strategy in its annotations has no effect: namespace default is blocked, or lacks the label of --spread-namespace-label",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(tc.input), Namespace: "default"})
			if err != nil {
				t.Fatal(err)
			}
			settings := Settings{Namespace: "stowage-system", Spread: true}
			if tc.settings != nil {
				tc.settings(&settings)
			}
			in.Warnings = nil
			_, warnings, err := New(in, settings).Admit(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(warnings, "\n")
			if tc.want == "" && all != "" || !strings.HasPrefix(all, tc.want) || strings.Contains(all, "\n") {
				t.Errorf("the warnings are %q, want %q", warnings, tc.want)
			}
		})
	}
}
