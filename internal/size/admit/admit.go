// Package admit is the feature that gives a DaemonSet's pod a share of its node.
//
// It finds the pod's template and node and asks package sizing for the size. The controller
// that resizes running pods asks this feature, too, so that there is one answer about sizes.
package admit

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/world"
)

// Name is the name of the feature.
const Name = "sizing"

// Feature is the feature.
type Feature struct {
	World world.Snapshot
}

var _ feature.Feature = &Feature{}

// Name implements [feature.Feature].
func (f *Feature) Name() string { return Name }

// Decide implements [feature.Feature].
func (f *Feature) Decide(ctx context.Context, req feature.Request) (feature.Decision, error) {
	// 1. Which template has the pod?
	pod, name, answer, err := f.templateName(ctx, req)
	if answer != nil || err != nil || name == "" {
		return decision(answer), err
	}
	template, related, answer, err := f.template(ctx, req, name)
	if answer != nil || err != nil {
		return decision(answer), err
	}

	// 2. On which node will it run, and what has that?
	node, err := f.node(ctx, pod)
	if err != nil {
		return feature.Decision{}, err
	}

	// 3. How big is it?
	limitRanges, err := f.World.LimitRanges(ctx, req.Namespace)
	if err != nil {
		return feature.Decision{}, err
	}
	quotas, err := f.World.ResourceQuotas(ctx, req.Namespace)
	if err != nil {
		return feature.Decision{}, err
	}
	res, err := template.Size(pod, sizing.Place{Allocatable: node.allocatable, Limited: limited(template, pod, limitRanges, quotas)})
	if err != nil {
		return feature.Decision{}, err
	}
	d := feature.Decision{Pod: res.Pod, Sized: res.Sized}
	for _, text := range template.Warnings {
		d.Warnings = append(d.Warnings, fmt.Sprintf("FlexDaemonsetTemplate %q: %s", name, text))
	}
	reason, notes := node.notes(&res)
	for _, note := range notes {
		text := fmt.Sprintf("FlexDaemonsetTemplate %q%s: %s", name, node.where(), note)
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
	if limitRange, broken := violated(template, limitRanges, res.Pod); broken != "" {
		return *unsized(sizing.Unsize(pod), stowage.EventLimitRangeRefusesSize, related, fmt.Sprintf(
			"LimitRange %q refuses the size that FlexDaemonsetTemplate %q%s gives a pod, which keeps its own: %s",
			limitRange, name, node.where(), broken)), nil
	}
	d.Summary = node.summary(sizeText(template, res.Pod))
	return d, nil
}

// violated returns the first LimitRange that refuses a pod, and why; or "".
func violated(template *sizing.Template, limitRanges []corev1.LimitRange, pod *podpatch.Pod) (limitRange, why string) {
	for i := range limitRanges {
		if broken := template.Violations(&limitRanges[i], pod); len(broken) > 0 {
			return limitRanges[i].Name, strings.Join(broken, "; ")
		}
	}
	return "", ""
}

// decision returns an answer that is final, or none.
func decision(answer *feature.Decision) feature.Decision {
	if answer == nil {
		return feature.Decision{}
	}
	return *answer
}

// templateName returns the name of the pod's template, or "" if it has none. It also returns the pod, without a
// record that is a copy of another pod's. An answer that is not nil is final.
func (f *Feature) templateName(ctx context.Context, req feature.Request) (pod *podpatch.Pod, name string, answer *feature.Decision, err error) {
	owner := req.Pod.Controller()
	own, annotated := req.Pod.Metadata.Annotations[flexdaemonsets.TemplateAnnotation]
	if owner == nil || owner.Kind != "DaemonSet" {
		if annotated {
			answer = &feature.Decision{Pod: req.Pod, Warnings: []string{
				fmt.Sprintf("annotation %s is for the pods of a DaemonSet; this pod keeps its size", flexdaemonsets.TemplateAnnotation)}}
		}
		return nil, "", answer, nil
	}
	if !owner.Plausible() {
		return nil, "", nil, nil
	}
	daemonSet, err := f.World.Workload(ctx, req.Namespace, world.Ref{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID),
	})
	switch {
	case daemonSet != nil:
		pod = req.Pod
		// A pod's record that its owner has, too, is a copy of another pod's.
		if copied, ok := daemonSet.TemplateAnnotations[stowage.DeclaredResourcesAnnotation]; ok {
			pod = sizing.Disown(pod, copied)
		}
		return pod, sizing.TemplateName(own, daemonSet.Annotations), nil, nil
	case own != "": // enough to go on
		return req.Pod, own, nil, nil
	case err != nil:
		return nil, "", nil, err
	case !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/"): // Stowage may not be allowed to read it
		return nil, "", nil, nil
	}
	return nil, "", unsized(req.Pod, stowage.EventTemplateMissing, nil,
		fmt.Sprintf("DaemonSet %q was not found, so it is not known whether its pods have a resource template", owner.Name)), nil
}

// template returns the template of a name, and a reference to it. An answer that is not nil is final.
func (f *Feature) template(ctx context.Context, req feature.Request, name string) (*sizing.Template, *corev1.ObjectReference, *feature.Decision, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, nil, unsized(req.Pod, stowage.EventTemplateMissing, nil,
			fmt.Sprintf("annotation %s is %q, which is no name of a FlexDaemonsetTemplate; the pod keeps its size", flexdaemonsets.TemplateAnnotation, bounded.Text(name, 64))), nil
	}
	object, err := f.World.Template(ctx, name)
	if err != nil {
		return nil, nil, nil, err
	}
	if object == nil {
		return nil, nil, unsized(req.Pod, stowage.EventTemplateMissing, nil,
			fmt.Sprintf("FlexDaemonsetTemplate %q does not exist; the pod keeps its size", name)), nil
	}
	related := &corev1.ObjectReference{APIVersion: flexdaemonsets.GroupVersion.String(), Kind: "FlexDaemonsetTemplate", Name: name, UID: object.UID}
	template, err := sizing.Compile(object)
	if err != nil {
		return nil, nil, unsized(req.Pod, stowage.EventInvalidTemplate, related,
			fmt.Sprintf("FlexDaemonsetTemplate %q is invalid, so the pod keeps its size: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))), nil
	}
	return template, related, nil, nil
}

// place is the node that a pod is for, as far as it is known.
type place struct {
	name        string
	allocatable corev1.ResourceList
	unknown     string // why it is not known, if so
}

// node returns the node that a pod is for.
func (f *Feature) node(ctx context.Context, pod *podpatch.Pod) (place, error) {
	p := place{name: sizing.NodeOf(pod)}
	if p.name == "" {
		p.unknown = "the pod does not say which node it is for"
		return p, nil
	}
	node, err := f.World.Node(ctx, p.name)
	switch {
	case err != nil:
		return p, err
	case node == nil:
		p.unknown = fmt.Sprintf("node %q does not exist", p.name)
	default:
		p.allocatable = node.Status.Allocatable
	}
	return p, nil
}

// where names the node in messages, if it is known.
func (p place) where() string {
	if p.unknown != "" {
		return ""
	}
	return fmt.Sprintf(" on node %q", p.name)
}

// summary says where a size comes from.
func (p place) summary(size string) string {
	if p.unknown != "" {
		return fmt.Sprintf("as big as the minimums (%s)", size)
	}
	return fmt.Sprintf("as big as its share of node %s (%s)", p.name, size)
}

// notes returns what there is to say of a size, and why.
func (p place) notes(res *sizing.Result) (stowage.EventReason, []string) {
	switch {
	case p.unknown == "":
		return stowage.EventPartlySized, res.Notes
	case len(res.Sized) > 0: // everything that is missing follows from the node
		return stowage.EventNodeUnknown, []string{p.unknown + "; the pod gets the minimums"}
	}
	return stowage.EventNodeUnknown, []string{p.unknown + "; the pod keeps its size"}
}

// unsized leaves a pod as it is, and says why.
func unsized(pod *podpatch.Pod, reason stowage.EventReason, related *corev1.ObjectReference, text string) *feature.Decision {
	return &feature.Decision{Pod: pod, Summary: "as big as it declares", Warnings: []string{text}, Events: []feature.Event{{Reason: reason, Note: text, Related: related}}}
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
