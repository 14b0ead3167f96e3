// Package feature is the contract between admission and the features, each of which decides one aspect of a pod. Each
// capability has one, in its package admit:
//
//	spread  where the pod goes
//	size    how big it is
//	vm      what it really consumes
//
// A feature gets a pod and returns the pod that it should become. Package admission asks them
// in turn; controllers and views ask one of them.
package feature

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Feature decides one aspect of a pod.
type Feature interface {
	// Name is the feature's name in metrics, logs and warnings.
	Name() string
	// Decide returns what the pod should become. It must not modify the pod. Its
	// answer for its own output must be that output again.
	Decide(ctx context.Context, req Request) (Decision, error)
}

// SeatGiver is the feature that gives seats. Where it fails, a pod waits at the gate [stowage.SeatGate].
type SeatGiver interface {
	Feature
	GivesSeats()
}

// Request is one pod that is about to be created.
type Request struct {
	Namespace string
	Pod       *podpatch.Pod
	DryRun    bool
	// Exists says that the pod was created before and waits at the gate: its topology spread constraints cannot change any more.
	Exists bool
	// Audit says that the pod is not changed, whatever is decided.
	Audit bool
	// Sized is, by container, the resources whose entries an earlier feature has just
	// decided; "" stands for spec.resources.
	Sized map[string][]corev1.ResourceName
}

// Traceless reports whether a decision must leave nothing behind, because no pod comes of it.
func (r *Request) Traceless() bool { return r.DryRun || r.Audit }

// Decision is a feature's answer for one pod.
type Decision struct {
	// Pod is the pod as the feature wants it. It is nil if the feature has
	// nothing to do with this pod; then the other fields are empty.
	Pod *podpatch.Pod
	// Pool is the pool that the pod goes to, if the feature chose one.
	Pool *Pool
	// Sized is for the features after this one: see [Request].
	Sized map[string][]corev1.ResourceName
	// Summary completes "the pod becomes ..." for people. No program reads it.
	Summary string
	// Warnings are for the user who creates the pod.
	Warnings []string
	// Events are for the pod's owner, who may have nobody to warn.
	Events []Event
	// Wait says why a pod with the gate [stowage.SeatGate] keeps the gate. It is nil if the feature has decided. It is an
	// [ErrUndecidable] if the feature can decide only after somebody has changed something.
	Wait error
}

// ErrUndecidable means that nobody can decide about a pod as things are.
var ErrUndecidable = errors.New("no seat can be decided")

// Pool is a pool with its nodes.
type Pool struct {
	Name  string
	Nodes nodeset.Set
}

// Event is a Kubernetes event of type Warning on a pod's owner.
type Event struct {
	Reason stowage.EventReason
	Note   string
	// Related is the object that is the cause, if there is one.
	Related *corev1.ObjectReference
}

// Written is what an object that is written says about Stowage.
type Written struct {
	Kind            metav1.GroupVersionKind
	Namespace, Name string
	Own             Metadata
	Template        *Metadata // of its pods; nil if it has none
	Spec            []byte    // as JSON
}

// Metadata is where settings stand.
type Metadata struct {
	Annotations map[string]string `json:"annotations"`
	Labels      map[string]string `json:"labels"`
}
