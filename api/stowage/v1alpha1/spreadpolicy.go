package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// SpreadPolicy divides the pods of many workloads of its namespace over node pools. It selects the workloads by the labels of
// their pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sp
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,description="Audit or Enforce"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="Workloads that the policy selects"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="Pods of these workloads"
// +kubebuilder:printcolumn:name="Balanced",type=string,JSONPath=`.status.balanced`,description="How many of these workloads are divided as they should be"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,description="The policy of the highest priority wins",priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the policy is valid and its workloads are counted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SpreadPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which workloads, and how their pods are divided.
	Spec SpreadPolicySpec `json:"spec"`
	// Status is what Stowage sees and has done.
	// +optional
	Status SpreadPolicyStatus `json:"status,omitempty"`
}

// ClusterSpreadPolicy divides the pods of many workloads of many namespaces over node pools. It selects the namespaces by their
// labels, and the workloads by the labels of their pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=csp
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,description="Audit or Enforce"
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="Workloads that the policy selects"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="Pods of these workloads"
// +kubebuilder:printcolumn:name="Balanced",type=string,JSONPath=`.status.balanced`,description="How many of these workloads are divided as they should be"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,description="The policy of the highest priority wins",priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the policy is valid and its workloads are counted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterSpreadPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which workloads, and how their pods are divided.
	Spec ClusterSpreadPolicySpec `json:"spec"`
	// Status is what Stowage sees and has done.
	// +optional
	Status SpreadPolicyStatus `json:"status,omitempty"`
}

// ClusterSpreadPolicySpec selects namespaces, and workloads in them, and divides the pods of these workloads over pools.
type ClusterSpreadPolicySpec struct {
	// NamespaceSelector selects namespaces by their labels. An empty one selects all.
	NamespaceSelector Selector `json:"namespaceSelector"`

	SpreadPolicySpec `json:",inline"`
}

// SpreadPolicySpec says which workloads, and how their pods are divided.
//
// +kubebuilder:validation:XValidation:rule="!has(self.across) || self.pools.all(p, !(has(p.nodeSelector) && self.across.topologyKey in p.nodeSelector) && !(has(p.matchExpressions) && p.matchExpressions.exists(e, e.key == self.across.topologyKey)))",message="across.topologyKey is a key of a pool's nodeSelector or matchExpressions; a pool is divided over domains by a label that it does not name"
type SpreadPolicySpec struct {
	// Mode is Audit, which counts what Enforce would do and changes nothing, or Enforce. A policy in Audit never wins over another
	// one.
	Mode PolicyMode `json:"mode"`

	// Priority decides between policies of one kind that select the same pods: the highest wins, then the oldest policy.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority"`

	// Selector selects workloads by the labels of their pod template. An empty one selects all.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !k.startsWith('stowage.dev/') && k != 'pod-template-hash')",message="stowage.dev/... and pod-template-hash cannot be selected: they differ from pod to pod, or from revision to revision"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !e.key.startsWith('stowage.dev/') && e.key != 'pod-template-hash')",message="stowage.dev/... and pod-template-hash cannot be selected: they differ from pod to pod, or from revision to revision"
	Selector Selector `json:"selector"`

	// Kinds are the kinds of the pods' controllers. A Deployment's pods belong to a ReplicaSet, and so do those of an Argo Rollout.
	// A kind has spec.template.metadata.labels and a scale subresource.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default={{group: apps, kind: ReplicaSet}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Kinds []OwnerKind `json:"kinds,omitempty"`

	// Pools are the node pools. Bases are filled first, in this order; the other pods are divided by weight.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.exists(p, p.?weight.orValue(0) > 0)",message="every weight is 0, so that most pods would have no pool; give at least one pool a weight from 1 to 100"
	// +kubebuilder:validation:XValidation:rule="self.all(p, has(p.matchExpressions) || self.exists_one(q, !has(q.matchExpressions) && q.nodeSelector == p.nodeSelector))",message="two pools have the same nodeSelector; join them into one and add up their weights"
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(q, q.name == p.name))",message="two pools have the same name"
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.?weight.orValue(0) == 0 || !has(p.spill) || !has(p.spill.maxSpill)) || self.filter(p, p.?weight.orValue(0) > 0).size() >= 2",message="spill.maxSpill needs another pool with a weight; give one a weight from 1 to 100, or remove maxSpill"
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, has(p.maxReplicas) && type(p.maxReplicas) in [string]) || self.exists(p, p.?weight.orValue(0) > 0 && !(has(p.maxReplicas) && type(p.maxReplicas) in [string]))",message="the maxReplicas of each pool with a weight is a percentage; at least one pool with a weight has none, or a number"
	// +kubebuilder:validation:XValidation:rule="!self.exists(p, has(p.maxReplicas) && type(p.maxReplicas) in [string]) || !self.exists(p, has(p.spill) && has(p.spill.maxSpill))",message="maxReplicas as a percentage and spill.maxSpill cannot be in one object; remove one of them"
	Pools []PolicyPool `json:"pools"`

	// Across divides the pods of each pool evenly, or by weight, over domains such as zones. The division over the pools stays as it
	// is without it.
	//
	// +optional
	Across *versprei.Across `json:"across,omitempty"`

	// Enforcement says whether a pod may run outside its pool: Required makes it wait for room there, Preferred lets it go
	// elsewhere. Without it, a policy has Required.
	//
	// +optional
	Enforcement versprei.Enforcement `json:"enforcement,omitempty"`

	// Repair says what becomes of pods without a seat. Adopt gives a seat to those that run in one of the pools. Recreate also evicts
	// pods that bypassed the webhook and run in no pool or wait. Off leaves all alone. Pods that were there before the policy are not
	// evicted. Only where a workload was created at most 30 seconds before a SpreadPolicy, Adopt and Recreate also evict pods that nobody
	// uses yet, of pools with too many and of none.
	//
	// +optional
	// +kubebuilder:default=Adopt
	// +kubebuilder:validation:Enum=Off;Adopt;Recreate
	Repair Repair `json:"repair,omitempty"`

	// Rebalance is whether Stowage evicts running pods from pools that have too many while others have too few.
	// Never: no. Evict: one at a time and within PodDisruptionBudgets.
	//
	// +optional
	// +kubebuilder:default=Never
	Rebalance versprei.Rebalance `json:"rebalance,omitempty"`
}

// PolicyMode says how far a policy goes.
//
// +kubebuilder:validation:Enum=Audit;Enforce
type PolicyMode string

// The modes of a policy.
const (
	PolicyAudit   PolicyMode = "Audit"
	PolicyEnforce PolicyMode = "Enforce"
)

// Selector selects by labels, as a LabelSelector does. All of it must match.
//
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 64",message="matchExpressions have more than 64 values together; select by fewer values, or by another label"
type Selector struct {
	// MatchLabels are labels that must be there.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of matchLabels is no label key; it is like tier or app.kubernetes.io/name"
	MatchLabels map[string]versprei.LabelValue `json:"matchLabels,omitempty"`
	// MatchExpressions are requirements on labels.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []Requirement `json:"matchExpressions,omitempty"`
}

// Requirement is a requirement on one label.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",message="In and NotIn need values; Exists and DoesNotExist have none"
type Requirement struct {
	// Key is the key of the label.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator is In, NotIn, Exists or DoesNotExist.
	//
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values are the values of In and NotIn.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []versprei.LabelValue `json:"values,omitempty"`
}

// OwnerKind is a kind of the controllers of pods.
//
// +kubebuilder:validation:XValidation:rule="self.kind != 'Deployment'",message="the pods of a Deployment belong to its ReplicaSets; write ReplicaSet"
// +kubebuilder:validation:XValidation:rule="self.kind != 'Rollout'",message="the pods of a Rollout belong to its ReplicaSets; write group apps and kind ReplicaSet"
// +kubebuilder:validation:XValidation:rule="!(self.kind in ['Job', 'CronJob', 'DaemonSet', 'RayCluster', 'Node', 'Pod'])",message="a policy does not divide pods of this kind; a PodDistributor or annotations may"
type OwnerKind struct {
	// Group is the API group, such as apps. It is empty for a ReplicationController.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	Group string `json:"group"`
	// Kind is the kind, such as ReplicaSet or StatefulSet.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	Kind string `json:"kind"`
}

// PolicyPool is a set of nodes and its part of the pods.
//
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 64",message="matchExpressions have more than 64 values together; select by fewer values, or by another label"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.map(k, size(self.podAnnotations[k])).sum() <= 2048",message="podAnnotations have more than 2048 characters together"
// +kubebuilder:validation:XValidation:rule="has(self.nodeSelector) || has(self.matchExpressions)",message="a pool has a nodeSelector or matchExpressions, which say what labels its nodes have"
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator != 'DoesNotExist' || !(has(self.nodeSelector) && e.key in self.nodeSelector) && !self.matchExpressions.exists(f, f.key == e.key && f.operator in ['In', 'Exists', 'Gt', 'Lt']))",message="the pool has no nodes, because it asks for a label and for its absence; remove one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || !has(self.nodeSelector) || self.matchExpressions.all(e, !(e.key in self.nodeSelector) || e.operator == 'Exists' || (e.operator == 'In' ? self.nodeSelector[e.key] in e.values : e.operator == 'NotIn' ? !(self.nodeSelector[e.key] in e.values) : true))",message="the pool has no nodes, because matchExpressions exclude the value of a label of its nodeSelector; remove one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || self.podLabels.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of podLabels is no label key; it is like tier or example.com/tier"
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || self.podLabels.all(k, !k.matches('^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|stowage[.]dev|flexdaemonsets[.]xai)/') && !k.startsWith('io.katacontainers.') && !(k in ['mutated-by', 'pod-template-hash', 'controller-revision-hash', 'UseCustomKubeScheduler', 'CustomPodScheduleStrategy', 'custom-pod-schedule-strategy']))",message="a key of podLabels is one of Kubernetes, of its controllers or of Stowage, which a pool may not set"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of podAnnotations is no annotation key; it is like tier or example.com/tier"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || self.podAnnotations.all(k, !k.matches('^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|stowage[.]dev|flexdaemonsets[.]xai)/') && !k.startsWith('io.katacontainers.') && !(k in ['mutated-by', 'pod-template-hash', 'controller-revision-hash', 'UseCustomKubeScheduler', 'CustomPodScheduleStrategy', 'custom-pod-schedule-strategy']))",message="a key of podAnnotations is one of Kubernetes, of Kata Containers or of Stowage, which a pool may not set"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || type(self.maxReplicas) in [string] || self.?base.orValue(0) <= self.maxReplicas",message="base is above maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.nodeSelector) || self.nodeSelector.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key of nodeSelector is no label key; it is like nodesize or karpenter.sh/capacity-type"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.operator) || size(t.operator) == 0 || t.operator in ['Equal', 'Exists'])",message="a toleration's operator is Equal or Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, has(t.key) && size(t.key) > 0 || has(t.operator) && t.operator == 'Exists')",message="a toleration without a key has the operator Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.effect) || size(t.effect) == 0 || t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="a toleration's effect is NoSchedule, PreferNoSchedule or NoExecute"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !has(t.tolerationSeconds) || has(t.effect) && t.effect == 'NoExecute')",message="a toleration with tolerationSeconds has the effect NoExecute"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || self.tolerations.all(t, !(has(t.operator) && t.operator == 'Exists' && has(t.value) && size(t.value) > 0))",message="a toleration with the operator Exists has no value"
type PolicyPool struct {
	// Name is how status, metrics and labels call the pool.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// NodeSelector is the labels of the pool's nodes. A node belongs to the pool if it has all of them, and meets MatchExpressions. A node of
	// several pools belongs to the first of them.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]versprei.LabelValue `json:"nodeSelector,omitempty"`

	// MatchExpressions are requirements on the labels of the pool's nodes, beside nodeSelector, such as that a label is missing. All of them hold.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []versprei.NodeRequirement `json:"matchExpressions,omitempty"`

	// Base is how many pods of each workload go to this pool before any weight counts. Without it, none.
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

	// MaxReplicas is how many pods of each workload the pool may have. It is a number, or a percentage of the pods beyond all bases. A pool may have its base
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
	Spill *versprei.Spill `json:"spill,omitempty"`

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
	Tolerations []versprei.Toleration `json:"tolerations,omitempty"`

	// PodLabels are added to new pods of this pool that lack them. A key that the selector of the pods' owner names is not added, because the owner
	// would lose the pod.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodLabels map[string]versprei.LabelValue `json:"podLabels,omitempty"`

	// PodAnnotations are added to new pods of this pool that lack them.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodAnnotations map[string]versprei.AnnotationValue `json:"podAnnotations,omitempty"`

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

// The condition types of a policy, as kstatus reads them.
const (
	// ConditionReady is true while the policy is valid, its kinds may be read, and its workloads are counted.
	ConditionReady = "Ready"
	// ConditionStalled is true while the policy divides no pods, or none of one of its kinds, until a user corrects that.
	ConditionStalled = "Stalled"
	// ConditionNodesFound is false while a pool has no node. Its pods wait for one.
	ConditionNodesFound = "NodesFound"
)

// SpreadPolicyStatus is what Stowage sees and has done.
type SpreadPolicyStatus struct {
	// ObservedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ObservedFields are the fields of the spec that have a value. A field that was written and is not here was removed by the API
	// server, because the installed CustomResourceDefinition does not know it.
	// +optional
	// +listType=atomic
	ObservedFields []string `json:"observedFields,omitempty"`
	// Workloads are those that the policy selects: ReplicaSets, or other controllers of pods, that have pods.
	// +optional
	Workloads int32 `json:"workloads"`
	// Pods are the pods of these workloads.
	// +optional
	Pods int32 `json:"pods"`
	// Balanced is how many of these workloads are divided as they should be, of all, for people.
	// +optional
	Balanced string `json:"balanced,omitempty"`
	// Shadowed is how many workloads the policy selects that another source divides.
	// +optional
	Shadowed int32 `json:"shadowed,omitempty"`
	// ShadowedBy names one of these sources, with one of these workloads.
	// +optional
	ShadowedBy string `json:"shadowedBy,omitempty"`
	// NotReached is how many workloads the policy selects that the webhook is not asked about, or leaves alone.
	// +optional
	NotReached int32 `json:"notReached,omitempty"`
	// KeptByVolume are workloads with pods that stay where their volumes are, in another pool or domain than is due, or in none.
	//
	// +optional
	KeptByVolume int32 `json:"keptByVolume,omitempty"`
	// Unsuitable is how many workloads the policy selects whose pods cannot run in some pool. No node of it could take one, were the node
	// empty. The pool gets no pods of the workload. If that holds for all pools, the policy does not divide the workload.
	// +optional
	Unsuitable int32 `json:"unsuitable,omitempty"`
	// UnsuitableExample names one of these workloads, with a pool and the reason.
	// +optional
	UnsuitableExample string `json:"unsuitableExample,omitempty"`
	// WithoutSeat are pods of these workloads that have no seat. They run outside all pools, or wait for a node, or were not adopted
	// yet.
	// +optional
	WithoutSeat int32 `json:"withoutSeat,omitempty"`
	// ChooseNodes are pods of these workloads that get no seat, because they choose their nodes themselves. They are not among
	// withoutSeat.
	// +optional
	ChooseNodes int32 `json:"chooseNodes,omitempty"`
	// Unreadable lists the kinds in spec.kinds whose pods get no seat, because Stowage cannot read the objects or the kind has no scale.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Unreadable []UnreadableKind `json:"unreadable,omitempty"`
	// Pools are the pools in the order of the spec.
	// +optional
	// +listType=map
	// +listMapKey=name
	Pools []PolicyPoolStatus `json:"pools,omitempty"`
	// Audit is what the policy would do, in mode Audit.
	// +optional
	Audit *PolicyAuditStatus `json:"audit,omitempty"`
	// Conditions are Ready, Stalled and NodesFound.
	// Reasons:
	// Counted. The policy is valid, and its workloads are counted.
	// Counting. Mode Audit has not looked at all of the workloads yet.
	// Invalid. The policy divides no pods, because its spec is invalid. It still shadows policies below it.
	// KindNotReadable. Stowage's account may not read objects of a kind in spec.kinds, so that their pods get no seat.
	// Found. Each pool has a node.
	// NoNodes. A pool has no node now. Its pods wait for one, unless the policy only prefers its pools.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UnreadableKind is a kind whose objects Stowage cannot read, or that has no scale.
type UnreadableKind struct {
	OwnerKind `json:",inline"`
	// Lacks are the resources that Stowage's account may not get, such as pipelinesets.example.net. There are none where the API server does not
	// have the kind, or where the kind has no scale subresource. Stowage asks for no right then.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Lacks []string `json:"lacks,omitempty"`
}

// PolicyAuditStatus counts the pods of the workloads that the policy would divide. Each workload is looked at once in ten minutes, or
// after a change.
type PolicyAuditStatus struct {
	// Workloads are those that were looked at.
	Workloads int32 `json:"workloads"`
	// Pods are their pods.
	Pods int32 `json:"pods"`
	// InPlace are those that run where the policy would have them.
	InPlace int32 `json:"inPlace"`
	// InOtherPool are those that run in a pool with more pods than the policy would give it. The next rollout would move so many.
	InOtherPool int32 `json:"inOtherPool"`
	// InOtherDomain are those that run in the right pool, and in a domain with more of them than the policy would give it.
	// The next rollout would move so many.
	// +optional
	InOtherDomain int32 `json:"inOtherDomain,omitempty"`
	// Outside are those that run on nodes of no pool.
	Outside int32 `json:"outside"`
	// Waiting are those without a node.
	Waiting int32 `json:"waiting"`
	// Oldest is when the workload was looked at that was looked at first.
	// +optional
	Oldest *metav1.Time `json:"oldest,omitempty"`
}

// PolicyPoolStatus counts the pods of one pool, over all workloads.
type PolicyPoolStatus struct {
	// Name is the pool's name.
	Name string `json:"name"`
	// Desired is how many pods the pool should have.
	Desired int32 `json:"desired"`
	// Current is how many pods with a seat in the pool are in it, without those that are ending. In mode Audit it is how many pods run
	// on its nodes.
	Current int32 `json:"current"`
	// Ready is how many of those are ready.
	Ready int32 `json:"ready"`
	// Share is how many pods the pool would have if each workload could be divided exactly, as a decimal number. What differs from Desired
	// is rounding, and limits.
	// +optional
	Share string `json:"share,omitempty"`
	// Nodes is how many nodes have the pool's labels.
	Nodes int32 `json:"nodes"`
	// Domains are the domains of the pool, in the order of the spec.
	// +optional
	// +listType=map
	// +listMapKey=name
	Domains []versprei.DomainStatus `json:"domains,omitempty"`
}

// SpreadPolicyList is a list of SpreadPolicies.
//
// +kubebuilder:object:root=true
type SpreadPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpreadPolicy `json:"items"`
}

// ClusterSpreadPolicyList is a list of ClusterSpreadPolicies.
//
// +kubebuilder:object:root=true
type ClusterSpreadPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterSpreadPolicy `json:"items"`
}
