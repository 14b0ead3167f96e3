// Package v1beta1 is the PodDistributor API: how the pods of one workload are divided
// over node pools.
//
// The group, the kind and the fields distribution, nodeLabel, weight and target are
// those of Versprei, whose manifests work unchanged; all else is optional. What a
// distribution means is in package spread.
//
// +kubebuilder:object:generate=true
// +groupName=versprei.versprei.io
package v1beta1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

// GroupVersion is the API's group and version.
var GroupVersion = schema.GroupVersion{Group: "versprei.versprei.io", Version: "v1beta1"}

// SchemeBuilder adds the types to a scheme.
var SchemeBuilder = (&scheme.Builder{GroupVersion: GroupVersion}).Register(&PodDistributor{}, &PodDistributorList{})

// AddToScheme adds the types to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme
