package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SeatLedger is how the replicas of Stowage tell each other which seats of a workload
// they have given to pods that are not there yet. Stowage makes and removes it; there
// is nothing in it to edit. Its name is the UID of its owner, the pods' controller.
//
// +kubebuilder:object:root=true
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.metadata.ownerReferences[0].kind`,description="Kind of the pods' controller"
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.metadata.ownerReferences[0].name`,description="Name of the pods' controller"
// +kubebuilder:printcolumn:name="Writer",type=string,JSONPath=`.writer`,description="Replica that wrote last"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SeatLedger struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Writer is the replica that wrote last.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Writer string `json:"writer,omitempty"`

	// Claims are the seats given within the last minute, in the order in which they
	// were given, each as "pool/ordinal id". Once its pod was seen, the pod's resource version
	// follows. The word "ahead" follows while a replica keeps the seat for a pod to come. They are texts, because a burst of pods writes
	// thousands of them again and again.
	//
	// +optional
	// +listType=atomic
	Claims []string `json:"claims,omitempty"`
}

// SeatLedgerList is a list of SeatLedgers.
//
// +kubebuilder:object:root=true
type SeatLedgerList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SeatLedger `json:"items"`
}
