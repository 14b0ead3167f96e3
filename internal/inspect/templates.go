package inspect

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// templateReports adds the FlexDaemonsetTemplates.
func (i *Inspector) templateReports(ctx context.Context, s *snapshot, r *Report) {
	for n := range s.objects.Templates {
		t := templateStatus(&s.objects.Templates[n])
		for _, d := range s.daemonSets {
			if s.templateOf(d) == t.Name && s.Covers(d.Namespace) {
				t.about = append(t.about, "DaemonSet/"+d.Name)
			}
		}
		if r.namespace != "" && t.OffSize > 0 && t.invalid == "" && !i.offSizeHere(ctx, s, t.Name) {
			t.Note, t.offSize, t.OK = fmt.Sprintf("%d of another size in other namespaces", t.OffSize), "", true
		}
		r.Templates = append(r.Templates, t)
		if t.invalid != "" {
			r.problem(finding.Finding{Reason: finding.InvalidTemplate, Kind: "FlexDaemonsetTemplate", Name: t.Name, Values: finding.Values{Text: t.invalid}}, t.about...)
		}
		off := finding.Finding{Reason: finding.OffSize, Kind: "FlexDaemonsetTemplate", Name: t.Name, Values: finding.Values{Text: t.Note, Other: string(t.offSize)}}
		if off.Remedy() != "" { // else they are on their way to it
			r.problem(off, t.about...)
		}
	}
	if s.podsOfNamespace {
		return // the nodes that templates cover cannot be counted
	}
	nodes := map[string]map[string]bool{} // by the template's label
	for _, pod := range s.pods {
		label, sized := pod.Labels[stowage.SizedByLabel]
		if !sized || pod.Spec.NodeName == "" || !podstatus.Active(pod) {
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

// plans compares what Karpenter plans for sized DaemonSets with their sizes.
func (i *Inspector) plans(ctx context.Context, s *snapshot, r *Report) error {
	var sized []*corev1.Pod
	for _, pod := range s.pods {
		if _, ok := pod.Labels[stowage.SizedByLabel]; ok && podstatus.Active(pod) && s.Covers(pod.Namespace) {
			sized = append(sized, pod)
		}
	}
	if len(sized) == 0 {
		return nil
	}
	classes := map[string]string{}
	err := each(ctx, i, &corev1.NodeList{}, func(node *corev1.Node) {
		if class := sizing.NodeClass(node); class != "" {
			classes[node.Name] = class
		}
	})
	if err != nil {
		return readable(err) // who may not list nodes has no use for what is planned for them
	}
	for _, p := range sizing.NodePlans(sized, func(node string) string { return classes[node] }) {
		cpu := func(milli int64) string { return resource.NewMilliQuantity(milli, resource.DecimalSI).String() }
		memory := func(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }
		r.Plans = append(r.Plans, Plan{
			Namespace: p.Namespace, DaemonSet: p.DaemonSet, NodeClass: p.Class, Nodes: p.Nodes,
			PlannedCPU: cpu(p.PlannedCPU), CPU: cpu(p.CPU), PlannedMemory: memory(p.PlannedMemory), Memory: memory(p.Memory), OK: !p.Differs(),
		})
		if p.Differs() {
			text := fmt.Sprintf("Karpenter plans %s CPU and %s for its pod on %s, where it takes %s and %s", cpu(p.PlannedCPU), memory(p.PlannedMemory), p.Class, cpu(p.CPU), memory(p.Memory))
			r.problem(finding.Finding{Reason: finding.PlanDiffers, Namespace: p.Namespace, Kind: "DaemonSet", Name: p.DaemonSet, Values: finding.Values{Text: text}})
		}
	}
	return nil
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
		out.invalid = valid.Message
	case out.OffSize > 0:
		out.Note = fmt.Sprintf("%d of another size", out.OffSize)
		if c := notUpToDate(t); c != nil {
			out.Note += ": " + c.Message
			out.offSize = stowage.ConditionReason(c.Reason)
		}
	default:
		out.OK = true
	}
	return out
}

// notUpToDate is the condition that says why pods of a template are not of its size; nil if none says so.
func notUpToDate(t *flexdaemonsets.FlexDaemonsetTemplate) *metav1.Condition {
	c := meta.FindStatusCondition(t.Status.Conditions, flexdaemonsets.ConditionUpToDate)
	if c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	return c
}
