package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// templateReports adds the FlexDaemonsetTemplates.
func (s *snapshot) templateReports(r *Report) {
	if len(s.templates) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.templates)) {
		r.Templates = append(r.Templates, templateStatus(s.templates[name]))
	}
	if s.podsOfNamespace {
		return // the nodes that templates cover cannot be counted
	}
	nodes := map[string]map[string]bool{} // by the template's label
	for _, pod := range s.pods {
		label, sized := pod.Labels[stowage.SizedByLabel]
		if !sized || pod.Spec.NodeName == "" || !podstatus.Live(pod) {
			continue
		}
		if nodes[label] == nil {
			nodes[label] = map[string]bool{}
		}
		nodes[label][pod.Spec.NodeName] = true
	}
	for n := range r.Templates {
		covered := len(nodes[sizing.LabelOf(r.Templates[n].Name)])
		r.Templates[n].Nodes = &covered
	}
}

// templateStatus returns what the status of a FlexDaemonsetTemplate says.
func templateStatus(t *flexdaemonsets.FlexDaemonsetTemplate) Template {
	out := Template{
		Name: t.Name, UpdatePolicy: string(cmp.Or(t.Spec.UpdatePolicy, flexdaemonsets.UpdateOnCreate)),
		DaemonSets: t.Status.DaemonSets, Pods: t.Status.Pods, OffSize: t.Status.OffSize,
	}
	valid := meta.FindStatusCondition(t.Status.Conditions, flexdaemonsets.ConditionValid)
	switch {
	case t.Status.ObservedGeneration != t.Generation:
		out.Note = "no controller has looked at it since it was written"
	case valid != nil && valid.Status == metav1.ConditionFalse:
		out.Note = "invalid: " + valid.Message
	case out.OffSize > 0:
		out.Note = fmt.Sprintf("%d of another size", out.OffSize)
		if c := meta.FindStatusCondition(t.Status.Conditions, flexdaemonsets.ConditionUpToDate); c != nil && c.Status == metav1.ConditionFalse {
			out.Note += ": " + c.Message
		}
	default:
		out.OK = true
	}
	return out
}
