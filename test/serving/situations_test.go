package serving

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
)

// While no replica answers, status says so, and no longer. A registration that leaves out a
// namespace is told, too.
func TestStatusWithoutAnswer(t *testing.T) {
	n := newTenant(t)
	says := func(what string, want bool, part string) {
		t.Helper()
		eventually(t, what, func() (bool, error) {
			out, _, _ := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
			return strings.Contains(out, part) == want, nil
		})
	}
	must(t, n.Create(t.Context(), n.Deployment("web", 1, annotated(documented))))
	n.Ready(t, "web", 1)
	restore := patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
	says("no replica answers", true, "MutatingWebhookConfiguration/stowage: the API server is to call https://localhost:1/, where no replica answered")
	restore()
	says("a replica answers again", false, "no replica answered") // and nobody needs to create a pod for that
	restore = patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) {
		h.NamespaceSelector = metav1.AddLabelToSelector(h.NamespaceSelector.DeepCopy(), "no", "namespace")
	})
	says("the registration leaves the pods out", true, "has a strategy, and the webhook's registration leaves its pods out")
	restore()
	says("it does no longer", false, "leaves its pods out")
}

// Where the registration or the kind of the records is gone, status says so, and has nobody wait for evictions that are not made.
func TestStatusWithoutParts(t *testing.T) {
	n := newTenant(t)
	restoreFleet(t)
	says := func(what string, exit int, parts ...string) {
		t.Helper()
		eventually(t, what, func() (bool, error) {
			out, _, is := suite.CLI(t, cluster, "status", "-A")
			return is == exit && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(out, part) }), nil
		})
	}
	must(t, n.Create(t.Context(), n.Deployment("web", 1, annotated(documented))))
	n.Ready(t, "web", 1)

	file := filepath.Join(repo, "config", "crd", "bases", "stowage.dev_poolstates.yaml")
	t.Cleanup(func() {
		eventually(t, "the kind is applied", func() (bool, error) { return cluster.ApplyFiles(context.Background(), file) == nil, nil })
	})
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName("poolstates.stowage.dev")
	must(t, n.Delete(t.Context(), definition))
	says("PoolStates are missing", 3, "CustomResourceDefinition/poolstates.stowage.dev: does not exist, in context stowage-local: Stowage has no record of pools, and evicts no pods")

	registration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	must(t, n.Get(t.Context(), client.ObjectKey{Name: "stowage"}, registration))
	must(t, n.Delete(t.Context(), registration))
	says("the registration is missing, too", 3, "MutatingWebhookConfiguration/stowage: does not exist, so that pods are created as they are written", "CustomResourceDefinition/poolstates.stowage.dev: does not exist")
}
