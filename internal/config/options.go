// Package config is the settings of Stowage: flags, environment variables, and the ConfigMap that
// may change some of them without a restart.
package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/size/resize"
	"github.com/stowage-dev/stowage/internal/spread/repair"
	"github.com/stowage-dev/stowage/internal/spread/shortage"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Options are the settings of `stowage serve`.
type Options struct {
	Kubeconfig string
	Namespace  string

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

	Spread SpreadOptions
	Repair repair.Timing
	// PoolState is the waits of the controller of pools without room.
	PoolState shortage.Timing
	// ClusterAutoscaler says where the cluster autoscaler's status is, and which nodes its groups have.
	ClusterAutoscaler ClusterAutoscalerOptions
	// EvictionRate is how many pods are evicted in a second, in the whole cluster.
	EvictionRate float64
	Sizing       SizingOptions
	Resize       resize.Timing
	PeerPods     PeerPodOptions
	Capacity     CapacityOptions
}

// ClusterAutoscalerOptions are the settings about the cluster autoscaler.
type ClusterAutoscalerOptions struct {
	Status     string // the ConfigMap, as namespace/name
	NodeGroups string // see [clusterautoscaler.ParseNodeGroups]
}

// Parse returns what the settings say.
func (o *ClusterAutoscalerOptions) Parse() (shortage.NodeGroups, error) {
	groups, err := clusterautoscaler.ParseNodeGroups(o.NodeGroups)
	if err != nil {
		err = fmt.Errorf("--cluster-autoscaler-node-groups: %w", err)
	}
	namespace, name, ok := strings.Cut(o.Status, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		err = errors.Join(err, fmt.Errorf("--cluster-autoscaler-status is %q; it must be the namespace and name of a ConfigMap, such as kube-system/cluster-autoscaler-status", o.Status))
	}
	return shortage.NodeGroups{Groups: groups, Status: client.ObjectKey{Namespace: namespace, Name: name}}, err
}

// CapacityOptions are the settings of the controller that advertises VMs on nodes.
type CapacityOptions struct {
	Mode               peerpod.CapacityMode
	DaemonSelector     string // labels of the pods and DaemonSets that make VMs
	DaemonNamespace    string // of those DaemonSets; empty lets none count
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

// Advertises reports whether nodes advertise VMs.
func (o *Options) Advertises() bool {
	return o.PeerPods.Enabled && o.Capacity.Mode != peerpod.CapacityOff
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{
		Namespace:         "stowage-system",
		Port:              9443,
		TLSMinVersion:     "VersionTLS12",
		MetricsAddress:    ":8080",
		HealthAddress:     ":8081",
		PprofAddress:      "0",
		ShutdownDelay:     5 * time.Second,
		DrainTimeout:      20 * time.Second,
		LogLevel:          "INFO",
		LogFormat:         "json",
		LeaderElection:    true,
		Spread:            SpreadOptions{Enabled: true},
		Repair:            repair.DefaultTiming(),
		PoolState:         shortage.DefaultTiming(),
		EvictionRate:      1,
		ClusterAutoscaler: ClusterAutoscalerOptions{Status: "kube-system/cluster-autoscaler-status"},
		Sizing:            SizingOptions{Enabled: true},
		Resize:            resize.DefaultTiming(),
		PeerPods:          PeerPodOptions{Enabled: true, Config: peerpod.DefaultConfig()},
		Capacity: CapacityOptions{
			Mode: peerpod.CapacityAuto, DaemonSelector: "app=cloud-api-adaptor", Default: 10,
			NodeSelector: "!node-role.kubernetes.io/control-plane,!node-role.kubernetes.io/master",
		},
	}
}
