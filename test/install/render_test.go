package install

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// render returns the objects of a manifest by kind and name, without what a chart adds to
// every object. Two objects of one name are an error: Argo CD drops one of them.
func render(t *testing.T, manifest string) map[string]*unstructured.Unstructured {
	t.Helper()
	objects, err := controlplane.ParseObjects([]byte(manifest))
	must(t, err)
	out := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		name := strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, "/")
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		labels := o.GetLabels()
		for _, l := range []string{"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"} {
			delete(labels, l)
		}
		o.SetLabels(labels)
		annotations := o.GetAnnotations()
		delete(annotations, "helm.sh/resource-policy")
		if len(annotations) == 0 {
			annotations = nil
		}
		o.SetAnnotations(annotations)
		out[name] = o
	}
	return out
}

func chart(t *testing.T, set ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	args := []string{"template", "stowage", "charts/stowage", "--namespace", namespace}
	for _, s := range set {
		args = append(args, "--set-json", s)
	}
	return render(t, do(t, helm, args...))
}

// get returns a part of an object, of lists by index.
func get(t *testing.T, o *unstructured.Unstructured, path ...any) any {
	t.Helper()
	if o == nil {
		t.Fatalf("there is no such object (%v)", path)
	}
	var at any = o.Object
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := at.(map[string]any)
			at = m[p]
		case int:
			l, _ := at.([]any)
			if p >= len(l) {
				return nil
			}
			at = l[p]
		}
	}
	return at
}

// The chart with its defaults, and with cert-manager, says what config/ says.
func TestChartAndKustomizeRenderTheSame(t *testing.T) {
	for overlay, set := range map[string][]string{
		"config/default":     nil,
		"config/certmanager": {"certs.certManager.enabled=true"},
		"config/scaledown":   {"webhook.enabled=false"},
	} {
		t.Run(overlay, func(t *testing.T) {
			want := render(t, do(t, kubectl, "kustomize", overlay))
			// Helm makes the namespace, if asked to.
			delete(want, "Namespace//"+namespace)
			got := chart(t, set...)
			if len(want) < 19 {
				t.Errorf("%s has only %d objects", overlay, len(want))
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("config/ (-) and the chart (+) have other objects:\n%s", diff)
			}
			for name := range want {
				if diff := cmp.Diff(want[name].Object, got[name].Object); diff != "" {
					t.Errorf("%s differs in config/ (-) and the chart (+):\n%s", name, diff)
				}
			}
		})
	}
}

// Each value does what its description says.
func TestChartValues(t *testing.T) {
	const deployment, mutating = "Deployment/" + namespace + "/stowage", "MutatingWebhookConfiguration//stowage"
	const controllers = deployment + "-controllers"
	container := []any{"spec", "template", "spec", "containers", 0}
	in := func(path ...any) []any { return append(slices.Clone(container), path...) }
	for _, tc := range []struct {
		set    string
		object string
		path   []any
		want   string // JSON; a part of it suffices
	}{
		{`image={"registry":"r.example","repository":"a/b","tag":"v9"}`, deployment, in("image"), `"r.example/a/b:v9"`},
		{`image.digest="sha256:` + strings.Repeat("0", 64) + `"`, deployment, in("image"), `"stowage@sha256:` + strings.Repeat("0", 64) + `"`},
		{`image.pullPolicy="Always"`, deployment, in("imagePullPolicy"), `"Always"`},
		{`image.pullSecrets=[{"name":"s"}]`, deployment, []any{"spec", "template", "spec", "imagePullSecrets"}, `[{"name":"s"}]`},
		{`replicaCount=5`, deployment, []any{"spec", "replicas"}, `5`},
		{`controllers.replicaCount=3`, controllers, []any{"spec", "replicas"}, `3`},
		{`controllers.serviceAccountName="other"`, controllers, []any{"spec", "template", "spec", "serviceAccountName"}, `"other"`},
		{`controllers.serviceAccountName="other"`, "FlowSchema//stowage", []any{"spec", "rules", 0, "subjects", 1, "serviceAccount", "name"}, `"other"`},
		{`controllers.serviceAccountName="other"`, "ValidatingAdmissionPolicy//stowage-pods", []any{"spec", "matchConditions", 0, "expression"}, `stowage-system:other`},
		{`controllers.resources={"limits":{"memory":"3Gi"}}`, controllers, in("resources"), `{"limits":{"memory":"3Gi"}}`},
		{`resources={"limits":{"memory":"3Gi"}}`, controllers, in("resources", "limits", "memory"), `"3Gi"`},
		{`controllers.affinity={"nodeAffinity":{}}`, controllers, []any{"spec", "template", "spec", "affinity"}, `{"nodeAffinity":{}}`},
		{`controllers.topologySpreadConstraints=[{"maxSkew":2}]`, controllers, []any{"spec", "template", "spec", "topologySpreadConstraints"}, `[{"maxSkew":2}]`},
		{`startupProbe={"periodSeconds":7}`, deployment, in("startupProbe", "periodSeconds"), `7`},
		{`features.spread=false`, deployment, in("args"), `"--spread=false"`},
		{`features.spread=false`, mutating, []any{"webhooks", 0, "matchConditions", 2, "name"}, `"of-a-daemonset-or-with-a-runtime-class"`},
		{`webhook.spreadNamespaceLabel="spread=on"`, mutating, []any{"webhooks", 0, "namespaceSelector", "matchExpressions", 2}, `{"key":"spread","operator":"In","values":["on"]}`},
		{`webhook.spreadNamespaceLabel="spread=on"`, mutating, []any{"webhooks", 1, "name"}, `"other-pods.stowage.dev"`},
		{`webhook.spreadNamespaceLabel="spread=on"`, mutating, []any{"webhooks", 1, "namespaceSelector", "matchExpressions", 2}, `{"key":"spread","operator":"NotIn","values":["on"]}`},
		{`webhook.spreadNamespaceLabel="spread=on"`, mutating, []any{"webhooks", 1, "matchConditions", 2, "name"}, `"of-a-daemonset-or-with-a-runtime-class"`},
		{`features.sizing=false`, deployment, in("args"), `"--sizing=false"`},
		{`features.peerPods=false`, deployment, in("args"), `"--peer-pods=false"`},
		{`logLevel="DEBUG"`, "ConfigMap/" + namespace + "/stowage-config", []any{"data", "LOG_LEVEL"}, `"DEBUG"`},
		{`blocklistedNamespaces=["a","b"]`, "ConfigMap/" + namespace + "/stowage-config", []any{"data", "BLOCKLISTED_NAMESPACE_LIST"}, `"a,b"`},
		{`logFormat="text"`, deployment, in("args"), `"--log-format=text"`},
		{`settings={"target-runtimeclass":["a","b"],"peerpods-limit-per-node":2000000}`, deployment, in("args"), `"--peerpods-limit-per-node=2000000","--target-runtimeclass=a,b"`},
		{`extraArgs=["--repair-quiet=1s"]`, deployment, in("args"), `"--repair-quiet=1s"`},
		{`extraEnv=[{"name":"HTTPS_PROXY","value":"p"}]`, deployment, in("env", 4), `{"name":"HTTPS_PROXY","value":"p"}`},
		{`extraVolumes=[{"name":"v","configMap":{"name":"c"}}]`, deployment, []any{"spec", "template", "spec", "volumes"}, `[{"configMap":{"name":"c"},"name":"v"}]`},
		{`extraVolumeMounts=[{"name":"v","mountPath":"/m"}]`, deployment, in("volumeMounts"), `[{"mountPath":"/m","name":"v"}]`},
		{`serviceAccount={"name":"other","annotations":{"a":"b"}}`, "ServiceAccount/" + namespace + "/other", []any{"metadata", "annotations"}, `{"a":"b"}`},
		{`serviceAccount.name="other"`, "ClusterRoleBinding//stowage", []any{"subjects", 0, "name"}, `"other"`},
		{`serviceAccount.name="other"`, "FlowSchema//stowage", []any{"spec", "rules", 0, "subjects", 0, "serviceAccount", "name"}, `"other"`},
		{`certs.existingSecret="mine"`, deployment, []any{"spec", "template", "spec", "volumes", 0, "secret", "secretName"}, `"mine"`},
		{`certs.existingSecret="mine"`, deployment, in("args"), `"--cert-dir=/etc/stowage/certs"`},
		{`certs={"existingSecret":"mine","caBundle":"-----BEGIN CERTIFICATE-----"}`, mutating, []any{"webhooks", 1, "clientConfig", "caBundle"}, `"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"`},
		{`certs.certManager={"enabled":true,"issuerRef":{"name":"corp","kind":"ClusterIssuer"}}`, "Certificate/" + namespace + "/stowage-webhook", []any{"spec", "issuerRef"}, `{"group":"cert-manager.io","kind":"ClusterIssuer","name":"corp"}`},
		{`webhook.timeoutSeconds=9`, mutating, []any{"webhooks", 1, "timeoutSeconds"}, `9`},
		{`webhook.failurePolicy="Fail"`, mutating, []any{"webhooks", 0, "failurePolicy"}, `"Fail"`},
		{`webhook.reinvocationPolicy="Never"`, mutating, []any{"webhooks", 0, "reinvocationPolicy"}, `"Never"`},
		{`webhook.namespaceSelector={"matchLabels":{"a":"b"},"matchExpressions":[{"key":"x","operator":"Exists"}]}`, mutating, []any{"webhooks", 0, "namespaceSelector"}, `{"key":"x","operator":"Exists"}],"matchLabels":{"a":"b"}`},
		{`webhook.objectSelector={"matchLabels":{"a":"b"}}`, mutating, []any{"webhooks", 1, "objectSelector"}, `{"matchLabels":{"a":"b"}}`},
		{`webhook.matchConditions=[{"name":"n","expression":"true"}]`, mutating, []any{"webhooks", 0, "matchConditions", 2}, `{"expression":"true","name":"n"}`},
		{`webhook.skipJobs=true`, mutating, []any{"webhooks", 1, "matchConditions", 2, "name"}, `"no-pod-of-a-job"`},
		{`webhook.port=10250`, deployment, in("ports", 0, "containerPort"), `10250`},
		{`webhook.port=10250`, deployment, in("args"), `"--port=10250"`},
		{`metrics.port=9090`, deployment, in("args"), `"--metrics-bind-address=:9090"`},
		{`metrics.port=9090`, deployment, in("ports", 1, "containerPort"), `9090`},
		{`health.port=9091`, deployment, in("ports", 2, "containerPort"), `9091`},
		{`priorityClassName="system-node-critical"`, "ResourceQuota/" + namespace + "/stowage", []any{"spec", "scopeSelector"}, `["system-node-critical"]`},
		{`webhook.hostNetwork=true`, deployment, []any{"spec", "template", "spec", "hostNetwork"}, `true`},
		{`webhook.networkPolicy={"enabled":true,"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}`, "NetworkPolicy/" + namespace + "/stowage", []any{"spec", "ingress", 0, "from"}, `10.0.0.0/8`},
		{`webhook.networkPolicy={"enabled":true,"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}`, "NetworkPolicy/" + namespace + "/stowage", []any{"spec", "ingress", 0, "from"}, `podSelector`},
		{`podDisruptionBudget.maxUnavailable="50%"`, "PodDisruptionBudget/" + namespace + "/stowage", []any{"spec", "maxUnavailable"}, `"50%"`},
		{`priorityClassName="p"`, deployment, []any{"spec", "template", "spec", "priorityClassName"}, `"p"`},
		{`flowControl.nominalConcurrencyShares=7`, "PriorityLevelConfiguration//stowage", []any{"spec", "limited", "nominalConcurrencyShares"}, `7`},
		{`podSecurityContext.fsGroup=5`, deployment, []any{"spec", "template", "spec", "securityContext", "fsGroup"}, `5`},
		{`containerSecurityContext.privileged=false`, deployment, in("securityContext", "privileged"), `false`},
		{`resources.limits.memory="2Gi"`, deployment, in("resources", "limits", "memory"), `"2Gi"`},
		{`terminationGracePeriodSeconds=60`, deployment, []any{"spec", "template", "spec", "terminationGracePeriodSeconds"}, `60`},
		{`nodeSelector={"a":"b"}`, deployment, []any{"spec", "template", "spec", "nodeSelector"}, `{"a":"b"}`},
		{`tolerations=[{"operator":"Exists"}]`, deployment, []any{"spec", "template", "spec", "tolerations"}, `[{"operator":"Exists"}]`},
		{`affinity={"nodeAffinity":{}}`, deployment, []any{"spec", "template", "spec", "affinity"}, `{"nodeAffinity":{}}`},
		{`topologySpreadConstraints=[{"maxSkew":2}]`, deployment, []any{"spec", "template", "spec", "topologySpreadConstraints"}, `[{"maxSkew":2}]`},
		{`podAnnotations={"a":"b"}`, deployment, []any{"spec", "template", "metadata", "annotations", "a"}, `"b"`},
		{`podLabels={"a":"b"}`, deployment, []any{"spec", "template", "metadata", "labels", "a"}, `"b"`},
		{`commonLabels={"a":"b"}`, "ClusterRole//stowage-view", []any{"metadata", "labels", "a"}, `"b"`},
		{`commonAnnotations={"a":"b"}`, "ClusterRole//stowage-view", []any{"metadata", "annotations", "a"}, `"b"`},
		{`commonAnnotations={"a":"b"}`, "CustomResourceDefinition//seatledgers.stowage.dev", []any{"metadata", "annotations"}, `"a":"b"`},
		{`commonAnnotations={"a":"b"}`, "FlowSchema//stowage", []any{"metadata", "annotations", "a"}, `"b"`},
		{`commonAnnotations={"a":"b"}`, mutating, []any{"metadata", "annotations", "a"}, `"b"`},
		{`strategy={"type":"Recreate"}`, deployment, []any{"spec", "strategy"}, `{"type":"Recreate"}`},
		{`livenessProbe={"periodSeconds":7}`, deployment, in("livenessProbe", "periodSeconds"), `7`},
		{`readinessProbe={"periodSeconds":7}`, deployment, in("readinessProbe", "periodSeconds"), `7`},
		{`service={"annotations":{"a":"b"}}`, "Service/" + namespace + "/stowage-metrics", []any{"metadata", "annotations"}, `{"a":"b"}`},
		{`service={"ipFamilyPolicy":"PreferDualStack","ipFamilies":["IPv6","IPv4"]}`, "Service/" + namespace + "/stowage-webhook", []any{"spec", "ipFamilies"}, `["IPv6","IPv4"]`},
		{`webhook.sessionAffinity="ClientIP"`, "Service/" + namespace + "/stowage-webhook", []any{"spec", "sessionAffinity"}, `"ClientIP"`},
		{`service.ipFamilyPolicy="PreferDualStack"`, "Service/" + namespace + "/stowage-webhook", []any{"spec", "ipFamilyPolicy"}, `"PreferDualStack"`},
		{`dnsPolicy="Default"`, deployment, []any{"spec", "template", "spec", "dnsPolicy"}, `"Default"`},
		{`dnsConfig={"nameservers":["10.0.0.1"]}`, deployment, []any{"spec", "template", "spec", "dnsConfig"}, `{"nameservers":["10.0.0.1"]}`},
		{`extraContainers=[{"name":"beside","image":"i"}]`, deployment, []any{"spec", "template", "spec", "containers", 1, "name"}, `"beside"`},
		{`extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"{{ .Release.Namespace }}"}}]`, "ConfigMap/" + namespace + "/x", []any{"metadata", "name"}, `"x"`},
		{`serviceAccount.name="other"`, "ValidatingAdmissionPolicy//stowage-pods", []any{"spec", "matchConditions", 0, "expression"}, `stowage-system:other`},
		{`settings={"pod-vm-extended-resource":"example.com/vm"}`, "ValidatingAdmissionPolicy//stowage-nodes", []any{"spec", "variables", 0, "expression"}, `example.com/vm`},
		{`metrics.auth=true`, deployment, in("args"), `"--metrics-auth"`},
		{`metrics.auth=true`, "ClusterRole//stowage-metrics-auth", []any{"rules", 0, "resources"}, `["tokenreviews"]`},
		{`{"metrics":{"auth":true},"serviceMonitor":{"enabled":true}}`, "ServiceMonitor/" + namespace + "/stowage", []any{"spec", "endpoints", 0}, `"scheme":"https","tlsConfig":{"insecureSkipVerify":true}`},
		{`rbac.karpenter=true`, "ClusterRole//stowage-karpenter", []any{"rules", 0, "resources"}, `["nodeclaims","nodepools"]`},
		{`rbac.clusterAutoscaler=true`, "Role/kube-system/stowage-cluster-autoscaler", []any{"rules", 0, "resourceNames"}, `["cluster-autoscaler-status"]`},
		{`settings={"peerpods-capacity":false}`, deployment, in("args"), `"--peerpods-capacity=false"`},
		{`peerPods.limitPerNode=0`, "ConfigMap/" + namespace + "/peer-pods-cm", []any{"data"}, `{"PEERPODS_LIMIT_PER_NODE":"0"}`},
		{`certs.certManager={"enabled":true,"duration":"2160h","renewBefore":"720h"}`, "Certificate/" + namespace + "/stowage-webhook", []any{"spec", "duration"}, `"2160h"`},
		{`certs.certManager={"enabled":true,"renewBefore":"720h"}`, "Certificate/" + namespace + "/stowage-webhook", []any{"spec", "renewBefore"}, `"720h"`},
		{`certs.certManager={"enabled":true,"caDuration":"8760h"}`, "Certificate/" + namespace + "/stowage-ca", []any{"spec", "duration"}, `"8760h"`},
		{`serviceMonitor={"enabled":true,"scrapeTimeout":"9s"}`, "ServiceMonitor/" + namespace + "/stowage", []any{"spec", "endpoints", 0, "scrapeTimeout"}, `"9s"`},
		{`serviceMonitor={"enabled":true,"relabelings":[{"action":"drop"}]}`, "ServiceMonitor/" + namespace + "/stowage", []any{"spec", "endpoints", 0, "relabelings"}, `[{"action":"drop"}]`},
		{`serviceMonitor={"enabled":true,"metricRelabelings":[{"action":"drop"}]}`, "ServiceMonitor/" + namespace + "/stowage", []any{"spec", "endpoints", 0, "metricRelabelings"}, `[{"action":"drop"}]`},
		{`serviceMonitor={"enabled":true,"annotations":{"a":"b"}}`, "ServiceMonitor/" + namespace + "/stowage", []any{"metadata", "annotations"}, `{"a":"b"}`},
		{`prometheusRule={"enabled":true,"alerts":{"StowageVMsExhausted":{"threshold":0.75,"for":"1h","severity":"critical"}}}`, "PrometheusRule/" + namespace + "/stowage", []any{"spec", "groups", 0, "rules"}, `(stowage_peerpods_vm_capacity)) \u003e 0.75","for":"1h","labels":{"severity":"critical"}`},
		{`prometheusRule={"enabled":true,"annotations":{"a":"b"}}`, "PrometheusRule/" + namespace + "/stowage", []any{"metadata", "annotations"}, `{"a":"b"}`},
		{`grafanaDashboard={"enabled":true,"annotations":{"a":"b"}}`, "ConfigMap/" + namespace + "/stowage-dashboard", []any{"metadata", "annotations"}, `{"a":"b"}`},
		{`serviceMonitor={"enabled":true,"labels":{"release":"p"}}`, "ServiceMonitor/" + namespace + "/stowage", []any{"metadata", "labels", "release"}, `"p"`},
		{`prometheusRule.enabled=true`, "PrometheusRule/" + namespace + "/stowage", []any{"spec", "groups", 0, "rules", 0, "alert"}, `"Stowage`},
		{`grafanaDashboard.enabled=true`, "ConfigMap/" + namespace + "/stowage-dashboard", []any{"data", "stowage.json"}, `panels`},
	} {
		t.Run(tc.set+"/"+tc.object, func(t *testing.T) {
			got, err := json.Marshal(get(t, chart(t, tc.set)[tc.object], tc.path...))
			must(t, err)
			if !strings.Contains(string(got), tc.want) {
				t.Errorf("%v is %s, want %s", tc.path, got, tc.want)
			}
			if before, _ := json.Marshal(get(t, orEmpty(chart(t)[tc.object]), tc.path...)); strings.Contains(string(before), tc.want) {
				t.Errorf("%v has %s without the value, too", tc.path, tc.want)
			}
		})
	}
	for set, gone := range map[string]string{
		"crds.enabled=false":                "CustomResourceDefinition//seatledgers.stowage.dev",
		"rbac.create=false":                 "ClusterRole//stowage",
		"rbac.admissionPolicies=false":      "ValidatingAdmissionPolicy//stowage-pods",
		"serviceAccount.create=false":       "ServiceAccount/" + namespace + "/stowage",
		"podDisruptionBudget.enabled=false": "PodDisruptionBudget/" + namespace + "/stowage",
		"flowControl.enabled=false":         "FlowSchema//stowage",
		"priorityClassName=\"\"":            "ResourceQuota/" + namespace + "/stowage",
		"features.spread=false":             "ValidatingWebhookConfiguration//stowage",
	} {
		if all := chart(t); all[gone] == nil {
			t.Errorf("%s is not among %v", gone, slices.Sorted(maps.Keys(all)))
		}
		if chart(t, set)[gone] != nil {
			t.Errorf("%s: %s is still there", set, gone)
		}
	}
}

// The policy that gives the gate is that of config/gate. It selects what the webhook selects, whatever the values are: a pod that is not
// sent to the webhook must not wait for it.
func TestGateSelectsWhatTheWebhookSelects(t *testing.T) {
	const policy, mutating = "MutatingAdmissionPolicy//stowage-gate", "MutatingWebhookConfiguration//stowage"
	on := `gate.enabled=true`
	for name, want := range render(t, do(t, kubectl, "kustomize", "config/gate")) {
		got := orEmpty(chart(t, on)[name])
		if diff := cmp.Diff(want.Object, got.Object); diff != "" {
			t.Errorf("%s differs in config/gate (-) and the chart (+):\n%s", name, diff)
		}
		if chart(t)[name] != nil {
			t.Errorf("%s is there without %s", name, on)
		}
	}
	for _, set := range []string{
		`{}`,
		`webhook.namespaceSelector={"matchLabels":{"a":"b"},"matchExpressions":[{"key":"x","operator":"Exists"}]}`,
		`webhook.objectSelector={"matchLabels":{"a":"b"}}`,
		`webhook.spreadNamespaceLabel="spread=on"`,
		`webhook.matchConditions=[{"name":"n","expression":"true"}]`,
		`webhook.skipJobs=true`,
	} {
		all := chart(t, on, set)
		hook := get(t, all[mutating], "webhooks", 0).(map[string]any)
		match := get(t, all[policy], "spec", "matchConstraints").(map[string]any)
		namespaces := maps.Clone(hook["namespaceSelector"].(map[string]any))
		namespaces["matchExpressions"] = slices.DeleteFunc(slices.Clone(namespaces["matchExpressions"].([]any)), func(e any) bool {
			return e.(map[string]any)["key"] == "stowage.dev/failure-policy" // of both webhooks together
		})
		byKey := func(list any) map[string]any {
			out := map[string]any{}
			for _, e := range list.([]any) {
				out[e.(map[string]any)["key"].(string)] = e
			}
			return out
		}
		if diff := cmp.Diff(byKey(namespaces["matchExpressions"]), byKey(get(t, all[policy], "spec", "matchConstraints", "namespaceSelector", "matchExpressions"))); diff != "" {
			t.Errorf("%s: the namespaces of the webhook (-) and of the policy (+):\n%s", set, diff)
		}
		if diff := cmp.Diff(namespaces["matchLabels"], get(t, all[policy], "spec", "matchConstraints", "namespaceSelector", "matchLabels")); diff != "" {
			t.Errorf("%s: the labels of the namespaces of the webhook (-) and of the policy (+):\n%s", set, diff)
		}
		if diff := cmp.Diff(hook["objectSelector"], match["objectSelector"]); diff != "" {
			t.Errorf("%s: the pods of the webhook (-) and of the policy (+):\n%s", set, diff)
		}
		conditions := map[string]bool{}
		for _, c := range get(t, all[policy], "spec", "matchConditions").([]any) {
			conditions[c.(map[string]any)["name"].(string)] = true
		}
		for _, c := range hook["matchConditions"].([]any) {
			if name := c.(map[string]any)["name"].(string); !conditions[name] && name != "no-mirror-pod" { // which has a node
				t.Errorf("%s: the policy lacks the condition %s of the webhook", set, name)
			}
		}
	}
	classes, _ := json.Marshal(get(t, chart(t, on, `settings={"target-runtimeclass":["a","b"]}`)[policy], "spec", "matchConditions"))
	if !strings.Contains(string(classes), `in [\"a\",\"b\"])`) {
		t.Errorf("the RuntimeClasses are not in %s", classes)
	}
}

// The policy that keeps deletion costs is that of config/deletioncosts. It lets the replicas write, by whatever names they have.
func TestDeletionCostsOfTheReplicas(t *testing.T) {
	on := `deletionCosts.keep=true`
	for name, want := range render(t, do(t, kubectl, "kustomize", "config/deletioncosts")) {
		got := orEmpty(chart(t, on)[name])
		if diff := cmp.Diff(want.Object, got.Object); diff != "" {
			t.Errorf("%s differs in config/deletioncosts (-) and the chart (+):\n%s", name, diff)
		}
		if chart(t)[name] != nil {
			t.Errorf("%s is there without %s", name, on)
		}
	}
	for set, want := range map[string]string{
		`serviceAccount.name="a"`:            `["system:serviceaccount:stowage-system:a","system:serviceaccount:stowage-system:stowage-controllers"]`,
		`controllers.serviceAccountName="b"`: `["system:serviceaccount:stowage-system:stowage","system:serviceaccount:stowage-system:b"]`,
		`controllers={"separate":false}`:     `["system:serviceaccount:stowage-system:stowage"]`,
		`rbac={"admissionPolicies":false}`:   `["system:serviceaccount:stowage-system:stowage","system:serviceaccount:stowage-system:stowage-controllers"]`,
	} {
		got := get(t, chart(t, on, set)["MutatingAdmissionPolicy//stowage-deletion-costs"], "spec", "matchConditions", 0, "expression")
		if want := "!(request.userInfo.username in " + want + ")"; got != want {
			t.Errorf("%s: the condition is %v, want %s", set, got, want)
		}
	}
}

// allows reports whether the roles of a chart have a verb for a resource in the whole cluster.
func allows(t *testing.T, objects map[string]*unstructured.Unstructured, resource, verb string) bool {
	t.Helper()
	for key, role := range objects {
		bound := objects[strings.Replace(key, "ClusterRole//", "ClusterRoleBinding//", 1)]
		if !strings.HasPrefix(key, "ClusterRole//") || bound == nil {
			continue // a role for people has no binding
		}
		for _, rule := range get(t, role, "rules").([]any) {
			rule := rule.(map[string]any)
			if slices.Contains(rule["resources"].([]any), any(resource)) && slices.Contains(rule["verbs"].([]any), any(verb)) {
				return true
			}
		}
	}
	return false
}

// The webhook has no right of the controllers, unless its replicas run them.
func TestChartGrantsEachPart(t *testing.T) {
	const names = `serviceAccount.name="web"`
	ofControllers := []string{
		"pods patch", "pods/eviction create", "pods/resize patch", "nodes patch", "nodes/status patch", "poolstates create", "poddistributors/status patch",
		"flexdaemonsettemplates/status patch", "mutatingwebhookconfigurations update", "seatledgers delete",
	}
	ofBoth := []string{"seatledgers create", "seatledgers update"} // the leader seats pods that wait at the gate
	of := func(objects map[string]*unstructured.Unstructured, account string) map[string]*unstructured.Unstructured {
		out := maps.Clone(objects)
		maps.DeleteFunc(out, func(key string, o *unstructured.Unstructured) bool {
			return strings.HasPrefix(key, "ClusterRoleBinding//") && !strings.Contains(fmt.Sprint(o.Object["subjects"]), "name:"+account+" ")
		})
		return out
	}
	separate, single := chart(t, names), chart(t, names, `controllers.separate=false`)
	for _, right := range slices.Concat(ofControllers, ofBoth) {
		resource, verb, _ := strings.Cut(right, " ")
		if got, want := allows(t, of(separate, "web"), resource, verb), slices.Contains(ofBoth, right); got != want {
			t.Errorf("%s is allowed to the webhook: %v, want %v", right, got, want)
		}
		if !allows(t, of(separate, "stowage-controllers"), resource, verb) {
			t.Errorf("%s is not allowed to the controllers", right)
		}
		if !allows(t, of(single, "web"), resource, verb) {
			t.Errorf("%s is not allowed to replicas that do all", right)
		}
	}
	for key := range single {
		if strings.HasSuffix(key, namespace+"/stowage-controllers") && !strings.HasPrefix(key, "Role") {
			t.Errorf("%s is there, though the replicas run the controllers", key)
		}
	}
}

// Stowage may read and write nothing for features that are off, and keeps what the others need.
func TestChartGrantsOnlyWhatIsOn(t *testing.T) {
	spread := []string{"seatledgers create", "poolstates create", "poddistributors watch", "poddistributors/status patch", "deployments watch", "rollouts get", "*/scale get", "events list"}
	sizing := []string{"pods/resize patch", "flexdaemonsettemplates watch", "flexdaemonsettemplates/status patch"}
	capacity := []string{"nodes patch", "nodes/status patch"}
	peerPods := slices.Concat(capacity, []string{"vmcatalogs watch", "vmcatalogs/status patch"})
	patching := []string{"pods patch"}
	scaleDown := []string{"scaledownpolicies watch", "clusterscaledownpolicies/status patch"}
	own := []string{"mutatingwebhookconfigurations update", "validatingwebhookconfigurations update"}
	all := slices.Concat(spread, sizing, peerPods, patching, scaleDown, own, []string{
		"pods/eviction create",
		"namespaces watch", "nodes watch", "pods watch", "limitranges watch", "replicasets watch", "daemonsets watch",
	})
	for _, tc := range []struct {
		set  []string
		gone []string
	}{
		{nil, nil},
		{[]string{"features.spread=false"}, spread},
		{[]string{"features.sizing=false"}, sizing},
		{[]string{"features.peerPods=false"}, peerPods},
		{[]string{"features.scaleDown=false"}, scaleDown},
		{[]string{"features.spread=false", "features.sizing=false", "features.scaleDown=false"}, slices.Concat(spread, sizing, scaleDown, patching)},
		{[]string{"webhook.enabled=false"}, slices.Concat(spread, sizing, peerPods, own, []string{"pods/eviction create", "limitranges watch", "replicasets watch", "daemonsets watch"})},
		{[]string{"features.spread=false", "features.sizing=false", "features.peerPods=false", "features.scaleDown=false"}, slices.Concat(spread, sizing, peerPods, scaleDown, patching, []string{"pods/eviction create", "pods watch", "nodes watch", "limitranges watch", "replicasets watch", "daemonsets watch"})},
		{[]string{"features.spread=false", "features.peerPods=false"}, slices.Concat(spread, peerPods, []string{"replicasets watch"})},
		{[]string{"features.sizing=false", "features.peerPods=false"}, slices.Concat(sizing, peerPods, []string{"limitranges watch"})},
		{[]string{"features.spread=false", "features.sizing=false", "features.scaleDown=false", `settings={"peerpods-capacity":"Off"}`}, slices.Concat(spread, sizing, scaleDown, patching, capacity)}, // the zones of nodes are those of VM types
		{[]string{`settings={"peerpods-capacity":"Off"}`}, capacity},
		{[]string{`settings={"peerpods-capacity":false}`}, capacity},
		{[]string{`certs.existingSecret="mine"`}, own},
	} {
		t.Run(strings.Join(tc.set, " "), func(t *testing.T) {
			objects := chart(t, tc.set...)
			for _, right := range all {
				resource, verb, _ := strings.Cut(right, " ")
				if got, want := allows(t, objects, resource, verb), !slices.Contains(tc.gone, right); got != want {
					t.Errorf("%s is allowed: %v, want %v", right, got, want)
				}
			}
		})
	}
}

func orEmpty(o *unstructured.Unstructured) *unstructured.Unstructured {
	if o == nil {
		return &unstructured.Unstructured{}
	}
	return o
}

// What is misspelt, or excludes something else, is refused, and the message names it.
func TestChartRefusesWrongValues(t *testing.T) {
	for set, part := range map[string]string{
		`features.spred=true`: "'spred' not allowed",
		`{"gate":{"enabled":true},"features":{"spread":false}}`:          "gate.enabled needs features.spread",
		`{"gate":{"enabled":true},"webhook":{"enabled":false}}`:          "gate.enabled needs features.spread and webhook.enabled",
		`{"controllers":{"separate":false},"webhook":{"enabled":false}}`: "leave controllers.separate on",
		`{"features":{"scaleDown":false},"webhook":{"enabled":false}}`:   "which is off: set one of them",
		`{"peerPods":{"limitPerNode":3},"webhook":{"enabled":false}}`:    "has no effect without peer pods",
		`replicas=3`:                        "'replicas' not allowed",
		`settings={"targt":"x"}`:            "'targt' not allowed",
		`settings={"repair-quiet":"soon"}`:  "/settings/repair-quiet",
		`settings={"port":1}`:               "'port' not allowed", // it has a value of its own
		`logLevel="LOUD"`:                   "/logLevel",
		`image.digest="sha256:abc"`:         "/image/digest",
		`webhook.timeoutSeconds=31`:         "/webhook/timeoutSeconds",
		`webhook.spreadNamespaceLabel="on"`: "/webhook/spreadNamespaceLabel",
		`webhook.matchConditions=[{"name":"a","expression":"namespaceObject.metadata.name == 'a'"}]`: "/webhook/matchConditions/0/expression",
		`certs={"existingSecret":"a","certManager":{"enabled":true}}`:                                "exclude each other",
		`certs={"caBundle":"-----BEGIN CERTIFICATE-----"}`:                                           "name that, or unset certs.caBundle",
		`certs={"existingSecret":"a","caBundle":"LS0tLS1CRUdJTg=="}`:                                 "/certs/caBundle", // encoded already
		`certs.certManager.issuerRef={"name":"corp"}`:                                                "without certs.certManager.enabled",
		`certs.certManager={"enabled":true,"issuerRef":{"kind":"ClusterIssuer"}}`:                    "/certs/certManager/issuerRef",
		`podLabels={"app.kubernetes.io/name":"x"}`:                                                   "/podLabels",
		`commonLabels={"app.kubernetes.io/name":"x"}`:                                                "/commonLabels",
		`settings={"leader-elect":false}`:                                                            "set controllers.replicaCount to 1",
		`webhook.port=8080`:                                                                          "must differ",
		`settings={"peerpods-capacity":"Of"}`:                                                        "/settings/peerpods-capacity",
		`terminationGracePeriodSeconds=24`:                                                           "settings.shutdown-delay and settings.drain-timeout take 25 s, which is longer than terminationGracePeriodSeconds (24)",
		`settings={"drain-timeout":"1m30s"}`:                                                         "take 95 s",
		`prometheusRule={"enabled":true,"alerts":{"StowageSlw":{"for":"1h"}}}`:                       "is no alert of this chart",
		`prometheusRule={"enabled":true,"alerts":{"StowageConfigInvalid":{"threshold":1}}}`:          "has no threshold",
		`podDisruptionBudget.maxUnavailable="foo"`:                                                   "/podDisruptionBudget/maxUnavailable",
		`podDisruptionBudget.maxUnavailable=0`:                                                       "/podDisruptionBudget/maxUnavailable", // no node could be drained
		`podDisruptionBudget.maxUnavailable="0%"`:                                                    "/podDisruptionBudget/maxUnavailable",
		`podDisruptionBudget.maxUnavailable="101%"`:                                                  "/podDisruptionBudget/maxUnavailable",
	} {
		_, err := try(t, helm, "template", "stowage", "charts/stowage", "--set-json", set)
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("%s: %v does not say %q", set, err, part)
		}
	}
	// The numbers of --set are of another type than those of files.
	for set, part := range map[string]string{
		"metrics.port=9443":                    "webhook.port, metrics.port and health.port must differ",
		"webhook.port=8081":                    "webhook.port, metrics.port and health.port must differ",
		"podDisruptionBudget.maxUnavailable=0": "/podDisruptionBudget/maxUnavailable",
	} {
		if _, err := try(t, helm, "template", "stowage", "charts/stowage", "--set", set); !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("--set %s: %v does not say %q", set, err, part)
		}
	}
}

// What needs MutatingAdmissionPolicies is refused for a Kubernetes without them, also where no API server is asked: a manifest that was
// rendered for it would be refused, or would do nothing.
func TestChartRefusesPoliciesWithoutTheirAPI(t *testing.T) {
	const api = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	for name, tc := range map[string]struct {
		args    []string
		refused bool
	}{
		"an older version":                {args: []string{"--kube-version", "1.35.9"}, refused: true},
		"an older version of a provider":  {args: []string{"--kube-version", "v1.35.9-eks-1a2b3c"}, refused: true},
		"the first version":               {args: []string{"--kube-version", "1.36.0"}},
		"a release candidate of it":       {args: []string{"--kube-version", "1.36.0-rc.1"}},
		"an older version that serves it": {args: []string{"--kube-version", "1.35.9", "--api-versions", api}},
		"an older version without them":   {args: []string{"--kube-version", "1.35.9", "--set", "gate.enabled=false,deletionCosts.keep=false"}},
	} {
		for _, value := range []string{"gate.enabled", "deletionCosts.keep"} {
			_, err := try(t, helm, append([]string{"template", "stowage", "charts/stowage", "--set", value + "=true"}, tc.args...)...)
			if refused := strings.Contains(fmt.Sprint(err), value+" needs an API server that serves MutatingAdmissionPolicy v1"); refused != tc.refused || err != nil && !refused {
				t.Errorf("%s, with %s: refused is %t, want %t (%v)", value, name, refused, tc.refused, err)
			}
		}
	}
}

// Each value says what it is for, in an editor and in the reference: sections, too.
func TestChartValuesHaveDescriptions(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repo, "charts", "stowage", "values.schema.json"))
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(data, &schema))
	count := 0
	var look func(at string, schema map[string]any)
	look = func(at string, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		for name, value := range properties {
			if value, ok := value.(map[string]any); ok {
				if count++; value["description"] == nil {
					t.Errorf("%s%s has no description", at, name)
				}
				look(at+name+".", value)
			}
		}
	}
	look("", schema)
	if count < 100 {
		t.Errorf("only %d values were found", count)
	}
}

// Wherever the chart goes, nothing is left that names another namespace.
func TestChartFollowsItsNamespace(t *testing.T) {
	out := do(t, helm, "template", "stowage", "charts/stowage", "--namespace", "elsewhere", "--set", "certs.certManager.enabled=true")
	for line := range strings.Lines(out) {
		if strings.Contains(line, namespace) && !strings.Contains(line, "description") {
			t.Errorf("names %s: %s", namespace, line)
		}
	}
	if !strings.Contains(out, "elsewhere") {
		t.Error("the namespace is nowhere")
	}
}

// The NetworkPolicy is there as soon as it is known who calls, unless it is turned off.
func TestChartNetworkPolicy(t *testing.T) {
	const from = `"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]`
	for set, want := range map[string]bool{
		`webhook.networkPolicy={}`: false, `webhook.networkPolicy={` + from + `}`: true,
		`webhook.networkPolicy={"enabled":true}`: true, `webhook.networkPolicy={"enabled":false,` + from + `}`: false,
	} {
		if got := chart(t, set)["NetworkPolicy/"+namespace+"/stowage"] != nil; got != want {
			t.Errorf("%s: there is a NetworkPolicy: %t, want %t", set, got, want)
		}
	}
	const text = "Every pod may call the webhook"
	for set, want := range map[string]bool{`webhook.networkPolicy={}`: true, `webhook.networkPolicy={` + from + `}`: false} {
		notes := do(t, helm, "install", "stowage", "charts/stowage", "--namespace", namespace, "--dry-run=client", "--set-json", set)
		if got := strings.Contains(notes, text); got != want {
			t.Errorf("%s: the notes say so: %t, want %t", set, got, want)
		}
	}
}
