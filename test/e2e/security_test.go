package e2e

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
	"strconv"
	"strings"
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
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// A pod may say that another workload owns it: in another namespace that changes nothing for
// the others, and what is no reference is not followed.
func TestForgedOwner(t *testing.T) {
	t.Parallel()
	victim, attacker := newTenant(t), newTenant(t)
	rs := victim.bareReplicaSet(t, "owner", 0, annotated(eightyOf))
	for range 5 {
		pod := attacker.try(t, rs, replicaSetKind, func(p *corev1.Pod) { p.Annotations = annotated(eightyOf) })
		attacker.untouched(t, pod)
		must(t, client.IgnoreNotFound(attacker.Delete(t.Context(), pod)))
	}
	if err := victim.Get(t.Context(), victim.Key(string(rs.UID)), &stowage.SeatLedger{}); !apierrors.IsNotFound(err) {
		t.Errorf("pods of another namespace have claims: %v", err)
	}
	pod := victim.try(t, rs, replicaSetKind, nil)
	strategy := strategyOf(t, eightyOf)
	first, err := strategy.SeatAt(1)
	must(t, err)
	if pod.Labels[stowage.PoolLabel] != strconv.Itoa(first.Pool) || pod.Labels[stowage.SeatLabel] != strconv.FormatInt(first.Ordinal, 10) {
		t.Errorf("the first pod has the labels %v, want seat %v", pod.Labels, first)
	}

	// An owner that does not exist has no ledger, and its pods have no seat. Of one that does,
	// neither the name nor the kind can be made up.
	for name, ref := range map[string]metav1.OwnerReference{
		"a UID that was made up":  {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "0d1f7a7e-0000-0000-0000-000000000000"},
		"a name that was made up": {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "other", UID: rs.UID},
		"a kind that was made up": {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "owner", UID: rs.UID},
		"a kind that is nowhere":  {APIVersion: "nowhere.example/v9", Kind: "Nothing", Name: "owner", UID: "0d1f7a7e-0000-0000-0000-000000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			invented := podTemplate("x")
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: attacker.Namespace, GenerateName: "invented-", Annotations: annotated(eightyOf)}, Spec: invented.Spec}
			ref.Controller = new(true)
			p.OwnerReferences = []metav1.OwnerReference{ref}
			must(t, attacker.Create(t.Context(), p))
			attacker.untouched(t, p)
		})
	}
	// The version of the owner is that of its kind: with another one, nobody could read its replica count.
	other := podTemplate("x")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, GenerateName: "version-", Annotations: annotated(eightyOf)}, Spec: other.Spec}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v9", Kind: "ReplicaSet", Name: "owner", UID: rs.UID, Controller: new(true)}}
	victim.Warnings.Take()
	must(t, victim.Create(t.Context(), p, client.DryRunAll))
	victim.untouched(t, p)

	var ledgers stowage.SeatLedgerList
	must(t, attacker.List(t.Context(), &ledgers, client.InNamespace(attacker.Namespace)))
	if n := len(ledgers.Items); n != 0 {
		t.Errorf("%d SeatLedgers of owners that do not exist", n)
	}

	for name, ref := range map[string]metav1.OwnerReference{
		"a path":             {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "../../secrets/stowage-seats", UID: "u"},
		"a path as the UID":  {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "../x"},
		"a Secret":           {APIVersion: "v1", Kind: "Secret", Name: "stowage-seats", UID: "u"},
		"a kind of no group": {APIVersion: "nowhere.example/v9", Kind: "Nothing", Name: "x", UID: "u"},
		"a long name":        {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: strings.Repeat("x", 5000), UID: "u"},
		"no version":         {APIVersion: "///", Kind: "ReplicaSet", Name: "x", UID: "u"},
	} {
		t.Run(name, func(t *testing.T) {
			ref.Controller = new(true)
			p := pod.DeepCopy()
			p.ObjectMeta = metav1.ObjectMeta{Namespace: attacker.Namespace, GenerateName: "forged-", OwnerReferences: []metav1.OwnerReference{ref}}
			p.Spec = podTemplate("x").Spec
			// The API server itself may refuse it; we may not.
			if err := attacker.Create(t.Context(), p, client.DryRunAll); err != nil && (apierrors.IsInternalError(err) || strings.Contains(err.Error(), "stowage")) {
				t.Errorf("refused: %v", err)
			}
			if warned := attacker.Warnings.Take(); len(warned) != 0 {
				t.Errorf("warned: %q", warned)
			}
		})
	}
	events, err := cluster.Audit()
	must(t, err)
	for i := range events {
		ref := events[i].ObjectRef
		if ref.Resource == "secrets" && ref.Namespace == attacker.Namespace && events[i].Annotations["authorization.k8s.io/decision"] != "forbid" {
			t.Errorf("a reference let Stowage %s Secret %s", events[i].Verb, ref.Name)
		}
	}
}

// untouched checks that Stowage neither placed a pod nor warned of it.
func (n *tenant) untouched(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, key := range []string{stowage.PoolLabel, stowage.SeatLabel, stowage.ClaimAnnotation, corev1.PodDeletionCost} {
		if value, has := pod.Labels[key]; has {
			t.Errorf("the pod has the label %s=%s", key, value)
		}
		if value, has := pod.Annotations[key]; has {
			t.Errorf("the pod has the annotation %s=%s", key, value)
		}
	}
	if len(pod.Spec.NodeSelector) != 0 {
		t.Errorf("the pod has the node selector %v", pod.Spec.NodeSelector)
	}
	if warned := n.Warnings.Take(); len(warned) != 0 {
		t.Errorf("warned: %q", warned)
	}
}

// A PodDistributor divides pods of its own namespace alone.
func TestPodDistributorOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	victim, attacker := newTenant(t), newTenant(t)
	theirs, own := victim.bareReplicaSet(t, "web", 0, nil), attacker.bareReplicaSet(t, "web", 0, nil)
	attacker.distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) { s.Target.Kind = "ReplicaSet" })
	eventually(t, "it is known", func() (bool, error) {
		return attacker.try(t, own, replicaSetKind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
	})
	for range 8 {
		if pod := victim.try(t, theirs, replicaSetKind, nil, client.DryRunAll); pod.Labels[stowage.SeatLabel] != "" {
			t.Fatalf("a pod of another namespace has a seat: %v", pod.Labels)
		}
	}
}

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
	c := n.account(t, "admin")
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
