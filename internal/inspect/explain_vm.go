package inspect

import (
	"context"
	"maps"
	"slices"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// vmFacts are what is known of what a pod really consumes.
type vmFacts struct {
	RuntimeClass string `json:"runtimeClass,omitempty"`
	// Classes are the RuntimeClasses whose pods run in VMs, and Resource is what the scheduler counts for each of them.
	Classes  []string `json:"classes"`
	Resource string   `json:"resource"`
	// Unreadable is why the record of the pod's own entries cannot be read.
	Unreadable string `json:"unreadable,omitempty"`
	// NotConverted is why a pod of such a class is no peer pod.
	NotConverted *bypass `json:"notConverted,omitempty"`
	Size         *vmSize `json:"size,omitempty"` // of a peer pod
	// Offer is what a VMCatalog has for the pod; nil if none is for its RuntimeClass.
	Offer *catalog.Offer `json:"offer,omitempty"`
	// Type is the type of VM that the pod has, where nothing more is known of it.
	Type string `json:"type,omitempty"`
}

// vmSize is the size of a VM, and how it came about.
type vmSize struct {
	Asked []askedFacts `json:"asked"`
	// CPU and Memory are the totals, with each container's limit or else its request; the others are those rounded up.
	CPU       string `json:"cpu"`
	Memory    string `json:"memory"`
	VCPUs     int64  `json:"vcpus"`
	MemoryMiB int64  `json:"memoryMiB"`
	GPUs      int64  `json:"gpus"`
	// Kept are sizing annotations that the pod had already, with their values.
	Kept []keptAnnotation `json:"kept,omitempty"`
}

// askedFacts are the entries that a container had.
type askedFacts struct {
	Container string                `json:"container,omitempty"` // empty for the pod as a whole
	Requests  podpatch.ResourceList `json:"requests,omitempty"`
	Limits    podpatch.ResourceList `json:"limits,omitempty"`
}

type keptAnnotation struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// peerPod looks what the pod really consumes, and why.
func (s *subject) peerPod(ctx context.Context, f *vmFacts) {
	f.RuntimeClass, f.Classes, f.Resource = s.view.Spec.RuntimeClassName, s.PeerPods.RuntimeClasses, s.PeerPods.VMResource
	account, err := s.PeerPods.Account(s.view)
	switch {
	case err != nil:
		f.Unreadable = err.Error()
		return
	case account == nil:
		if s.PeerPods.Targets(f.RuntimeClass) {
			f.NotConverted = new(s.bypass())
		}
		return
	}
	f.Size = &vmSize{
		CPU: account.CPU.String(), Memory: account.Memory.String(),
		VCPUs: account.Size.VCPUs, MemoryMiB: account.Size.MemoryMiB, GPUs: account.Size.GPUs,
	}
	for _, name := range slices.Sorted(maps.Keys(account.Entries)) {
		asked := askedFacts{Container: name}
		if r := account.Entries[name]; r != nil {
			asked.Requests, asked.Limits = r.Requests, r.Limits
		}
		f.Size.Asked = append(f.Size.Asked, asked)
	}
	if f.Offer = s.offer(ctx); f.Offer == nil {
		f.Type = s.pod.Annotations[stowage.MachineTypeAnnotation]
	}
	for _, key := range account.Kept {
		f.Size.Kept = append(f.Size.Kept, keptAnnotation{key, s.pod.Annotations[key]})
	}
}

// offer returns what a VMCatalog has for the pod. Catalogs that may not be read have nothing.
func (s *subject) offer(ctx context.Context) *catalog.Offer {
	objects, err := s.listCatalogs(ctx)
	if err != nil {
		return nil
	}
	return s.PeerPods.Offer(catalog.CompileAll(objects), s.view, s.pod.Namespace)
}
