package sequence

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// Fingerprint identifies a strategy by its value, however the strategy came about. It stands for the pools in their order, for
// who wins a tie, and for the seats that are left out. It is the SHA-256 of these, cut to 128 bits.
type Fingerprint [16]byte

// String returns the fingerprint as hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Fingerprint returns the strategy's identity.
func (s *Strategy) Fingerprint() Fingerprint { return s.fingerprint }

// Same reports whether two strategies give the same seats in the same order.
func (s *Strategy) Same(other *Strategy) bool {
	return s == other || s != nil && other != nil && s.fingerprint == other.fingerprint
}

// digest is a hash of values, each with its length before it, so that none runs into the next.
type digest struct {
	hash.Hash
	buf []byte
}

func newDigest() *digest { return &digest{Hash: sha256.New()} }

func (d *digest) number(n int64) {
	d.buf = binary.AppendVarint(d.buf[:0], n)
	d.Write(d.buf)
}

func (d *digest) text(s string) {
	d.number(int64(len(s)))
	d.buf = append(d.buf[:0], s...)
	d.Write(d.buf)
}

func (d *digest) fingerprint() (f Fingerprint) {
	copy(f[:], d.Sum(d.buf[:0]))
	return f
}

// SelectorHash returns 48 bits of a hash of what selects nodes, as text.
func SelectorHash(nodes nodeset.Set) string {
	h := sha256.New()
	buf := make([]byte, 0, 256)
	text := func(part string) {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	for _, key := range slices.Sorted(maps.Keys(nodes.Labels)) {
		text(key)
		text(nodes.Labels[key])
	}
	for i := range nodes.Expressions {
		text("") // no label has this key
		for _, part := range partsOf(&nodes.Expressions[i]) {
			text(part)
		}
	}
	h.Write(buf)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:6])
}

// partsOf is an expression as texts.
func partsOf(r *corev1.NodeSelectorRequirement) []string {
	return append([]string{r.Key, string(r.Operator), strconv.Itoa(len(r.Values))}, r.Values...)
}

// SelectorHash returns the [SelectorHash] of a pool's nodes.
func (s *Strategy) SelectorHash(pool int) string { return s.selectors[pool] }

// fingerprintOf returns the identity of a strategy without gaps.
func fingerprintOf(pools []Pool, tie Tie) Fingerprint {
	d := newDigest()
	if tie == LaterWins {
		d.number(1)
	} else {
		d.number(0)
	}
	for i := range pools {
		p := &pools[i]
		d.text(p.Key())
		d.number(int64(len(p.Labels)))
		for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
			d.text(key)
			d.text(p.Labels[key])
		}
		for _, n := range []int64{p.Base, p.Weight, p.Max, p.Overflow} {
			d.number(n)
		}
	}
	for i := range pools {
		if pools[i].MaxShare > 0 {
			d.number(int64(i))
			d.number(pools[i].MaxShare)
		}
	}
	for i := range pools {
		for j := range pools[i].Expressions {
			d.number(-1 - int64(i)) // no index of a pool with a MaxShare
			for _, part := range partsOf(&pools[i].Expressions[j]) {
				d.text(part)
			}
		}
	}
	return d.fingerprint()
}

// without returns the identity of the strategy with some seats left out. Where a gap that leaves out no seat begins says nothing.
func (f Fingerprint) without(gaps []Gap) Fingerprint {
	d := newDigest()
	d.Write(f[:])
	for _, g := range gaps {
		if g.Count <= 0 {
			g = Gap{}
		}
		d.number(g.From)
		d.number(g.Count)
	}
	return d.fingerprint()
}
