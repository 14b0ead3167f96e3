package ledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

var testOwner = Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func TestKey(t *testing.T) {
	key, other := NewKey(), NewKey()
	h, s := Holder{"ns", "owner"}, Seat{"spot", 7}
	text := key.Sign(OriginClaimed, "id", h, s)
	if origin, id, ok := key.Verify(text, h, s); origin != OriginClaimed || id != "id" || !ok {
		t.Errorf("%q is %c, %s, %t", text, origin, id, ok)
	}
	for name, ok := range map[string]bool{
		"another key":       func() bool { _, _, ok := other.Verify(text, h, s); return ok }(),
		"another namespace": func() bool { _, _, ok := key.Verify(text, Holder{"ns2", "owner"}, s); return ok }(),
		"another owner":     func() bool { _, _, ok := key.Verify(text, Holder{"ns", "owner2"}, s); return ok }(),
		"another ordinal":   func() bool { _, _, ok := key.Verify(text, h, Seat{"spot", 8}); return ok }(),
		"another pool":      func() bool { _, _, ok := key.Verify(text, h, Seat{"spo", 7}); return ok }(),
		"another origin":    func() bool { _, _, ok := key.Verify("o"+text[1:], h, s); return ok }(),
		"another id":        func() bool { _, _, ok := key.Verify(strings.Replace(text, "id", "di", 1), h, s); return ok }(),
		"parts that run into each other": func() bool {
			_, _, ok := key.Verify(key.Sign(OriginClaimed, "id", Holder{"n", "sowner"}, s), h, s)
			return ok
		}(),
		"nothing": func() bool { _, _, ok := key.Verify("", h, s); return ok }(),
		"no id":   func() bool { _, _, ok := key.Verify(".", h, s); return ok }(),
	} {
		if ok {
			t.Errorf("%s verifies", name)
		}
	}
}

func TestSeatLedgerText(t *testing.T) {
	o := Object{Writer: "w", Version: 7, Claims: []Claim{{Seat: Seat{"0", 1}, ID: "abc"}, {Seat: Seat{"on-demand", 12}, ID: "x", Settled: 99}, {Seat: Seat{"0", 2}, ID: "y", Ahead: true}}}
	sl := ToSeatLedger(testOwner, &o)
	if diff := cmp.Diff([]string{"0/1 abc", "on-demand/12 x 99", "0/2 y ahead"}, sl.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if text := formatClaim(Claim{Seat: Seat{"0", 1}, ID: "a", Settled: 5, Ahead: true}); text != "0/1 a 5" {
		t.Errorf("a settled claim is %q", text)
	}
	owner, back := FromSeatLedger(sl)
	if diff := cmp.Diff(o, back); diff != "" || owner != testOwner {
		t.Errorf("owner %v, object (-want +got):\n%s", owner, diff)
	}
	sl.Claims = []string{"", "a", "a/b c", "/", "0/0 x", "0/1 ", "0/-1 x", "1/2 ok more"}
	if _, o := FromSeatLedger(sl); len(o.Claims) != 1 || o.Claims[0].ID != "ok" {
		t.Errorf("claims that do not parse: %v", o.Claims)
	}
}

func BenchmarkDecision(b *testing.B) {
	// One decision of a book with many pods, without the write.
	timing := DefaultTiming()
	book := NewBook(&timing, &Shared{}, "w", NewID)
	s := simulated["base 1, then 1:1"]
	for i := range 10_000 {
		seat, err := s.SeatAt(int64(i + 1))
		if err != nil {
			b.Fatal(err)
		}
		book.PodSeen(0, fmt.Sprint(i), Pod{Seat: Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}, Active: true})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := book.Peek(0, s); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCostRank(t *testing.T) {
	id := NewID()
	marked := WithCostRank(id, 12)
	if got := CostRank(marked); got != 12 {
		t.Errorf("the id %s has rank %d, want 12", marked, got)
	}
	if got := CostRank(id); got != 0 {
		t.Errorf("an id without a rank has rank %d", got)
	}
	if got := WithCostRank(marked, 7); got != WithCostRank(id, 7) {
		t.Errorf("the new rank gives %s, want %s", got, WithCostRank(id, 7))
	}
	// A ledger and a claim keep the whole id.
	seat := Seat{Pool: "spot", Ordinal: 3}
	if c, ok := parseClaim(formatClaim(Claim{Seat: seat, ID: marked})); !ok || c.ID != marked {
		t.Errorf("a ledger keeps %+v of id %s", c, marked)
	}
	key, holder := NewKey(), Holder{"ns", "owner"}
	text := key.Sign(OriginClaimed, marked, holder, seat)
	if _, got, ok := key.Verify(text, holder, seat); !ok || got != marked || UnverifiedID(text) != marked {
		t.Errorf("the claim %s has id %s, verified %t", text, got, ok)
	}
	// Nobody can raise the rank.
	if _, _, ok := key.Verify(strings.Replace(text, "~12", "~13", 1), holder, seat); ok {
		t.Error("a claim with another rank is genuine")
	}
	if UnverifiedID("") != "" {
		t.Error("an empty claim has an id")
	}
}

// A genuine claim is a seat of a pod that exists, unless it was made for a dry run.
func TestSeatOf(t *testing.T) {
	key, seat := NewKey(), Seat{Pool: "spot", Ordinal: 3}
	labels := map[string]string{stowage.PoolLabel: "spot", stowage.SeatLabel: "3"}
	for origin, want := range map[Origin]bool{OriginClaimed: true, OriginUnshared: true, OriginOrdinal: true, OriginAdopted: true, OriginDryRun: false} {
		claim := map[string]string{stowage.ClaimAnnotation: key.Sign(origin, "id", Holder{"ns", "uid"}, seat)}
		got, ok := SeatOf(key, "ns", "uid", labels, claim)
		if ok != want || ok && got != (Carried{Seat: seat, Origin: origin, ID: "id"}) {
			t.Errorf("origin %c: %+v, %t", origin, got, ok)
		}
	}
}

// A seat of a policy is in a pool only if the name and the node selector agree.
func TestSeatOfAPolicy(t *testing.T) {
	key, source := NewKey(), Source{UID: "3f0c", Generation: 7}
	pool := PolicyPool("spot", map[string]string{"type": "spot", "zone": "a"})
	for _, other := range []string{
		PolicyPool("spot", map[string]string{"type": "spot"}), PolicyPool("spot", map[string]string{"type": "spot", "zone": "b"}),
		PolicyPool("spot", map[string]string{"type": "spotzone", "": "a"}), "spot",
	} {
		if other == pool {
			t.Errorf("%s is the pool of two node selectors", pool)
		}
	}
	if again := PolicyPool("spot", map[string]string{"zone": "a", "type": "spot"}); again != pool || PoolName(pool) != "spot" {
		t.Errorf("the pool is %s, and %s", pool, again)
	}
	holder := Holder{"ns", "uid"}
	labels := map[string]string{stowage.PoolLabel: "spot", stowage.SeatLabel: "3"}
	seat := Seat{Pool: pool, Ordinal: 3}
	for _, id := range []string{"", "id", "id~12"} {
		claim := key.Sign(OriginClaimed, WithSource(id, pool, source), holder, seat)
		got, ok := SeatOf(key, "ns", "uid", labels, map[string]string{stowage.ClaimAnnotation: claim})
		if want := (Carried{Seat: seat, Origin: OriginClaimed, ID: id, Source: source}); !ok || got != want || UnverifiedID(claim) != id {
			t.Errorf("the claim %s is %+v (%t)", claim, got, ok)
		}
		for from, to := range map[string]string{":7.": ":8.", "3f0c": "3f0d", sourceMark + strings.TrimPrefix(pool, "spot@"): sourceMark + "AAAAAAAA", sourceMark: "~"} {
			forged := strings.Replace(claim, from, to, 1)
			if _, ok := SeatOf(key, "ns", "uid", labels, map[string]string{stowage.ClaimAnnotation: forged}); ok || forged == claim {
				t.Errorf("the claim %s is genuine", forged)
			}
		}
		if c, ok := parseClaim(formatClaim(Claim{Seat: seat, ID: "id"})); !ok || c.Seat != seat {
			t.Errorf("a ledger keeps %+v", c)
		}
	}
	if WithSource("id", "spot", source) != "id" {
		t.Error("the claim of a pool that is no policy's has a source")
	}
}
