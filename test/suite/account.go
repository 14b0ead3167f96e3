package suite

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// Account makes a service account of the namespace and returns a client of its own.
func (n *Tenant) Account(t *testing.T, name string) client.Client {
	t.Helper()
	Must(t, Cluster.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}))
	token, err := Cluster.Clientset.CoreV1().ServiceAccounts(n.Namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Must(t, err)
	cfg := rest.AnonymousClientConfig(Cluster.Config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	c, err := client.New(cfg, client.Options{Scheme: controlplane.Scheme})
	Must(t, err)
	return c
}
