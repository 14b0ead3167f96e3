package inspect

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/seats"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// templates adds the FlexDaemonsetTemplates.
func (i *Inspector) templates(ctx context.Context, s *snapshot, r *Report) error {
	err := each(ctx, i, &flexdaemonsets.FlexDaemonsetTemplateList{}, func(t *flexdaemonsets.FlexDaemonsetTemplate) {
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
		r.Templates = append(r.Templates, out)
	})
	if err != nil || len(r.Templates) == 0 {
		return err
	}
	nodes := map[string]map[string]bool{} // by the template's label
	for _, pod := range s.pods {
		label, sized := pod.Labels[stowage.SizedByLabel]
		if !sized || pod.Spec.NodeName == "" || !seats.Live(pod) {
			continue
		}
		if nodes[label] == nil {
			nodes[label] = map[string]bool{}
		}
		nodes[label][pod.Spec.NodeName] = true
	}
	if s.podsOfNamespace {
		return nil // the nodes that templates cover cannot be counted
	}
	for n := range r.Templates {
		covered := len(nodes[sizing.LabelOf(r.Templates[n].Name)])
		r.Templates[n].Nodes = &covered
	}
	return nil
}
