package v1alpha1

// ModeKey is the annotation or label, on a pod or on its namespace, that says
// how far Stowage may go with a pod. Its values are the Mode constants.
const ModeKey = "stowage.dev/mode"

// FailurePolicyLabel is, on a namespace, Fail where a pod is refused that Stowage could not look at. Without it, such a pod is
// created as it was written.
const FailurePolicyLabel = "stowage.dev/failure-policy"

// PausedLabel is, on a namespace, PausedOn where Stowage changes and evicts no pods that exist. New pods are decided as ever.
const (
	PausedLabel = "stowage.dev/paused"
	PausedOn    = "true"
)

// SeatGate is the scheduling gate of pods that wait for a seat (KEP-3521). The webhook removes it from a pod that it decides about, and
// the leader from one that no replica saw.
const SeatGate = "stowage.dev/seat"

// GateLabel is, on a pod or on its namespace, GateOn where the MutatingAdmissionPolicy gives pods the SeatGate. The pod's wins.
const (
	GateLabel = "stowage.dev/gate"
	GateOn    = "true"
)

// CheckAnnotation is on a pod that `stowage check` has the API server admit in a dry run. A replica that sees it answers with a
// warning: CheckAnswer, the value of the annotation, and the name of the replica. The rights that the replica lacks follow. CheckLacksGet marks the right to
// read a kind that a policy names. The warning ends with CheckAuthenticated if the replica answers only callers with a certificate.
const (
	CheckAnnotation    = "stowage.dev/check"
	CheckAnswer        = "stowage: check "
	CheckLacks         = ", may not read "
	CheckLacksGet      = "get-"
	CheckAuthenticated = ", authenticated"
)

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

// PeerPodLabel is "true" on a peer pod.
const PeerPodLabel = "stowage.dev/peer-pod"

// The sizing annotations of a peer pod. Kata Containers reads all but default_mem, which is the name that the peer-pod accounting document
// uses. It is written only if that is asked for: Kata Containers refuses it by default.
const (
	DefaultVCPUsAnnotation  = "io.katacontainers.config.hypervisor.default_vcpus"
	DefaultMemoryAnnotation = "io.katacontainers.config.hypervisor.default_memory" // MiB
	DefaultMemAnnotation    = "io.katacontainers.config.hypervisor.default_mem"    // MiB
	DefaultGPUsAnnotation   = "io.katacontainers.config.hypervisor.default_gpus"
	// MachineTypeAnnotation and GPUModelAnnotation are the type of VM that was chosen from a VMCatalog, and the model of its GPUs.
	MachineTypeAnnotation = "io.katacontainers.config.hypervisor.machine_type"
	GPUModelAnnotation    = "io.katacontainers.config.hypervisor.default_gpu_model"
)

const (
	// DefaultRuntimeClass is the RuntimeClass whose pods are peer pods unless
	// configured otherwise.
	DefaultRuntimeClass = "kata-remote"
	// DefaultVMResource is the extended resource that stands for one peer-pod
	// VM unless configured otherwise.
	DefaultVMResource = "kata.peerpods.io/vm"
)

const (
	// PeerPodsLimitAnnotation is, on a node, how many peer-pod VMs it may have, in place
	// of the limit of all nodes. 0 is none.
	PeerPodsLimitAnnotation = "stowage.dev/peerpods-limit"
	// PeerPodsCapacityAnnotation is, on a node, how many VMs Stowage has it advertise. An
	// amount on a node without it was set by another client, or by a daemon that makes VMs.
	PeerPodsCapacityAnnotation = "stowage.dev/peerpods-capacity"
)

const (
	// PeerPodsConfigMap is the name of the ConfigMap with the limit of all nodes.
	PeerPodsConfigMap = "peer-pods-cm"
	// PeerPodsLimitKey is the key of the limit in that ConfigMap.
	PeerPodsLimitKey = "PEERPODS_LIMIT_PER_NODE"
)

// The annotations that give a workload a strategy, on its metadata or its pod
// template. The alias is enough alone; the strategy needs the switch beside it.
const (
	SpreadSwitchAnnotation        = "UseCustomKubeScheduler" // "true"
	SpreadStrategyAnnotation      = "CustomPodScheduleStrategy"
	SpreadStrategyAliasAnnotation = "custom-pod-schedule-strategy"
)

// What a pod with a seat carries.
const (
	// PoolLabel is the name of the pod's pool, or its place from 0.
	PoolLabel = "stowage.dev/pool"
	// SeatLabel is the pod's ordinal in the pool, from 1.
	SeatLabel = "stowage.dev/seat"
	// DomainLabel is the domain of the pod's seat, such as a zone, where the strategy divides pools over domains.
	DomainLabel = "stowage.dev/domain"
	// ClaimAnnotation proves that Stowage gave the pod its seat.
	ClaimAnnotation = "stowage.dev/claim"
	// MinDomainsAnnotation keeps the minDomains that a seat took from the pod's topology spread constraints, as key=number, separated by commas.
	MinDomainsAnnotation = "stowage.dev/min-domains"
	// MutatedByKey is an annotation and a label that mark the pods of a PodDistributor's target.
	MutatedByKey = "mutated-by"
	// MutatedByValue is the value of MutatedByKey.
	MutatedByValue = "spread-webhook-service"
)

// ScaleDownCostAnnotation is, on a pod, the deletion cost that Stowage wrote for a ScaleDownPolicy. If a pod's deletion cost differs from the annotation,
// or the annotation is missing, another writer set the cost.
const ScaleDownCostAnnotation = "stowage.dev/scale-down-cost"

// StandingAnnotation is, on the Lease of the leader, whether the leader is ready, how far its watch of pods is behind, and what it may not do
// that it has to.
const StandingAnnotation = "stowage.dev/standing"

// BlocklistAnnotation is, on the Lease of the leader, the namespaces that are blocked as it runs: while the ConfigMap stowage-config
// is invalid, those of the last valid one.
const BlocklistAnnotation = "stowage.dev/blocklisted-namespaces"

const (
	// RebalanceAnnotation says, on a workload with a strategy, whether pods are
	// evicted from pools that have too many: Never, or Evict.
	RebalanceAnnotation = "stowage.dev/rebalance"
	// RepairAnnotation says, on a workload with a strategy, what becomes of pods that
	// came without a seat. Its values are the Repair constants.
	RepairAnnotation = "stowage.dev/repair"
	// SpillAnnotation is, on a workload with a strategy, how long a pod waits for a node of its pool until other
	// pools take it: a duration from 10s to 1h, such as 2m.
	SpillAnnotation = "stowage.dev/spill"
	// AcrossAnnotation divides, on a workload with a strategy, each pool over domains. It names a node label and its values, as in
	// "topology.kubernetes.io/zone: zone-a, zone-b, zone-c=2". A number is a weight.
	AcrossAnnotation = "stowage.dev/across"
)

// Repair says what becomes of pods of a workload with a strategy that have no seat.
type Repair string

const (
	// RepairOff leaves them alone.
	RepairOff Repair = "Off"
	// RepairAdopt gives a seat to those that run in one of the pools.
	RepairAdopt Repair = "Adopt"
	// RepairRecreate also deletes those that do not, so that their owner makes them
	// anew, if they should have come through Stowage. It is the default.
	RepairRecreate Repair = "Recreate"
)

// What a pod with a size carries.
const (
	// SizedByLabel is the name of the FlexDaemonsetTemplate that sized the pod. Where
	// that is longer than a label may be, its end is replaced by a hash.
	SizedByLabel = "stowage.dev/sized-by"
	// DeclaredResourcesAnnotation keeps, as JSON, the resource entries that the pod
	// had before it was sized, by container.
	DeclaredResourcesAnnotation = "stowage.dev/declared-resources"
	// NodeClassLabel is the class of nodes for which `stowage split` made a DaemonSet.
	NodeClassLabel = "stowage.dev/node-class"
)
