// Package v1beta1 is the PodDistributor API: how the pods of one workload are divided
// over node pools.
//
// The group, the kind and the fields distribution, nodeLabel, weight and target are
// those of Versprei. Its documented manifests work unchanged; docs/migrate says what is
// refused. All else is optional. What a distribution means is in package sequence.
//
// +kubebuilder:object:generate=true
// +groupName=versprei.versprei.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API's group and version.
var GroupVersion = schema.GroupVersion{Group: "versprei.versprei.io", Version: "v1beta1"}

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &PodDistributor{}, &PodDistributorList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
