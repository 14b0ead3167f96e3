// Package v1alpha1 holds the names that Stowage reads from and writes to the
// Kubernetes API: labels, annotations, resources and their allowed values.
//
// Every name stands here once. The package decides nothing and imports
// nothing of Stowage.
package v1alpha1

// ModeKey is the annotation or label, on a pod or on its namespace, that says
// how far Stowage may go with a pod. Its values are the Mode constants.
const ModeKey = "stowage.dev/mode"

// Mode says how far Stowage may go with a pod.
type Mode string

const (
	// ModeEnforce decides and changes the pod. It is the default.
	ModeEnforce Mode = "Enforce"
	// ModeAudit decides, warns and counts, and changes nothing.
	ModeAudit Mode = "Audit"
	// ModeOff does not look at the pod.
	ModeOff Mode = "Off"
)

// OriginalResourcesAnnotation keeps, as JSON, the resource entries that were
// removed from a peer pod, by container.
const OriginalResourcesAnnotation = "stowage.dev/original-resources"

// The sizing annotations of a peer pod. Kata Containers reads the first two
// and the GPU count; the memory is repeated under the name that the peer-pod
// accounting document uses.
const (
	DefaultVCPUsAnnotation  = "io.katacontainers.config.hypervisor.default_vcpus"
	DefaultMemoryAnnotation = "io.katacontainers.config.hypervisor.default_memory" // MiB
	DefaultMemAnnotation    = "io.katacontainers.config.hypervisor.default_mem"    // MiB
	DefaultGPUsAnnotation   = "io.katacontainers.config.hypervisor.default_gpus"
)

const (
	// DefaultRuntimeClass is the RuntimeClass whose pods are peer pods unless
	// configured otherwise.
	DefaultRuntimeClass = "kata-remote"
	// DefaultVMResource is the extended resource that stands for one peer-pod
	// VM unless configured otherwise.
	DefaultVMResource = "kata.peerpods.io/vm"
)
