package migrate

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func agent(t *testing.T, env string) *unstructured.Unstructured {
	t.Helper()
	return object(t, "{kind: DatadogAgent, metadata: {name: datadog}, spec: {override: {clusterAgent: {env: ["+env+"]}}}}")
}

func workload(t *testing.T, annotations string) *unstructured.Unstructured {
	t.Helper()
	return object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {autoscaling.datadoghq.com/spot-enabled: "true"}, annotations: {`+annotations+`}}}`)
}

var options = Options{OnDemand: Label{Key: "type", Value: "od"}, Spot: Label{Key: "type", Value: "spot"}, Namespace: "shop"}

const percentage = `{name: DD_AUTOSCALING_CLUSTER_SPOT_PERCENTAGE, value: "60"}`

// The default settings become a ClusterSpreadPolicy in Audit, and a workload's own ones a PodDistributor.
func TestDatadog(t *testing.T) {
	other := workload(t, "")
	other.SetName("api")
	out, err := Datadog([]*unstructured.Unstructured{
		agent(t, percentage+`, {name: DD_AUTOSCALING_CLUSTER_SPOT_MIN_ON_DEMAND_REPLICAS, value: "2"}, {name: DD_AUTOSCALING_CLUSTER_SPOT_SCHEDULE_TIMEOUT, value: 5s}, {name: OTHER, value: x}`),
		workload(t, `autoscaling.datadoghq.com/spot-percentage: "100"`), other,
	}, options)
	if err != nil || len(out) != 2 {
		t.Fatal(out, err)
	}
	all := out[0].Object.(*stowage.ClusterSpreadPolicy)
	if pools := all.Spec.Pools; all.Spec.Mode != stowage.PolicyAudit || pools[0].Base != 2 || pools[0].Weight != 40 || pools[0].Overflow != 0 || pools[1].Weight != 60 || pools[1].Spill.After != "10s" || pools[1].NodeSelector["type"] != "spot" || len(pools[1].Tolerations) != 1 {
		t.Errorf("the policy is %+v", all.Spec)
	}
	notes := strings.Join(out[0].Notes, "; ")
	for _, want := range []string{"base comes before the ratio", "the timeout of 5s becomes 10s", `add autoscaling.datadoghq.com/spot-enabled: "true" to spec.template.metadata.labels of Deployment shop/api`, "it is in Audit"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q: %s", want, notes)
		}
	}
	own := out[1].Object.(*versprei.PodDistributor)
	if pools := own.Spec.Distribution; own.Namespace != "shop" || own.Name != "web-deployment" || own.Spec.Target.Name != "web" || pools[0].Base != 2 || pools[0].Weight != 0 || pools[0].Overflow != 1 || pools[1].Weight != 100 || pools[0].NodeLabel["type"] != "od" {
		t.Errorf("the PodDistributor is %+v", own.Spec)
	}
}

// The settings of one workload in JSON leave the default ones as they are.
func TestDatadogConfig(t *testing.T) {
	defaults := agent(t, percentage+`, {name: DD_AUTOSCALING_CLUSTER_SPOT_MIN_ON_DEMAND_REPLICAS, value: "1"}`)
	out, err := Datadog([]*unstructured.Unstructured{defaults, workload(t, `autoscaling.datadoghq.com/spot-config: '{"percentage": 30}', autoscaling.datadoghq.com/spot-other: x, other: z`)}, options)
	if err != nil || len(out) != 2 {
		t.Fatal(out, err)
	}
	if pools := out[0].Object.(*stowage.ClusterSpreadPolicy).Spec.Pools; pools[1].Weight != 60 {
		t.Errorf("the default is %d", pools[1].Weight)
	}
	if pools := out[1].Object.(*versprei.PodDistributor).Spec.Distribution; pools[1].Weight != 30 || pools[0].Base != 1 || pools[1].Spill.After != time.Minute.String() {
		t.Errorf("the pools are %+v", pools)
	}
	if notes := strings.Join(out[1].Notes, "; "); !strings.Contains(notes, "spot-other has no counterpart") || strings.Contains(notes, "annotation other") {
		t.Errorf("the notes are %s", notes)
	}
	// Who has the label in the pod template is selected by the policy.
	labelled := workload(t, "")
	if err := unstructured.SetNestedField(labelled.Object, "true", "spec", "template", "metadata", "labels", datadogEnabled); err != nil {
		t.Fatal(err)
	}
	if out, err := Datadog([]*unstructured.Unstructured{defaults, labelled}, options); err != nil || len(out) != 1 || strings.Contains(strings.Join(out[0].Notes, " "), "spec.template") {
		t.Errorf("a workload with the label: %v, %v", out, err)
	}
}

// What cannot be understood is an error that names the object, the field and the value.
func TestDatadogRefuses(t *testing.T) {
	for want, objects := range map[string][]*unstructured.Unstructured{
		"no object of the input has the label":                                                 {object(t, "{kind: Deployment, metadata: {name: web}}")},
		"has no settings of its own, and the input has no DatadogAgent":                        {workload(t, "")},
		"SPOT_PERCENTAGE is not in spec.override.clusterAgent.env":                             {agent(t, "")},
		`env[0] (DD_AUTOSCALING_CLUSTER_SPOT_PERCENTAGE): "101" is not a number from 0 to 100`: {agent(t, `{name: DD_AUTOSCALING_CLUSTER_SPOT_PERCENTAGE, value: "101"}`)},
		"the value is not written there":                                                       {agent(t, percentage+`, {name: DD_AUTOSCALING_CLUSTER_SPOT_SCHEDULE_TIMEOUT, valueFrom: {}}`)},
		`env[1] (DD_AUTOSCALING_CLUSTER_SPOT_SCHEDULE_TIMEOUT): time: invalid duration "soon"`: {agent(t, percentage+`, {name: DD_AUTOSCALING_CLUSTER_SPOT_SCHEDULE_TIMEOUT, value: soon}`)},
		"metadata.annotations[autoscaling.datadoghq.com/spot-config]: json: unknown field":     {workload(t, `autoscaling.datadoghq.com/spot-config: '{"percent": 3}'`)},
		"percentage is 0 to 100, and minOnDemandReplicas is 0 or more":                         {workload(t, `autoscaling.datadoghq.com/spot-config: '{"percentage": 300}'`)},
		`spot-min-on-demand-replicas]: "-1" is not a number`:                                   {workload(t, `autoscaling.datadoghq.com/spot-min-on-demand-replicas: "-1"`)},
		"it has no percentage, and the input has no DatadogAgent":                              {workload(t, `autoscaling.datadoghq.com/spot-min-on-demand-replicas: "1"`)},
		"DatadogAgent datadog: .spec.override.clusterAgent.env accessor error":                 {object(t, "{kind: DatadogAgent, metadata: {name: datadog}, spec: {override: {clusterAgent: {env: x}}}}")},
	} {
		if out, err := Datadog(objects, options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, out, err)
		}
	}
	// Settings without a counterpart are named.
	out, err := Datadog([]*unstructured.Unstructured{agent(t, percentage+`, {name: DD_AUTOSCALING_CLUSTER_SPOT_FALLBACK_DURATION, value: 1m}, {name: DD_AUTOSCALING_CLUSTER_SPOT_REBALANCE_STABILIZATION_PERIOD, value: 1m}, {name: DD_AUTOSCALING_CLUSTER_SPOT_NEW, value: x}, {name: DD_AUTOSCALING_CLUSTER_SPOT_ENABLED, value: "true"}`)}, options)
	if err != nil || len(out) != 1 || strings.Count(strings.Join(out[0].Notes, "; "), "has no counterpart") != 3 {
		t.Errorf("%v, %v", out, err)
	}
}
