package preview

import (
	"strings"
	"testing"
)

// Pools in which none of the input's nodes takes a workload's pods are said, and so is a zone of them. Without nodes in the input nothing is.
func TestMisfits(t *testing.T) {
	const (
		node  = "apiVersion: v1\nkind: Node\nmetadata: {name: %, labels: {type: %, zone: %}}\nspec: {taints: [%]}\nstatus: {allocatable: {cpu: \"4\", memory: 8Gi, pods: \"10\"}}\n---\n"
		taint = "{key: gpu, effect: NoSchedule}"
		web   = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, annotations: {custom-pod-schedule-strategy: \"type=od,weight=1:type=spot,weight=1\"%}}\nspec: {replicas: 4, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {%containers: [{name: c, image: none, resources: {requests: {cpu: %}}}]}}}\n"
	)
	fill := func(text string, with ...string) string {
		for _, s := range with {
			text = strings.Replace(text, "%", s, 1)
		}
		return text
	}
	od, spot := fill(node, "od", "od", "a", ""), fill(node, "spot", "spot", "a", "")
	for name, tc := range map[string]struct {
		input string
		want  []string
	}{
		"all fit":                 {od + spot + fill(web, "", "", "1"), nil},
		"no nodes":                {fill(web, "", "", "9"), nil},
		"a pool without nodes":    {od + fill(web, "", "", "1"), []string{"has the labels of pool 1"}},
		"a taint":                 {od + fill(node, "spot", "spot", "a", taint) + fill(web, "", "", "1"), []string{"no node of pool 1 in the input takes its pods: the pods do not tolerate the taint gpu:NoSchedule"}},
		"too large, everywhere":   {od + spot + fill(web, "", "", "5"), []string{"pool 1 in the input", "pool 0 in the input"}},
		"a selector":              {od + spot + fill(web, "", "nodeSelector: {arch: arm}, ", "1"), []string{"pool 1 in the input takes its pods: the pods select other nodes", "pool 0"}},
		"another node of it does": {od + spot + fill(node, "spot-2", "spot", "a", taint) + fill(web, "", "", "1"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(tc.input), Namespace: "ns"})
			if err != nil {
				t.Fatal(err)
			}
			_, warnings, err := New(in, Settings{Spread: true}).Admit(t.Context(), -1)
			if err != nil {
				t.Fatal(err)
			}
			if len(warnings) != len(tc.want) {
				t.Fatalf("the warnings are %q", warnings)
			}
			for i, want := range tc.want {
				if !strings.Contains(warnings[i], want) {
					t.Errorf("the warning is %q, want %q", warnings[i], want)
				}
			}
		})
	}
}
