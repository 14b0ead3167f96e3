package vm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/vm/supply"
)

// Options are the settings of peer pods.
type Options struct {
	Feature  admit.Options
	Capacity CapacityOptions
	Supply   supply.Timing
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

// Advertises reports whether nodes advertise VMs.
func (o *Options) Advertises() bool {
	return o.Feature.Enabled && o.Capacity.Mode != peerpod.CapacityOff
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{
		Feature: admit.DefaultOptions(),
		Capacity: CapacityOptions{
			Mode: peerpod.CapacityAuto, DaemonSelector: "app=cloud-api-adaptor", Default: 10,
			NodeSelector: "!node-role.kubernetes.io/control-plane,!node-role.kubernetes.io/master",
		},
		Supply: supply.DefaultTiming(),
	}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Feature.AddFlags(fs)
	f := config.Flags{FlagSet: fs}
	f.Text((*string)(&o.Capacity.Mode), "peerpods-capacity", "PEERPODS_CAPACITY", "When nodes advertise how many peer-pod VMs they may have: WhenReady, while the node's daemon that makes VMs is Ready; Always; Off; or Auto, which is WhenReady if there is such a daemon, or else Always")
	f.Text(&o.Capacity.DaemonNamespace, "peerpods-daemon-namespace", "PEERPODS_DAEMON_NAMESPACE", "Namespace of the DaemonSet that makes VMs, such as confidential-containers-system; a DaemonSet of another namespace never counts, and empty lets none count")
	f.Text(&o.Capacity.DaemonSelector, "peerpods-daemon-selector", "PEERPODS_DAEMON_SELECTOR", "Label selector of the DaemonSet, with the node's network, that makes VMs")
	f.Text(&o.Capacity.ConfigMapNamespace, "peerpods-configmap-namespace", "PEERPODS_CONFIGMAP_NAMESPACE", "Namespace of the ConfigMap peer-pods-cm, whose key PEERPODS_LIMIT_PER_NODE is the limit of all nodes; empty is our own")
	f.Number64(&o.Capacity.Default, "peerpods-limit-per-node", "PEERPODS_LIMIT_PER_NODE", "Peer-pod VMs of a node where the ConfigMap does not say")
	f.Duration(&o.Supply.Tries.First, "peerpods-try-interval", "PEERPODS_TRY_INTERVAL", "How long a type of a VMCatalog stays closed, because its VMs could not be made, before the next pod tries it again. The wait doubles after each try in vain")
	f.Duration(&o.Supply.Tries.Last, "peerpods-try-max-interval", "PEERPODS_TRY_MAX_INTERVAL", "The longest wait between such tries")
	f.Text(&o.Capacity.NodeSelector, "peerpods-node-selector", "PEERPODS_NODE_SELECTOR", "Label selector of the nodes that may have peer-pod VMs, such as node.kubernetes.io/worker")
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
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
	check(!o.Feature.Enabled || o.Capacity.Mode != peerpod.CapacityWhenReady || o.Capacity.DaemonNamespace != "",
		"--peerpods-capacity is %s without --peerpods-daemon-namespace; name the namespace of the DaemonSet that makes VMs", o.Capacity.Mode)
	check(o.Supply.Tries.First >= time.Second && o.Supply.Tries.First <= time.Hour, "--peerpods-try-interval is %s; it must be between 1s and 1h", o.Supply.Tries.First)
	check(o.Supply.Tries.Last >= o.Supply.Tries.First && o.Supply.Tries.Last <= 24*time.Hour, "--peerpods-try-max-interval is %s; it must be between --peerpods-try-interval, which is %s, and 24h", o.Supply.Tries.Last, o.Supply.Tries.First)
	if s, err := labels.Parse(o.Capacity.DaemonSelector); err != nil || s.Empty() {
		errs = append(errs, fmt.Errorf("--peerpods-daemon-selector is %q; it must be a label selector, such as app=cloud-api-adaptor", o.Capacity.DaemonSelector))
	}
	if _, err := labels.Parse(o.Capacity.NodeSelector); err != nil {
		errs = append(errs, fmt.Errorf("--peerpods-node-selector is %q; it must be a label selector: %w", o.Capacity.NodeSelector, err))
	}
	return errors.Join(append(errs, o.Feature.Validate())...)
}
