package preview

import (
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// A HorizontalPodAutoscaler that scales peer pods by utilization is warned of, in each version. Others are not looked at.
func TestAutoscalersOfPeerPods(t *testing.T) {
	const (
		web = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {runtimeClassName: kata-remote, containers: [{name: c, image: none, resources: {limits: {cpu: 1}}}]}}}\n---\n"
		of  = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3"
		cpu = "by utilization of cpu, and peer pods request none; use averageValue, or a metric of the application"
	)
	class := "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: kata-remote}\nhandler: kata\n---\n"
	for name, tc := range map[string]struct{ hpa, want string }{
		"utilization":           {"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}", "HorizontalPodAutoscaler h scales " + cpu},
		"of a container":        {"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", metrics: [{type: ContainerResource, containerResource: {container: c, name: memory, target: {type: Utilization, averageUtilization: 80}}}]}", "by utilization of memory"},
		"no metric":             {"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + "}", cpu},
		"version 1":             {"apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", targetCPUUtilizationPercentage: 50}", cpu},
		"two":                   {"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}, {type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 80}}}]}", "by utilization of cpu and memory"},
		"replaced by an amount": {"apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + "}\n---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", metrics: [{type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: 500m}}}]}", ""},
		"an amount":             {"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {" + of + ", metrics: [{type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: 500m}}}]}", ""},
		"of another workload":   {"apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: h, namespace: other}\nspec: {" + of + "}", ""},
	} {
		in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(class + web + tc.hpa), Namespace: "ns"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, warnings, err := New(in, Settings{PeerPods: true, PeerPodConfig: peerpod.DefaultConfig()}).Admit(t.Context(), -1)
		if text := strings.Join(warnings, "\n"); err != nil || tc.want == "" && strings.Contains(text, "by utilization") || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %v, %s", name, err, text)
		}
	}
}
