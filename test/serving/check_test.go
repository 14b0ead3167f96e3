package serving

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// Whether the webhook answers, seen by a user, and why not.
func TestCheck(t *testing.T) {
	n, audited := newTenant(t), newTenant(t, stowage.ModeKey+"=Audit")
	says := func(want int, text string, args ...string) {
		t.Helper()
		out, errs, exit := suite.CLI(t, cluster, append([]string{"check"}, args...)...)
		if exit != want || !strings.Contains(out+errs, text) {
			t.Errorf("%v: exit status %d, and %q is not in\n%s%s", args, exit, text, out, errs)
		}
	}
	says(0, "Stowage answered: replica ", "-n", n.Namespace)
	says(0, `"ok": true`, "-n", n.Namespace, "-o", "json")
	says(0, "It answers whoever reaches its port.", "-n", n.Namespace)
	says(0, "It changes no pod of this namespace: stowage.dev/mode is Audit on namespace ", "-n", audited.Namespace)
	says(3, "leave out the pods of namespace kube-system", "-n", "kube-system")
	says(2, "there is no such namespace", "-n", "typo")
	says(2, "--timeout is -1s; it must not be negative", "--wait", "--timeout", "-1s")
	says(1, "it needs the right to create pods in the namespace", "-n", n.Namespace, "--as", "nobody")
	pods, err := n.Pods(t.Context(), "")
	must(t, err)
	if len(pods) > 0 {
		t.Errorf("the check created %d pods", len(pods))
	}

	t.Run("by a user of one namespace", func(t *testing.T) {
		must(t, n.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "editor"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "editor-" + n.Namespace}},
		}))
		eventually(t, "an editor may check", func() (bool, error) {
			_, _, exit := suite.CLI(t, cluster, "check", "-n", n.Namespace, "--as", "editor-"+n.Namespace)
			return exit == 0, nil
		})
	})
	t.Run("where the webhook is not reached", func(t *testing.T) {
		nowhere := "https://127.0.0.1:1/mutate"
		restore := patchRegistration(t, func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.URL = &nowhere })
		n.led(t)
		says(3, "the API server is to call https://127.0.0.1:1/mutate, where no replica answered", "-n", n.Namespace)
		restore()
		says(0, "Stowage answered", "-n", n.Namespace, "--wait", "--timeout", "30s")
	})
}

// Where the replicas ask for the API server's certificate, as docs/how-to/authenticate.md says, they answer the API server and nobody else,
// and check says so.
func TestAuthenticatedAPIServer(t *testing.T) {
	n := newTenant(t)
	strict := fleet
	strict.Args = append(append([]string{}, fleet.Args...), "--client-ca-file="+cluster.AuthorityFile(), "--client-names="+controlplane.WebhookClient)
	restoreFleet(t)
	must(t, cluster.StartStowage(t.Context(), strict))
	for args, want := range map[string]string{"text": "It answers only callers with a certificate", "json": `"authenticated": true`} {
		out, errs, exit := suite.CLI(t, cluster, "check", "-n", n.Namespace, "--wait", "--timeout", "30s", "-o", args)
		if exit != 0 || !strings.Contains(out, want) {
			t.Errorf("check -o %s: exit status %d, and %q is not in\n%s%s", args, exit, want, out, errs)
		}
	}
	for _, r := range cluster.Replicas() {
		c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it is about the client
		resp, err := c.Post("https://"+r.WebhookAddr+"/mutate-v1-pod", "application/json", strings.NewReader("{}"))
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a caller without a certificate got %d", resp.StatusCode)
		}
	}
}
