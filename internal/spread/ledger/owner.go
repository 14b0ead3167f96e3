package ledger

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// Carried is a seat as a pod carries it.
type Carried struct {
	Seat
	Origin Origin
	ID     string // of its claim
	Source Source
}

// Read reads the seat that a pod carries, also one of a dry run. It returns false if the pod carries none, or one that was not given
// to it.
func Read(key Key, namespace string, owner types.UID, labels, annotations map[string]string) (c Carried, ok bool) {
	if c = Unverified(labels, annotations); c.Ordinal < 1 {
		return Carried{}, false
	}
	_, _, ok = key.Verify(annotations[stowage.ClaimAnnotation], Holder{namespace, string(owner)}, c.Seat)
	return c, ok
}

// Unverified is what a pod's labels and its claim say of a seat, for readers that do not have the key. The ordinal is 0 if they name no seat.
func Unverified(labels, annotations map[string]string) (c Carried) {
	claim := annotations[stowage.ClaimAnnotation]
	c.Seat = Seat{Pool: PoolOf(labels[stowage.PoolLabel], claim), Domain: labels[stowage.DomainLabel]}
	if ordinal, err := strconv.ParseInt(labels[stowage.SeatLabel], 10, 64); err == nil {
		c.Ordinal = max(0, ordinal)
	}
	if claim != "" {
		c.Origin = Origin(claim[0])
	}
	c.ID, _, c.Source = cutSource(unverified(claim))
	return c
}

// SeatOf is [Read] without the seats of dry runs, which no pod has.
func SeatOf(key Key, namespace string, owner types.UID, labels, annotations map[string]string) (Carried, bool) {
	c, ok := Read(key, namespace, owner, labels, annotations)
	return c, ok && c.Origin != OriginDryRun
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
