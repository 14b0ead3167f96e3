// Package v1alpha1 is the FlexDaemonsetTemplate API: how big the pods of a DaemonSet
// are, relative to the node that each of them runs on.
//
// The group, the kind, the percentages and the minimums are those of FlexDaemonsets,
// whose manifests work unchanged; all else is optional. What a template means is in
// package sizing.
//
// +kubebuilder:object:generate=true
// +groupName=flexdaemonsets.xai
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API's group and version.
var GroupVersion = schema.GroupVersion{Group: "flexdaemonsets.xai", Version: "v1alpha1"}

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &FlexDaemonsetTemplate{}, &FlexDaemonsetTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
