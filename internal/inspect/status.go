package inspect

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/stowage-dev/stowage/internal/cluster"
)

// Report is the state of a cluster, or of one namespace's workloads in it.
type Report struct {
	Workloads []Workload `json:"workloads"`
	Templates []Template `json:"templates"`
	VMs       *VMs       `json:"vms,omitempty"` // nil if nodes may not be listed
	// Warnings are about what could not be looked at.
	Warnings []string `json:"warnings,omitempty"`
}

// Workload is what has a strategy, with the pods of all its revisions.
type Workload struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Policy    string `json:"policy"`
	Replicas  int64  `json:"replicas"`
	Pools     []Pool `json:"pools,omitempty"`
	// Unseated is how many pods have no seat that should have one, or are not there.
	Unseated int64 `json:"unseated"`
	// Note says why there is nothing to compare, or what else there is to know.
	Note string `json:"note,omitempty"`
	OK   bool   `json:"ok"`
}

// Pool is one of a workload's pools.
type Pool struct {
	Name    string  `json:"name"`
	Labels  string  `json:"labels"`
	Share   float64 `json:"share"` // of the replicas, exactly
	Target  int64   `json:"target"`
	Current int64   `json:"current"`
	Ready   int64   `json:"ready"`
	Pending int64   `json:"pending"` // not on a node yet
	// Difference is Current without Target.
	Difference int64 `json:"difference"`
}

// Template is a FlexDaemonsetTemplate. The counts are those of its status.
type Template struct {
	Name         string `json:"name"`
	UpdatePolicy string `json:"updatePolicy"`
	DaemonSets   int32  `json:"daemonSets"`
	Nodes        *int   `json:"nodes,omitempty"` // nil if pods may not be listed
	Pods         int32  `json:"pods"`
	OffSize      int32  `json:"offSize"`
	Note         string `json:"note,omitempty"`
	OK           bool   `json:"ok"`
}

// VMs are the peer-pod VMs of all nodes.
type VMs struct {
	Resource string    `json:"resource"`
	Nodes    []NodeVMs `json:"nodes"`
	Capacity int64     `json:"capacity"`
	Used     int64     `json:"used"`
	Free     int64     `json:"free"`
}

// NodeVMs are the VMs of one node.
type NodeVMs struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Used     int64  `json:"used"`
	Free     int64  `json:"free"`
	OK       bool   `json:"ok"`
}

// OK reports whether everything is as it should be.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Workloads, func(w Workload) bool { return !w.OK }) &&
		!slices.ContainsFunc(r.Templates, func(t Template) bool { return !t.OK }) &&
		(r.VMs == nil || !slices.ContainsFunc(r.VMs.Nodes, func(n NodeVMs) bool { return !n.OK }))
}

// Status looks at the workloads of a namespace, or of all of them if it is empty, and at
// all templates and nodes.
func (i *Inspector) Status(ctx context.Context, namespace string) (*Report, error) {
	r := &Report{Workloads: []Workload{}, Templates: []Template{}}
	if i.Spread {
		if err := i.workloads(ctx, namespace, r); err != nil {
			return nil, err
		}
	}
	// What is not of a namespace may be hidden from who looks at one.
	for _, part := range []struct {
		what string
		on   bool
		look func(context.Context, *Report) error
	}{{"FlexDaemonsetTemplates", i.Sizing, i.templates}, {"the VMs of nodes", i.VMs, i.vms}} {
		if !part.on {
			continue
		}
		switch err := part.look(ctx, r); {
		case apierrors.IsForbidden(err):
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s are left out: %v", part.what, err))
		case err != nil:
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return r, nil
}

var _ cluster.Reader = &snapshot{}
