package preview

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	"github.com/stowage-dev/stowage/internal/world"
)

// ScaleDown is what a ScaleDownPolicy, or a ClusterScaleDownPolicy, means for a workload.
type ScaleDown struct {
	Workload string `json:"-"`
	// Policy is the kind and the name of the policy that wins.
	Policy string             `json:"policy"`
	Mode   stowage.PolicyMode `json:"mode"`
	// Keys are the labels of nodes over which the pods stay spread, the most important first.
	Keys []string `json:"keys,omitempty"`
	// Why says why the policy leaves the workload alone.
	Why string `json:"why,omitempty"`
}

// ScaleDowns returns what the policies of scale-downs mean for the workloads that they select.
func (p *Preview) ScaleDowns() (out []ScaleDown) {
	all := slices.Clone(p.in.scaleDowns)
	policies.Sort(all)
	for i := range p.in.Workloads {
		w := &p.in.Workloads[i]
		if winner, _ := policies.Winner(all, &policies.Workload{Namespace: w.Namespace, NamespaceLabels: p.in.namespaceLabels(w.Namespace), PodLabels: w.template.Labels}); winner != nil && w.Kind != "Pod" {
			out = append(out, p.scaleDown(w, winner))
		}
	}
	return out
}

func (p *Preview) scaleDown(w *Workload, winner *policies.Policy) ScaleDown {
	s := ScaleDown{Workload: w.String(), Policy: winner.String(), Mode: winner.Spec.Mode}
	owner := world.Ref{APIVersion: w.GroupVersion().String(), Kind: w.Kind}
	if w.Kind == "Deployment" || w.Kind == "Rollout" {
		owner = world.Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet"}
	}
	template := layers.Of(&w.template, w.Namespace)
	keys, _, why := winner.Keys(owner, &template, false)
	if s.Why = why; why != "" {
		return s
	}
	layers.Sort(keys, layers.Count(keys, func(yield func(map[string]string) bool) {
		for n := range p.in.Objects.Nodes {
			if !yield(p.in.Objects.Nodes[n].Labels) {
				return
			}
		}
	}))
	for _, k := range keys {
		s.Keys = append(s.Keys, k.Name)
	}
	return s
}

// namespaceLabels returns the labels of a namespace. If the input does not have it, it has the label that the API server gives each namespace.
func (in *Inputs) namespaceLabels(name string) map[string]string {
	labels := map[string]string{corev1.LabelMetadataName: name}
	for i := range in.Objects.Namespaces {
		if ns := &in.Objects.Namespaces[i]; ns.Name == name {
			labels = merged(ns.Labels, labels)
		}
	}
	return labels
}

// ScaleDownTable is a table of what the policies of scale-downs mean.
func ScaleDownTable(of []ScaleDown) report.Table {
	t := report.Table{Head: []string{"WORKLOAD", "SCALE-DOWNS BY", "MODE", "KEEP THE SPREAD OVER"}}
	for _, s := range of {
		keeps := strings.Join(s.Keys, ", then ")
		t.Rows = append(t.Rows, []string{s.Workload, line(s.Policy), string(s.Mode), line(cmp.Or(keeps, "nothing: "+s.Why))})
	}
	return t
}
