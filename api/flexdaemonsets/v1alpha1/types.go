package v1alpha1

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TemplateAnnotation names, on a DaemonSet or on its pod template, the
// FlexDaemonsetTemplate of its pods. That of the pod template wins.
const TemplateAnnotation = "flexdaemonsets.xai/resource-template"

// FlexDaemonsetTemplate gives each pod of a DaemonSet a share of the node that it runs
// on. A DaemonSet uses it by the annotation flexdaemonsets.xai/resource-template.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fdt
// +kubebuilder:printcolumn:name="CPU",type=integer,JSONPath=`.spec.cpuPercentage`,description="Percent of the node's allocatable CPU"
// +kubebuilder:printcolumn:name="Memory",type=integer,JSONPath=`.spec.memoryPercentage`,description="Percent of the node's allocatable memory"
// +kubebuilder:printcolumn:name="Storage",type=integer,JSONPath=`.spec.storagePercentage`,description="Percent of the node's allocatable ephemeral storage"
// +kubebuilder:printcolumn:name="DaemonSets",type=integer,JSONPath=`.status.daemonSets`,description="DaemonSets that use the template"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="Pods that have a size from the template, or should have one"
// +kubebuilder:printcolumn:name="Off-Size",type=integer,JSONPath=`.status.offSize`,description="Pods that have no size, or another one than the template and their node now give them"
// +kubebuilder:printcolumn:name="Up-To-Date",type=string,JSONPath=`.status.conditions[?(@.type=="UpToDate")].status`,description="Whether every pod has the size that it should have"
// +kubebuilder:printcolumn:name="Update-Policy",type=string,JSONPath=`.spec.updatePolicy`,description="When running pods follow",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FlexDaemonsetTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the share.
	Spec FlexDaemonsetTemplateSpec `json:"spec"`
	// Status has the DaemonSets that use the template, and how many of their pods have its size.
	// +optional
	Status FlexDaemonsetTemplateStatus `json:"status,omitempty"`
}

// FlexDaemonsetTemplateSpec is the share of a node that a pod gets: of each resource a
// percentage of what the node has allocatable, rounded down to thousandths of a CPU or
// to bytes, not less than the minimum and not more than the maximum. It is the share of
// the whole pod. A resource without a percentage stays as the DaemonSet has it.
//
// +kubebuilder:validation:XValidation:rule="has(self.cpuPercentage) || has(self.memoryPercentage) || has(self.storagePercentage)",message="the template sizes nothing; set at least one of cpuPercentage, memoryPercentage and storagePercentage"
// +kubebuilder:validation:XValidation:rule="!has(self.minCPU) || !has(self.maxCPU) || !(string(self.minCPU).size() <= 32 && string(self.minCPU).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.minCPU)) && string(self.maxCPU).size() <= 32 && string(self.maxCPU).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.maxCPU))) || quantity(string(self.minCPU)).compareTo(quantity(string(self.maxCPU))) <= 0",message="minCPU is above maxCPU",fieldPath=".minCPU"
// +kubebuilder:validation:XValidation:rule="!has(self.minMemory) || !has(self.maxMemory) || !(string(self.minMemory).size() <= 32 && string(self.minMemory).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.minMemory)) && string(self.maxMemory).size() <= 32 && string(self.maxMemory).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.maxMemory))) || quantity(string(self.minMemory)).compareTo(quantity(string(self.maxMemory))) <= 0",message="minMemory is above maxMemory",fieldPath=".minMemory"
// +kubebuilder:validation:XValidation:rule="!has(self.minStorage) || !has(self.maxStorage) || !(string(self.minStorage).size() <= 32 && string(self.minStorage).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.minStorage)) && string(self.maxStorage).size() <= 32 && string(self.maxStorage).matches('^[0-9.]+([a-zA-Z]+|[eE]1?[0-9])?$') && isQuantity(string(self.maxStorage))) || quantity(string(self.minStorage)).compareTo(quantity(string(self.maxStorage))) <= 0",message="minStorage is above maxStorage",fieldPath=".minStorage"
type FlexDaemonsetTemplateSpec struct {
	// CPUPercentage is the percentage of the node's allocatable CPU.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	CPUPercentage *int32 `json:"cpuPercentage,omitempty"`
	// MemoryPercentage is the percentage of the node's allocatable memory.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MemoryPercentage *int32 `json:"memoryPercentage,omitempty"`
	// StoragePercentage is the percentage of the node's allocatable ephemeral storage.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	StoragePercentage *int32 `json:"storagePercentage,omitempty"`

	// MinCPU is the least CPU, such as 100m or 0.1.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MinCPU Amount `json:"minCPU,omitempty"`
	// MinMemory is the least memory, in bytes or such as 128Mi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MinMemory Amount `json:"minMemory,omitempty"`
	// MinStorage is the least ephemeral storage, in bytes or such as 1Gi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MinStorage Amount `json:"minStorage,omitempty"`

	// MaxCPU is the most CPU, such as 4.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MaxCPU Amount `json:"maxCPU,omitempty"`
	// MaxMemory is the most memory, in bytes or such as 8Gi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MaxMemory Amount `json:"maxMemory,omitempty"`
	// MaxStorage is the most ephemeral storage, in bytes or such as 50Gi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE]1?[0-9])?$')",message="it must be a quantity that is not negative, such as 100m, 0.5, 128Mi or 2"
	MaxStorage Amount `json:"maxStorage,omitempty"`

	// Limits is the limits that the containers get. Equal: the same as their requests. None: those that the DaemonSet
	// sets, unless they are below the requests.
	//
	// +optional
	// +kubebuilder:default=Equal
	Limits Limits `json:"limits,omitempty"`

	// ExcludeContainers are the names of containers that keep the resources that they
	// have. What they request is part of the pod's share.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	ExcludeContainers []string `json:"excludeContainers,omitempty"`

	// Ceiling is Template where a pod must not get more than the DaemonSet's own pod
	// template requests, because an autoscaler chooses new nodes by that. The minimum
	// does not raise it.
	//
	// +optional
	Ceiling Ceiling `json:"ceiling,omitempty"`

	// UpdatePolicy is when running pods follow a change of the template or of their node. OnCreate: when they are
	// recreated. InPlace: at once and without a restart, in CPU and memory.
	//
	// +optional
	// +kubebuilder:default=OnCreate
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`
}

// Amount is a resource quantity as it was written. It is not parsed when it is read, so
// that one that is none can be told from the others.
type Amount string

// UnmarshalJSON takes a string or a number.
func (a *Amount) UnmarshalJSON(data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte{'"'}):
		return json.Unmarshal(data, (*string)(a))
	case string(data) == "null":
		*a = ""
	default:
		*a = Amount(data)
	}
	return nil
}

// Limits says what limits the containers get.
//
// +kubebuilder:validation:Enum=Equal;None
type Limits string

// The limits.
const (
	LimitsEqual Limits = "Equal"
	LimitsNone  Limits = "None"
)

// Ceiling says what a pod's share never exceeds.
//
// +kubebuilder:validation:Enum=Template
type Ceiling string

// CeilingTemplate is what the DaemonSet's own pod template requests.
const CeilingTemplate Ceiling = "Template"

// UpdatePolicy says when running pods follow a change.
//
// +kubebuilder:validation:Enum=OnCreate;InPlace
type UpdatePolicy string

// The update policies.
const (
	UpdateOnCreate UpdatePolicy = "OnCreate"
	UpdateInPlace  UpdatePolicy = "InPlace"
)

// The types of a template's conditions.
const (
	// ConditionValid is whether the template says what can be done.
	ConditionValid = "Valid"
	// ConditionUpToDate is whether every pod has the size that the template and its
	// node now give it.
	ConditionUpToDate = "UpToDate"
)

// FlexDaemonsetTemplateStatus has the DaemonSets that use the template, and how many of their pods have its size.
type FlexDaemonsetTemplateStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// DaemonSets is how many DaemonSets use the template.
	//
	// +optional
	DaemonSets int32 `json:"daemonSets"`
	// Pods is how many pods have a size from the template, or should have one.
	//
	// +optional
	Pods int32 `json:"pods"`
	// OffSize is how many of them have no size, or another one than the template and
	// their node now give them.
	//
	// +optional
	OffSize int32 `json:"offSize"`
	// Conditions are Valid and UpToDate.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FlexDaemonsetTemplateList is a list of templates.
//
// +kubebuilder:object:root=true
type FlexDaemonsetTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FlexDaemonsetTemplate `json:"items"`
}
