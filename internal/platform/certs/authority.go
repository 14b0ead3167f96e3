package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// invalid says what is wrong with the certificate in a Secret, if anything, or
// what will be within the given time. A certificate that is not valid yet is wrong, too.
func (k *Keeper) invalid(data map[string][]byte, within time.Duration) error {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(issuer(pair.Leaf, data[caKey])) {
		return errors.New("its authority is not in the Secret")
	}
	now := k.Time.Now()
	for _, at := range []time.Time{now, now.Add(within)} {
		for _, name := range k.DNSNames {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool, CurrentTime: at, KeyUsages: serverAuth}); err != nil {
				return fmt.Errorf("for %s: %w", name, err)
			}
		}
	}
	return nil
}

// valid reports whether a certificate is valid at a time.
func valid(c *x509.Certificate, at time.Time) bool {
	return !at.Before(c.NotBefore) && !at.After(c.NotAfter)
}

var serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// renew writes a new certificate, signed by a new authority. The authorities before it stay trusted, and the names of
// the certificate before it stay in it. Otherwise replicas of two revisions with different names would renew in
// turns.
func (k *Keeper) renew(ctx context.Context, secret *corev1.Secret, exists bool) error {
	names := slices.Clone(k.DNSNames)
	if old, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err == nil {
		for _, name := range old.Leaf.DNSNames {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	now := k.Time.Now()
	begin, end := now.Add(-backdate), now.Add(validity)
	ca, err := newAuthority(begin, end)
	if err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	cert, key, err := newCertificate(ca, names, begin, end)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}

	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey] = cert
	secret.Data[corev1.TLSPrivateKeyKey] = key
	// First by its place, and not by its date: an authority of another clock may be younger.
	secret.Data[caKey] = append(encode(ca.cert.Raw), k.merge(secret.Data[caKey])...)
	return k.write(ctx, secret, exists)
}

// authority signs one certificate; its key is never stored.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority of its own.
func newAuthority(begin, end time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "stowage-ca", Organization: []string{"stowage"}},
		NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

// newCertificate makes a serving certificate. Its key is an ECDSA one. Over HTTP/1.1 a burst of pods opens hundreds
// of connections, and an RSA key costs ten times as much at each.
func newCertificate(ca *authority, names []string, begin, end time.Time) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: serverAuth, BasicConstraintsValid: true,
	}, ca.cert, pair.Public(), ca.key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		return nil, nil, err
	}
	return encode(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), nil
}

// sign makes a certificate with a random serial number.
func sign(template, parent *x509.Certificate, public any, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// merge joins bundles of authorities, the youngest first, without those that have expired and what is no certificate.
// The result has at most maxAuthorities: the first one of the first bundle, that of the certificate in use, and the
// youngest of the others. So neither authorities that another client has added nor a clock push out one that is needed.
func (k *Keeper) merge(current []byte, others ...[]byte) []byte {
	served := []byte(nil)
	if s := k.serving.Load(); s != nil {
		served = s.ca
	}
	needed := parse(served)
	if first := parse(current); len(first) > 0 {
		needed = append(needed, first[0])
	}
	now := k.Time.Now()
	rest := slices.DeleteFunc(parse(append([][]byte{current}, others...)...), func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	youngestFirst := func(a, b *x509.Certificate) int {
		return cmp.Or(b.NotBefore.Compare(a.NotBefore), bytes.Compare(a.Raw, b.Raw))
	}
	slices.SortFunc(rest, youngestFirst)
	var kept []*x509.Certificate
	for _, c := range append(needed, rest...) {
		if len(kept) < maxAuthorities && !slices.ContainsFunc(kept, c.Equal) {
			kept = append(kept, c)
		}
	}
	slices.SortFunc(kept, youngestFirst)
	var out []byte
	for _, c := range kept {
		out = append(out, encode(c.Raw)...)
	}
	return out
}

// parse returns the certificates in some bundles.
func parse(bundles ...[]byte) (out []*x509.Certificate) {
	for _, rest := range bundles {
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				out = append(out, c)
			}
		}
	}
	return out
}

// issuer returns the authority in a bundle that signed a certificate, or nil.
func issuer(leaf *x509.Certificate, bundle []byte) []byte {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return nil
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil && leaf.CheckSignatureFrom(ca) == nil {
			return encode(block.Bytes)
		}
	}
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
