package preview

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	aksNode = "apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {%s}}\nstatus: {allocatable: {cpu: \"64\", memory: 64Gi, pods: \"100\"}}\n---\n"
	aksWeb  = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 10, selector: {matchLabels: {app: web}, matchExpressions: [{key: track, operator: DoesNotExist}]}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: none}]}}}\n---\n"
	aksSpot = "kubernetes.azure.com/scalesetpriority"
)

// distributed is a PodDistributor of web with these pools.
func distributed(pools string) string {
	return "apiVersion: versprei.versprei.io/v1beta1\nkind: PodDistributor\nmetadata: {name: web}\nspec: {target: {apiVersion: apps/v1, kind: Deployment, name: web}, distribution: [" + pools + "]}\n---\n"
}

// What is wrong with pools of expressions, and with what pools give to pods, is said with the pool, the field and what to do.
func TestExpressions(t *testing.T) {
	od, spot := fmt.Sprintf(aksNode, "od-1", "agentpool: od"), fmt.Sprintf(aksNode, "spot-1", "agentpool: spot, "+aksSpot+": spot")
	const (
		notSpot = "{name: od, weight: 20, matchExpressions: [{key: " + aksSpot + ", operator: DoesNotExist}]}"
		isSpot  = "{name: spot, weight: 80, nodeLabel: {" + aksSpot + ": spot}%s}"
	)
	spotWith := func(more string) string { return fmt.Sprintf(isSpot, more) }
	values := strings.TrimSuffix(strings.Repeat("a, ", 100), ", ")
	for name, tc := range map[string]struct {
		pools, more string // of the PodDistributor, and of the input
		want        []string
	}{
		"as AKS labels its nodes":   {pools: notSpot + "," + spotWith("")},
		"a key that no node has":    {pools: "{name: disk, weight: 1, matchExpressions: [{key: disk, operator: Exists}]}," + notSpot, want: []string{"no Node of the input has the labels of pool disk (disk)"}},
		"a key that all nodes have": {pools: "{name: all, weight: 1, matchExpressions: [{key: agentpool, operator: Exists}]}," + spotWith(""), want: []string{"node spot-1 has the labels of the pools all and spot, and belongs to all, which comes first; give the pools labels, or expressions, that no node has of both"}},
		"nodes of two pools":        {pools: spotWith("") + ",{name: all, weight: 1, matchExpressions: [{key: agentpool, operator: Exists}]}", want: []string{"belongs to spot, which comes first"}},
		"a contradiction":           {pools: "{name: od, weight: 1, nodeLabel: {type: a}, matchExpressions: [{key: type, operator: NotIn, values: [a]}]}," + spotWith(""), want: []string{"spec.distribution[0]: no node can meet both type=a and type!=a"}},
		"a contradiction of three":  {pools: "{name: od, weight: 1, matchExpressions: [{key: type, operator: In, values: [a, b]}, {key: type, operator: NotIn, values: [a]}, {key: type, operator: NotIn, values: [b]}]}," + spotWith(""), want: []string{"spec.distribution[0]: no node can meet all of type in (a,b) and type!=a and type!=b"}},
		"there and not there":       {pools: "{name: od, weight: 1, matchExpressions: [{key: type, operator: Exists}, {key: type, operator: DoesNotExist}]}," + spotWith(""), want: []string{"spec.distribution[0]: no node can meet both !type and type"}},
		"100 values":                {pools: "{name: od, weight: 1, matchExpressions: [{key: type, operator: NotIn, values: [" + values + "]}]}," + spotWith(""), want: []string{"spec.distribution[0].matchExpressions[].values has 100 entries; it may have 64, so remove some"}},
		"Gt of a word":              {pools: "{name: od, weight: 1, matchExpressions: [{key: cores, operator: Gt, values: [many]}]}," + spotWith(""), want: []string{`spec.distribution[0]: Gt of label cores is "many"; it must be a whole number`}},
		"no labels at all":          {pools: "{name: od, weight: 1}," + spotWith(""), want: []string{"pool 0: has no node label and no expression, so that it would have all nodes"}},
		"the owner's label":         {pools: notSpot + "," + spotWith(", podLabels: {app: spot}"), want: []string{"pool spot has podLabels with the key app, which pods do not get: the selector of ReplicaSet web", "names it"}},
		"its selector excludes it":  {pools: notSpot + "," + spotWith(", podLabels: {track: spot}"), want: []string{"pool spot has podLabels with the key track"}},
		"a label of Kubernetes":     {pools: notSpot + "," + spotWith(", podLabels: {app.kubernetes.io/name: x}"), want: []string{`a key of spec.distribution[1].podLabels is "app.kubernetes.io/name": a pool may not set keys of kubernetes.io`}},
		"an annotation of Stowage":  {pools: notSpot + "," + spotWith(", podAnnotations: {stowage.dev/mode: x}"), want: []string{`a key of spec.distribution[1].podAnnotations is "stowage.dev/mode": a pool may not set keys of stowage.dev`}},
		"a class that is missing":   {pools: notSpot + "," + spotWith(", priorityClassName: low"), more: "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1\n---\n", want: []string{"pool spot has priorityClassName low, which pods do not get: there is no such PriorityClass"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := ""
			in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(od + spot + distributed(tc.pools) + tc.more + aksWeb), Namespace: "ns"})
			if err != nil {
				text = err.Error()
			} else {
				admitted, warnings, err := New(in, Settings{Spread: true}).Admit(t.Context(), -1)
				if err != nil {
					t.Fatal(err)
				}
				text = strings.Join(append(in.Warnings, warnings...), "\n")
				for _, a := range admitted {
					text += strings.Join(a.Result.Warnings, "\n")
				}
			}
			for _, part := range tc.want {
				if !strings.Contains(text, part) {
					t.Errorf("%q is not in\n%s", part, text)
				}
			}
			if len(tc.want) == 0 && text != "" {
				t.Errorf("it says %s", text)
			}
		})
	}
}

// Pods get the expressions of their pool in each term of their affinity, and what the pool gives.
func TestPodsOfExpressions(t *testing.T) {
	pools := distributed("{name: od, weight: 20, matchExpressions: [{key: " + aksSpot + ", operator: DoesNotExist}], podLabels: {tier: od}, priorityClassName: high, terminationGracePeriodSeconds: 5}," +
		"{name: spot, weight: 80, nodeLabel: {" + aksSpot + ": spot}}")
	in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(pools + aksWeb), Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	admitted, _, err := New(in, Settings{Spread: true}).Admit(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	od, spot := 0, 0
	for _, a := range admitted {
		spec := &a.Pod.Spec
		switch {
		case spec.NodeSelector[aksSpot] == "spot" && spec.Affinity == nil && spec.PriorityClassName == "" && a.Pod.Labels["tier"] == "":
			spot++
		case len(spec.NodeSelector) == 0 && spec.PriorityClassName == "high" && *spec.TerminationGracePeriodSeconds == 5 && a.Pod.Labels["tier"] == "od":
			if r := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions; len(r) == 1 && r[0].Key == aksSpot && r[0].Operator == corev1.NodeSelectorOpDoesNotExist {
				od++
			}
		}
	}
	if od != 2 || spot != 8 {
		t.Errorf("%d pods on demand and %d of spot are as they should be", od, spot)
	}
}
