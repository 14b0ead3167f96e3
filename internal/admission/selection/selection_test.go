package selection

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"
)

// What the API server makes of the same conditions is tested in test/serving (TestMatchConditions).
func TestInstalledRegistration(t *testing.T) {
	r := Compile(installed(t))
	if err := r.Err(); err != nil {
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
		want := No
		if tc.want {
			want = Yes
		}
		if got, err := r.Sent(tc.namespace, &tc.pod); err != nil || got != want {
			t.Errorf("%s: sent %d, %v", name, got, err)
		}
		if got := r.SentByLabels(tc.namespace, tc.pod.Labels); got != tc.bySelector {
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
	const authorizer = `authorizer.group("").resource("pods").check("create").allowed()`
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{"on": "yes"}}}
	for name, tc := range map[string]struct {
		conditions []string
		want       Sent
	}{
		"none":                                    {nil, Yes},
		"one that holds":                          {[]string{`object.metadata.labels["on"] == "yes"`}, Yes},
		"one that does not":                       {[]string{`object.metadata.labels["on"] == "no"`}, No},
		"about the request":                       {[]string{`request.operation == "CREATE" && request.namespace == "ns" && !request.dryRun`}, Yes},
		"an error":                                {[]string{`object.spec.nothing.here == 1`}, Unknown},
		"an error beside one that is false":       {[]string{`object.spec.nothing.here == 1`, `false`}, No},
		"with Kubernetes' own functions":          {[]string{`quantity("1Gi").isGreaterThan(quantity("1Mi"))`}, Yes},
		"the authorizer":                          {[]string{authorizer}, Unknown},
		"the authorizer beside one that is false": {[]string{authorizer, `false`}, No},
		"the authorizer beside one that holds":    {[]string{`true`, authorizer}, Unknown},
		"no CEL":                                  {[]string{"object."}, Unknown},
	} {
		r := Compile(with(tc.conditions...))
		got, err := r.Sent(nil, pod)
		if got != tc.want || (err != nil) != (tc.want == Unknown) {
			t.Errorf("%s: %d, %v", name, got, err)
		}
		if !r.SentByLabels(nil, pod.Labels) || r.SentByLabels(nil, nil) {
			t.Errorf("%s: the selectors alone say something else", name)
		}
		if other, err := r.Sent(nil, &corev1.Pod{}); other != No || err != nil {
			t.Errorf("%s: of a pod that the selector leaves out: %d, %v", name, other, err)
		}
		if (r.Err() != nil) != (strings.Contains(name, "authorizer") || name == "no CEL") {
			t.Errorf("%s: what cannot be evaluated is %v", name, r.Err())
		}
	}
	for name, config := range map[string]*admissionregistrationv1.MutatingWebhookConfiguration{
		"a wrong selector":  {Webhooks: []admissionregistrationv1.MutatingWebhook{{ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}}}},
		"a wrong namespace": {Webhooks: []admissionregistrationv1.MutatingWebhook{{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}}}},
	} {
		r := Compile(config)
		if got, err := r.Sent(nil, pod); got != Unknown || err == nil || r.Err() == nil {
			t.Errorf("%s: %d, %v, %v", name, got, err, r.Err())
		}
		config.Webhooks = append(config.Webhooks, admissionregistrationv1.MutatingWebhook{})
		if got, err := Compile(config).Sent(nil, pod); got != Yes || err != nil {
			t.Errorf("%s, and another webhook takes all: %d, %v", name, got, err)
		}
	}
}

// A version of the registration is compiled once, and the first answer that is not known is logged. Where there is none, nothing is sent.
func TestReader(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := admissionregistrationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "who", Expression: `authorizer.group("").resource("pods").check("create").allowed()`}},
	}}}
	stored := fake.NewClientBuilder().WithScheme(scheme).Build()
	var logged []string
	r := &Reader{Reader: stored, Name: "stowage", Log: funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})}
	read := func() *Registration {
		t.Helper()
		out, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	if got, err := read().Sent(nil, pod); got != No || err != nil {
		t.Errorf("without a registration: %d, %v", got, err)
	}
	if err := stored.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	first := read()
	for range 2 {
		if got, _ := read().Sent(nil, pod); got != Unknown || read() != first {
			t.Errorf("it is %d, or compiled again", got)
		}
	}
	if len(logged) != 1 || !strings.Contains(logged[0], `"pod"="web"`) || !strings.Contains(logged[0], "who") {
		t.Errorf("logged is %q", logged)
	}
	config.Webhooks[0].MatchConditions = nil
	if err := stored.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if got, err := read().Sent(nil, pod); got != Yes || err != nil {
		t.Errorf("after an edit: %d, %v", got, err)
	}
	r.Reader = failing{stored}
	if _, err := r.Read(t.Context()); err == nil {
		t.Error("an error is lost")
	}
}

type failing struct{ client.Reader }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
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
