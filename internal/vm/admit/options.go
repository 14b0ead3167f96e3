package admit

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Options are the settings of the feature, which `stowage preview` has, too.
type Options struct {
	Enabled bool
	Config  peerpod.Config
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options { return Options{Enabled: true, Config: peerpod.DefaultConfig()} }

// AddFlags adds a flag for every setting of the feature.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	f := config.Flags{FlagSet: fs}
	f.Toggle(&o.Enabled, "peer-pods", "STOWAGE_PEER_PODS", "Convert pods of the target RuntimeClasses to peer pods")
	f.List(&o.Config.RuntimeClasses, "target-runtimeclass", "TARGET_RUNTIMECLASS", "RuntimeClasses whose pods run in a VM outside the node, comma-separated")
	f.Text(&o.Config.VMResource, "pod-vm-extended-resource", "POD_VM_EXTENDED_RESOURCE", "Extended resource; each peer pod requests one")
	f.List(&o.Config.GPUResources, "peerpods-gpu-resources", "PEERPODS_GPU_RESOURCES", "Resources that count as GPUs, comma-separated; an asterisk at the end stands for any rest")
	f.Text((*string)(&o.Config.Sizing), "peerpods-sizing", "PEERPODS_SIZING", "How a pod's containers add up: Sum, or Effective (as the scheduler counts them)")
	f.List(&o.Config.MemoryAnnotations, "peerpods-memory-annotations", "PEERPODS_MEMORY_ANNOTATIONS", "Annotations that have the memory of a peer pod's VM, without their prefix, comma-separated: default_memory, or default_memory,default_mem where the enable_annotations of Kata Containers allow the second one")
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	if !o.Enabled {
		return nil
	}
	for _, list := range []*[]string{&o.Config.RuntimeClasses, &o.Config.GPUResources, &o.Config.MemoryAnnotations} {
		*list = config.Trimmed(*list)
	}
	var errs []error
	for _, err := range o.Config.Validate() {
		errs = append(errs, fmt.Errorf("--%s: %w", peerPodFlags[err.Setting], err))
	}
	return errors.Join(errs...)
}

// peerPodFlags are the flags of the fields of [peerpod.Config].
var peerPodFlags = map[string]string{
	"RuntimeClasses": "target-runtimeclass", "VMResource": "pod-vm-extended-resource", "GPUResources": "peerpods-gpu-resources", "Sizing": "peerpods-sizing",
	"MemoryAnnotations": "peerpods-memory-annotations",
}
