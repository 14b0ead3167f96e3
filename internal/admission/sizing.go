package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// Sizing is the feature that gives a DaemonSet's pod a share of its node.
type Sizing struct {
	Cluster cluster.Reader
}

var _ Feature = &Sizing{}

// The reasons of the feature's events.
const (
	ReasonTemplateMissing   = "ResourceTemplateMissing"
	ReasonInvalidTemplate   = "InvalidResourceTemplate"
	ReasonNodeUnknown       = "NodeUnknown"
	ReasonPartlySized       = "PartlySized"
	ReasonLimitRangeForbids = "LimitRangeRefusesSize"
)

// Name implements [Feature].
func (f *Sizing) Name() string { return "sizing" }

// Decide implements [Feature].
func (f *Sizing) Decide(ctx context.Context, req Request) (Decision, error) {
	// 1. Which template has the pod?
	owner := req.Pod.Controller()
	own, annotated := req.Pod.Metadata.Annotations[flexdaemonsets.TemplateAnnotation]
	if owner == nil || owner.Kind != "DaemonSet" {
		if annotated {
			return Decision{Pod: req.Pod, Warnings: []string{
				fmt.Sprintf("annotation %s is for the pods of a DaemonSet; this pod keeps its size", flexdaemonsets.TemplateAnnotation)}}, nil
		}
		return Decision{}, nil
	}
	if !plausible(owner) {
		return Decision{}, nil
	}
	pod := req.Pod
	daemonSet, err := f.Cluster.Workload(ctx, req.Namespace, cluster.Ref{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID),
	})
	name := own
	switch {
	case daemonSet != nil:
		name = TemplateName(own, daemonSet.Annotations)
		// A pod's record that its owner has, too, is a copy of another pod's.
		if copied, ok := daemonSet.TemplateAnnotations[stowage.DeclaredResourcesAnnotation]; ok {
			pod = sizing.Disown(pod, copied)
		}
	case own != "": // enough to go on
	case err != nil:
		return Decision{}, err
	case !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/"): // we may not be allowed to read it
		return Decision{}, nil
	default:
		return unsized(req.Pod, ReasonTemplateMissing, nil,
			fmt.Sprintf("DaemonSet %q was not found, so it is not known whether its pods have a resource template", owner.Name)), nil
	}
	if name == "" {
		return Decision{}, nil
	}
	related := &corev1.ObjectReference{APIVersion: flexdaemonsets.GroupVersion.String(), Kind: "FlexDaemonsetTemplate", Name: name}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return unsized(req.Pod, ReasonTemplateMissing, nil,
			fmt.Sprintf("annotation %s is %q, which is no name of a FlexDaemonsetTemplate; the pod keeps its size", flexdaemonsets.TemplateAnnotation, cut(name, 64))), nil
	}
	object, err := f.Cluster.Template(ctx, name)
	if err != nil {
		return Decision{}, err
	}
	if object == nil {
		return unsized(req.Pod, ReasonTemplateMissing, nil,
			fmt.Sprintf("FlexDaemonsetTemplate %q does not exist; the pod keeps its size", name)), nil
	}
	related.UID = object.UID
	template, err := sizing.Compile(object)
	if err != nil {
		return unsized(req.Pod, ReasonInvalidTemplate, related,
			fmt.Sprintf("FlexDaemonsetTemplate %q is invalid, so the pod keeps its size: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))), nil
	}

	// 2. On which node will it run, and what has that?
	var allocatable corev1.ResourceList
	var unknown string // why the node is not known
	nodeName := NodeOf(pod)
	if nodeName == "" {
		unknown = "the pod does not say which node it is for"
	} else {
		node, err := f.Cluster.Node(ctx, nodeName)
		if err != nil {
			return Decision{}, err
		}
		if node == nil {
			unknown = fmt.Sprintf("node %q does not exist", nodeName)
		} else {
			allocatable = node.Status.Allocatable
		}
	}

	// 3. How big is it?
	limitRanges, err := f.Cluster.LimitRanges(ctx, req.Namespace)
	if err != nil {
		return Decision{}, err
	}
	quotas, err := f.Cluster.ResourceQuotas(ctx, req.Namespace)
	if err != nil {
		return Decision{}, err
	}
	res, err := template.Size(pod, sizing.Place{Allocatable: allocatable, Limited: limited(limitRanges, quotas)})
	if err != nil {
		return Decision{}, err
	}
	notes := res.Notes
	reason, where := ReasonPartlySized, fmt.Sprintf(" on node %q", nodeName)
	if unknown != "" {
		// Everything that is missing follows from this.
		reason, where, notes = ReasonNodeUnknown, "", []string{unknown + "; the pod keeps its size"}
		if len(res.Sized) > 0 {
			notes[0] = unknown + "; the pod gets the minimums"
		}
	}
	d := Decision{Pod: res.Pod, Sized: res.Sized}
	for _, note := range notes {
		text := fmt.Sprintf("FlexDaemonsetTemplate %q%s: %s", name, where, note)
		d.Warnings = append(d.Warnings, text)
		d.Events = append(d.Events, Event{Reason: reason, Note: text, Related: related})
	}
	if len(res.Sized) == 0 {
		if d.Summary = "as big as it declares"; res.Pod == pod {
			d.Pod = req.Pod
		}
		return d, nil
	}

	// 4. Would a LimitRange refuse it?
	for i := range limitRanges {
		if broken := template.Violations(&limitRanges[i], res.Pod); len(broken) > 0 {
			return unsized(sizing.Unsize(pod), ReasonLimitRangeForbids, related, fmt.Sprintf(
				"LimitRange %q refuses the size that FlexDaemonsetTemplate %q%s gives a pod, which keeps its own: %s",
				limitRanges[i].Name, name, where, strings.Join(broken, "; "))), nil
		}
	}
	d.Summary = fmt.Sprintf("as big as its share of node %s (%s)", nodeName, sizeText(template, res.Pod))
	if unknown != "" {
		d.Summary = fmt.Sprintf("as big as the minimums (%s)", sizeText(template, res.Pod))
	}
	return d, nil
}

// limited returns the resources for which a namespace demands a limit of every container,
// or fills one in.
func limited(limitRanges []corev1.LimitRange, quotas []corev1.ResourceQuota) []corev1.ResourceName {
	var out []corev1.ResourceName
	for i := range limitRanges {
		for _, item := range limitRanges[i].Spec.Limits {
			if item.Type == corev1.LimitTypeContainer {
				out = slices.AppendSeq(out, maps.Keys(item.Default))
				out = slices.AppendSeq(out, maps.Keys(item.Max))
			}
		}
	}
	for i := range quotas {
		for name := range quotas[i].Spec.Hard {
			if r, ok := strings.CutPrefix(string(name), "limits."); ok {
				out = append(out, corev1.ResourceName(r))
			}
		}
	}
	return out
}

// unsized leaves a pod as it is, and says why.
func unsized(pod *podpatch.Pod, reason string, related *corev1.ObjectReference, text string) Decision {
	return Decision{Pod: pod, Summary: "as big as it declares", Warnings: []string{text}, Events: []Event{{Reason: reason, Note: text, Related: related}}}
}

// TemplateName returns the name of a pod's template: what its own annotation says, or
// else that of its DaemonSet.
func TemplateName(own string, daemonSet map[string]string) string {
	if own != "" {
		return own
	}
	return daemonSet[flexdaemonsets.TemplateAnnotation]
}

// NodeOf returns the name of the node that a pod is for, if only one can be: the
// DaemonSet controller says so by a field selector in the node affinity.
func NodeOf(pod *podpatch.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	name := ""
	for _, term := range pod.RequiredTerms() {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1
		})
		if i < 0 || name != "" && term.MatchFields[i].Values[0] != name {
			return "" // terms are alternatives
		}
		name = term.MatchFields[i].Values[0]
	}
	return name
}

// sizeText says what a pod's containers request together.
func sizeText(t *sizing.Template, pod *podpatch.Pod) string {
	var parts []string
	for _, s := range t.Shares {
		if q := sizing.Requested(pod, s.Resource); q != nil {
			parts = append(parts, fmt.Sprintf("%s %s", s.Resource, q))
		}
	}
	return strings.Join(parts, ", ")
}
