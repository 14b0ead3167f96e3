package peerpod

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// A container may read its own resources, or those of another container, from an environment variable or a file. The kubelet fills them in from
// what the pod asks for on the node, and takes the size of the node for a limit that is not set
// (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/). The entries of a peer pod are removed, so a program would take its VM for as
// large as the node. What can be, is written out at admission: environments do not change later.

// writeOut writes the resources that environment variables refer to, as they were, or the size of the VM for a limit that is not set. It returns
// warnings of what it cannot write.
func writeOut(out *podpatch.Pod, of *record, vm corev1.ResourceList) (warnings []string) {
	for ctr := range out.AllContainers() {
		for i := range ctr.Env {
			e := &ctr.Env[i]
			name := e.Ref.ContainerName
			if name == "" {
				name = ctr.Name
			}
			value, changes := of.amount(name, e.Ref.Resource, vm)
			switch {
			case changes && value == nil:
				warnings = append(warnings, fmt.Sprintf("container %q: the environment variable %s has %s of the node, and not of the VM, whose size is not known; set a limit", ctr.Name, e.Name, e.Ref.Resource))
			case changes:
				text := divided(value, &e.Ref)
				e.Value = &text
			}
		}
	}
	for _, v := range out.Spec.Volumes {
		if v.DownwardAPI || v.Projected {
			warnings = append(warnings, fmt.Sprintf("volume %q: its files have resources of containers (resourceFieldRef); in a peer pod they have those of the node, and requests of 0. Use environment variables, which Stowage writes out", v.Name))
		}
	}
	return warnings
}

// SizeOf returns the vCPUs and the memory, in bytes, of the VM that annotations ask for, whoever wrote them. What they do not say is 0.
func SizeOf(annotations map[string]string) (vcpus, memory int64) {
	vcpus, _ = parseVCPUs(annotations[stowage.DefaultVCPUsAnnotation])
	if n, err := strconv.ParseInt(annotations[stowage.DefaultMemoryAnnotation], 10, 42); err == nil && n > 0 {
		memory = n << 20
	}
	return vcpus, memory
}

// amount returns what a container may read of a resource, such as limits.cpu. Changes is whether it would read something else on the node now.
// Without an amount, nobody knows.
func (r *record) amount(container, what string, vm corev1.ResourceList) (amount *resource.Quantity, changes bool) {
	kind, name, ok := strings.Cut(what, ".")
	recorded := r.Containers[container]
	if !ok || recorded == nil || !slices.Contains([]string{"limits", "requests"}, kind) {
		return nil, false // the API server refuses it
	}
	lists := []podpatch.ResourceList{recorded.Limits}
	if kind == "requests" {
		lists[0] = recorded.Requests
	} else if r.Pod != nil {
		lists = append(lists, r.Pod.Limits) // of the whole pod
	}
	for _, list := range lists {
		if text, has := list[corev1.ResourceName(name)]; has {
			q, err := text.Parse()
			return &q, err == nil
		}
	}
	if kind == "requests" || name != string(corev1.ResourceCPU) && name != string(corev1.ResourceMemory) {
		return nil, false // 0, or the node's disk, as before
	}
	if q, known := vm[corev1.ResourceName(name)]; known {
		return &q, true
	}
	return nil, true
}

// divided is an amount as the kubelet writes it: in units of the divisor, rounded up. See ExtractContainerResourceValue in
// https://github.com/kubernetes/kubernetes/blob/master/pkg/api/v1/resource/helpers.go.
func divided(amount *resource.Quantity, ref *podpatch.ResourceRef) string {
	by, err := ref.Divisor.Parse()
	if err != nil || by.Sign() <= 0 { // none, or one that the API server refuses
		by = resource.MustParse("1")
	}
	units, divisor := amount.Value(), by.Value()
	if strings.HasSuffix(ref.Resource, "."+string(corev1.ResourceCPU)) {
		units, divisor = amount.MilliValue(), by.MilliValue()
	}
	return strconv.FormatInt(int64(math.Ceil(float64(units)/float64(divisor))), 10)
}
