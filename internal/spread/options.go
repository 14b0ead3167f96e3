package spread

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/repair"
	"github.com/stowage-dev/stowage/internal/spread/shortage"
)

// Options are the settings of the spread.
type Options struct {
	Feature  admit.Options
	Repair   repair.Timing
	Shortage shortage.Timing
	// ClusterAutoscaler says where the cluster autoscaler's status is, and which nodes its groups have.
	ClusterAutoscaler ClusterAutoscalerOptions
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

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{
		Feature: admit.DefaultOptions(), Repair: repair.DefaultTiming(), Shortage: shortage.DefaultTiming(),
		ClusterAutoscaler: ClusterAutoscalerOptions{Status: "kube-system/cluster-autoscaler-status"},
	}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Feature.AddFlags(fs)
	f := config.Flags{FlagSet: fs}
	f.Duration(&o.Repair.Quiet, "repair-quiet", "STOWAGE_REPAIR_QUIET", "How long a workload's pods must not have changed before they are repaired")
	f.Duration(&o.Repair.Resync, "repair-resync", "STOWAGE_REPAIR_RESYNC", "How often every workload with a strategy is looked at though nothing changed, at most 25 a second")
	f.Duration(&o.Repair.Backoff, "repair-backoff", "STOWAGE_REPAIR_BACKOFF", "Wait after an eviction that did not improve the counts, doubled each time up to ten minutes")
	f.Duration(&o.Repair.Cooldown, "rebalance-cooldown", "STOWAGE_REBALANCE_COOLDOWN", "Wait between two evictions of one workload's pods")
	f.Duration(&o.Shortage.Probes.First, "probe-interval", "STOWAGE_PROBE_INTERVAL", "Wait before a pool without room is tried again, doubled after each try that finds none")
	f.Duration(&o.Shortage.Probes.Last, "probe-max-interval", "STOWAGE_PROBE_MAX_INTERVAL", "Longest wait between two tries of a pool without room")
	f.Text(&o.ClusterAutoscaler.NodeGroups, "cluster-autoscaler-node-groups", "STOWAGE_CLUSTER_AUTOSCALER_NODE_GROUPS", "Node groups of the cluster autoscaler with the labels of their nodes, such as eks-od-*=type=default; eks-spot-*=type=spot,zone=a. Name each label that a pool asks for: one that is not named is taken to be absent. A pool with spill whose groups are in back-off or at their maximum is exhausted as soon as pods wait; empty reads no status")
	f.Text(&o.ClusterAutoscaler.Status, "cluster-autoscaler-status", "STOWAGE_CLUSTER_AUTOSCALER_STATUS", "ConfigMap with the status of the cluster autoscaler, as namespace/name")
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"repair-quiet", o.Repair.Quiet}, {"repair-resync", o.Repair.Resync}, {"repair-backoff", o.Repair.Backoff}, {"rebalance-cooldown", o.Repair.Cooldown}, {"probe-interval", o.Shortage.Probes.First}} {
		check(d.value > 0, "--%s is %s; it must be positive", d.flag, d.value)
	}
	check(o.Shortage.Probes.Last >= o.Shortage.Probes.First, "--probe-max-interval is %s; it must be at least --probe-interval, which is %s", o.Shortage.Probes.Last, o.Shortage.Probes.First)
	_, err := o.ClusterAutoscaler.Parse()
	return errors.Join(append(errs, err, o.Feature.Validate())...)
}
