package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Validate reports every invalid setting, joined.
func (o *SpreadOptions) Validate() error {
	var errs []error
	o.ExcludedNamespaces = trimmed(o.ExcludedNamespaces)
	for _, n := range o.ExcludedNamespaces {
		if len(validation.IsDNS1123Label(n)) > 0 {
			errs = append(errs, fmt.Errorf("--blocklisted-namespaces has %q; it must be a namespace's name", n))
		}
	}
	if o.NamespaceLabel != "" {
		key, value, ok := strings.Cut(o.NamespaceLabel, "=")
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			errs = append(errs, fmt.Errorf("--spread-namespace-label is %q; it must be a label, as key=value", o.NamespaceLabel))
		}
	}
	return errors.Join(errs...)
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Label(o.Namespace)) == 0, "--namespace is %q; it must be a namespace's name", o.Namespace)
	check(o.Port > 0 && o.Port < 1<<16, "--port is %d; it must be between 1 and 65535", o.Port)
	for _, name := range o.CertDNSNames {
		check(len(validation.IsDNS1123Subdomain(name)) == 0, "--cert-extra-dns-names has %q; it must be a DNS name", name)
	}
	for _, a := range []struct{ flag, value string }{
		{"metrics-bind-address", o.MetricsAddress}, {"health-probe-bind-address", o.HealthAddress}, {"pprof-bind-address", o.PprofAddress},
	} {
		if a.flag != "health-probe-bind-address" && a.value == "0" {
			continue
		}
		_, _, err := net.SplitHostPort(a.value)
		check(err == nil, "--%s is %q; it must be host:port or :port", a.flag, a.value)
	}
	check(o.ShutdownDelay >= 0, "--shutdown-delay is %s; it must not be negative", o.ShutdownDelay)
	check(o.DrainTimeout > 0, "--drain-timeout is %s; it must be positive", o.DrainTimeout)
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"repair-quiet", o.Repair.Quiet}, {"repair-resync", o.Repair.Resync}, {"repair-backoff", o.Repair.Backoff}, {"rebalance-cooldown", o.Repair.Cooldown}, {"probe-interval", o.PoolState.Probes.FirstProbe}} {
		check(d.value > 0, "--%s is %s; it must be positive", d.flag, d.value)
	}
	check(o.Repair.PolicyGrace >= 0 && o.Repair.PolicyGrace <= time.Hour, "--policy-grace is %s; it must be from 0s to 1h", o.Repair.PolicyGrace)
	check(o.PoolState.Probes.LastProbe >= o.PoolState.Probes.FirstProbe, "--probe-max-interval is %s; it must be at least --probe-interval, which is %s", o.PoolState.Probes.LastProbe, o.PoolState.Probes.FirstProbe)
	check(o.EvictionRate > 0 && o.EvictionRate <= 1000, "--eviction-rate is %v; it must be above 0 and at most 1000", o.EvictionRate)
	check(o.Resize.Rate > 0 && o.Resize.Rate <= 1000, "--resize-rate is %v; it must be above 0 and at most 1000", o.Resize.Rate)
	check(o.Resize.Jitter >= 0 && o.Resize.Jitter <= time.Hour, "--resize-jitter is %s; it must be between 0 and 1h", o.Resize.Jitter)
	check(o.Resize.Backoff > 0 && o.Resize.Backoff <= o.Resize.MaxBackoff, "--resize-backoff is %s; it must be above 0 and at most %s", o.Resize.Backoff, o.Resize.MaxBackoff)
	o.TLSMinVersion = strings.TrimSpace(o.TLSMinVersion)
	version, err := ParseTLSVersion(o.TLSMinVersion)
	if err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	check(version != tls.VersionTLS13 || len(o.TLSCipherSuites) == 0, "--tls-cipher-suites is %v, but TLS 1.3 has its own suites; leave it out, or lower --tls-min-version", o.TLSCipherSuites)
	if _, err := ParseCipherSuites(o.TLSCipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	o.ClientNames = trimmed(o.ClientNames)
	check(len(o.ClientNames) == 0 || o.ClientCAFile != "", "--client-names is %v without --client-ca-file; name the file of their authorities, too", o.ClientNames)
	if _, err := ParseLogLevel(o.LogLevel); err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %w", err))
	}
	check(slices.Contains([]string{"json", "text"}, o.LogFormat), "--log-format is %q; it must be json or text", o.LogFormat)
	check(o.Capacity.ConfigMapNamespace == "" || len(validation.IsDNS1123Label(o.Capacity.ConfigMapNamespace)) == 0,
		"--peerpods-configmap-namespace is %q; it must be a namespace's name", o.Capacity.ConfigMapNamespace)
	check(o.Capacity.Default >= 0 && o.Capacity.Default <= peerpod.MaxVMs, "--peerpods-limit-per-node is %d; it must be between 0 and %d", o.Capacity.Default, peerpod.MaxVMs)
	// YAML takes Off for a boolean.
	switch o.Capacity.Mode {
	case "false":
		o.Capacity.Mode = peerpod.CapacityOff
	case "true":
		o.Capacity.Mode = peerpod.CapacityAuto
	}
	check(slices.Contains(peerpod.CapacityModes, o.Capacity.Mode), "--peerpods-capacity is %q; it must be one of %v", o.Capacity.Mode, peerpod.CapacityModes)
	check(o.Capacity.DaemonNamespace == "" || len(validation.IsDNS1123Label(o.Capacity.DaemonNamespace)) == 0,
		"--peerpods-daemon-namespace is %q; it must be a namespace's name", o.Capacity.DaemonNamespace)
	check(!o.PeerPods.Enabled || o.Capacity.Mode != peerpod.CapacityWhenReady || o.Capacity.DaemonNamespace != "",
		"--peerpods-capacity is %s without --peerpods-daemon-namespace; name the namespace of the DaemonSet that makes VMs", o.Capacity.Mode)
	if s, err := labels.Parse(o.Capacity.DaemonSelector); err != nil || s.Empty() {
		errs = append(errs, fmt.Errorf("--peerpods-daemon-selector is %q; it must be a label selector, such as app=cloud-api-adaptor", o.Capacity.DaemonSelector))
	}
	if _, err := labels.Parse(o.Capacity.NodeSelector); err != nil {
		errs = append(errs, fmt.Errorf("--peerpods-node-selector is %q; it must be a label selector: %w", o.Capacity.NodeSelector, err))
	}
	_, err = o.ClusterAutoscaler.Parse()
	errs = append(errs, err, o.Spread.Validate(), o.PeerPods.Validate())
	return errors.Join(errs...)
}

// Validate reports every invalid setting, joined.
func (o *PeerPodOptions) Validate() error {
	if !o.Enabled {
		return nil
	}
	for _, list := range []*[]string{&o.Config.RuntimeClasses, &o.Config.GPUResources} {
		*list = trimmed(*list)
	}
	var errs []error
	for _, err := range o.Config.Validate() {
		errs = append(errs, fmt.Errorf("--%s: %w", peerPodFlags[err.Setting], err))
	}
	return errors.Join(errs...)
}

// peerPodFlags are the flags of the fields of [peerpod.Config].
var peerPodFlags = map[string]string{
	"RuntimeClasses": "target-runtimeclass", "VMResource": "pod-vm-extended-resource", "GPUResources": "peerpods-gpu-resources", "Sizing": "peerpods-sizing",
}

// trimmed removes the spaces around list items, and empty items.
func trimmed(list []string) []string {
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
