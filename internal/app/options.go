package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/controller"
	"github.com/stowage-dev/stowage/internal/peerpod"
)

// Options are the settings of `stowage serve`.
type Options struct {
	Kubeconfig string
	Namespace  string

	Host            string
	Port            int
	CertDir         string
	CertDNSNames    []string
	EnableHTTP2     bool
	TLSMinVersion   string
	TLSCipherSuites []string
	ClientCAFile    string
	ClientNames     []string
	MetricsAddress  string
	HealthAddress   string
	PprofAddress    string
	LeaderElection  bool
	ShutdownDelay   time.Duration
	DrainTimeout    time.Duration

	LogLevel  string
	LogFormat string

	Spread   SpreadOptions
	Repair   controller.Timing
	Sizing   SizingOptions
	Resize   controller.SizingTiming
	PeerPods PeerPodOptions
	Capacity CapacityOptions
}

// CapacityOptions are the settings of the controller that advertises VMs on nodes.
type CapacityOptions struct {
	Enabled            bool
	ConfigMapNamespace string // empty is our own
	Default            int64  // VMs of a node without a ConfigMap
	NodeSelector       string
}

// SpreadOptions are the settings of the spread, which `stowage preview` has too.
type SpreadOptions struct {
	Enabled            bool
	ExcludedNamespaces []string
	NamespaceLabel     string
}

// SizingOptions are the settings of the sizing, which `stowage preview` has too.
type SizingOptions struct {
	Enabled bool
}

// PeerPodOptions are the settings of the peer-pod feature, which `stowage preview`
// has too.
type PeerPodOptions struct {
	Enabled bool
	Config  peerpod.Config
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{
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
		Spread:         SpreadOptions{Enabled: true},
		Repair:         controller.DefaultTiming(),
		Sizing:         SizingOptions{Enabled: true},
		Resize:         controller.DefaultSizingTiming(),
		PeerPods:       PeerPodOptions{Enabled: true, Config: peerpod.DefaultConfig()},
		Capacity: CapacityOptions{
			Enabled: true, Default: 10, NodeSelector: "!node-role.kubernetes.io/control-plane,!node-role.kubernetes.io/master",
		},
	}
}

// envAnnotation is the flag annotation that holds a flag's environment variable.
const envAnnotation = "stowage-env"

// addFlag notes a flag's environment variable, for help, documentation and
// parsing alike. None may be a service link.
func addFlag(fs *pflag.FlagSet, name, env string) {
	f := fs.Lookup(name)
	f.Usage += " [$" + env + "]"
	if err := fs.SetAnnotation(name, envAnnotation, []string{env}); err != nil {
		panic(err) // the flag was looked up above
	}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Path of a kubeconfig; empty uses the pod's service account, or else the usual kubeconfig")
	addFlag(fs, "kubeconfig", "KUBECONFIG")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "Namespace that Stowage runs in; its pods are never touched")
	addFlag(fs, "namespace", "POD_NAMESPACE")

	fs.StringVar(&o.Host, "host", o.Host, "Address that the webhook listens on; empty is every address")
	addFlag(fs, "host", "STOWAGE_LISTEN_HOST")
	fs.IntVar(&o.Port, "port", o.Port, "Port that the webhook listens on")
	addFlag(fs, "port", "STOWAGE_LISTEN_PORT")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "Directory of tls.crt and tls.key, read again when they change; empty lets Stowage make and renew its own certificate")
	addFlag(fs, "cert-dir", "STOWAGE_CERT_DIR")
	fs.StringSliceVar(&o.CertDNSNames, "cert-extra-dns-names", o.CertDNSNames, "Further names in the certificate that Stowage makes, beside those of its Service")
	addFlag(fs, "cert-extra-dns-names", "STOWAGE_CERT_EXTRA_DNS_NAMES")
	fs.BoolVar(&o.EnableHTTP2, "enable-http2", o.EnableHTTP2, "Serve HTTP/2 too; off, so that one connection does not bind an API server to one replica")
	addFlag(fs, "enable-http2", "STOWAGE_ENABLE_HTTP2")
	fs.StringVar(&o.TLSMinVersion, "tls-min-version", o.TLSMinVersion, "Lowest TLS version: VersionTLS12 or VersionTLS13")
	addFlag(fs, "tls-min-version", "TLS_MIN_VERSION")
	fs.StringSliceVar(&o.TLSCipherSuites, "tls-cipher-suites", o.TLSCipherSuites, "TLS 1.2 cipher suites, by their names in Go's crypto/tls; empty uses Go's choice")
	addFlag(fs, "tls-cipher-suites", "TLS_CIPHER_SUITES")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "File with the authorities, as PEM, of which whoever calls the webhook must show a certificate, read again when it changes; empty asks for none")
	addFlag(fs, "client-ca-file", "STOWAGE_CLIENT_CA_FILE")
	fs.StringSliceVar(&o.ClientNames, "client-names", o.ClientNames, "Names of which that certificate must have one, as common name or DNS name, comma-separated; empty takes every certificate of --client-ca-file")
	addFlag(fs, "client-names", "STOWAGE_CLIENT_NAMES")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", o.MetricsAddress, "Address of /metrics; 0 switches it off")
	addFlag(fs, "metrics-bind-address", "STOWAGE_METRICS_BIND_ADDRESS")
	fs.StringVar(&o.HealthAddress, "health-probe-bind-address", o.HealthAddress, "Address of /healthz and /readyz")
	addFlag(fs, "health-probe-bind-address", "STOWAGE_HEALTH_PROBE_BIND_ADDRESS")
	fs.StringVar(&o.PprofAddress, "pprof-bind-address", o.PprofAddress, "Address of the profiles of net/http/pprof, such as localhost:6060; 0 switches them off")
	addFlag(fs, "pprof-bind-address", "STOWAGE_PPROF_BIND_ADDRESS")
	fs.BoolVar(&o.LeaderElection, "leader-elect", o.LeaderElection, "Elect the replica that runs the controllers; without it every replica does, which is for one replica only")
	addFlag(fs, "leader-elect", "STOWAGE_LEADER_ELECT")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "Time between not being ready and refusing connections, for load balancers to notice")
	addFlag(fs, "shutdown-delay", "STOWAGE_SHUTDOWN_DELAY")
	fs.DurationVar(&o.DrainTimeout, "drain-timeout", o.DrainTimeout, "Time that requests in flight have to end at a shutdown")
	addFlag(fs, "drain-timeout", "STOWAGE_DRAIN_TIMEOUT")

	fs.StringVar(&o.LogLevel, "log-level", o.LogLevel, "ERROR, WARN, INFO, DEBUG or TRACE; empty is WARN")
	addFlag(fs, "log-level", "LOG_LEVEL")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "json or text")
	addFlag(fs, "log-format", "LOG_FORMAT")

	o.Spread.AddFlags(fs)
	fs.DurationVar(&o.Repair.Quiet, "repair-quiet", o.Repair.Quiet, "How long a workload's pods must not have changed before they are repaired")
	addFlag(fs, "repair-quiet", "STOWAGE_REPAIR_QUIET")
	fs.DurationVar(&o.Repair.Resync, "repair-resync", o.Repair.Resync, "How often every workload with a strategy is looked at though nothing changed")
	addFlag(fs, "repair-resync", "STOWAGE_REPAIR_RESYNC")
	fs.DurationVar(&o.Repair.Backoff, "repair-backoff", o.Repair.Backoff, "Wait after a pod was removed in vain, doubled each time up to ten minutes")
	addFlag(fs, "repair-backoff", "STOWAGE_REPAIR_BACKOFF")
	fs.DurationVar(&o.Repair.Cooldown, "rebalance-cooldown", o.Repair.Cooldown, "Wait between two evictions of one workload's pods")
	addFlag(fs, "rebalance-cooldown", "STOWAGE_REBALANCE_COOLDOWN")
	o.Sizing.AddFlags(fs)
	fs.Float64Var(&o.Resize.Rate, "resize-rate", o.Resize.Rate, "How many running pods are resized in a second, in the whole cluster")
	addFlag(fs, "resize-rate", "STOWAGE_RESIZE_RATE")
	fs.DurationVar(&o.Resize.Jitter, "resize-jitter", o.Resize.Jitter, "Time over which the resizes that follow one change are spread")
	addFlag(fs, "resize-jitter", "STOWAGE_RESIZE_JITTER")
	fs.DurationVar(&o.Resize.Backoff, "resize-backoff", o.Resize.Backoff, "Wait before a pod that could not be resized is resized again, doubled each time up to an hour")
	addFlag(fs, "resize-backoff", "STOWAGE_RESIZE_BACKOFF")
	o.PeerPods.AddFlags(fs)
	fs.BoolVar(&o.Capacity.Enabled, "peerpods-capacity", o.Capacity.Enabled, "Advertise on nodes how many peer-pod VMs they may have")
	addFlag(fs, "peerpods-capacity", "PEERPODS_CAPACITY")
	fs.StringVar(&o.Capacity.ConfigMapNamespace, "peerpods-configmap-namespace", o.Capacity.ConfigMapNamespace, "Namespace of the ConfigMap peer-pods-cm, whose key PEERPODS_LIMIT_PER_NODE is the limit of all nodes; empty is our own")
	addFlag(fs, "peerpods-configmap-namespace", "PEERPODS_CONFIGMAP_NAMESPACE")
	fs.Int64Var(&o.Capacity.Default, "peerpods-limit-per-node", o.Capacity.Default, "Peer-pod VMs of a node where the ConfigMap does not say")
	addFlag(fs, "peerpods-limit-per-node", "PEERPODS_LIMIT_PER_NODE")
	fs.StringVar(&o.Capacity.NodeSelector, "peerpods-node-selector", o.Capacity.NodeSelector, "Label selector of the nodes that may have peer-pod VMs, such as node.kubernetes.io/worker")
	addFlag(fs, "peerpods-node-selector", "PEERPODS_NODE_SELECTOR")
}

// AddFlags adds a flag for every setting of the feature.
func (o *SpreadOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "spread", o.Enabled, "Divide the pods of workloads with a strategy over node pools")
	addFlag(fs, "spread", "STOWAGE_SPREAD")
	fs.StringSliceVar(&o.ExcludedNamespaces, "blocklisted-namespaces", o.ExcludedNamespaces, "Namespaces in which strategies in annotations are ignored, comma-separated; PodDistributors are not")
	addFlag(fs, "blocklisted-namespaces", "BLOCKLISTED_NAMESPACE_LIST")
	fs.StringVar(&o.NamespaceLabel, "spread-namespace-label", o.NamespaceLabel, "Label, as key=value, that a namespace must have for strategies in annotations to be looked at, such as custom-kube-scheduler-webhook=enabled; empty asks for none")
	addFlag(fs, "spread-namespace-label", "STOWAGE_SPREAD_NAMESPACE_LABEL")
}

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

// AddFlags adds a flag for every setting of the feature.
func (o *SizingOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "sizing", o.Enabled, "Give the pods of DaemonSets with a FlexDaemonsetTemplate their share of their node")
	addFlag(fs, "sizing", "STOWAGE_SIZING")
}

// AddFlags adds a flag for every setting of the feature.
func (o *PeerPodOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "peer-pods", o.Enabled, "Convert pods of the target RuntimeClasses to peer pods")
	addFlag(fs, "peer-pods", "STOWAGE_PEER_PODS")
	fs.StringSliceVar(&o.Config.RuntimeClasses, "target-runtimeclass", o.Config.RuntimeClasses, "RuntimeClasses whose pods run in a VM outside the node, comma-separated")
	addFlag(fs, "target-runtimeclass", "TARGET_RUNTIMECLASS")
	fs.StringVar(&o.Config.VMResource, "pod-vm-extended-resource", o.Config.VMResource, "Extended resource of which each peer pod takes one")
	addFlag(fs, "pod-vm-extended-resource", "POD_VM_EXTENDED_RESOURCE")
	fs.StringSliceVar(&o.Config.GPUResources, "peerpods-gpu-resources", o.Config.GPUResources, "Resources that count as GPUs, comma-separated; an asterisk at the end stands for any rest")
	addFlag(fs, "peerpods-gpu-resources", "PEERPODS_GPU_RESOURCES")
	fs.StringVar((*string)(&o.Config.Sizing), "peerpods-sizing", string(o.Config.Sizing), "How a pod's containers add up: Sum, or Effective (as the scheduler counts them)")
	addFlag(fs, "peerpods-sizing", "PEERPODS_SIZING")
}

// applyEnv gives every flag that was not set on the command line the value of its
// environment variable, and reports every value that does not parse. An empty
// variable counts as unset, except for the log level, where it has a meaning.
func applyEnv(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		env := f.Annotations[envAnnotation]
		if len(env) == 0 || f.Changed {
			return
		}
		value, ok := lookup(env[0])
		if !ok || value == "" && f.Name != "log-level" {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("$%s: %w", env[0], err))
		}
	})
	return errors.Join(errs...)
}

// serviceLink is what Kubernetes names variables in the pods of a Service's namespace.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// isServiceLink reports whether Kubernetes, not somebody who meant us, has set a variable.
func isServiceLink(name, value string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

// unknownVariables reports every variable that is named like ours and is no setting.
func unknownVariables(fs *pflag.FlagSet, environ []string) error {
	known := map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) {
		for _, env := range f.Annotations[envAnnotation] {
			known[env] = true
		}
	})
	var errs []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		ours := strings.HasPrefix(name, "STOWAGE_") || strings.HasPrefix(name, "PEERPODS_")
		if ours && !known[name] && !isServiceLink(name, value) {
			errs = append(errs, fmt.Errorf("$%s is no setting; unset it, or correct its name", name))
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
	}{{"repair-quiet", o.Repair.Quiet}, {"repair-resync", o.Repair.Resync}, {"repair-backoff", o.Repair.Backoff}, {"rebalance-cooldown", o.Repair.Cooldown}} {
		check(d.value > 0, "--%s is %s; it must be positive", d.flag, d.value)
	}
	check(o.Resize.Rate > 0 && o.Resize.Rate <= 1000, "--resize-rate is %v; it must be above 0 and at most 1000", o.Resize.Rate)
	check(o.Resize.Jitter >= 0 && o.Resize.Jitter <= time.Hour, "--resize-jitter is %s; it must be between 0 and 1h", o.Resize.Jitter)
	check(o.Resize.Backoff > 0 && o.Resize.Backoff <= o.Resize.MaxBackoff, "--resize-backoff is %s; it must be above 0 and at most %s", o.Resize.Backoff, o.Resize.MaxBackoff)
	if _, err := parseTLSVersion(o.TLSMinVersion); err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	if _, err := parseCipherSuites(o.TLSCipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	o.ClientNames = trimmed(o.ClientNames)
	check(len(o.ClientNames) == 0 || o.ClientCAFile != "", "--client-names is %v without --client-ca-file; name the file of their authorities, too", o.ClientNames)
	if _, err := parseLogLevel(o.LogLevel); err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %w", err))
	}
	check(slices.Contains([]string{"json", "text"}, o.LogFormat), "--log-format is %q; it must be json or text", o.LogFormat)
	check(o.Capacity.ConfigMapNamespace == "" || len(validation.IsDNS1123Label(o.Capacity.ConfigMapNamespace)) == 0,
		"--peerpods-configmap-namespace is %q; it must be a namespace's name", o.Capacity.ConfigMapNamespace)
	check(o.Capacity.Default >= 0 && o.Capacity.Default <= peerpod.MaxVMs, "--peerpods-limit-per-node is %d; it must be between 0 and %d", o.Capacity.Default, peerpod.MaxVMs)
	if _, err := labels.Parse(o.Capacity.NodeSelector); err != nil {
		errs = append(errs, fmt.Errorf("--peerpods-node-selector is %q; it must be a label selector: %w", o.Capacity.NodeSelector, err))
	}
	errs = append(errs, o.Spread.Validate(), o.PeerPods.Validate())
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
	if err := o.Config.Validate(); err != nil {
		return fmt.Errorf("peer pods: %w", err)
	}
	return nil
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

func parseTLSVersion(s string) (uint16, error) {
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

func parseCipherSuites(names []string) ([]uint16, error) {
	var ids []uint16
	var errs []error
	for _, name := range trimmed(names) {
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
