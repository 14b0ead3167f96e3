package ledger

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// SeatOf reads the seat that a pod carries. It returns false if it carries none, or
// one that was not given to it.
func SeatOf(key Key, namespace string, owner types.UID, labels, annotations map[string]string) (s Seat, origin Origin, id string, ok bool) {
	text, labelled := labels[stowage.SeatLabel]
	if !labelled {
		return s, 0, "", false
	}
	ordinal, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ordinal < 1 {
		return s, 0, "", false
	}
	s = Seat{Pool: labels[stowage.PoolLabel], Ordinal: ordinal}
	origin, id, ok = key.Verify(annotations[stowage.ClaimAnnotation], Holder{namespace, string(owner)}, s)
	return s, origin, id, ok && origin != OriginDryRun
}

// FoundFull reports whether a pod carries the proof that the webhook gave it no seat because no pool may have one pod more.
func FoundFull(key Key, namespace string, owner types.UID, annotations map[string]string) bool {
	origin, _, ok := key.Verify(annotations[stowage.ClaimAnnotation], Holder{namespace, string(owner)}, Seat{})
	return ok && origin == OriginFull
}

// Owner is the controller of some pods.
type Owner struct {
	APIVersion, Kind string
	Namespace, Name  string
	UID              types.UID
	// Unverified says that nobody knows whether the owner exists: its kind and name are what a
	// pod's owner reference says. They are never written into a SeatLedger.
	Unverified bool
}

// OwnerKey identifies an owner. A UID alone does not: nobody checks the one in a pod's
// owner reference before us, and it may be of another namespace.
type OwnerKey struct {
	Namespace string
	UID       types.UID
}

// Key identifies the owner.
func (o Owner) Key() OwnerKey { return OwnerKey{o.Namespace, o.UID} }
