package finding

import (
	"maps"
	"slices"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Reason is the kind of a finding, for programs.
type Reason string

// The reasons.
const (
	// Of Stowage itself.
	ReplicasNotReady Reason = "ReplicasNotReady"
	InvalidConfig    Reason = "InvalidConfiguration"
	NoLeader         Reason = "NoLeader"
	NoCertificate    Reason = "NoValidCertificate"
	NotRegistered    Reason = "NotRegistered"
	MissingRights    Reason = "MissingRights"
	WithoutWebhook   Reason = "WithoutWebhook"
	NotInstalled     Reason = "NotInstalled"
	KindsMissing     Reason = "KindsMissing"
	KindsOlder       Reason = "KindsOlder"
	NoAnswer         Reason = "NoAnswer"
	PodsGated        Reason = "PodsGated"
	UnknownGate      Reason = "UnknownGate"
	// Of policies and settings.
	InvalidPolicy    Reason = "InvalidPolicy"
	SupersededPolicy Reason = "SupersededPolicy"
	TargetMissing    Reason = "TargetMissing"
	IgnoredSetting   Reason = "IgnoredSetting"
	ClassMissing     Reason = "PriorityClassMissing"
	KindNotReadable         = Reason(stowage.ReasonUnreadable)
	LeftOut          Reason = "LeftOutOfRegistration"
	ScaleDownStalled Reason = "ScaleDownStalled"
	ScaleDownNotKept Reason = "ScaleDownNotKept"
	// Of a workload.
	PodsPending     Reason = "PodsPending"
	PoolExhausted   Reason = "PoolExhausted"
	PodsRefused     Reason = "PodsRefused"
	NotReached      Reason = "ReplicasNotReached"
	Progressing     Reason = "Progressing"
	OutsidePool     Reason = "PodsOutsidePool"
	OverTarget      Reason = "OverTarget"
	JobUneven       Reason = "JobUneven"
	PoolRemoved     Reason = "PoolRemoved"
	WithoutSeat     Reason = "PodsWithoutSeat"
	NotReady        Reason = "PodsNotReady"
	PoolsFull       Reason = "PoolsFull"
	OverInDomain    Reason = "OverInDomain"
	PoolsPreferred  Reason = "PoolsPreferred"
	PoolUnsuitable  Reason = "PoolUnsuitable"
	FitsNoPool      Reason = "FitsNoPool"
	ConstraintUnmet Reason = "ConstraintUnmet"
	HeldByVolume    Reason = "HeldByVolume"
	LackSettings    Reason = "PodsLackPoolSettings"
	PodsStay        Reason = "PodsStay"
	ForeignCost     Reason = "ForeignDeletionCost"
	CostsUneven     Reason = "DeletionCostsUneven"
	BeingAdopted    Reason = "PodsBeingAdopted"
	SourceGone      Reason = "SourceGone"
	PinsLeft        Reason = "PinsLeft"
	NodesGone       Reason = "NodesGone"
	NoRoomInPool    Reason = "NoRoomInPool"
	PoolNotForPods  Reason = "PoolNotForPods"
	NodesCordoned   Reason = "NodesCordoned"
	NodesClosed     Reason = "NodesClosed"
	// Of pods that wait for something else than room.
	SchedulerDecides Reason = "SchedulerDecides"
	NotScheduled     Reason = "NotScheduled"
	VolumeMissing    Reason = "VolumeMissing"
	VolumeOutOfReach Reason = "VolumeOutOfReach"
	WaitsWithoutSeat Reason = "WaitsWithoutSeat"

	FitsNoNode     Reason = "FitsNoNode"
	NotYetObserved Reason = "NotYetObserved"
	RolloutPaused  Reason = "RolloutPaused"
	BeingDeleted   Reason = "BeingDeleted"
	PodNotDeleted  Reason = "PodNotDeleted"
	// Of what keeps pods of a workload from moving.
	EvictionRefused    = Reason(stowage.HindranceEvictionRefused)
	NoRoomForRebalance = Reason(stowage.HindranceNoRoom)
	NotAllReady        = Reason(stowage.HindranceNotReady)
	RolloutUnfinished  = Reason(stowage.HindranceRollout)
	RepairInVain       = Reason(stowage.HindranceInVain)
	UpdateRefused      = Reason(stowage.HindranceUpdateRefused)
	WebhookNotProven   = Reason(stowage.HindranceUnproven)
	PodsChooseNodes    = Reason(stowage.HindrancePinned)
	PodHeld            = Reason(stowage.HindrancePodHeld)
	// Of DaemonSets.
	InvalidTemplate Reason = "InvalidTemplate"
	TemplateMissing Reason = "TemplateMissing"
	NotSized        Reason = "NotSized"
	OffSize         Reason = "OffSize"
	NoRoomForSize   Reason = "NoRoomForSize"
	NodeRefuses     Reason = "NodeRefuses"
	PlanDiffers     Reason = "PlanDiffers"
	// Of peer pods and their nodes.
	WebhookBypassed Reason = "WebhookBypassed"
	NoFreeVM        Reason = "NoFreeVM"
	InvalidLimit    Reason = "InvalidLimit"
	DaemonNotReady  Reason = "DaemonNotReady"
	ForeignCapacity Reason = "ForeignCapacity"
	CatalogUnused   Reason = "CatalogUnused"
	VMTypeClosed    Reason = "VMTypeClosed"
	NoVMType        Reason = "NoVMType"
	TypesNotListed  Reason = "TypesNotListed"
)

// Reasons are all of them, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(table)) }

// row is the entry of a reason in the table.
type row struct {
	severity Severity
	means    string
	sentence func(*Finding) string
	remedy   func(*Finding) string // nil where nothing is to be done
	example  Finding
}

// always is a text without values.
func always(text string) func(*Finding) string { return func(*Finding) string { return text } }

// ifElse returns a text if a condition holds, or else another one.
func ifElse(condition bool, text, otherwise string) string {
	if condition {
		return text
	}
	return otherwise
}

// table has the row of each reason.
var table = func() map[Reason]row {
	all := map[Reason]row{}
	for _, rows := range []map[Reason]row{ofStowage, ofPolicies, ofWorkloads, ofWaitingPods, ofHindrances, ofDaemonSets, ofPeerPods} {
		maps.Copy(all, rows)
	}
	return all
}()
