package suite

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// Follows waits until every replica gives a pod with these labels a seat by a generation of a policy. Without a UID, it waits until none
// does.
func (n *Tenant) Follows(t *testing.T, labels map[string]string, policy types.UID, generation int64) {
	t.Helper()
	probe := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, GenerateName: "probe-"}}
	template := PodTemplate("probe")
	maps.Copy(template.Labels, labels)
	template.Labels["probe"] = "true"
	probe.Spec = appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"probe": "true"}}, Template: template}
	Must(t, n.Create(t.Context(), probe))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: n.Namespace, GenerateName: "probe-", Labels: template.Labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: probe.Name, UID: probe.UID, Controller: new(true)}},
	}, Spec: template.Spec}
	claim := fmt.Sprintf(":%s:%d.", policy, generation)
	Eventually(t, fmt.Sprintf("every replica follows generation %d of policy %q", generation, policy), func() (bool, error) {
		for _, r := range Cluster.Replicas() {
			answer, err := Review(r, pod)
			if err != nil {
				return false, err
			}
			patch := string(answer.Patch)
			if policy != "" && !strings.Contains(patch, claim) || policy == "" && strings.Contains(patch, "stowage.dev~1claim") {
				return false, nil
			}
		}
		return true, nil
	})
	Must(t, n.Delete(t.Context(), probe))
}

// Review returns what a replica answers about the creation of a pod, in a dry run and past the API server.
func Review(r *controlplane.Replica, pod *corev1.Pod) (*admissionv1.AdmissionResponse, error) {
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Namespace: pod.Namespace,
			Operation: admissionv1.Create, DryRun: new(true), Object: runtime.RawExtension{Raw: raw},
		},
	})
	if err != nil {
		return nil, err
	}
	// The certificate is for other names; who answers is not the question here.
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := c.Post("https://"+r.WebhookAddr+"/mutate", "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
		return nil, err
	}
	return review.Response, nil
}
