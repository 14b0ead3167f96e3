package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VMCatalog lists the types of VMs that peer pods may have, with their sizes and prices. A new peer pod gets the cheapest type that
// fits. Of several catalogs for a RuntimeClass, the oldest holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=vmc
// +kubebuilder:printcolumn:name="VMs",type=integer,JSONPath=`.status.vms`,description="VMs of the peer pods with a type of the catalog"
// +kubebuilder:printcolumn:name="vCPUs",type=integer,JSONPath=`.status.vcpus`,description="vCPUs of these VMs"
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.memory`,description="Memory of these VMs"
// +kubebuilder:printcolumn:name="Price/h",type=string,JSONPath=`.status.pricePerHour`,description="What these VMs cost in an hour, as the catalog has it"
// +kubebuilder:printcolumn:name="Closed",type=string,JSONPath=`.status.closedTypes`,description="Types whose VMs could not be made for a namespace in a zone"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the catalog holds, and its VMs are counted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMCatalog struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec lists the types.
	Spec VMCatalogSpec `json:"spec"`
	// Status is how many VMs there are, and which types cannot be made now.
	//
	// +optional
	Status VMCatalogStatus `json:"status,omitempty"`
}

// VMCatalogSpec lists types of VMs.
type VMCatalogSpec struct {
	// RuntimeClasses are those whose pods get a type of this catalog. Without them, all pods that run in VMs do.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`

	// Types are the types of VMs, by their names in the cloud. The program that makes the VMs must know each of them.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=500
	Types []VMType `json:"types"`

	// Reserved is what the guest takes of each VM itself. A type fits a pod that asks for no more than the rest.
	//
	// +optional
	Reserved VMReserved `json:"reserved,omitzero"`

	// FailAfter is how long the VM of a pod may take to be made. After that, its type is closed for a time, and the pod is evicted, so
	// that its successor gets the next cheapest type. It is a duration from 30s to 1h, or 0s: then no type is closed.
	//
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(h|m|s|ms))+$') && (duration(self) == duration('0s') || duration(self) >= duration('30s') && duration(self) <= duration('1h'))",message="failAfter is a duration from 30s to 1h, such as 5m, or 0s for never"
	FailAfter string `json:"failAfter,omitempty"`
}

// VMType is one type of VMs.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gpuModel) || has(self.gpus) && self.gpus > 0",message="gpuModel needs gpus; say how many GPUs the type has"
type VMType struct {
	// Name is the name of the type in the cloud, such as m5.large.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// VCPUs is how many vCPUs a VM of the type has.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	VCPUs int32 `json:"vcpus"`
	// Memory is how much memory a VM of the type has, such as 8Gi.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]*[1-9][0-9]*([.][0-9]+)?|[0-9]*[.][0-9]*[1-9][0-9]*)([kMGTPE]|[KMGTPE]i)?$`
	Memory resource.Quantity `json:"memory"`
	// GPUs is how many GPUs a VM of the type has. Without it, none.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	GPUs int32 `json:"gpus,omitempty"`
	// GPUModel is what the cloud, or Kata Containers, calls these GPUs, such as tesla. Pods that choose another model do not get the type.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_. ]*[A-Za-z0-9])?$`
	GPUModel string `json:"gpuModel,omitempty"`
	// PricePerHour is what a VM of the type costs in an hour, in a currency of your choice, as a decimal number such as 0.096. A type
	// without a price comes after those that have one.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}([.][0-9]{1,6})?$`
	PricePerHour string `json:"pricePerHour,omitempty"`
	// Zones are where VMs of the type can be made. A pod that chooses one zone gets only a type of that zone. Without them, everywhere.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:MinLength=1
	Zones []string `json:"zones,omitempty"`
}

// VMReserved is what the guest takes of each VM itself.
type VMReserved struct {
	// CPU is how much CPU the guest takes, such as 100m.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numk])?$')",message="cpu is a quantity that is not negative, such as 100m"
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// Memory is how much memory the guest takes, such as 256Mi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).size() <= 32 && string(self).matches('^[0-9]+([.][0-9]+)?([kMGTPE]|[KMGTPE]i)?$')",message="memory is a quantity that is not negative, such as 256Mi"
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// VMCatalogStatus is how many VMs there are, and which types cannot be made now.
type VMCatalogStatus struct {
	// ObservedGeneration is the generation of the catalog that the leader counted.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// VMs is how many pods have a node and a type of the catalog.
	//
	// +optional
	VMs int64 `json:"vms"`
	// VCPUs is how many vCPUs these VMs have.
	//
	// +optional
	VCPUs int64 `json:"vcpus"`
	// Memory is how much memory these VMs have.
	//
	// +optional
	Memory string `json:"memory,omitempty"`
	// PricePerHour is what these VMs cost in an hour. Types without a price count as nothing.
	//
	// +optional
	PricePerHour string `json:"pricePerHour,omitempty"`
	// Types are the types that VMs have now.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=500
	Types []VMTypeStatus `json:"types,omitempty"`
	// Closed are the types that new pods do not get, or only to try them again, because their VMs could not be made.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Closed []ClosedVMType `json:"closed,omitempty"`
	// ClosedTypes names the types that are closed, for a column.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ClosedTypes string `json:"closedTypes,omitempty"`
	// Unfit are pods for which the catalog has no type that is large enough.
	//
	// +optional
	Unfit *UnfitPods `json:"unfit,omitempty"`
	// Conditions are Ready: the catalog holds for a RuntimeClass, and its VMs are counted.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMTypeStatus is how many VMs of a type there are.
type VMTypeStatus struct {
	// Name is the name of the type.
	Name string `json:"name"`
	// VMs is how many pods have a node and this type.
	VMs int64 `json:"vms"`
	// VCPUs is how many vCPUs these VMs have.
	VCPUs int64 `json:"vcpus"`
	// Memory is how much memory these VMs have.
	Memory string `json:"memory"`
	// PricePerHour is what these VMs cost in an hour.
	//
	// +optional
	PricePerHour string `json:"pricePerHour,omitempty"`
}

// VMTypePhase says whether new pods get a type whose VMs could not be made.
//
// +kubebuilder:validation:Enum=Closed;Trying
type VMTypePhase string

// The phases of such a type.
const (
	// VMTypeClosed: no new pod gets the type.
	VMTypeClosed VMTypePhase = "Closed"
	// VMTypeTrying: the next pod gets the type, to find out whether VMs of it can be made again.
	VMTypeTrying VMTypePhase = "Trying"
)

// ClosedVMType is a type whose VMs could not be made.
type ClosedVMType struct {
	// Type is the name of the type.
	Type string `json:"type"`
	// Namespace is the namespace whose pods do not get the type.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Zone is the zone of the nodes on which pods have waited for a VM. It is empty where these nodes have none. Pods that may run on
	// nodes of the zone do not get the type.
	//
	// +optional
	Zone string `json:"zone,omitempty"`
	// Phase says whether new pods get the type.
	Phase VMTypePhase `json:"phase"`
	// Since is when the phase began.
	Since metav1.Time `json:"since"`
	// Tries is how many tries since the type was closed have failed, too.
	//
	// +optional
	Tries int32 `json:"tries,omitempty"`
	// NextTry is when the type is tried again.
	//
	// +optional
	NextTry *metav1.Time `json:"nextTry,omitempty"`
	// Waited is when a pod last waited for a VM of the type for too long, to about a minute.
	//
	// +optional
	Waited metav1.Time `json:"waited,omitzero"`
	// Why says what was seen.
	//
	// +kubebuilder:validation:MaxLength=256
	Why string `json:"why"`
}

// UnfitPods are pods for which a catalog has no type.
type UnfitPods struct {
	// Count is how many there are.
	Count int64 `json:"count"`
	// Namespace and Name are one of them.
	Namespace string `json:"namespace"`
	// Name is the name of that pod.
	Name string `json:"name"`
	// Message names the nearest type, and what that one lacks.
	//
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
}

// VMCatalogList is a list of VMCatalogs.
//
// +kubebuilder:object:root=true
type VMCatalogList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VMCatalog `json:"items"`
}
