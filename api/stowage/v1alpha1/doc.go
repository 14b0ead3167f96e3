// Package v1alpha1 holds the names that Stowage reads from and writes to the
// Kubernetes API (labels, annotations, resources and their allowed values), and the
// kinds of its own group.
//
// Every name stands here once. The package decides nothing. Of Stowage it imports the kinds of another group alone, whose parts a
// policy has, too.
//
// +kubebuilder:object:generate=true
// +groupName=stowage.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of these types.
var GroupVersion = schema.GroupVersion{Group: "stowage.dev", Version: "v1alpha1"}

// AddToScheme makes these types known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &SeatLedger{}, &SeatLedgerList{}, &PoolState{}, &PoolStateList{},
		&SpreadPolicy{}, &SpreadPolicyList{}, &ClusterSpreadPolicy{}, &ClusterSpreadPolicyList{},
		&ScaleDownPolicy{}, &ScaleDownPolicyList{}, &ClusterScaleDownPolicy{}, &ClusterScaleDownPolicyList{},
		&VMCatalog{}, &VMCatalogList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
