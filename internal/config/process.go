package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Process is the settings of a process, whatever it does to pods.
type Process struct {
	Kubeconfig string
	Namespace  string

	// Webhook and Controllers are the parts that were asked for by name; see Admits and Controls.
	Webhook     bool
	Controllers bool

	Host            string
	Port            int
	CertDir         string
	CertDNSNames    []string
	TLSMinVersion   string
	TLSCipherSuites []string
	ClientCAFile    string
	ClientNames     []string
	MetricsAddress  string
	MetricsAuth     bool
	HealthAddress   string
	PprofAddress    string
	LeaderElection  bool
	ShutdownDelay   time.Duration
	DrainTimeout    time.Duration

	LogLevel  string
	LogFormat string

	// Paused: no pod that exists is changed or evicted, in the whole cluster.
	Paused bool

	// EvictionRate is how many pods are evicted in a second, in the whole cluster.
	EvictionRate float64
}

// DefaultProcess returns the settings that hold unless others are given.
func DefaultProcess() Process {
	return Process{
		Namespace:      "stowage-system",
		Port:           9443,
		TLSMinVersion:  "VersionTLS12",
		MetricsAddress: ":8080",
		HealthAddress:  ":8081",
		PprofAddress:   "0",
		ShutdownDelay:  5 * time.Second,
		DrainTimeout:   20 * time.Second,
		LogLevel:       "INFO",
		LogFormat:      "json",
		LeaderElection: true,
		EvictionRate:   1,
	}
}

// Admits reports whether the process answers reviews of pods.
func (p *Process) Admits() bool { return p.Webhook || !p.Controllers }

// Controls reports whether the process may run the controllers.
func (p *Process) Controls() bool { return p.Controllers || !p.Webhook }

// AddFlags adds a flag for every setting.
func (p *Process) AddFlags(fs *pflag.FlagSet) {
	f := Flags{fs}
	f.Text(&p.Kubeconfig, "kubeconfig", "KUBECONFIG", "Path of a kubeconfig; empty uses the pod's service account, or else the usual kubeconfig")
	f.Text(&p.Namespace, "namespace", "POD_NAMESPACE", "Namespace that Stowage runs in; its pods are never touched")

	f.Toggle(&p.Webhook, "webhook", "STOWAGE_WEBHOOK", "Run the webhook, and the controllers only if they are asked for, too; without both flags, both run")
	f.Toggle(&p.Controllers, "controllers", "STOWAGE_CONTROLLERS", "Run the controllers, and the webhook only if it is asked for, too")

	f.Text(&p.Host, "host", "STOWAGE_LISTEN_HOST", "Address that the webhook listens on; empty is every address")
	f.Number(&p.Port, "port", "STOWAGE_LISTEN_PORT", "Port that the webhook listens on")
	f.Text(&p.CertDir, "cert-dir", "STOWAGE_CERT_DIR", "Directory of tls.crt and tls.key, read again when they change; empty lets Stowage make and renew its own certificate")
	f.List(&p.CertDNSNames, "cert-extra-dns-names", "STOWAGE_CERT_EXTRA_DNS_NAMES", "Further names in the certificate that Stowage makes, beside those of its Service")
	f.Text(&p.TLSMinVersion, "tls-min-version", "TLS_MIN_VERSION", "Lowest TLS version: VersionTLS12 or VersionTLS13")
	f.List(&p.TLSCipherSuites, "tls-cipher-suites", "TLS_CIPHER_SUITES", "TLS 1.2 cipher suites, by their names in Go's crypto/tls; empty uses Go's choice")
	f.Text(&p.ClientCAFile, "client-ca-file", "STOWAGE_CLIENT_CA_FILE", "PEM file of the authorities that sign client certificates of the webhook's callers, read again when it changes; empty requires no client certificate")
	f.List(&p.ClientNames, "client-names", "STOWAGE_CLIENT_NAMES", "Accepted common names or DNS names of client certificates, comma-separated; empty accepts every certificate that --client-ca-file verifies")
	f.Text(&p.MetricsAddress, "metrics-bind-address", "STOWAGE_METRICS_BIND_ADDRESS", "Address of /metrics; 0 switches it off")
	f.Toggle(&p.MetricsAuth, "metrics-auth", "STOWAGE_METRICS_AUTH", "Serve /metrics over TLS, and only to clients that the API server knows and that may get the path /metrics")
	f.Text(&p.HealthAddress, "health-probe-bind-address", "STOWAGE_HEALTH_PROBE_BIND_ADDRESS", "Address of /healthz and /readyz")
	f.Text(&p.PprofAddress, "pprof-bind-address", "STOWAGE_PPROF_BIND_ADDRESS", "Address of the profiles of net/http/pprof, such as localhost:6060; 0 switches them off")
	f.Toggle(&p.LeaderElection, "leader-elect", "STOWAGE_LEADER_ELECT", "Elect the replica that runs the controllers; without it every replica does, which is for one replica only")
	f.Duration(&p.ShutdownDelay, "shutdown-delay", "STOWAGE_SHUTDOWN_DELAY", "Time between not being ready and refusing connections, for load balancers to notice")
	f.Duration(&p.DrainTimeout, "drain-timeout", "STOWAGE_DRAIN_TIMEOUT", "Time that requests in flight have to end at a shutdown")

	f.Text(&p.LogLevel, "log-level", "LOG_LEVEL", "ERROR, WARN, INFO, DEBUG or TRACE; empty is WARN")
	f.Text(&p.LogFormat, "log-format", "LOG_FORMAT", "json or text")

	f.Toggle(&p.Paused, "paused", "STOWAGE_PAUSED", "Change and evict no pods that exist; new pods are decided as ever. `kubectl stowage pause` sets it in the ConfigMap")
	f.Fraction(&p.EvictionRate, "eviction-rate", "STOWAGE_EVICTION_RATE", "How many pods repair, rebalancing and sizing evict in a second, in the whole cluster")
}

// Validate reports every invalid setting, joined.
func (p *Process) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Label(p.Namespace)) == 0, "--namespace is %q; it must be a namespace's name", p.Namespace)
	check(p.Port > 0 && p.Port < 1<<16, "--port is %d; it must be between 1 and 65535", p.Port)
	for _, name := range p.CertDNSNames {
		check(len(validation.IsDNS1123Subdomain(name)) == 0, "--cert-extra-dns-names has %q; it must be a DNS name", name)
	}
	for _, a := range []struct{ flag, value string }{
		{"metrics-bind-address", p.MetricsAddress}, {"health-probe-bind-address", p.HealthAddress}, {"pprof-bind-address", p.PprofAddress},
	} {
		if a.flag != "health-probe-bind-address" && a.value == "0" {
			continue
		}
		_, _, err := net.SplitHostPort(a.value)
		check(err == nil, "--%s is %q; it must be host:port or :port", a.flag, a.value)
	}
	check(p.ShutdownDelay >= 0, "--shutdown-delay is %s; it must not be negative", p.ShutdownDelay)
	check(p.DrainTimeout > 0, "--drain-timeout is %s; it must be positive", p.DrainTimeout)
	check(p.EvictionRate > 0 && p.EvictionRate <= 1000, "--eviction-rate is %v; it must be above 0 and at most 1000", p.EvictionRate)
	p.TLSMinVersion = strings.TrimSpace(p.TLSMinVersion)
	version, err := ParseTLSVersion(p.TLSMinVersion)
	check(err == nil, "--tls-min-version: %w", err)
	check(version != tls.VersionTLS13 || len(p.TLSCipherSuites) == 0, "--tls-cipher-suites is %v, but TLS 1.3 has its own suites; leave it out, or lower --tls-min-version", p.TLSCipherSuites)
	_, err = ParseCipherSuites(p.TLSCipherSuites)
	check(err == nil, "--tls-cipher-suites: %w", err)
	p.ClientNames = Trimmed(p.ClientNames)
	check(len(p.ClientNames) == 0 || p.ClientCAFile != "", "--client-names is %v without --client-ca-file; name the file of their authorities, too", p.ClientNames)
	_, err = ParseLogLevel(p.LogLevel)
	check(err == nil, "--log-level: %w", err)
	check(slices.Contains([]string{"json", "text"}, p.LogFormat), "--log-format is %q; it must be json or text", p.LogFormat)
	return errors.Join(errs...)
}

// Trimmed removes the spaces around list items, and empty items.
func Trimmed(list []string) []string {
	var out []string
	for _, s := range list {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// UsageError marks an error in how a command was called: a flag, a variable or a file that one
// of them names.
type UsageError struct{ error }

// NewUsageError marks an error.
func NewUsageError(err error) error { return UsageError{err} }

func (e UsageError) Unwrap() error { return e.error }
