// Package scaledown keeps the spread of pods over zones, hosts or other topology keys when their workload is scaled down. It has the options and starts the
// controller. The packages below it do the work.
package scaledown

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/scaledown/costs"
)

// note is the ConfigMap that says whether pods may have costs that Stowage wrote.
const note = "stowage-scale-down"

// New makes the scale-downs of a process that runs controllers. It has no feature: new pods are left as they are.
func New(ctx context.Context, h *capability.Host) (*capability.Capability, error) {
	policies := &costs.Policies{}
	follow, err := h.WhenServed(ctx, "ScaleDownPolicy and ClusterScaleDownPolicy", func(ctx context.Context) (bool, error) {
		return policies.Follow(ctx, h.Uncached.RESTMapper(), h.Informers)
	})
	if err != nil {
		return nil, err
	}
	return &capability.Capability{
		Runs: []func(context.Context) error{follow},
		Controllers: []leader.Controller{&costs.Controller{
			Policies: policies, Cached: h.Cached, Uncached: h.Uncached, Clientset: h.Clientset, Informers: h.Informers, Scope: h.Scope,
			Note: types.NamespacedName{Namespace: h.Namespace, Name: note}, Clock: h.Clock, Log: h.Log.WithName("scale-down"), Metrics: costs.NewMetrics(h.Metrics),
		}},
	}, nil
}
