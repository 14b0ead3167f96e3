// Package size gives the pods of DaemonSets a share of their node. The packages below hold all of it, from the arithmetic to
// the controller; this one makes a process's part.
package size

import (
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/platform/apisupport"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/resize"
)

// New makes the sizing of a process.
func New(o *Options, h *capability.Host) *capability.Capability {
	feature := &admit.Feature{World: h.World}
	c := &capability.Capability{Feature: feature}
	if !h.Controls {
		return c
	}
	if server, err := apisupport.Discover(h.Clientset.Discovery()); err == nil { // else the controller asks again
		for _, text := range server.Missing() {
			h.Log.Info("this Kubernetes lacks what Stowage can use", "missing", text)
		}
	}
	c.Controllers = []leader.Controller{&resize.Controller{
		Uncached: h.Uncached, Clientset: h.Clientset, Discovery: h.Clientset.Discovery(), Informers: h.Informers, Scope: h.Scope,
		Feature: feature, Clock: h.Clock, Time: h.Time, Timing: o.Resize, Evictor: h.Evictor,
		Log: h.Log.WithName("sizing"), Events: h.Events, Metrics: resize.NewMetrics(h.Metrics),
	}}
	return c
}
