// Package podsize is the feature that gives a DaemonSet's pod a share of its node.
//
// It finds the pod's template and node and asks package sizing for the size. The controller
// that resizes running pods asks this feature, too, so that there is one answer about sizes.
package podsize

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/events"
	"github.com/stowage-dev/stowage/internal/feature"
	"github.com/stowage-dev/stowage/internal/placement"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// Name is the name of the feature.
const Name = "sizing"

// Feature is the feature.
type Feature struct {
	Cluster cluster.Reader
}

var _ feature.Feature = &Feature{}

// Name implements [feature.Feature].
func (f *Feature) Name() string { return Name }

// Decide implements [feature.Feature].
func (f *Feature) Decide(ctx context.Context, req feature.Request) (feature.Decision, error) {
	// 1. Which template has the pod?
	owner := req.Pod.Controller()
	own, annotated := req.Pod.Metadata.Annotations[flexdaemonsets.TemplateAnnotation]
	if owner == nil || owner.Kind != "DaemonSet" {
		if annotated {
			return feature.Decision{Pod: req.Pod, Warnings: []string{
				fmt.Sprintf("annotation %s is for the pods of a DaemonSet; this pod keeps its size", flexdaemonsets.TemplateAnnotation)}}, nil
		}
		return feature.Decision{}, nil
	}
	if !placement.Plausible(owner) {
		return feature.Decision{}, nil
	}
	pod := req.Pod
	daemonSet, err := f.Cluster.Workload(ctx, req.Namespace, cluster.Ref{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID),
	})
	name := own
	switch {
	case daemonSet != nil:
		name = sizing.TemplateName(own, daemonSet.Annotations)
		// A pod's record that its owner has, too, is a copy of another pod's.
		if copied, ok := daemonSet.TemplateAnnotations[stowage.DeclaredResourcesAnnotation]; ok {
			pod = sizing.Disown(pod, copied)
		}
	case own != "": // enough to go on
	case err != nil:
		return feature.Decision{}, err
	case !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/"): // we may not be allowed to read it
		return feature.Decision{}, nil
	default:
		return unsized(req.Pod, stowage.EventTemplateMissing, nil,
			fmt.Sprintf("DaemonSet %q was not found, so it is not known whether its pods have a resource template", owner.Name)), nil
	}
	if name == "" {
		return feature.Decision{}, nil
	}
	related := &corev1.ObjectReference{APIVersion: flexdaemonsets.GroupVersion.String(), Kind: "FlexDaemonsetTemplate", Name: name}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return unsized(req.Pod, stowage.EventTemplateMissing, nil,
			fmt.Sprintf("annotation %s is %q, which is no name of a FlexDaemonsetTemplate; the pod keeps its size", flexdaemonsets.TemplateAnnotation, events.Cut(name, 64))), nil
	}
	object, err := f.Cluster.Template(ctx, name)
	if err != nil {
		return feature.Decision{}, err
	}
	if object == nil {
		return unsized(req.Pod, stowage.EventTemplateMissing, nil,
			fmt.Sprintf("FlexDaemonsetTemplate %q does not exist; the pod keeps its size", name)), nil
	}
	related.UID = object.UID
	template, err := sizing.Compile(object)
	if err != nil {
		return unsized(req.Pod, stowage.EventInvalidTemplate, related,
			fmt.Sprintf("FlexDaemonsetTemplate %q is invalid, so the pod keeps its size: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))), nil
	}

	// 2. On which node will it run, and what has that?
	var allocatable corev1.ResourceList
	var unknown string // why the node is not known
	nodeName := sizing.NodeOf(pod)
	if nodeName == "" {
		unknown = "the pod does not say which node it is for"
	} else {
		node, err := f.Cluster.Node(ctx, nodeName)
		if err != nil {
			return feature.Decision{}, err
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
		return feature.Decision{}, err
	}
	quotas, err := f.Cluster.ResourceQuotas(ctx, req.Namespace)
	if err != nil {
		return feature.Decision{}, err
	}
	res, err := template.Size(pod, sizing.Place{Allocatable: allocatable, Limited: limited(limitRanges, quotas)})
	if err != nil {
		return feature.Decision{}, err
	}
	notes := res.Notes
	reason, where := stowage.EventPartlySized, fmt.Sprintf(" on node %q", nodeName)
	if unknown != "" {
		// Everything that is missing follows from this.
		reason, where, notes = stowage.EventNodeUnknown, "", []string{unknown + "; the pod keeps its size"}
		if len(res.Sized) > 0 {
			notes[0] = unknown + "; the pod gets the minimums"
		}
	}
	d := feature.Decision{Pod: res.Pod, Sized: res.Sized}
	for _, note := range notes {
		text := fmt.Sprintf("FlexDaemonsetTemplate %q%s: %s", name, where, note)
		d.Warnings = append(d.Warnings, text)
		d.Events = append(d.Events, feature.Event{Reason: reason, Note: text, Related: related})
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
			return unsized(sizing.Unsize(pod), stowage.EventLimitRangeRefusesSize, related, fmt.Sprintf(
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
func unsized(pod *podpatch.Pod, reason stowage.EventReason, related *corev1.ObjectReference, text string) feature.Decision {
	return feature.Decision{Pod: pod, Summary: "as big as it declares", Warnings: []string{text}, Events: []feature.Event{{Reason: reason, Note: text, Related: related}}}
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
