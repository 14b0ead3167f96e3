package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
)

// ParseTLSVersion reads the lowest TLS version.
func ParseTLSVersion(s string) (uint16, error) {
	switch s {
	case "VersionTLS12", "TLS1.2", "1.2":
		return tls.VersionTLS12, nil
	case "VersionTLS13", "TLS1.3", "1.3":
		return tls.VersionTLS13, nil
	case "VersionTLS10", "VersionTLS11", "TLS1.0", "TLS1.1", "1.0", "1.1":
		return 0, fmt.Errorf("%q is not secure any more; use VersionTLS12 or VersionTLS13", s)
	}
	return 0, fmt.Errorf("%q must be VersionTLS12 or VersionTLS13", s)
}

// ParseCipherSuites reads cipher suites by their names, and refuses insecure ones.
func ParseCipherSuites(names []string) ([]uint16, error) {
	var ids []uint16
	var errs []error
	for _, name := range Trimmed(names) {
		i := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name })
		if i >= 0 {
			ids = append(ids, tls.CipherSuites()[i].ID)
			continue
		}
		if slices.ContainsFunc(tls.InsecureCipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name }) {
			errs = append(errs, fmt.Errorf("%s is insecure", name))
		} else {
			errs = append(errs, fmt.Errorf("%q is no cipher suite of Go's crypto/tls", name))
		}
	}
	return ids, errors.Join(errs...)
}
