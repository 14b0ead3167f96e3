// Package vm makes peer pods of pods that run in VMs outside their node. The packages below hold all of it, from the conversion
// to the controller; this one makes a process's part.
package vm

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/capacity"
	"github.com/stowage-dev/stowage/internal/vm/supply"
)

// New makes the peer pods of a process.
func New(ctx context.Context, o *Options, h *capability.Host) (*capability.Capability, error) {
	catalogs := supply.NewCatalogs()
	follow, err := h.WhenServed(ctx, "VMCatalog", func(ctx context.Context) (bool, error) {
		return catalogs.Follow(ctx, h.Uncached.RESTMapper(), h.Informers)
	})
	if err != nil {
		return nil, err
	}
	c := &capability.Capability{
		Feature: &admit.Feature{Config: o.Feature.Config, World: h.World, Catalogs: catalogs.All, Tries: admit.NewTries(h.Clock)},
		Runs:    []func(context.Context) error{follow},
	}
	if !h.Controls {
		return c, nil
	}
	c.Controllers = []leader.Controller{&supply.Controller{
		Config: o.Feature.Config, Catalogs: catalogs, Cached: h.Cached, Uncached: h.Uncached, Clientset: h.Clientset, Scope: h.Scope, Evictor: h.Evictor, Successors: h.Successors,
		Clock: h.Clock, Time: h.Time, Timing: o.Supply, Log: h.Log.WithName("supply"), Events: h.Events, Metrics: supply.NewMetrics(h.Metrics),
	}}
	if !o.Advertises() {
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
	c.Controllers = append(c.Controllers, &capacity.Controller{
		Uncached: h.Uncached, Clientset: h.Clientset, Informers: h.Informers, Resource: corev1.ResourceName(o.Feature.Config.VMResource),
		ConfigMap: types.NamespacedName{Namespace: cmp.Or(o.Capacity.ConfigMapNamespace, h.Namespace), Name: stowage.PeerPodsConfigMap},
		Default:   o.Capacity.Default, Nodes: nodes, Mode: o.Capacity.Mode, Daemons: daemons, DaemonNamespace: o.Capacity.DaemonNamespace, Clock: h.Clock,
		Log: h.Log.WithName("capacity"), Events: h.Events, Metrics: capacity.NewMetrics(h.Metrics),
	})
	return c, nil
}
