package config

import (
	"time"

	"github.com/spf13/pflag"
)

// flags adds flags, each with its environment variable, for help, documentation and parsing
// alike. The default is the value that the variable has.
type flags struct{ *pflag.FlagSet }

func (f flags) text(p *string, name, env, usage string) {
	f.StringVar(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) number(p *int, name, env, usage string) {
	f.IntVar(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) number64(p *int64, name, env, usage string) {
	f.Int64Var(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) fraction(p *float64, name, env, usage string) {
	f.Float64Var(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) list(p *[]string, name, env, usage string) {
	f.StringSliceVar(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) toggle(p *bool, name, env, usage string) {
	f.BoolVar(p, name, *p, usage)
	f.from(name, env)
}
func (f flags) duration(p *time.Duration, name, env, usage string) {
	f.DurationVar(p, name, *p, usage)
	f.from(name, env)
}

// from notes a flag's environment variable, which must be none that Kubernetes sets for a Service.
func (f flags) from(name, env string) {
	f.Lookup(name).Usage += " [$" + env + "]"
	if err := f.SetAnnotation(name, envAnnotation, []string{env}); err != nil {
		panic(err) // the flag was added just before
	}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	f := flags{fs}
	f.text(&o.Kubeconfig, "kubeconfig", "KUBECONFIG", "Path of a kubeconfig; empty uses the pod's service account, or else the usual kubeconfig")
	f.text(&o.Namespace, "namespace", "POD_NAMESPACE", "Namespace that Stowage runs in; its pods are never touched")

	f.text(&o.Host, "host", "STOWAGE_LISTEN_HOST", "Address that the webhook listens on; empty is every address")
	f.number(&o.Port, "port", "STOWAGE_LISTEN_PORT", "Port that the webhook listens on")
	f.text(&o.CertDir, "cert-dir", "STOWAGE_CERT_DIR", "Directory of tls.crt and tls.key, read again when they change; empty lets Stowage make and renew its own certificate")
	f.list(&o.CertDNSNames, "cert-extra-dns-names", "STOWAGE_CERT_EXTRA_DNS_NAMES", "Further names in the certificate that Stowage makes, beside those of its Service")
	f.text(&o.TLSMinVersion, "tls-min-version", "TLS_MIN_VERSION", "Lowest TLS version: VersionTLS12 or VersionTLS13")
	f.list(&o.TLSCipherSuites, "tls-cipher-suites", "TLS_CIPHER_SUITES", "TLS 1.2 cipher suites, by their names in Go's crypto/tls; empty uses Go's choice")
	f.text(&o.ClientCAFile, "client-ca-file", "STOWAGE_CLIENT_CA_FILE", "PEM file of the authorities that sign client certificates of the webhook's callers, read again when it changes; empty requires no client certificate")
	f.list(&o.ClientNames, "client-names", "STOWAGE_CLIENT_NAMES", "Accepted common names or DNS names of client certificates, comma-separated; empty accepts every certificate that --client-ca-file verifies")
	f.text(&o.MetricsAddress, "metrics-bind-address", "STOWAGE_METRICS_BIND_ADDRESS", "Address of /metrics; 0 switches it off")
	f.toggle(&o.MetricsAuth, "metrics-auth", "STOWAGE_METRICS_AUTH", "Serve /metrics over TLS, and only to clients that the API server knows and that may get the path /metrics")
	f.text(&o.HealthAddress, "health-probe-bind-address", "STOWAGE_HEALTH_PROBE_BIND_ADDRESS", "Address of /healthz and /readyz")
	f.text(&o.PprofAddress, "pprof-bind-address", "STOWAGE_PPROF_BIND_ADDRESS", "Address of the profiles of net/http/pprof, such as localhost:6060; 0 switches them off")
	f.toggle(&o.LeaderElection, "leader-elect", "STOWAGE_LEADER_ELECT", "Elect the replica that runs the controllers; without it every replica does, which is for one replica only")
	f.duration(&o.ShutdownDelay, "shutdown-delay", "STOWAGE_SHUTDOWN_DELAY", "Time between not being ready and refusing connections, for load balancers to notice")
	f.duration(&o.DrainTimeout, "drain-timeout", "STOWAGE_DRAIN_TIMEOUT", "Time that requests in flight have to end at a shutdown")

	f.text(&o.LogLevel, "log-level", "LOG_LEVEL", "ERROR, WARN, INFO, DEBUG or TRACE; empty is WARN")
	f.text(&o.LogFormat, "log-format", "LOG_FORMAT", "json or text")

	o.Spread.AddFlags(fs)
	f.duration(&o.Repair.Quiet, "repair-quiet", "STOWAGE_REPAIR_QUIET", "How long a workload's pods must not have changed before they are repaired")
	f.duration(&o.Repair.Resync, "repair-resync", "STOWAGE_REPAIR_RESYNC", "How often every workload with a strategy is looked at though nothing changed")
	f.duration(&o.Repair.Backoff, "repair-backoff", "STOWAGE_REPAIR_BACKOFF", "Wait after an eviction that did not improve the counts, doubled each time up to ten minutes")
	f.fraction(&o.EvictionRate, "eviction-rate", "STOWAGE_EVICTION_RATE", "How many pods repair, rebalancing and sizing evict in a second, in the whole cluster")
	f.duration(&o.Repair.PolicyGrace, "policy-grace", "STOWAGE_POLICY_GRACE", "How long before its PodDistributor, FlexDaemonsetTemplate or annotation a pod may be created and still be placed or sized by it. In a wrong pool, or where it cannot be resized, it is evicted if it is not ready or its workload is no older; 0 turns this off")
	f.duration(&o.Repair.Cooldown, "rebalance-cooldown", "STOWAGE_REBALANCE_COOLDOWN", "Wait between two evictions of one workload's pods")
	f.duration(&o.PoolState.Probes.FirstProbe, "probe-interval", "STOWAGE_PROBE_INTERVAL", "Wait before a pool without room is tried again, doubled after each try that finds none")
	f.duration(&o.PoolState.Probes.LastProbe, "probe-max-interval", "STOWAGE_PROBE_MAX_INTERVAL", "Longest wait between two tries of a pool without room")
	f.text(&o.ClusterAutoscaler.NodeGroups, "cluster-autoscaler-node-groups", "STOWAGE_CLUSTER_AUTOSCALER_NODE_GROUPS", "Node groups of the cluster autoscaler with the labels of their nodes, such as eks-od-*=type=default; eks-spot-*=type=spot,zone=a. A pool with spill whose groups are in back-off or at their maximum is exhausted as soon as pods wait; empty reads no status")
	f.text(&o.ClusterAutoscaler.Status, "cluster-autoscaler-status", "STOWAGE_CLUSTER_AUTOSCALER_STATUS", "ConfigMap with the status of the cluster autoscaler, as namespace/name")
	o.Sizing.AddFlags(fs)
	f.fraction(&o.Resize.Rate, "resize-rate", "STOWAGE_RESIZE_RATE", "How many running pods are resized in a second, in the whole cluster")
	f.duration(&o.Resize.Jitter, "resize-jitter", "STOWAGE_RESIZE_JITTER", "Time over which the resizes that follow one change are spread")
	f.duration(&o.Resize.Backoff, "resize-backoff", "STOWAGE_RESIZE_BACKOFF", "Wait before a pod that could not be resized is resized again, doubled each time up to an hour")
	o.PeerPods.AddFlags(fs)
	f.text((*string)(&o.Capacity.Mode), "peerpods-capacity", "PEERPODS_CAPACITY", "When nodes advertise how many peer-pod VMs they may have: WhenReady, while the node's daemon that makes VMs is Ready; Always; Off; or Auto, which is WhenReady if there is such a daemon, or else Always")
	f.text(&o.Capacity.DaemonNamespace, "peerpods-daemon-namespace", "PEERPODS_DAEMON_NAMESPACE", "Namespace of the DaemonSet that makes VMs, such as confidential-containers-system; a DaemonSet of another namespace never counts, and empty lets none count")
	f.text(&o.Capacity.DaemonSelector, "peerpods-daemon-selector", "PEERPODS_DAEMON_SELECTOR", "Label selector of the DaemonSet, with the node's network, that makes VMs")
	f.text(&o.Capacity.ConfigMapNamespace, "peerpods-configmap-namespace", "PEERPODS_CONFIGMAP_NAMESPACE", "Namespace of the ConfigMap peer-pods-cm, whose key PEERPODS_LIMIT_PER_NODE is the limit of all nodes; empty is our own")
	f.number64(&o.Capacity.Default, "peerpods-limit-per-node", "PEERPODS_LIMIT_PER_NODE", "Peer-pod VMs of a node where the ConfigMap does not say")
	f.text(&o.Capacity.NodeSelector, "peerpods-node-selector", "PEERPODS_NODE_SELECTOR", "Label selector of the nodes that may have peer-pod VMs, such as node.kubernetes.io/worker")
}

// AddFlags adds a flag for every setting of the feature.
func (o *SpreadOptions) AddFlags(fs *pflag.FlagSet) {
	f := flags{fs}
	f.toggle(&o.Enabled, "spread", "STOWAGE_SPREAD", "Divide the pods of workloads with a strategy over node pools")
	f.list(&o.ExcludedNamespaces, "blocklisted-namespaces", "BLOCKLISTED_NAMESPACE_LIST", "Namespaces in which strategies in annotations are ignored, comma-separated; PodDistributors are not")
	f.text(&o.NamespaceLabel, "spread-namespace-label", "STOWAGE_SPREAD_NAMESPACE_LABEL", "Label, as key=value, that a namespace must have for strategies in annotations to be looked at, such as custom-kube-scheduler-webhook=enabled; empty asks for none")
}

// AddFlags adds a flag for every setting of the feature.
func (o *SizingOptions) AddFlags(fs *pflag.FlagSet) {
	f := flags{fs}
	f.toggle(&o.Enabled, "sizing", "STOWAGE_SIZING", "Give the pods of DaemonSets with a FlexDaemonsetTemplate their share of their node")
}

// AddFlags adds a flag for every setting of the feature.
func (o *PeerPodOptions) AddFlags(fs *pflag.FlagSet) {
	f := flags{fs}
	f.toggle(&o.Enabled, "peer-pods", "STOWAGE_PEER_PODS", "Convert pods of the target RuntimeClasses to peer pods")
	f.list(&o.Config.RuntimeClasses, "target-runtimeclass", "TARGET_RUNTIMECLASS", "RuntimeClasses whose pods run in a VM outside the node, comma-separated")
	f.text(&o.Config.VMResource, "pod-vm-extended-resource", "POD_VM_EXTENDED_RESOURCE", "Extended resource of which each peer pod takes one")
	f.list(&o.Config.GPUResources, "peerpods-gpu-resources", "PEERPODS_GPU_RESOURCES", "Resources that count as GPUs, comma-separated; an asterisk at the end stands for any rest")
	f.text((*string)(&o.Config.Sizing), "peerpods-sizing", "PEERPODS_SIZING", "How a pod's containers add up: Sum, or Effective (as the scheduler counts them)")
}
