// Package vm makes peer pods of pods that run in VMs outside their node. The packages below hold all of it, from the conversion
// to the controller; this one makes a process's part.
package vm

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/capacity"
)

// New makes the peer pods of a process.
func New(o *Options, h *capability.Host) (*capability.Capability, error) {
	c := &capability.Capability{Feature: &admit.Feature{Config: o.Feature.Config, World: h.World}}
	if !o.Advertises() || !h.Controls {
		return c, nil
	}
	daemons, err := labels.Parse(o.Capacity.DaemonSelector)
	if err != nil {
		return nil, err
	}
	nodes, err := labels.Parse(o.Capacity.NodeSelector)
	if err != nil {
		return nil, err
	}
	c.Controllers = []leader.Controller{&capacity.Controller{
		Uncached: h.Uncached, Clientset: h.Clientset, Informers: h.Informers, Resource: corev1.ResourceName(o.Feature.Config.VMResource),
		ConfigMap: types.NamespacedName{Namespace: cmp.Or(o.Capacity.ConfigMapNamespace, h.Namespace), Name: stowage.PeerPodsConfigMap},
		Default:   o.Capacity.Default, Nodes: nodes, Mode: o.Capacity.Mode, Daemons: daemons, DaemonNamespace: o.Capacity.DaemonNamespace, Clock: h.Clock,
		Log: h.Log.WithName("capacity"), Events: h.Events, Metrics: capacity.NewMetrics(h.Metrics),
	}}
	return c, nil
}
