package preview

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Decision says in a word or two what was decided about the pod.
func (a *Admitted) Decision() string {
	if a.Result.LeftAlone != "" {
		return "left alone: " + a.Result.LeftAlone
	}
	var parts []string
	for _, f := range a.Result.Features {
		switch f.Outcome {
		case pipeline.OutcomeApplied:
			parts = append(parts, f.Feature)
		case pipeline.OutcomeAudited:
			parts = append(parts, f.Feature+" (audit only)")
		case pipeline.OutcomeError, pipeline.OutcomePanic:
			parts = append(parts, f.Feature+" failed")
		case pipeline.OutcomeDropped:
			parts = append(parts, f.Feature+" dropped")
		}
	}
	if len(parts) == 0 {
		return "unchanged"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// WhyNoSeat says why a pod of a workload with a strategy gets no seat, for people. It returns "" if nothing says so.
func (a *Admitted) WhyNoSeat() string {
	if a.Result.LeftAlone != "" {
		return a.Result.LeftAlone
	}
	for _, f := range a.Result.Features {
		_, why, _ := strings.Cut(f.Summary, "because ")
		switch {
		case f.Outcome == pipeline.OutcomeAudited && f.Pool != nil:
			return "it is in mode Audit"
		case f.Err != nil:
			return f.Err.Error()
		case f.Pool == nil && why != "":
			return why
		}
	}
	return ""
}

// Size returns the node of a pod with a size of its node, and the requests that Stowage decided. Ok is false for
// other pods.
func (a *Admitted) Size() (node string, requests corev1.ResourceList, ok bool) {
	if _, ok := a.Pod.Labels[stowage.SizedByLabel]; !ok {
		return "", nil, false
	}
	all := resourcehelper.PodRequests(a.Pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	requests = corev1.ResourceList{}
	for _, name := range sizing.SizedResources(a.Pod.Annotations) {
		if q, ok := all[name]; ok {
			requests[name] = q
		}
	}
	return nodeOf(a.Pod), requests, true
}

// VM is a peer pod's virtual machine.
type VM struct {
	VCPUs string `json:"vcpus"`
	// Memory is in MiB.
	Memory string `json:"memoryMiB"`
	GPUs   string `json:"gpus,omitempty"`
	// Type is the type of VM, and PricePerHour what one of it costs, if a VMCatalog has the type.
	Type         string        `json:"type,omitempty"`
	PricePerHour catalog.Price `json:"pricePerHour,omitzero"`
}

// VM returns the virtual machine that a peer pod runs in, and how many of vmResource the pod requests. The count is 0
// for other pods.
func (a *Admitted) VM(vmResource string) (vm VM, count int64) {
	for _, c := range a.Pod.Spec.Containers {
		q := c.Resources.Limits[corev1.ResourceName(vmResource)]
		count += q.Value()
	}
	if count == 0 {
		return VM{}, 0
	}
	set := a.Pod.Annotations
	vm = VM{VCPUs: set[stowage.DefaultVCPUsAnnotation], Memory: set[stowage.DefaultMemoryAnnotation], GPUs: set[stowage.DefaultGPUsAnnotation], Type: set[stowage.MachineTypeAnnotation]}
	if a.Offer != nil {
		vm.PricePerHour = a.Offer.PricePerHour
	}
	return vm, count
}

// offer returns what a catalog has for a pod, or nil if none is for its RuntimeClass.
func (p *Preview) offer(pod *corev1.Pod) *catalog.Offer {
	if len(p.catalogs) == 0 {
		return nil
	}
	return p.settings.PeerPodConfig.Offer(p.catalogs, podpatch.FromPod(pod), pod.Namespace)
}

// nodeOf is the node that a pod is pinned to.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	for _, term := range requiredTerms(&pod.Spec) {
		for _, f := range term.MatchFields {
			return strings.Join(f.Values, ",")
		}
	}
	return "-"
}
