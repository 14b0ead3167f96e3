package serving

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
