package sizing

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Resize returns what a running pod can become on its way to the pod that it should be.
// The API server allows little (KEP-1287): CPU and
// memory only, and no entry is ever removed. Where the pod should have no limit, the one
// that it has stays, or follows the request. Init containers that have run stay.
//
// Whether the change would also be another QoS class, which no pod ever gets, is for the
// API server to say.
func Resize(now, want *podpatch.Pod) *podpatch.Pod {
	out := now.Clone()
	for i := range out.Spec.InitContainers {
		if c := &out.Spec.InitContainers[i]; c.IsSidecar() {
			approach(&c.Resources, want.Spec.InitContainers[i].Resources)
		}
	}
	for i := range out.Spec.Containers {
		approach(&out.Spec.Containers[i].Resources, want.Spec.Containers[i].Resources)
	}
	if out.Spec.Resources != nil {
		approach(&out.Spec.Resources, want.Spec.Resources)
	}
	return out
}

// approach changes resources to others, as far as a running pod may change.
func approach(to **podpatch.Resources, want *podpatch.Resources) {
	if want == nil {
		want = &podpatch.Resources{}
	}
	if *to == nil {
		*to = &podpatch.Resources{}
	}
	res := *to
	for _, r := range sizeable {
		request, limit := want.Requests[r], want.Limits[r]
		if res.Requests[r] == request && res.Limits[r] == limit {
			continue
		}
		if r == corev1.ResourceEphemeralStorage || request == "" && res.Requests[r] != "" {
			continue
		}
		equal := res.Limits[r] == res.Requests[r]
		if request != "" {
			res.Requests = with(res.Requests, r, request)
		}
		switch {
		case limit != "":
			res.Limits = with(res.Limits, r, limit)
		case res.Limits[r] != "":
			// One that equals its request goes with it, for the sake of the QoS class.
			if equal || less(res.Limits[r], request) {
				res.Limits = with(res.Limits, r, request)
			}
		}
	}
}

// KeepMemory takes back what a resize changes of the memory of containers whose memory limit it would lower. Before
// Kubernetes 1.34, the API server refuses such a resize, unless the container restarts for it.
func KeepMemory(now, resized *podpatch.Pod) {
	keep := func(before, after *podpatch.Resources) {
		if before == nil || after == nil || !less(after.Limits[corev1.ResourceMemory], before.Limits[corev1.ResourceMemory]) {
			return
		}
		after.Limits = with(after.Limits, corev1.ResourceMemory, before.Limits[corev1.ResourceMemory])
		if request, ok := before.Requests[corev1.ResourceMemory]; ok {
			after.Requests = with(after.Requests, corev1.ResourceMemory, request)
		}
	}
	for i := range resized.Spec.InitContainers {
		keep(now.Spec.InitContainers[i].Resources, resized.Spec.InitContainers[i].Resources)
	}
	for i := range resized.Spec.Containers {
		keep(now.Spec.Containers[i].Resources, resized.Spec.Containers[i].Resources)
	}
	keep(now.Spec.Resources, resized.Spec.Resources)
}

// less reports whether a quantity is less than another. What is none is not.
func less(a, b podpatch.Quantity) bool {
	x, err := a.Parse()
	if err != nil {
		return false
	}
	y, err := b.Parse()
	return err == nil && x.Cmp(y) < 0
}

// SameSize reports whether two forms of a pod have the same entries of the resources that
// a template can size. Init containers that run to their end do not count.
func SameSize(a, b *podpatch.Pod) bool {
	same := func(a, b *podpatch.Resources) bool {
		a, b = relevant(a), relevant(b)
		if a == nil {
			a = &podpatch.Resources{}
		}
		if b == nil {
			b = &podpatch.Resources{}
		}
		return maps.EqualFunc(a.Requests, b.Requests, podpatch.Quantity.Same) && maps.EqualFunc(a.Limits, b.Limits, podpatch.Quantity.Same)
	}
	for i := range a.Spec.InitContainers {
		if c := &a.Spec.InitContainers[i]; c.IsSidecar() && !same(c.Resources, b.Spec.InitContainers[i].Resources) {
			return false
		}
	}
	for i := range a.Spec.Containers {
		if !same(a.Spec.Containers[i].Resources, b.Spec.Containers[i].Resources) {
			return false
		}
	}
	return same(a.Spec.Resources, b.Spec.Resources)
}

// Changes reports whether two forms of a container have other entries of a resource.
func Changes(a, b *podpatch.Resources, r corev1.ResourceName) bool {
	of := func(res *podpatch.Resources) (request, limit podpatch.Quantity) {
		if res == nil {
			return "", ""
		}
		return res.Requests[r], res.Limits[r]
	}
	request, limit := of(a)
	otherRequest, otherLimit := of(b)
	return !request.Same(otherRequest) || !limit.Same(otherLimit)
}

// ResizePatch returns the strategic merge patch for pods/resize that makes a pod of a UID what
// [Resize] returned. It holds the entries that change, and the UID.
func ResizePatch(uid types.UID, now, resized *podpatch.Pod) []byte {
	type entries struct {
		Requests podpatch.ResourceList `json:"requests,omitempty"`
		Limits   podpatch.ResourceList `json:"limits,omitempty"`
	}
	type container struct {
		Name      string  `json:"name"`
		Resources entries `json:"resources"`
	}
	changed := func(before, after podpatch.ResourceList) podpatch.ResourceList {
		out := podpatch.ResourceList{}
		for name, q := range after {
			if !before[name].Same(q) {
				out[name] = q
			}
		}
		return out
	}
	change := func(before, after *podpatch.Resources) (entries, bool) {
		if after == nil {
			return entries{}, false
		}
		if before == nil {
			before = &podpatch.Resources{}
		}
		e := entries{changed(before.Requests, after.Requests), changed(before.Limits, after.Limits)}
		return e, len(e.Requests)+len(e.Limits) > 0
	}
	containers := func(before, after []podpatch.Container) (out []container) {
		for i := range after {
			if e, ok := change(before[i].Resources, after[i].Resources); ok {
				out = append(out, container{after[i].Name, e})
			}
		}
		return out
	}
	var patch struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			Resources      *entries    `json:"resources,omitempty"`
			InitContainers []container `json:"initContainers,omitempty"`
			Containers     []container `json:"containers,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.UID = uid
	if e, ok := change(now.Spec.Resources, resized.Spec.Resources); ok {
		patch.Spec.Resources = &e
	}
	patch.Spec.InitContainers = containers(now.Spec.InitContainers, resized.Spec.InitContainers)
	patch.Spec.Containers = containers(now.Spec.Containers, resized.Spec.Containers)
	data, err := json.Marshal(patch)
	if err != nil {
		panic(err) // texts always marshal
	}
	return data
}
