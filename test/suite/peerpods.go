package suite

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// PeerPod begins a peer pod; its name is generated.
func PeerPod() *testkit.PodBuilder { return testkit.Pod("p").RuntimeClass("kata-remote") }

// VMSize returns the sizing annotations: vCPUs, memory, GPUs.
func VMSize(p *corev1.Pod) []string {
	return []string{p.Annotations[stowage.DefaultVCPUsAnnotation], p.Annotations[stowage.DefaultMemoryAnnotation], p.Annotations[stowage.DefaultGPUsAnnotation]}
}

// ReplicaSet makes a ReplicaSet of a template, without creating it.
func ReplicaSet(namespace, name string, template *testkit.PodBuilder, replicas int32) *appsv1.ReplicaSet {
	p := template.Label("app", name).Obj()
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations}, Spec: p.Spec},
		},
	}
}

// StartInjector registers, for this test, a webhook that comes after ours and injects a
// container into the pods of namespaces that are labelled inject=yes.
func StartInjector(t *testing.T, n *Tenant) {
	t.Helper()
	StartWebhook(t, "zz-injector", map[string]string{"inject": "yes"}, func(p *corev1.Pod) {
		if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "injected" }) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "injected", Image: "mesh", Resources: corev1.ResourceRequirements{
				Requests: testkit.ResourceList("cpu=100m,memory=128Mi"),
			}})
		}
	})
	Eventually(t, "the injector is called", func() (bool, error) {
		p := testkit.Pod("probe").Namespace(n.Namespace).Container("a", "", "").Obj()
		err := n.Create(t.Context(), p, client.DryRunAll)
		return len(p.Spec.Containers) == 2, err
	})
}

// StartWebhook registers, for this test, another webhook of pods, in namespaces with the given
// labels. The API server calls webhooks in the order of their names; ours is stowage.
func StartWebhook(t *testing.T, name string, namespaces map[string]string, change func(*corev1.Pod)) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var before, after corev1.Pod
		err := json.NewDecoder(r.Body).Decode(&review)
		if err == nil {
			err = json.Unmarshal(review.Request.Object.Raw, &before)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		before.DeepCopyInto(&after)
		change(&after)
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if !reflect.DeepEqual(before, after) {
			var patch []map[string]any
			for path, value := range map[string]any{"/metadata": after.ObjectMeta, "/spec": after.Spec} {
				patch = append(patch, map[string]any{"op": "replace", "path": path, "value": value})
			}
			answer.PatchType = new(admissionv1.PatchTypeJSONPatch)
			answer.Patch, err = json.Marshal(patch)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer})
	}))
	t.Cleanup(server.Close)
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    "pods.test.example",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: namespaces},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	Must(t, Cluster.Client.Create(t.Context(), registration))
	t.Cleanup(func() { _ = Cluster.Client.Delete(context.Background(), registration) })
}
