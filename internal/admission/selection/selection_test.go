package selection

import (
	"os"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// What the API server makes of the same conditions is tested in test/e2e (TestMatchConditions).
func TestInstalledRegistration(t *testing.T) {
	r, err := Compile(installed(t))
	if err != nil {
		t.Fatal(err)
	}
	named := func(name string, labels ...string) map[string]string {
		out := map[string]string{"kubernetes.io/metadata.name": name}
		for _, l := range labels {
			k, v, _ := strings.Cut(l, "=")
			out[k] = v
		}
		return out
	}
	class := "kata-remote"
	mirror := map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	daemon := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u"}}
	for name, tc := range map[string]struct {
		namespace  map[string]string
		pod        corev1.Pod
		want       bool
		bySelector bool
	}{
		"a pod":                              {named("web"), corev1.Pod{}, true, true},
		"in a system namespace":              {named("kube-system"), corev1.Pod{}, false, false},
		"where pods must not pass unseen":    {named("web", "stowage.dev/failure-policy=Fail"), corev1.Pod{}, true, true},
		"a mirror pod":                       {named("web"), corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: mirror}}, false, true},
		"a pod with a node":                  {named("web"), corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, false, true},
		"a peer pod with a node":             {named("web"), corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", RuntimeClassName: &class}}, true, true},
		"a DaemonSet's pod with a node":      {named("web"), corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: daemon}, Spec: corev1.PodSpec{NodeName: "n"}}, true, true},
		"a mirror pod that must not pass by": {named("web", "stowage.dev/failure-policy=Fail"), corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: mirror}}, false, true},
	} {
		got, err := r.Selects(tc.namespace, &tc.pod)
		if err != nil || got != tc.want {
			t.Errorf("%s: selected %t, %v", name, got, err)
		}
		if got := r.SelectsLabels(tc.namespace, tc.pod.Labels); got != tc.bySelector {
			t.Errorf("%s: selected by labels: %t", name, got)
		}
	}
}

func TestConditions(t *testing.T) {
	with := func(expressions ...string) *admissionregistrationv1.MutatingWebhookConfiguration {
		w := admissionregistrationv1.MutatingWebhook{Name: "w", ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"on": "yes"}}}
		for _, e := range expressions {
			w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "c", Expression: e})
		}
		return &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{w}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{"on": "yes"}}}
	for name, tc := range map[string]struct {
		conditions []string
		want       bool
		fails      bool
	}{
		"none":                              {nil, true, false},
		"one that holds":                    {[]string{`object.metadata.labels["on"] == "yes"`}, true, false},
		"one that does not":                 {[]string{`object.metadata.labels["on"] == "no"`}, false, false},
		"about the request":                 {[]string{`request.operation == "CREATE" && request.namespace == "ns" && !request.dryRun`}, true, false},
		"an error":                          {[]string{`object.spec.nothing.here == 1`}, false, true},
		"an error beside one that is false": {[]string{`object.spec.nothing.here == 1`, `false`}, false, false},
		"with Kubernetes' own functions":    {[]string{`quantity("1Gi").isGreaterThan(quantity("1Mi"))`}, true, false},
	} {
		r, err := Compile(with(tc.conditions...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := r.Selects(nil, pod)
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	for name, config := range map[string]*admissionregistrationv1.MutatingWebhookConfiguration{
		"no CEL":            with("object."),
		"the authorizer":    with(`authorizer.group("").resource("pods").check("create").allowed()`),
		"a wrong selector":  {Webhooks: []admissionregistrationv1.MutatingWebhook{{ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}}}},
		"a wrong namespace": {Webhooks: []admissionregistrationv1.MutatingWebhook{{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}}}},
	} {
		if _, err := Compile(config); err == nil {
			t.Errorf("%s compiles", name)
		}
	}
}

// installed is the registration that config/ and the chart install.
func installed(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	data, err := os.ReadFile("../../../config/webhook/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.Unmarshal([]byte(strings.Split(string(data), "\n---\n")[0]), &config); err != nil {
		t.Fatal(err)
	}
	return &config
}
