package admit

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// limited returns the resources for which a namespace demands a limit of a pod, or fills one in. A LimitRange demands one by a maximum
// and by a ratio of limit to request, of each container or of the pod, and a ResourceQuota by counting limits.
func limited(t *sizing.Template, pod *podpatch.Pod, limitRanges []corev1.LimitRange, quotas []corev1.ResourceQuota) []corev1.ResourceName {
	var out []corev1.ResourceName
	for i := range limitRanges {
		for _, item := range limitRanges[i].Spec.Limits {
			if item.Type == corev1.LimitTypeContainer || item.Type == corev1.LimitTypePod {
				out = slices.AppendSeq(out, maps.Keys(item.Default))
				out = slices.AppendSeq(out, maps.Keys(item.Max))
				out = slices.AppendSeq(out, maps.Keys(item.MaxLimitRequestRatio))
			}
		}
	}
	for i := range quotas {
		if !covers(&quotas[i], t, pod) {
			continue
		}
		for name := range quotas[i].Spec.Hard {
			if r, ok := strings.CutPrefix(string(name), "limits."); ok {
				out = append(out, corev1.ResourceName(r))
			}
		}
	}
	return out
}

// covers reports whether a ResourceQuota is about a pod: all of its scopes must hold, as in the API server's evaluator of pods
// (pkg/quota/v1/evaluator/core/pods.go of Kubernetes).
func covers(quota *corev1.ResourceQuota, t *sizing.Template, pod *podpatch.Pod) bool {
	for _, scope := range quota.Spec.Scopes {
		if !inScope(corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}, t, pod) {
			return false
		}
	}
	if selector := quota.Spec.ScopeSelector; selector != nil {
		for _, requirement := range selector.MatchExpressions {
			if !inScope(requirement, t, pod) {
				return false
			}
		}
	}
	return true
}

// inScope reports whether one scope holds for a pod. The pods of a DaemonSet never have a deadline, which the API server does not allow
// in their template. A scope that is not known here is taken to hold: a limit that nobody needs does less harm than one that is missing.
func inScope(scope corev1.ScopedResourceSelectorRequirement, t *sizing.Template, pod *podpatch.Pod) bool {
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeVolumeAttributesClass:
		return false
	case corev1.ResourceQuotaScopeBestEffort:
		return isBestEffort(t, pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !isBestEffort(t, pod)
	case corev1.ResourceQuotaScopePriorityClass:
		return hasPriority(scope, pod.Spec.PriorityClassName)
	}
	return true
}

// hasPriority reports whether a PriorityClass, or "" for none, is one that a scope asks for.
func hasPriority(scope corev1.ScopedResourceSelectorRequirement, class string) bool {
	switch scope.Operator {
	case corev1.ScopeSelectorOpIn:
		return class != "" && slices.Contains(scope.Values, class)
	case corev1.ScopeSelectorOpNotIn:
		return class == "" || !slices.Contains(scope.Values, class)
	case corev1.ScopeSelectorOpDoesNotExist:
		return class == ""
	}
	return class != ""
}

// isBestEffort reports whether a pod has no entry of CPU and memory once it is sized.
func isBestEffort(t *sizing.Template, pod *podpatch.Pod) bool {
	counts := func(r corev1.ResourceName) bool { return r == corev1.ResourceCPU || r == corev1.ResourceMemory }
	if slices.ContainsFunc(t.Shares, func(s sizing.Share) bool { return counts(s.Resource) }) {
		return false
	}
	some := func(r *podpatch.Resources) bool {
		if r == nil {
			return false
		}
		for _, list := range []podpatch.ResourceList{r.Requests, r.Limits} {
			for name, text := range list {
				if q, err := text.Parse(); counts(name) && err == nil && q.Sign() > 0 {
					return true
				}
			}
		}
		return false
	}
	for c := range pod.AllContainers() {
		if some(c.Resources) {
			return false
		}
	}
	return !some(pod.Spec.Resources)
}
