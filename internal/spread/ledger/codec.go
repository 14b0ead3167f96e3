package ledger

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// FromSeatLedger reads a ledger as the API has it. Claims that do not parse are left
// out: nobody but Stowage writes them.
func FromSeatLedger(sl *stowage.SeatLedger) (Owner, Object) {
	owner := Owner{Namespace: sl.Namespace, UID: types.UID(sl.Name)}
	for _, r := range sl.OwnerReferences {
		if r.UID == owner.UID {
			owner.APIVersion, owner.Kind, owner.Name = r.APIVersion, r.Kind, r.Name
		}
	}
	o := Object{Version: ParseVersion(sl.ResourceVersion), Writer: sl.Writer, Claims: make([]Claim, 0, len(sl.Claims))}
	for _, text := range sl.Claims {
		if c, ok := parseClaim(text); ok {
			o.Claims = append(o.Claims, c)
		}
	}
	return owner, o
}

// ToSeatLedger returns a ledger as the API has it.
func ToSeatLedger(owner Owner, o *Object) *stowage.SeatLedger {
	sl := &stowage.SeatLedger{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.Namespace, Name: string(owner.UID),
		},
		Writer: o.Writer,
		Claims: make([]string, 0, len(o.Claims)),
	}
	if !owner.Unverified && owner.Name != "" {
		sl.OwnerReferences = []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}}
	}
	if o.Version != 0 {
		sl.ResourceVersion = strconv.FormatUint(o.Version, 10)
	}
	for _, c := range o.Claims {
		sl.Claims = append(sl.Claims, formatClaim(c))
	}
	return sl
}

// aheadMark follows the id of a claim that no pod has yet. A claim that is settled has the version there.
const aheadMark = "ahead"

func formatClaim(c Claim) string {
	buf := make([]byte, 0, 64)
	buf = append(buf, c.Pool...)
	buf = append(buf, '/')
	buf = strconv.AppendInt(buf, c.Ordinal, 10)
	buf = append(buf, ' ')
	buf = append(buf, c.ID...)
	switch {
	case c.Settled != 0:
		buf = append(buf, ' ')
		buf = strconv.AppendUint(buf, c.Settled, 10)
	case c.Ahead:
		buf = append(buf, " "+aheadMark...)
	}
	return string(buf)
}

func parseClaim(text string) (Claim, bool) {
	seat, rest, ok := strings.Cut(text, " ")
	if !ok {
		return Claim{}, false
	}
	pool, ordinal, ok := strings.Cut(seat, "/")
	if !ok {
		return Claim{}, false
	}
	id, settled, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(ordinal, 10, 64)
	if err != nil || n < 1 || id == "" {
		return Claim{}, false
	}
	c := Claim{Seat: Seat{Pool: pool, Ordinal: n}, ID: id}
	switch settled {
	case "":
	case aheadMark:
		c.Ahead = true
	default:
		c.Settled = ParseVersion(settled)
	}
	return c, true
}

// ParseVersion reads a resource version. They are numbers that grow (KEP-5504); of
// one that is none, nothing can be said, and 0 is past no other.
func ParseVersion(s string) uint64 {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return v
}
