package peerpod

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// MaxVMs is the most VMs that a node may be said to have. More is a mistake, not a limit.
const MaxVMs = 100_000

// ParseLimit reads how many VMs a node may have.
func ParseLimit(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 || n > MaxVMs {
		return 0, fmt.Errorf("%.40q is not a whole number from 0 to %d", text, MaxVMs)
	}
	return n, nil
}

// CapacityMode says when nodes advertise VMs.
type CapacityMode string

const (
	// CapacityAuto is CapacityWhenReady where the cluster runs a DaemonSet that makes VMs, or else CapacityAlways.
	CapacityAuto CapacityMode = "Auto"
	// CapacityWhenReady advertises VMs while the node's daemon is Ready.
	CapacityWhenReady CapacityMode = "WhenReady"
	// CapacityAlways advertises VMs on each selected node.
	CapacityAlways CapacityMode = "Always"
	// CapacityOff advertises none.
	CapacityOff CapacityMode = "Off"
)

// CapacityModes are all of them.
var CapacityModes = []CapacityMode{CapacityAuto, CapacityWhenReady, CapacityAlways, CapacityOff}

// None is the absence of an entry.
const None = int64(-1)

// Advertised is what a node advertises of its VMs.
type Advertised struct {
	// Capacity and Allocatable are the entries in the node's status, or None.
	Capacity, Allocatable int64
	// Mark is the annotation that says which amount is ours; "" is none.
	Mark string
}

// AdvertisedBy returns what a node advertises of its VMs, which are an extended resource of it.
func AdvertisedBy(node *corev1.Node, resource string) Advertised {
	amount := func(list corev1.ResourceList) int64 {
		if q, ok := list[corev1.ResourceName(resource)]; ok {
			return q.Value()
		}
		return None
	}
	return Advertised{
		Capacity: amount(node.Status.Capacity), Allocatable: amount(node.Status.Allocatable),
		Mark: node.Annotations[stowage.PeerPodsCapacityAnnotation],
	}
}

// VMsOf returns how many VMs a pod takes, as the scheduler counts them.
func VMsOf(pod *corev1.Pod, resource string) (vms int64) {
	for i := range pod.Spec.Containers {
		q := pod.Spec.Containers[i].Resources.Requests[corev1.ResourceName(resource)]
		vms += q.Value()
	}
	return vms
}

// Change is what to do to a node.
type Change struct {
	// Mark is the annotation's new value; "" removes it.
	Mark string
	// Amount is the new amount in capacity and allocatable; None removes the entries.
	Amount int64
	// Restores is whether the amount was right once and somebody changed it.
	Restores bool
}

// Advertise decides how a node comes to say that it has this many VMs; with 0 it says
// nothing. It returns nil if there is nothing to do, and conflict if the node has an amount
// that another client gave it: that stays. An entry of 0 is nobody's, because a kubelet that
// starts zeroes every entry that it does not know.
func Advertise(now Advertised, want int64) (change *Change, conflict bool) {
	ours := now.Mark != ""
	if want <= 0 {
		if !ours {
			return nil, false
		}
		return &Change{Amount: None}, false
	}
	if !ours && now.Capacity > 0 && now.Capacity != want {
		return nil, true
	}
	mark := strconv.FormatInt(want, 10)
	if now.Mark == mark && now.Capacity == want && now.Allocatable == want {
		return nil, false
	}
	return &Change{Mark: mark, Amount: want, Restores: now.Mark == mark}, false
}
