package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodDistributor divides the pods of one workload of its namespace over node pools.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pd
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.target.kind`,description="Kind of the workload"
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=`.status.current`,description="Pods in each pool, in the order of the pools"
// +kubebuilder:printcolumn:name="Desired",type=string,JSONPath=`.status.desired`,description="Pods that each pool should have, in the same order"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Pods in each pool that are ready, in the same order"
// +kubebuilder:printcolumn:name="Balanced",type=string,JSONPath=`.status.conditions[?(@.type=="Balanced")].status`,description="Whether each pool has the pods that it should have"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PodDistributor struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which workload, and how its pods are divided.
	Spec PodDistributorSpec `json:"spec"`
	// Status is what Stowage sees and has done.
	// +optional
	Status PodDistributorStatus `json:"status,omitempty"`
}

// PodDistributorSpec says which workload, and how its pods are divided.
//
// +kubebuilder:validation:XValidation:rule="!has(self.across) || self.distribution.all(p, !(has(p.nodeLabel) && self.across.topologyKey in p.nodeLabel) && !(has(p.matchExpressions) && p.matchExpressions.exists(e, e.key == self.across.topologyKey)))",message="across.topologyKey is a key of a pool's nodeLabel or matchExpressions; a pool is divided over domains by a label that it does not name"
type PodDistributorSpec struct {
	// Distribution is the node pools. Bases are filled first, in this order; the
	// other pods are divided by weight.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.exists(p, p.?weight.orValue(0) > 0)",message="every weight is 0, so that most pods would have no pool; give at least one pool a weight from 1 to 100"
	// +kubebuilder:validation:XValidation:rule="self.all(p, has(p.matchExpressions) || self.exists_one(q, !has(q.matchExpressions) && q.nodeLabel == p.nodeLabel))",message="two pools have the same nodeLabel; join them into one and add up their weights"
	// +kubebuilder:validation:XValidation:rule="self.all(p, !has(p.name) || self.exists_one(q, has(q.name) && q.name == p.name))",message="two pools have the same name"
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.?weight.orValue(0) == 0 || !has(p.spill) || !has(p.spill.maxSpill)) || self.filter(p, p.?weight.orValue(0) > 0).size() >= 2",message="spill.maxSpill needs another pool with a weight; give one a weight from 1 to 100, or remove maxSpill"
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, has(p.maxReplicas) && type(p.maxReplicas) in [string]) || self.exists(p, p.?weight.orValue(0) > 0 && !(has(p.maxReplicas) && type(p.maxReplicas) in [string]))",message="the maxReplicas of each pool with a weight is a percentage; at least one pool with a weight has none, or a number"
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, has(p.maxReplicas) && type(p.maxReplicas) in [string]) || !self.exists(p, has(p.spill) && has(p.spill.maxSpill))",message="maxReplicas as a percentage and spill.maxSpill cannot be in one object; remove one of them"
	Distribution []Pool `json:"distribution"`

	// Across divides the pods of each pool evenly, or by weight, over domains such as zones. The division over the pools stays as it
	// is without it.
	//
	// +optional
	Across *Across `json:"across,omitempty"`

	// Target is the workload whose pods are divided.
	Target Target `json:"target"`

	// Enforcement says whether a pod may run outside its pool: Required makes it
	// wait for room there, Preferred lets it go elsewhere.
	//
	// +optional
	// +kubebuilder:default=Required
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// Rebalance is whether Stowage evicts running pods from pools that have too many while others have too few.
	// Never: no. Evict: one at a time and within PodDisruptionBudgets.
	//
	// +optional
	// +kubebuilder:default=Never
	Rebalance Rebalance `json:"rebalance,omitempty"`
}

// Pool is a set of nodes and its part of the pods.
//
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 64",message="matchExpressions have more than 64 values together; select by fewer values, or by another label"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.map(k, size(self.podAnnotations[k])).sum() <= 2048",message="podAnnotations have more than 2048 characters together"
// +kubebuilder:validation:XValidation:rule="has(self.nodeLabel) || has(self.matchExpressions)",message="a pool has a nodeLabel or matchExpressions, which say what labels its nodes have"
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator != 'DoesNotExist' || !(has(self.nodeLabel) && e.key in self.nodeLabel) && !self.matchExpressions.exists(f, f.key == e.key && f.operator in ['In', 'Exists', 'Gt', 'Lt']))",message="the pool has no nodes, because it asks for a label and for its absence; remove one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || !has(self.nodeLabel) || self.matchExpressions.all(e, !(e.key in self.nodeLabel) || e.operator == 'Exists' || (e.operator == 'In' ? self.nodeLabel[e.key] in e.values : e.operator == 'NotIn' ? !(self.nodeLabel[e.key] in e.values) : true))",message="the pool has no nodes, because matchExpressions exclude the value of a label of its nodeLabel; remove one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || self.podLabels.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of podLabels is no label key; it is like tier or example.com/tier"
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || self.podLabels.all(k, !k.matches('^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|stowage[.]dev|flexdaemonsets[.]xai)/') && !k.startsWith('io.katacontainers.') && !(k in ['mutated-by', 'pod-template-hash', 'controller-revision-hash', 'UseCustomKubeScheduler', 'CustomPodScheduleStrategy', 'custom-pod-schedule-strategy']))",message="a key of podLabels is one of Kubernetes, of its controllers or of Stowage, which a pool may not set"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of podAnnotations is no annotation key; it is like tier or example.com/tier"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.all(k, !k.matches('^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|stowage[.]dev|flexdaemonsets[.]xai)/') && !k.startsWith('io.katacontainers.') && !(k in ['mutated-by', 'pod-template-hash', 'controller-revision-hash', 'UseCustomKubeScheduler', 'CustomPodScheduleStrategy', 'custom-pod-schedule-strategy']))",message="a key of podAnnotations is one of Kubernetes, of Kata Containers or of Stowage, which a pool may not set"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) in [string] || self.?base.orValue(0) <= self.maxReplicas",message="base is above maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.nodeLabel) || self.nodeLabel.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of nodeLabel is no label key; it is like nodesize or karpenter.sh/capacity-type"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.operator) || size(t.operator) == 0 || t.operator in ['Equal', 'Exists'])",message="a toleration's operator is Equal or Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, has(t.key) && size(t.key) > 0 || has(t.operator) && t.operator == 'Exists')",message="a toleration without a key has the operator Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.effect) || size(t.effect) == 0 || t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="a toleration's effect is NoSchedule, PreferNoSchedule or NoExecute"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.tolerationSeconds) || has(t.effect) && t.effect == 'NoExecute')",message="a toleration with tolerationSeconds has the effect NoExecute"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !(has(t.operator) && t.operator == 'Exists' && has(t.value) && size(t.value) > 0))",message="a toleration with the operator Exists has no value"
type Pool struct {
	// Name is how status, metrics and labels call the pool. Without one, it is
	// called by its place, from 0; a name begins with a letter.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// NodeLabel is the labels of the pool's nodes. A node belongs to the pool if it has all of them, and meets MatchExpressions. A node of
	// several pools belongs to the first of them.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	NodeLabel map[string]LabelValue `json:"nodeLabel,omitempty"`

	// MatchExpressions are requirements on the labels of the pool's nodes, beside nodeLabel, such as that a label is missing. All of them hold.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeRequirement `json:"matchExpressions,omitempty"`

	// Base is how many pods go to this pool before any weight counts. Without it, none.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Base int32 `json:"base,omitempty"`

	// Weight is the pool's share of the other pods, relative to the other pools. A pool without
	// a weight, or of weight 0, has its base only, unless it has an overflow.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`

	// MaxReplicas is how many pods the pool may have. It is a number, or a percentage of the pods beyond all bases. A pool may have its base
	// and that percentage, rounded down. Without it, there is no limit.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]?%$`
	// +kubebuilder:validation:MaxLength=3
	// +kubebuilder:validation:XValidation:rule="type(self) in [string] || self >= 1",message="maxReplicas is a number from 1, or a percentage from 1% to 99%"
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`

	// Spill says when other pools take the pods that wait for a node of this pool. Without it, they wait for as long
	// as the pool has no room.
	//
	// +optional
	Spill *Spill `json:"spill,omitempty"`

	// Overflow is the pool's share of the pods that no pool with a weight can take, relative to the other pools, while
	// a pool has no room. The pools with a weight can take none if each has no room or has its maxReplicas.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Overflow int32 `json:"overflow,omitempty"`

	// Tolerations are added to the pods of this pool.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// PodLabels are added to new pods of this pool that lack them. A key that the selector of the pods' owner names is not added, because the owner
	// would lose the pod.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodLabels map[string]LabelValue `json:"podLabels,omitempty"`

	// PodAnnotations are added to new pods of this pool that lack them.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodAnnotations map[string]AnnotationValue `json:"podAnnotations,omitempty"`

	// PriorityClassName is the PriorityClass of new pods of this pool, in place of the one that they have. While there is no such class, they
	// keep theirs. Pods of a scheduling group keep theirs, too.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// TerminationGracePeriodSeconds is how long new pods of this pool may take to end, in seconds, if that is shorter than what they have.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// Across divides the pods of each pool over domains, such as zones.
//
// +kubebuilder:validation:XValidation:rule="self.domains.all(d, self.domains.exists_one(e, e.value == d.value))",message="two domains have the same value"
type Across struct {
	// TopologyKey is the key of the node label whose value names the domain of a node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	TopologyKey string `json:"topologyKey"`

	// Domains are the domains. A node without one of these values is in no pool.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Domains []Domain `json:"domains"`
}

// Domain is a domain and its part of a pool's pods.
type Domain struct {
	// Value is the value of the node label, such as eu-west-1a.
	//
	// +kubebuilder:validation:MinLength=1
	Value LabelValue `json:"value"`

	// Weight is the domain's share of the pods of each pool, relative to the other domains. Without it, 1.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`
}

// Toleration is what pods of a pool tolerate, as in a pod's spec.
type Toleration struct {
	// Key is the key of the taint. Without one, every key matches.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// Operator is Equal, which is the default, or Exists.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=6
	Operator string `json:"operator,omitempty"`

	// Value is the value of the taint.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`

	// Effect is NoSchedule, PreferNoSchedule or NoExecute. Without one, every effect matches.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Effect string `json:"effect,omitempty"`

	// TolerationSeconds is how long a pod stays on a node with a taint of effect NoExecute.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Spill says when other pools take the pods that wait for a pool without room.
type Spill struct {
	// After is how long a pod waits for a node of the pool, from 10s to 1h. Without it, 2m. The time in which a node is on its way
	// does not count.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('1h')",message="after is 10s to 1h, such as 2m"
	After string `json:"after,omitempty"`

	// MaxSpill is how many of the pool's pods other pools may take while it has no room. It is a number, or a
	// percentage of the pods that the pool should have when that begins, rounded up. The others wait. Without it,
	// other pools take all pods that wait.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]?|100)%$`
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) in [string] || self >= 1",message="maxSpill is a number from 1, or a percentage from 1% to 100%"
	MaxSpill *intstr.IntOrString `json:"maxSpill,omitempty"`
}

// NodeRequirement is a requirement on a label of a pool's nodes, as in the node affinity of a pod. NotIn and DoesNotExist hold where the label is
// missing.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]{1,18}$') : !has(self.values) || size(self.values) == 0",message="In and NotIn need values, Gt and Lt one whole number; Exists and DoesNotExist have none"
type NodeRequirement struct {
	// Key is the key of the label.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator is In, NotIn, Exists, DoesNotExist, Gt or Lt.
	//
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator"`
	// Values are the values of In and NotIn, or the bound of Gt and Lt.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// AnnotationValue is the value of an annotation.
//
// +kubebuilder:validation:MaxLength=1024
type AnnotationValue string

// Target is a workload of the same namespace: anything whose pods have a controlling
// owner, directly or through a ReplicaSet.
//
// +kubebuilder:validation:XValidation:rule="self.kind.matches('^[A-Z][A-Za-z0-9]*$')",message="kind is the kind of a workload as kubectl explain writes it, such as Deployment"
// +kubebuilder:validation:XValidation:rule="self.kind != 'DaemonSet'",message="the pods of a DaemonSet have their nodes already; a FlexDaemonsetTemplate sizes them"
// +kubebuilder:validation:XValidation:rule="self.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name is the name of one workload, such as web; a pattern such as * is not possible"
type Target struct {
	// APIVersion is the workload's group and version, such as apps/v1.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// Kind is the workload's kind, such as Deployment.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Name is the workload's name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Enforcement says whether a pod may run outside its pool.
//
// +kubebuilder:validation:Enum=Required;Preferred
type Enforcement string

// The enforcements.
const (
	EnforcementRequired  Enforcement = "Required"
	EnforcementPreferred Enforcement = "Preferred"
)

// Rebalance says whether running pods are evicted to restore the distribution.
//
// +kubebuilder:validation:Enum=Never;Evict
type Rebalance string

// The ways to rebalance.
const (
	RebalanceNever Rebalance = "Never"
	RebalanceEvict Rebalance = "Evict"
)

// The condition types of a PodDistributor.
const (
	// ConditionTargetFound is true while the target exists and this object is the
	// one that divides its pods.
	ConditionTargetFound = "TargetFound"
	// ConditionBalanced is true while each pool has the pods that it should have, and each pod has a node.
	ConditionBalanced = "Balanced"
	// ConditionPoolsAvailable is false while a pool has no room for the pods of the target.
	ConditionPoolsAvailable = "PoolsAvailable"
)

// PodDistributorStatus is what Stowage sees and has done.
type PodDistributorStatus struct {
	// ObservedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Current is the pods of each pool, joined by slashes, for people.
	// +optional
	Current string `json:"current,omitempty"`
	// Desired is the pods that each pool should have, joined by slashes, for people.
	// +optional
	Desired string `json:"desired,omitempty"`
	// Ready is the pods of each pool that are ready, joined by slashes, for people.
	// +optional
	Ready string `json:"ready,omitempty"`
	// Pools are the pools in the order of the spec.
	// +optional
	// +listType=map
	// +listMapKey=name
	Pools []PoolStatus `json:"pools,omitempty"`
	// Conditions are TargetFound, Balanced and, where a pool has spill, PoolsAvailable.
	// Reasons of Balanced:
	// Balanced. Each pool has the pods that it should have, and each pod has a node.
	// Progressing. Pods are created or removed, or have waited less than 30 s for a node.
	// PodsPending. Pods have waited longer for a node.
	// PodsRefused. The API server refuses to create more pods.
	// EvictionRefused, NoRoomForRebalance, RolloutUnfinished, RepairHadNoEffect, PodHeld, PodsChooseNodes, NotAllPodsReady, PodUpdateRefused,
	// WebhookNotProven. Something keeps pods from moving, or from getting a seat.
	// ReplicasNotReached. For five minutes the workload has had another number of pods than it asks for.
	// Spilled. A pool has no room, and other pools have taken its pods.
	// OverTarget. A pool has too many pods.
	// PodsOutsidePool. Pods run outside the pool of their seat.
	// PodsWithoutSeat. Pods have no seat, or their seat is in a pool that was removed.
	// LeftAlone. The mode of the namespace or of the pods is Audit or Off, so their division is not looked at.
	// NoTarget. The PodDistributor divides no pods, and TargetFound has the cause.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolStatus counts the pods of one pool.
type PoolStatus struct {
	// Name is the pool's name, or its place from 0.
	Name string `json:"name"`
	// Desired is how many pods the pool should have.
	Desired int32 `json:"desired"`
	// Current is how many pods it has, without those that are ending.
	Current int32 `json:"current"`
	// Ready is how many of those are ready.
	Ready int32 `json:"ready"`
	// Domains are the domains of the pool, in the order of the spec.
	// +optional
	// +listType=map
	// +listMapKey=name
	Domains []DomainStatus `json:"domains,omitempty"`
}

// DomainStatus counts the pods of one domain of a pool.
type DomainStatus struct {
	// Name is the domain's value.
	Name string `json:"name"`
	// Desired is how many of the pool's pods the domain should have.
	Desired int32 `json:"desired"`
	// Current is how many it has, without those that are ending.
	Current int32 `json:"current"`
}

// PodDistributorList is a list of PodDistributors.
//
// +kubebuilder:object:root=true
type PodDistributorList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodDistributor `json:"items"`
}
