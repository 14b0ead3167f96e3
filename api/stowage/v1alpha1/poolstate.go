package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PoolState records which node pools have no room for the pods of one workload, and which are unsuitable for them. The leader of
// Stowage writes it, and every replica reads it to seat new pods in other pools. No PoolState exists while there is nothing to record. Its
// name is the UID of its owner, what keeps the template of the pods, such as a Deployment.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.metadata.ownerReferences[0].kind`,description="Kind of the workload"
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.metadata.ownerReferences[0].name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.pools[*].name`,description="Pools without room"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.pools[*].phase`,description="Phase of each of these pools"
// +kubebuilder:printcolumn:name="Max",type=string,JSONPath=`.pools[*].max`,description="Most pods that each of these pools may have"
// +kubebuilder:printcolumn:name="Unsuitable",type=string,JSONPath=`.unsuitable[*].name`,description="Pools of a policy in which no pod of the workload can run"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PoolState struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Pools has one entry for each pool, or domain of one, that is not simply Available: its phase says whether it has room now.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Pools []PoolRoom `json:"pools,omitempty"`

	// Unsuitable are the pools, or domains of pools, in which no pod of the workload can run. No pod gets a seat there.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Unsuitable []UnsuitablePool `json:"unsuitable,omitempty"`

	// Proven are the pools, or domains of pools, in which pods of the workload had nodes, before the nodes got a taint that refuses the pods, or lost
	// a resource or a label. That may pass, so these pools stay suitable.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Proven []ProvenPool `json:"proven,omitempty"`

	// Soft says that pods of one revision prefer their pools, and may run outside of them, because nothing else could be found for them.
	//
	// +optional
	Soft *SoftRevision `json:"soft,omitempty"`

	// Ordinals are the pods of a StatefulSet that have a seat in another pool or domain than the strategy's, by ordinal. The
	// values are the names of those pools, each with a slash and the domain if there are domains.
	//
	// +optional
	Ordinals map[string]string `json:"ordinals,omitempty"`

	// Status is what keeps the leader from putting the workload's pods in order.
	//
	// +optional
	Status PoolStateStatus `json:"status,omitzero"`
}

// PoolStateStatus is what keeps the leader from putting the pods of a workload in order.
type PoolStateStatus struct {
	// Hindrances are what has kept the leader from moving pods for 15 seconds and longer.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Hindrances []Hindrance `json:"hindrances,omitempty"`
	// ObservedAt is when the leader last ran into them, to about a minute.
	//
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
	// ObservedBy is the replica that led then.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedBy string `json:"observedBy,omitempty"`
}

// Hindrance is what keeps the leader from moving a pod that is in the wrong place.
type Hindrance struct {
	// Reason is the kind of the hindrance.
	Reason HindranceReason `json:"reason"`
	// Since is when the leader first ran into it.
	Since metav1.Time `json:"since"`
	// Pod is a pod that is to move.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// Pool is the pool that the pod is to leave, where it is about one pod.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Pool string `json:"pool,omitempty"`
	// Count is how many pods have it, where that is not one.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count,omitempty"`
	// Objects are what hinders the leader: the names of PodDisruptionBudgets, or of a pool, or what chooses nodes.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Objects []string `json:"objects,omitempty"`
	// Message is what somebody else says about it, such as the message of an error.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PoolPhase says what is known about the room of a pool.
//
// +kubebuilder:validation:Enum=Available;Exhausted;Probing
type PoolPhase string

// The phases of a pool.
const (
	// PoolAvailable: nothing limits the pool but its strategy.
	PoolAvailable PoolPhase = "Available"
	// PoolExhausted: no new pod gets one of the LeftOut seats above Max.
	PoolExhausted PoolPhase = "Exhausted"
	// PoolProbing: Max was raised to find out whether the pool has room again.
	PoolProbing PoolPhase = "Probing"
)

// PoolRoom is what is known about the room of one pool, or of one domain of it.
type PoolRoom struct {
	// Name is the pool's name when the entry was written.
	Name string `json:"name"`
	// Domain is the domain, such as a zone, that the entry is about. It is empty where the policy divides pools over no domains.
	//
	// +optional
	Domain string `json:"domain,omitempty"`
	// NodeLabel and MatchExpressions say which nodes the pool has. They identify it.
	//
	// +optional
	NodeLabel map[string]string `json:"nodeLabel,omitempty"`
	// MatchExpressions are those of the requirements that are no equality.
	//
	// +optional
	// +listType=atomic
	MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// Phase says what is known about the room.
	Phase PoolPhase `json:"phase"`
	// Epoch counts how often Max was set anew because pods waited too long.
	Epoch int64 `json:"epoch"`
	// Since is when the phase began.
	Since metav1.Time `json:"since"`
	// Max is how many pods of the workload the pool may have until the next transition.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Max int64 `json:"max"`
	// LeftOut is how many seats after Max are not given while the pool is not Available. 0 stands for all. It follows
	// from maxSpill.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	LeftOut int64 `json:"leftOut,omitempty"`
	// Tries is how many probes found no room since the pool was available.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Tries int32 `json:"tries,omitempty"`
	// NextProbe is when the pool is tried again.
	//
	// +optional
	NextProbe *metav1.Time `json:"nextProbe,omitempty"`
	// Step is by how much the current probe raised Max last.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Step int64 `json:"step,omitempty"`
	// Early says that room which was seen has brought a probe forward since the last probe that was due.
	//
	// +optional
	Early bool `json:"early,omitempty"`
}

// UnsuitablePool is a pool, or a domain of it, in which no pod of the workload can run: no node there could take one, were the node empty.
type UnsuitablePool struct {
	// Name is the pool's name when the entry was written.
	Name string `json:"name"`
	// NodeLabel and MatchExpressions say which nodes the pool has. They identify it.
	//
	// +optional
	NodeLabel map[string]string `json:"nodeLabel,omitempty"`
	// MatchExpressions are those of the requirements that are no equality.
	//
	// +optional
	// +listType=atomic
	MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// Domain is the domain, such as a zone, that the entry is about. It is empty where the policy divides pools over no domains.
	//
	// +optional
	Domain string `json:"domain,omitempty"`
	// Since is when that was found.
	Since metav1.Time `json:"since"`
	// Filter is the Filter plugin of kube-scheduler that refuses the pods, such as TaintToleration.
	//
	// +optional
	Filter string `json:"filter,omitempty"`
	// Why says what of the nodes does not fit the pods.
	Why string `json:"why"`
}

// Place names the pool, with the domain.
func (u *UnsuitablePool) Place() string {
	if u.Domain == "" {
		return u.Name
	}
	return u.Name + " in " + u.Domain
}

// ProvenPool is a pool, or a domain of it, in which pods of the workload had nodes.
type ProvenPool struct {
	// NodeLabel and MatchExpressions say which nodes the pool has. They identify it.
	//
	// +optional
	NodeLabel map[string]string `json:"nodeLabel,omitempty"`
	// MatchExpressions are those of the requirements that are no equality.
	//
	// +optional
	// +listType=atomic
	MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// Domain is the domain, such as a zone, that the entry is about. It is empty where the policy divides pools over no domains.
	//
	// +optional
	Domain string `json:"domain,omitempty"`
	// Owner is the UID of the ReplicaSet, or another object that creates pods, for whose pods this is evidence: they, or pods that requested as much,
	// had nodes there. It is empty if only pods that requested less had nodes.
	//
	// +optional
	Owner types.UID `json:"owner,omitempty"`
	// Since is when it was seen that the nodes take none of the pods now.
	Since metav1.Time `json:"since"`
}

// SoftRevision is a revision of the workload whose pods prefer their pools, and may run outside of them.
type SoftRevision struct {
	// Owner is the UID of the object that creates the pods, such as a ReplicaSet.
	Owner types.UID `json:"owner"`
	// Since is when that began.
	Since metav1.Time `json:"since"`
	// Why says what keeps the pods from the pools, as far as that is known.
	Why string `json:"why"`
}

// PoolStateList is a list of PoolStates.
//
// +kubebuilder:object:root=true
type PoolStateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PoolState `json:"items"`
}
