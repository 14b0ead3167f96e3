// Package admit is the feature that accounts peer pods: pods which run in VMs outside their node.
//
// It converts the pod with package peerpod and warns of what would refuse the result.
package admit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
)

// Name is the name of the feature.
const Name = "peer-pods"

// Feature is the feature.
type Feature struct {
	Config peerpod.Config
	World  world.Snapshot
	// Catalogs returns the VMCatalogs, the one that holds first; nil is none.
	Catalogs func(ctx context.Context) ([]*catalog.Catalog, error)
	// Tries lets pods try types that are closed; nil lets none.
	Tries *Tries
}

var _ feature.Feature = &Feature{}

// Name implements [feature.Feature].
func (f *Feature) Name() string { return Name }

// Decide implements [feature.Feature].
func (f *Feature) Decide(ctx context.Context, req feature.Request) (feature.Decision, error) {
	if !f.Config.Targets(req.Pod.Spec.RuntimeClassName) {
		return feature.Decision{}, nil
	}
	if len(req.Pod.Spec.Containers) == 0 {
		return feature.Decision{}, nil // the API server refuses it
	}
	copied := f.templateRecord(ctx, req)
	choose, unread := f.chooser(ctx, &req)
	pod, warnings, err := f.Config.Convert(req.Pod, req.Sized, copied, choose)
	if err != nil {
		return feature.Decision{}, err
	}
	warnings = append(warnings, unread...)
	d := feature.Decision{Pod: pod, Summary: summary(pod.Metadata.Annotations, f.Config.VMResource)}
	if copied != "" && podpatch.IsCopy(req.Pod.Metadata.Annotations[stowage.OriginalResourcesAnnotation], copied) {
		d.Events = append(d.Events, feature.Event{Reason: stowage.EventRecordIgnored, Note: warnings[0]})
	}

	// Both of these refuse pods after us, for lacking what we had to remove.
	// Nothing can be done here but to explain it, so not being able to look
	// costs the explanation only.
	limitRanges, err := f.World.LimitRanges(ctx, req.Namespace)
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot tell whether a LimitRange refuses this pod: %v", err))
	}
	for i := range limitRanges {
		if bounds := f.refusingBounds(&limitRanges[i]); len(bounds) > 0 {
			text := fmt.Sprintf("the API server refuses peer pods here, because they have no requests or limits; remove these bounds of LimitRange %q or use another namespace: %s",
				limitRanges[i].Name, strings.Join(bounds, ", "))
			d.Warnings = append(d.Warnings, text)
			d.Events = append(d.Events, feature.Event{Reason: stowage.EventLimitRangeRefusesPeerPod, Note: text, Related: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "LimitRange", Namespace: req.Namespace, Name: limitRanges[i].Name, UID: limitRanges[i].UID,
			}})
		}
	}
	quotas, err := f.World.ResourceQuotas(ctx, req.Namespace)
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot tell whether a ResourceQuota refuses this pod: %v", err))
	}
	for i := range quotas {
		if keys := refusingKeys(&quotas[i]); len(keys) > 0 {
			d.Warnings = append(d.Warnings, fmt.Sprintf("ResourceQuota %q may refuse this pod, because a peer pod has no requests or limits; use requests.%s there in place of %s",
				quotas[i].Name, f.Config.VMResource, strings.Join(keys, ", ")))
		}
	}
	d.Warnings = append(d.Warnings, warnings...)
	return d, nil
}

// templateRecord returns the record of removed entries in the pod template of a pod's owner, where the pod has one,
// too. Whoever wrote the template copied it from a running pod. An owner that cannot be read has none.
func (f *Feature) templateRecord(ctx context.Context, req feature.Request) string {
	owner := req.Pod.Controller()
	if _, recorded := req.Pod.Metadata.Annotations[stowage.OriginalResourcesAnnotation]; !recorded || owner == nil || !owner.Plausible() {
		return ""
	}
	ref := world.Ref{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID)}
	if !ref.HasTemplate() {
		return ""
	}
	w, err := f.World.Workload(ctx, req.Namespace, ref)
	if err != nil || w == nil {
		return ""
	}
	return w.TemplateAnnotations[stowage.OriginalResourcesAnnotation]
}

// summary says what VM the annotations ask for.
func summary(annotations map[string]string, vmResource string) string {
	var parts []string
	for _, a := range []struct{ key, unit string }{
		{stowage.DefaultVCPUsAnnotation, " vCPU"},
		{stowage.DefaultMemoryAnnotation, " MiB"},
		{stowage.DefaultGPUsAnnotation, " GPU"},
	} {
		if v, ok := annotations[a.key]; ok {
			parts = append(parts, v+a.unit)
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "default size")
	}
	if machine := annotations[stowage.MachineTypeAnnotation]; machine != "" {
		parts = append(parts, "type "+machine)
	}
	return fmt.Sprintf("a peer pod (%s) that takes one %s", strings.Join(parts, ", "), vmResource)
}

// refusingBounds lists the bounds of a LimitRange that a container or pod without
// requests and limits violates.
func (f *Feature) refusingBounds(lr *corev1.LimitRange) []string {
	var out []string
	for _, item := range lr.Spec.Limits {
		if item.Type != corev1.LimitTypeContainer && item.Type != corev1.LimitTypePod {
			continue
		}
		for _, bound := range []struct {
			name string
			list corev1.ResourceList
		}{{"min", item.Min}, {"max", item.Max}, {"maxLimitRequestRatio", item.MaxLimitRequestRatio}} {
			for _, name := range slices.Sorted(maps.Keys(bound.list)) {
				if string(name) != f.Config.VMResource {
					out = append(out, fmt.Sprintf("%s.%s (%s)", bound.name, name, item.Type))
				}
			}
		}
	}
	return out
}

// refusingKeys lists the entries of a ResourceQuota that make the API server
// refuse a container without the request or limit of that name.
func refusingKeys(q *corev1.ResourceQuota) []string {
	// A stripped pod is of QoS class BestEffort. A quota for that class may not count cpu or memory, and one for the
	// others does not count this pod.
	scopes := slices.Clone(q.Spec.Scopes)
	if q.Spec.ScopeSelector != nil {
		for _, e := range q.Spec.ScopeSelector.MatchExpressions {
			scopes = append(scopes, e.ScopeName)
		}
	}
	if slices.Contains(scopes, corev1.ResourceQuotaScopeNotBestEffort) || slices.Contains(scopes, corev1.ResourceQuotaScopeBestEffort) {
		return nil
	}
	var out []string
	for _, name := range []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
	} {
		if _, ok := q.Spec.Hard[name]; ok {
			out = append(out, string(name))
		}
	}
	return out
}
