package peerpod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Sizing says how the containers of a pod add up to its VM.
type Sizing string

const (
	// SizingSum adds every container and init container. It is the default and
	// what the predecessor of this feature does.
	SizingSum Sizing = "Sum"
	// SizingEffective counts as the scheduler does: the larger of what runs
	// together and the peak while the pod initializes (KEP-753).
	SizingEffective Sizing = "Effective"
)

// Config says which pods are peer pods and how they are counted.
type Config struct {
	// RuntimeClasses are the names of the RuntimeClasses whose pods run in a VM
	// outside the node.
	RuntimeClasses []string
	// VMResource is the extended resource; each peer pod requests one.
	VMResource string
	// GPUResources are the resources that count as GPUs: a name, or a prefix
	// that ends in an asterisk.
	GPUResources []string
	// Sizing says how the containers add up.
	Sizing Sizing
	// MemoryAnnotations are the annotations that have the VM's memory, without the prefix that Kata Containers' have. The first one is
	// default_memory. The accounting document calls it default_mem, which Kata Containers refuses unless its enable_annotations allow it.
	MemoryAnnotations []string
}

// memoryNames are the possible values of [Config.MemoryAnnotations].
var memoryNames = []string{"default_memory", "default_mem"}

// DefaultConfig is what Stowage uses unless configured otherwise.
func DefaultConfig() Config {
	return Config{
		RuntimeClasses: []string{stowage.DefaultRuntimeClass},
		VMResource:     stowage.DefaultVMResource,
		GPUResources:   []string{"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"},
		Sizing:         SizingSum,

		MemoryAnnotations: memoryNames[:1],
	}
}

// SettingError is an invalid setting.
type SettingError struct {
	Setting string // the name of the field of [Config]
	Err     error
}

func (e *SettingError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with the setting.
func (e *SettingError) Unwrap() error { return e.Err }

// Validate returns every invalid setting.
func (c *Config) Validate() (errs []*SettingError) {
	fail := func(setting, format string, args ...any) {
		errs = append(errs, &SettingError{setting, fmt.Errorf(format, args...)})
	}
	if len(c.RuntimeClasses) == 0 {
		fail("RuntimeClasses", "no target RuntimeClass: name at least one, or switch peer pods off")
	}
	for _, name := range c.RuntimeClasses {
		if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
			fail("RuntimeClasses", "RuntimeClass %q is not a valid name: %s", name, strings.Join(msgs, "; "))
		}
	}
	if err := validateExtendedResource(c.VMResource); err != nil {
		fail("VMResource", "VM resource: %w", err)
	}
	for _, pattern := range c.GPUResources {
		name := pattern
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			name = prefix + "x" // a prefix is valid if it can begin a valid name
		}
		if err := validateExtendedResource(name); err != nil {
			fail("GPUResources", "GPU resource %q: %w", pattern, err)
		}
	}
	if c.isGPU(corev1.ResourceName(c.VMResource)) {
		fail("VMResource", "the VM resource %q is also a GPU resource", c.VMResource)
	}
	if !slices.Contains([]Sizing{SizingSum, SizingEffective}, c.Sizing) {
		fail("Sizing", "sizing %q: must be %s or %s", c.Sizing, SizingSum, SizingEffective)
	}
	if names := c.MemoryAnnotations; !slices.Equal(names, memoryNames) && !slices.Equal(names, memoryNames[:1]) {
		fail("MemoryAnnotations", "memory annotations %q: must be %s, or %s", strings.Join(names, ","), memoryNames[0], strings.Join(memoryNames, ","))
	}
	return errs
}

func validateExtendedResource(name string) error {
	if !isExtendedResource(name) {
		return fmt.Errorf("%q must be an extended resource: a domain outside kubernetes.io, a slash, a name", name)
	}
	if msgs := validation.IsQualifiedName(name); len(msgs) > 0 {
		return fmt.Errorf("%q is not a valid resource name: %s", name, strings.Join(msgs, "; "))
	}
	return nil
}

// isExtendedResource reports whether a resource is one that a device plugin or
// an administrator made up (API reference, "Extended Resources").
func isExtendedResource(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "" && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// Targets reports whether pods of the RuntimeClass are peer pods.
func (c *Config) Targets(runtimeClass string) bool {
	return runtimeClass != "" && slices.Contains(c.RuntimeClasses, runtimeClass)
}
