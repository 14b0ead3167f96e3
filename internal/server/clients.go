package server

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/stowage-dev/stowage/internal/config"
)

// clientAuthorities are the authorities of clients' certificates, in a file that may change.
type clientAuthorities struct {
	file string

	mu   sync.Mutex
	data []byte // that pool was made of
	pool *x509.CertPool
}

// newClientAuthorities reads a file. It returns an error if there is no certificate in it.
func newClientAuthorities(file string) (*clientAuthorities, error) {
	c := &clientAuthorities{file: file}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of clients (--client-ca-file): %w", err)
	}
	if !c.take(data) {
		return nil, config.NewUsageError(fmt.Errorf("--client-ca-file %s has no certificate, as PEM, in it", file))
	}
	return c, nil
}

// take makes a pool of what is in the file, if that has a certificate.
func (c *clientAuthorities) take(data []byte) bool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return false
	}
	c.data, c.pool = data, pool
	return true
}

// current returns the authorities in the file, or the last good ones. It is called once for each
// connection; the file is small.
func (c *clientAuthorities) current() *x509.CertPool {
	data, err := os.ReadFile(c.file)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && !bytes.Equal(data, c.data) {
		c.take(data)
	}
	return c.pool
}

// onlyClients refuses requests that came without a verified certificate, or with one that
// has none of the names; without names, any verified one will do.
func onlyClients(names []string, log logr.Logger, next http.Handler) http.Handler {
	// Whoever is refused must not be able to fill the log.
	limit := flowcontrol.NewTokenBucketPassiveRateLimiter(1, 10)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, why := 0, ""
		switch {
		case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
			status, why = http.StatusUnauthorized, "a client certificate is needed (--client-ca-file)"
		case !hasName(r.TLS.PeerCertificates[0], names):
			status, why = http.StatusForbidden, "the client certificate has none of the names of --client-names"
		default:
			next.ServeHTTP(w, r)
			return
		}
		if limit.TryAccept() {
			log.Info("refused a client", "path", r.URL.Path, "status", status, "reason", why, "remote", r.RemoteAddr)
		}
		http.Error(w, why, status)
	})
}

// onlyLoopback refuses requests that come from another pod or machine. Whoever may forward a port of the pod may ask.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only the pod itself is answered: use kubectl port-forward", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hasName reports whether a certificate has one of the names, or whether none is asked for.
func hasName(leaf *x509.Certificate, names []string) bool {
	return len(names) == 0 || slices.Contains(names, leaf.Subject.CommonName) ||
		slices.ContainsFunc(leaf.DNSNames, func(n string) bool { return slices.Contains(names, n) })
}
