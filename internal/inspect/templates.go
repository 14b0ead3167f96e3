package inspect

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/seats"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// templates adds the FlexDaemonsetTemplates.
func (i *Inspector) templates(ctx context.Context, r *Report) error {
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
	err = each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		label := pod.Labels[stowage.SizedByLabel]
		if pod.Spec.NodeName == "" || !seats.Live(pod) {
			return
		}
		if nodes[label] == nil {
			nodes[label] = map[string]bool{}
		}
		nodes[label][pod.Spec.NodeName] = true
	}, client.HasLabels{stowage.SizedByLabel})
	if apierrors.IsForbidden(err) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the nodes that templates cover are not counted: %v", err))
		return nil
	}
	for n := range r.Templates {
		covered := len(nodes[sizing.LabelOf(r.Templates[n].Name)])
		r.Templates[n].Nodes = &covered
	}
	return err
}
