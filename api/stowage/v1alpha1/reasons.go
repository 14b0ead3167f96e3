package v1alpha1

// EventReason is the reason of a Kubernetes event that Stowage publishes.
type EventReason string

// The reasons of events about admission. They are on the pod's owner, or on the pod.
const (
	// EventFailedOpen: a feature failed, and the pod was admitted without it.
	EventFailedOpen EventReason = "FailedOpen"
	// EventInvalidStrategy: the workload's strategy is invalid.
	EventInvalidStrategy EventReason = "InvalidStrategy"
	// EventPriorityClassMissing: a pool gives its pods a PriorityClass that is not there, so they keep theirs.
	EventPriorityClassMissing EventReason = "PriorityClassMissing"
	// EventPoolsFull: every pool has reached its maxReplicas.
	EventPoolsFull EventReason = "PoolsFull"
	// EventPodUngatedWithoutSeat: nobody could decide about a pod at the gate, so it was let through after a minute.
	EventPodUngatedWithoutSeat EventReason = "PodUngatedWithoutSeat"
	// EventSeatNotShared: a seat was given without the SeatLedger.
	EventSeatNotShared EventReason = "SeatNotShared"
	// EventTemplateMissing: the FlexDaemonsetTemplate does not exist.
	EventTemplateMissing EventReason = "ResourceTemplateMissing"
	// EventInvalidTemplate: the FlexDaemonsetTemplate is invalid.
	EventInvalidTemplate EventReason = "InvalidResourceTemplate"
	// EventNodeUnknown: the node of a DaemonSet's pod is not known.
	EventNodeUnknown EventReason = "NodeUnknown"
	// EventPartlySized: some resources keep what the pod declares.
	EventPartlySized EventReason = "PartlySized"
	// EventLimitRangeRefusesSize: a LimitRange would refuse the size.
	EventLimitRangeRefusesSize EventReason = "LimitRangeRefusesSize"
	// EventLimitRangeRefusesPeerPod: a LimitRange refuses peer pods.
	EventLimitRangeRefusesPeerPod EventReason = "LimitRangeRefusesPeerPod"
)

// The reasons of events about repair. They are on the workload.
const (
	// EventPodsAdopted: pods without a seat were given one.
	EventPodsAdopted EventReason = "PodsAdopted"
	// EventAdoptionProgress: some of the pods without a seat are given one, and the others follow.
	EventAdoptionProgress EventReason = "AdoptionProgress"
	// EventPodRecreated: a pod without a seat, or one older than its policy or template, was evicted, so that its owner
	// recreates it.
	EventPodRecreated EventReason = "PodRecreated"
	// EventPodEvicted: a pod was evicted from a pool with too many pods, or from one that is not its own any more.
	EventPodEvicted EventReason = "PodEvicted"
	// EventPodHeld: a pod in the wrong place stays there, because a volume or an annotation holds it.
	EventPodHeld EventReason = "PodHeld"
	// EventEvictionRefused: the API server refuses to evict a pod that is to move.
	EventEvictionRefused EventReason = "EvictionRefused"
	// EventNoRoomForRebalance: no node has room for the successor of a pod that is to move.
	EventNoRoomForRebalance EventReason = "NoRoomForRebalance"
	// EventPodUpdateRefused: the API server refuses to give a pod its seat where it runs.
	EventPodUpdateRefused EventReason = "PodUpdateRefused"
	// EventRepairInVain: evicting a pod has won nothing, so the next eviction waits longer.
	EventRepairInVain EventReason = "RepairHadNoEffect"
	// EventLabelsContested: another writer keeps changing what Stowage writes into pods.
	EventLabelsContested EventReason = "PodLabelsKeepChanging"
)

// The reasons of events about pools without room. They are on the workload.
const (
	// EventPoolExhausted: a pool has no room, so other pools take the pods that wait for it.
	EventPoolExhausted EventReason = "PoolExhausted"
	// EventPoolProbed: a pool without room is tried again.
	EventPoolProbed EventReason = "PoolProbed"
	// EventPoolAvailable: a pool has room again.
	EventPoolAvailable EventReason = "PoolAvailable"
	// EventPoolUnsuitable: no node of a policy's pool could take a pod of the workload, so other pools get them all.
	EventPoolUnsuitable EventReason = "PoolUnsuitable"
	// EventPoolSuitable: nodes of a pool that was unsuitable could take pods of the workload.
	EventPoolSuitable EventReason = "PoolSuitable"
	// EventPoolsPreferred: pods of a revision may run outside of their pools, because nothing else could be found for them.
	EventPoolsPreferred EventReason = "PoolsPreferred"
	// EventPodFitsNoNode: pods that wait do not wait for room, so no other pool takes them.
	EventPodFitsNoNode EventReason = "PodFitsNoNode"
)

// The reasons of events about in-place resizing. They are on the DaemonSet.
const (
	// EventResizeRefused: the API server refused a resize.
	EventResizeRefused EventReason = "ResizeRefused"
	// EventResizeDeferred: the node has no room for a resize now.
	EventResizeDeferred EventReason = "ResizeDeferred"
	// EventResizeInfeasible: the node can never carry out a resize.
	EventResizeInfeasible EventReason = "ResizeInfeasible"
	// EventResizeFailed: the kubelet tried a resize, and it failed.
	EventResizeFailed EventReason = "ResizeFailed"
)

// The reasons of events about VM capacity and settings.
const (
	// EventInvalidLimit: a limit of VMs is invalid. It is on the ConfigMap or the node.
	EventInvalidLimit EventReason = "InvalidPeerPodLimit"
	// EventRecordIgnored: the pod template has another pod's record of removed entries.
	EventRecordIgnored EventReason = "PeerPodRecordIgnored"
	// EventForeignCapacity: the node's VM capacity was set by another writer.
	EventForeignCapacity EventReason = "PeerPodCapacityNotOurs"
	// EventCapacityContested: another writer keeps changing the node's VM capacity.
	EventCapacityContested EventReason = "PeerPodCapacityKeepsChanging"
	// EventOverCapacity: a node has more peer pods than VMs.
	EventOverCapacity EventReason = "PeerPodsOverCapacity"
	// EventVMTypeClosed: no VM of a type can be made, so new pods get another one. It is on the VMCatalog.
	EventVMTypeClosed EventReason = "VMTypeClosed"
	// EventVMTypeTried: the next pod tries again whether VMs of a closed type can be made. It is on the VMCatalog.
	EventVMTypeTried EventReason = "VMTypeTried"
	// EventVMTypeOpen: new pods get a type again. It is on the VMCatalog.
	EventVMTypeOpen EventReason = "VMTypeOpen"
	// EventVMNotMade: a pod was evicted because its VM was not made. It is on the pod.
	EventVMNotMade EventReason = "VMNotMade"
	// EventInvalidConfiguration: the ConfigMap stowage-config is invalid.
	EventInvalidConfiguration EventReason = "InvalidConfiguration"
)

// HindranceReason is the reason of a [Hindrance].
type HindranceReason string

// The reasons of hindrances. Each is a reason of docs/reasons.md, too.
const (
	// HindranceEvictionRefused: the API server refuses to evict the pod.
	HindranceEvictionRefused HindranceReason = "EvictionRefused"
	// HindranceNoRoom: no node has room for the pod's successor.
	HindranceNoRoom HindranceReason = "NoRoomForRebalance"
	// HindranceNotReady: pods of the workload are not ready, and none is evicted until all are.
	HindranceNotReady HindranceReason = "NotAllPodsReady"
	// HindranceRollout: two revisions of the workload have pods.
	HindranceRollout HindranceReason = "RolloutUnfinished"
	// HindranceInVain: the last eviction has won nothing, so the next one waits.
	HindranceInVain HindranceReason = "RepairHadNoEffect"
	// HindranceUpdateRefused: the API server refuses to give pods their seat, or their deletion cost.
	HindranceUpdateRefused HindranceReason = "PodUpdateRefused"
	// HindranceUnproven: pods without a seat are not recreated, because the webhook has given no later pod a seat.
	HindranceUnproven HindranceReason = "WebhookNotProven"
	// HindrancePinned: pods without a seat choose their nodes themselves.
	HindrancePinned HindranceReason = "PodsChooseNodes"
	// HindrancePodHeld: a volume, an annotation or their scheduling group holds pods where they run.
	HindrancePodHeld HindranceReason = "PodHeld"
)

// ConditionReason is the reason of a condition in a status.
type ConditionReason string

// The reasons of the conditions of a PodDistributor.
const (
	ReasonFound         ConditionReason = "Found"
	ReasonNotFound      ConditionReason = "NotFound"
	ReasonSuperseded    ConditionReason = "Superseded"
	ReasonInvalid       ConditionReason = "Invalid" // of a FlexDaemonsetTemplate, too
	ReasonNoTarget      ConditionReason = "NoTarget"
	ReasonLeftAlone     ConditionReason = "LeftAlone"
	ReasonBalanced      ConditionReason = "Balanced"
	ReasonProgressing   ConditionReason = "Progressing"
	ReasonOverTarget    ConditionReason = "OverTarget"
	ReasonWithoutSeat   ConditionReason = "PodsWithoutSeat"
	ReasonOutsidePool   ConditionReason = "PodsOutsidePool"
	ReasonPodsPending   ConditionReason = "PodsPending"
	ReasonNotReached    ConditionReason = "ReplicasNotReached"
	ReasonSpilled       ConditionReason = "Spilled"
	ReasonPoolExhausted ConditionReason = "PoolExhausted"
	ReasonAvailable     ConditionReason = "Available"
	ReasonValid         ConditionReason = "Valid" // from here on of a FlexDaemonsetTemplate
	ReasonNoPods        ConditionReason = "NoPods"
	ReasonUpToDate      ConditionReason = "UpToDate"
	ReasonResizing      ConditionReason = "Resizing"
	ReasonUnsized       ConditionReason = "PodsUnsized"
	ReasonAwaitsNewPods ConditionReason = "AwaitsNewPods"
	ReasonDeferred      ConditionReason = "Deferred"
	ReasonInfeasible    ConditionReason = "Infeasible"
	ReasonRefused       ConditionReason = "Refused"
	ReasonUnsupported   ConditionReason = "Unsupported"
	ReasonFailed        ConditionReason = "Failed"
	ReasonUnclear       ConditionReason = "Unclear"
	ReasonCounted       ConditionReason = "Counted" // from here on of a policy
	ReasonCounting      ConditionReason = "Counting"
	ReasonNoNodes       ConditionReason = "NoNodes"
	ReasonTooMany       ConditionReason = "TooMany"
	ReasonUnreadable    ConditionReason = "KindNotReadable"
	ReasonKept          ConditionReason = "Kept" // from here on of a ScaleDownPolicy
	ReasonAudit         ConditionReason = "Audit"
	ReasonWriting       ConditionReason = "Writing"
	ReasonOtherCosts    ConditionReason = "OtherCosts"
	ReasonNotReady      ConditionReason = "NotReady"
	ReasonKarpenter     ConditionReason = "Karpenter"
)
