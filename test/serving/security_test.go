package serving

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// Who may create pods and policies in a namespace cannot thereby change templates, ledgers or
// other namespaces.
func TestTenantsPermissions(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	must(t, cluster.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "admin"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: n.Namespace, Name: "admin"}},
	}))
	c := n.Account(t, "admin")
	must(t, c.Create(t.Context(), n.tinyPod("allowed"), client.DryRunAll))
	for what, obj := range map[string]client.Object{
		"a template":     &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{}},
		"a ledger":       &stowage.SeatLedger{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "x"}},
		"Stowage's keys": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: "x"}},
	} {
		if err := c.Create(t.Context(), obj, client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("an administrator of a namespace may create %s: %v", what, err)
		}
	}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: controlplane.StowageNamespace, Name: "stowage-seats"}, &corev1.Secret{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator of a namespace may read the key: %v", err)
	}
}

// tinyPod is a pod of the namespace without anything.
func (n *tenant) tinyPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: podTemplate("x").Spec}
}

// Old TLS is refused, and whoever has no certificate of the API server's, if one is asked for.
func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	other := newAuthority(t)
	caFile := filepath.Join(t.TempDir(), "ca.crt")
	must(t, os.WriteFile(caFile, ca.pem, 0o644))
	strict := fleet
	strict.Args = append(append([]string{}, fleet.Args...), "--client-ca-file="+caFile, "--client-names=kube-apiserver", "--tls-min-version=VersionTLS13")
	r, err := cluster.StartReplica(t.Context(), strict)
	must(t, err)
	t.Cleanup(r.Kill)
	usual := cluster.Replicas()[0].WebhookAddr

	t.Run("versions", func(t *testing.T) {
		for _, tc := range []struct {
			addr    string
			version uint16
			ok      bool
		}{
			{usual, tls.VersionTLS10, false},
			{usual, tls.VersionTLS11, false},
			{usual, tls.VersionTLS12, true},
			{usual, tls.VersionTLS13, true},
			{r.WebhookAddr, tls.VersionTLS12, false},
			{r.WebhookAddr, tls.VersionTLS13, true},
		} {
			dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tc.version, InsecureSkipVerify: true}} //nolint:gosec // what an attacker does
			conn, err := dialer.DialContext(t.Context(), "tcp", tc.addr)
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != tc.ok {
				t.Errorf("%s by %s: %v", tls.VersionName(tc.version), tc.addr, err)
			}
		}
	})
	t.Run("clients", func(t *testing.T) {
		post := func(addr string, certs ...tls.Certificate) (int, error) {
			c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}} //nolint:gosec // it is about the client
			defer c.CloseIdleConnections()
			resp, err := c.Post("https://"+addr+"/mutate-v1-pod", "application/json", bytes.NewReader([]byte("{}")))
			if err != nil {
				return 0, err
			}
			_ = resp.Body.Close()
			return resp.StatusCode, nil
		}
		if code, err := post(usual); code != http.StatusBadRequest {
			t.Errorf("without --client-ca-file: %d, %v", code, err)
		}
		if code, err := post(r.WebhookAddr); code != http.StatusUnauthorized {
			t.Errorf("without a certificate: %d, %v", code, err)
		}
		if code, err := post(r.WebhookAddr, ca.issue(t, "somebody")); code != http.StatusForbidden {
			t.Errorf("with another name: %d, %v", code, err)
		}
		if code, err := post(r.WebhookAddr, other.issue(t, "kube-apiserver")); err == nil {
			t.Errorf("with a certificate of another authority: %d", code)
		}
		if code, err := post(r.WebhookAddr, ca.issue(t, "kube-apiserver")); code != http.StatusBadRequest {
			t.Errorf("the API server, with a body that is no review: %d, %v", code, err)
		}
	})
}

// authority signs certificates for clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
