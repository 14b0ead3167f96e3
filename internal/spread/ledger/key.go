package ledger

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Key signs seats, so that nobody can take one by writing a label. The replicas share
// it.
type Key []byte

// KeySize is the length of a key in bytes.
const KeySize = 32

// NewKey returns a random key.
func NewKey() Key {
	k := make(Key, KeySize)
	_, _ = rand.Read(k) // never fails (crypto/rand)
	return k
}

// Origin says where a seat comes from.
type Origin byte

// The origins of seats.
const (
	OriginClaimed  Origin = 'c' // claimed in the ledger
	OriginUnshared Origin = 'u' // given without the ledger, because the API was too slow
	OriginDryRun   Origin = 'd' // decided for a dry run; worth nothing otherwise
	OriginOrdinal  Origin = 'o' // follows from the pod's own ordinal
	OriginAdopted  Origin = 'a' // given to a pod that was there already
	OriginFull     Origin = 'f' // no seat: every pool had its maximum when the pod was created
)

// Admitted reports whether the webhook gave the seat when the pod was created.
func (o Origin) Admitted() bool {
	return o == OriginClaimed || o == OriginUnshared || o == OriginOrdinal
}

// NewID returns the id of a claim, which nobody has used: 80 random bits.
func NewID() string {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// rankMark separates the parts of a claim's id. They are what makes it unique, the rank for which Stowage wrote the pod's deletion cost,
// and the pod's position.
const rankMark = "~"

// WithCostRank returns a claim's id that also says for which rank Stowage writes the pod's deletion cost.
func WithCostRank(id string, rank int64) string {
	id, _, _ = strings.Cut(id, rankMark)
	return id + rankMark + strconv.FormatInt(rank, 10)
}

// BaseID returns a claim's id without what [WithCostRank] and [WithPosition] add. No two claims have the same one.
func BaseID(id string) string {
	id, _, _ = strings.Cut(id, rankMark)
	return id
}

// CostRank returns the rank for which Stowage wrote the deletion cost of a claim's pod, or 0 if the id names none.
func CostRank(id string) int64 { return numberIn(id, 1) }

// WithPosition returns a claim's id that also says which position the pod has. The position is the pod's place, from 1, among the
// pods of its pool in the order of their ordinals. It differs from the ordinal where the pods of a pool leave out some ordinals, so that
// each is in its own domain. Then the deletion cost follows the position.
//
// With the position 0, the id names none.
func WithPosition(id string, position int64) string {
	id, rest, marked := strings.Cut(id, rankMark)
	rank, _, _ := strings.Cut(rest, rankMark)
	switch {
	case position == 0 && !marked:
		return id
	case position == 0:
		return id + rankMark + rank
	}
	return id + rankMark + cmp.Or(rank, "0") + rankMark + strconv.FormatInt(position, 10)
}

// Position returns the position of a claim's pod: see [WithPosition]. It is 0 if the id names none; then it is the ordinal.
func Position(id string) int64 { return numberIn(id, 2) }

// numberIn returns a number of an id, or 0 if it has none.
func numberIn(id string, part int) int64 {
	for range part {
		_, id, _ = strings.Cut(id, rankMark)
	}
	text, _, _ := strings.Cut(id, rankMark)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Source is where a seat comes from. A PodDistributor or annotations have no UID and no generation here; a policy has both.
type Source struct {
	UID        types.UID
	Generation int64
	// Selector is the [sequence.SelectorHash] of the pool whose node selector the pod got as it was created, or empty.
	Selector string
}

// Same reports whether two sources are one generation of one policy, or no policy.
func (s Source) Same(other Source) bool {
	return s.UID == other.UID && s.Generation == other.Generation
}

// sourceMark separates the id of a claim from its source in a pod's annotation. poolMark separates the name of a policy's pool from a
// hash of its node selector.
const (
	sourceMark = "!"
	poolMark   = "@"
)

// PolicyPool returns the [sequence.Pool.ID] of a policy's pool: its name with 48 bits of a hash of what selects its nodes. So a pool of
// one policy is never that of another policy, or that of before an edit, which selects other nodes.
func PolicyPool(name string, nodes nodeset.Set) string {
	return name + poolMark + sequence.SelectorHash(nodes)
}

// PoolName returns the name of a pool by its [sequence.Pool.Key].
func PoolName(key string) string {
	name, _, _ := strings.Cut(key, poolMark)
	return name
}

// WithSource returns the id that a claim has in a pod's annotation. Beside the claim's own id it has the hash of the pool's
// node selector and, for a policy's, the UID and generation of the policy. The proof covers all of it.
func WithSource(id, pool string, source Source) string {
	switch _, hash, ok := strings.Cut(pool, poolMark); {
	case ok:
		return id + sourceMark + hash + ":" + string(source.UID) + ":" + strconv.FormatInt(source.Generation, 10)
	case source.Selector != "":
		return id + sourceMark + otherSource + source.Selector // versions before 27 November 2026 read no hash and no policy
	}
	return id
}

// otherSource stands before the hash of a node selector where the source is no policy.
const otherSource = ":::"

// cutSource returns the parts of an id that [WithSource] made. The hash is that of a policy's pool.
func cutSource(text string) (id, hash string, source Source) {
	id, rest, _ := strings.Cut(text, sourceMark)
	if selector, ok := strings.CutPrefix(rest, otherSource); ok {
		return id, "", Source{Selector: selector}
	}
	hash, rest, _ = strings.Cut(rest, ":")
	uid, generation, _ := strings.Cut(rest, ":")
	n, _ := strconv.ParseInt(generation, 10, 64)
	return id, hash, Source{types.UID(uid), n, hash}
}

// Holder may hold a seat: it stands for the pods of one owner.
type Holder struct{ Namespace, Owner string }

// Sign returns the value of a pod's claim annotation: the origin, the claim's id and a proof. The proof (HMAC-SHA-256,
// cut to 128 bits) is that this holder was given this seat.
func (k Key) Sign(origin Origin, id string, h Holder, s Seat) string {
	return string(origin) + id + "." + k.mac(origin, id, h, s)
}

// Verify returns the origin and the id of a claim annotation, or false if the seat was
// not given to this holder. The id has the source, if the claim has one.
func (k Key) Verify(text string, h Holder, s Seat) (Origin, string, bool) {
	head, mac, ok := strings.Cut(text, ".")
	if !ok || head == "" {
		return 0, "", false
	}
	origin, id := Origin(head[0]), head[1:]
	return origin, id, hmac.Equal([]byte(mac), []byte(k.mac(origin, id, h, s)))
}

// UnverifiedID returns the id in a claim annotation, for readers that do not have the key.
func UnverifiedID(text string) string {
	id, _, _ := cutSource(unverified(text))
	return id
}

// UnverifiedSource returns the policy that a claim annotation names, for readers that do not have the key.
func UnverifiedSource(text string) Source {
	_, _, source := cutSource(unverified(text))
	return source
}

// unverified is the id in a claim annotation, with its source.
func unverified(text string) string {
	head, _, _ := strings.Cut(text, ".")
	return head[min(1, len(head)):]
}

// PoolOf returns the [sequence.Pool.Key] of the pool that a pod's label and its claim annotation name. It proves nothing.
func PoolOf(label, claim string) string {
	if _, hash, _ := cutSource(unverified(claim)); hash != "" {
		return label + poolMark + hash
	}
	return label
}

func (k Key) mac(origin Origin, id string, h Holder, s Seat) string {
	m := hmac.New(sha256.New, k)
	// Each part with its length before it, so that none runs into the next.
	buf := make([]byte, 0, 256)
	for _, part := range []string{string(origin), id, h.Namespace, h.Owner, s.Pool} {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	buf = binary.AppendVarint(buf, s.Ordinal)
	buf = append(buf, s.Domain...) // the rest, so that a seat without a domain has the proof that it always had
	m.Write(buf)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:16])
}
