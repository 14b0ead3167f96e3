package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScaleDownPolicy says which workloads of its namespace keep their spread over zones, hosts or other topology keys when they are scaled down. It
// selects them by the labels of their pods. It does not say where new pods go.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sdp
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,description="Audit or Enforce"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="ReplicaSets, or other owners of pods, that the policy concerns"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="Pods of these workloads that are on nodes"
// +kubebuilder:printcolumn:name="Written",type=integer,JSONPath=`.status.written`,description="How many of these pods have their deletion cost"
// +kubebuilder:printcolumn:name="Next step",type=string,JSONPath=`.status.nextStep`,description="How many of these workloads a step down to half leaves spread as well as their pods allow"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,description="The policy of the highest priority wins",priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the policy is valid and its workloads are counted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ScaleDownPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which workloads.
	Spec ScaleDownPolicySpec `json:"spec"`
	// Status is what Stowage sees and has done.
	// +optional
	Status ScaleDownPolicyStatus `json:"status,omitempty"`
}

// ClusterScaleDownPolicy says which workloads of many namespaces keep their spread over zones, hosts or other topology keys when they are scaled down.
// A ScaleDownPolicy wins over it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=csdp
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,description="Audit or Enforce"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="ReplicaSets, or other owners of pods, that the policy concerns"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="Pods of these workloads that are on nodes"
// +kubebuilder:printcolumn:name="Written",type=integer,JSONPath=`.status.written`,description="How many of these pods have their deletion cost"
// +kubebuilder:printcolumn:name="Next step",type=string,JSONPath=`.status.nextStep`,description="How many of these workloads a step down to half leaves spread as well as their pods allow"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,description="The policy of the highest priority wins",priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the policy is valid and its workloads are counted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterScaleDownPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which namespaces, and which workloads in them.
	Spec ClusterScaleDownPolicySpec `json:"spec"`
	// Status is what Stowage sees and has done.
	// +optional
	Status ScaleDownPolicyStatus `json:"status,omitempty"`
}

// ClusterScaleDownPolicySpec selects namespaces, and workloads in them.
type ClusterScaleDownPolicySpec struct {
	// NamespaceSelector selects namespaces by their labels. An empty one selects all.
	NamespaceSelector Selector `json:"namespaceSelector"`

	ScaleDownPolicySpec `json:",inline"`
}

// ScaleDownPolicySpec says which workloads keep their spread.
type ScaleDownPolicySpec struct {
	// Mode is Audit, which counts what Enforce would write and writes nothing, or Enforce. A policy in Audit never wins over another one.
	Mode PolicyMode `json:"mode"`

	// Priority decides between policies of one kind that select the same pods: the highest wins, then the oldest policy.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority"`

	// Selector selects workloads by the labels of their pods. An empty one selects all.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !k.startsWith('stowage.dev/') && k != 'pod-template-hash')",message="stowage.dev/... and pod-template-hash cannot be selected: they differ from pod to pod, or from revision to revision"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !e.key.startsWith('stowage.dev/') && e.key != 'pod-template-hash')",message="stowage.dev/... and pod-template-hash cannot be selected: they differ from pod to pod, or from revision to revision"
	Selector Selector `json:"selector"`

	// TopologyKeys are the labels of nodes over which pods are kept spread that ask for no spread themselves, in topologySpreadConstraints or
	// anti-affinity. Without them, such pods are not concerned.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	TopologyKeys []string `json:"topologyKeys,omitempty"`
}

// The condition type of a ScaleDownPolicy, beside [ConditionReady] and [ConditionStalled].
const (
	// ConditionKept is true while the workloads' next step down leaves them spread as well as their pods allow.
	ConditionKept = "Kept"
)

// ScaleDownPolicyStatus is what Stowage sees and has done.
type ScaleDownPolicyStatus struct {
	// ObservedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Workloads is how many ReplicaSets, or other owners of pods, the policy concerns.
	// +optional
	Workloads int32 `json:"workloads"`
	// Pods are the pods of these workloads that are on nodes.
	// +optional
	Pods int32 `json:"pods"`
	// Written is how many of these pods have the deletion cost that they should have. In mode Audit none has.
	// +optional
	Written int32 `json:"written"`
	// NextStep is how many of these workloads a step down to half leaves spread as well as their pods allow, of all, for people. It goes by the costs
	// that the pods have now.
	// +optional
	NextStep string `json:"nextStep,omitempty"`
	// Uneven names one of the workloads that such a step leaves uneven, with the pods that are left in each domain.
	// +optional
	Uneven string `json:"uneven,omitempty"`
	// OtherCosts are pods of these workloads whose deletion cost another writer has set. They keep it.
	// +optional
	OtherCosts int32 `json:"otherCosts,omitempty"`
	// OtherCostsExample names one of these pods, with its cost.
	// +optional
	OtherCostsExample string `json:"otherCostsExample,omitempty"`
	// NotConcerned are workloads that the policy selects and that it leaves alone, by reason.
	// +optional
	// +listType=map
	// +listMapKey=reason
	NotConcerned []NotConcerned `json:"notConcerned,omitempty"`
	// Shadowed is how many workloads the policy selects that another policy wins.
	// +optional
	Shadowed int32 `json:"shadowed,omitempty"`
	// ShadowedBy names one of these policies, with one of these workloads.
	// +optional
	ShadowedBy string `json:"shadowedBy,omitempty"`
	// Conditions are Ready, Stalled and Kept.
	// Reasons:
	// Counted. The policy is valid, and its workloads are counted.
	// Invalid. The policy concerns no pods, because its spec is invalid.
	// TooMany. The policy has no effect, because its namespace has too many ScaleDownPolicies.
	// Kept. A step down to half leaves each workload spread as well as its pods allow.
	// Audit. Nothing is written in mode Audit.
	// Writing. Some pods do not have their deletion cost yet.
	// NotReady. Pods that are not ready go first, whatever their cost, so that a step leaves a workload uneven.
	// Karpenter. Karpenter's feature gate PodDeletionCostManagement writes the deletion costs of workloads.
	// OtherCosts. Deletion costs that another writer has set break the spread of a workload at its next step down.
	// Refused. The API server refuses the deletion cost of a pod.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NotConcerned are workloads that a policy selects and leaves alone.
type NotConcerned struct {
	// Reason says why, for programs.
	Reason NotConcernedReason `json:"reason"`
	// Workloads is how many.
	Workloads int32 `json:"workloads"`
	// Example names one of them and says why, for people.
	Example string `json:"example"`
}

// NotConcernedReason says why a policy leaves a workload alone that it selects.
type NotConcernedReason string

// The reasons.
const (
	// NotConcernedKind is for pods of owners that do not remove pods by deletion cost.
	NotConcernedKind NotConcernedReason = "Kind"
	// NotConcernedNoKeys is for pods that ask for no spread.
	NotConcernedNoKeys NotConcernedReason = "NoTopologyKeys"
	// NotConcernedSeats is for pods with a seat, whose cost follows from it.
	NotConcernedSeats NotConcernedReason = "Seats"
	// NotConcernedMode is for pods whose stowage.dev/mode, or namespace, keeps Stowage from changing them.
	NotConcernedMode NotConcernedReason = "Mode"
	// NotConcernedKarpenter is for pods whose deletion costs Karpenter writes.
	NotConcernedKarpenter NotConcernedReason = "Karpenter"
)

// ScaleDownPolicyList is a list of ScaleDownPolicies.
//
// +kubebuilder:object:root=true
type ScaleDownPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the policies.
	Items []ScaleDownPolicy `json:"items"`
}

// ClusterScaleDownPolicyList is a list of ClusterScaleDownPolicies.
//
// +kubebuilder:object:root=true
type ClusterScaleDownPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the policies.
	Items []ClusterScaleDownPolicy `json:"items"`
}
