package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki is the cluster's certificate authority, in memory and as files.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// file returns the path of one of the PKI's files.
func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

// newPKI makes the CA, the API server's certificate for its usual and some more addresses, and the key that signs
// service account tokens.
func newPKI(dir string, addresses ...string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &pki{dir: dir}
	ca := template(pkix.Name{CommonName: "stowage-local-ca"})
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	var err error
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, p.key.Public(), p.key)
	if err != nil {
		return nil, err
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := p.write("ca", der, p.key); err != nil {
		return nil, err
	}

	server := template(pkix.Name{CommonName: "kube-apiserver"})
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)}
	for _, a := range addresses {
		server.IPAddresses = append(server.IPAddresses, net.ParseIP(a))
	}
	if err := p.issue("apiserver", server); err != nil {
		return nil, err
	}
	return p, p.issue("service-account", template(pkix.Name{CommonName: "service-accounts"}))
}

func template(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

// issue signs a certificate with the CA and writes it and its key.
func (p *pki) issue(name string, t *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, p.cert, key.Public(), p.key)
	if err != nil {
		return err
	}
	return p.write(name, der, key)
}

func (p *pki) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	return writePair(p.dir, name, der, key)
}

// writePair writes a certificate and its key, each in one step: a server that watches
// the files must never read half of one.
func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		suffix string
		block  pem.Block
	}{
		{".crt", pem.Block{Type: "CERTIFICATE", Bytes: der}},
		{".key", pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}},
	} {
		path := filepath.Join(dir, name+file.suffix)
		if err := os.WriteFile(path+".tmp", pem.EncodeToMemory(&file.block), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			return err
		}
	}
	return nil
}

// WriteServingCertificate writes a self-signed certificate for localhost as tls.crt
// and tls.key, for a webhook that runs outside of a cluster.
func WriteServingCertificate(dir string, names ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template(pkix.Name{CommonName: "localhost"})
	t.DNSNames, t.IPAddresses = append(names, "localhost"), []net.IP{net.IPv4(127, 0, 0, 1)}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writePair(dir, "tls", der, key); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// kubeconfig writes a kubeconfig with a client certificate for a user.
func (p *pki) kubeconfig(path, server, user string, groups ...string) error {
	t := template(pkix.Name{CommonName: user, Organization: groups})
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if err := p.issue(user, t); err != nil {
		return err
	}
	cert, err := os.ReadFile(p.file(user + ".crt"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(p.file(user + ".key"))
	if err != nil {
		return err
	}
	return p.writeKubeconfig(path, server, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// webhookKubeconfig writes a kubeconfig with a client certificate for all webhooks.
func (p *pki) webhookKubeconfig(path, user string) error {
	t := template(pkix.Name{CommonName: user})
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if err := p.issue(user, t); err != nil {
		return err
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{AuthInfos: map[string]*clientcmdapi.AuthInfo{
		"*": {ClientCertificate: p.file(user + ".crt"), ClientKey: p.file(user + ".key")},
	}}, path)
}

// writeKubeconfig writes a kubeconfig with any kind of credentials. A program that starts at the same time reads the file of before, or
// this one.
func (p *pki) writeKubeconfig(path, server string, auth *clientcmdapi.AuthInfo) error {
	ca, err := os.ReadFile(p.file("ca.crt"))
	if err != nil {
		return err
	}
	const name = "stowage-local"
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: auth},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, file.Name()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
