package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

var testOwner = Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func TestKey(t *testing.T) {
	key, other := NewKey(), NewKey()
	h, s := Holder{"ns", "owner"}, Seat{Pool: "spot", Ordinal: 7}
	text := key.Sign(OriginClaimed, "id", h, s)
	if origin, id, ok := key.Verify(text, h, s); origin != OriginClaimed || id != "id" || !ok {
		t.Errorf("%q is %c, %s, %t", text, origin, id, ok)
	}
	if origin, id, ok := key.Verify("no proof", h, s); origin != 0 || id != "" || ok {
		t.Errorf("a text without a proof is %c, %s, %t", origin, id, ok)
	}
	for name, ok := range map[string]bool{
		"another key":       func() bool { _, _, ok := other.Verify(text, h, s); return ok }(),
		"another namespace": func() bool { _, _, ok := key.Verify(text, Holder{"ns2", "owner"}, s); return ok }(),
		"another owner":     func() bool { _, _, ok := key.Verify(text, Holder{"ns", "owner2"}, s); return ok }(),
		"another ordinal":   func() bool { _, _, ok := key.Verify(text, h, Seat{Pool: "spot", Ordinal: 8}); return ok }(),
		"another domain":    func() bool { _, _, ok := key.Verify(text, h, Seat{Pool: "spot", Ordinal: 7, Domain: "a"}); return ok }(),
		"another pool":      func() bool { _, _, ok := key.Verify(text, h, Seat{Pool: "spo", Ordinal: 7}); return ok }(),
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
	o := Object{Writer: "w", Version: 7, Claims: []Claim{{Seat: Seat{Pool: "0", Ordinal: 1}, ID: "abc"}, {Seat: Seat{Pool: "on-demand", Ordinal: 12}, ID: "x", Settled: 99}, {Seat: Seat{Pool: "0", Ordinal: 2}, ID: "y", Ahead: true}}}
	sl := ToSeatLedger(testOwner, &o)
	if diff := cmp.Diff([]string{"0/1 abc", "on-demand/12 x 99", "0/2 y ahead"}, sl.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if text := formatClaim(Claim{Seat: Seat{Pool: "0", Ordinal: 1}, ID: "a", Settled: 5, Ahead: true}); text != "0/1 a 5" {
		t.Errorf("a settled claim is %q", text)
	}
	owner, back := FromSeatLedger(sl)
	if diff := cmp.Diff(o, back); diff != "" || owner != testOwner {
		t.Errorf("owner %v, object (-want +got):\n%s", owner, diff)
	}
	sl.Claims = []string{"", "a", "a b", "a/b c", "/", "0/0 x", "0/1 ", "0/-1 x", "1/2 ok more"}
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
	pool := PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spot", "zone": "a"}})
	for _, other := range []string{
		PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spot"}}), PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spot", "zone": "b"}}),
		PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spotzone", "": "a"}}), "spot",
	} {
		if other == pool {
			t.Errorf("%s is the pool of two node selectors", pool)
		}
	}
	expression := []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"b"}}}
	if PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spot", "zone": "a"}, Expressions: expression}) == pool {
		t.Errorf("%s is the pool of an expression, too", pool)
	}
	if again := PolicyPool("spot", nodeset.Set{Labels: map[string]string{"zone": "a", "type": "spot"}}); again != pool || PoolName(pool) != "spot" {
		t.Errorf("the pool is %s, and %s", pool, again)
	}
	holder := Holder{"ns", "uid"}
	labels := map[string]string{stowage.PoolLabel: "spot", stowage.SeatLabel: "3"}
	seat := Seat{Pool: pool, Ordinal: 3}
	for _, id := range []string{"", "id", "id~12"} {
		claim := key.Sign(OriginClaimed, WithSource(id, pool, source), holder, seat)
		got, ok := SeatOf(key, "ns", "uid", labels, map[string]string{stowage.ClaimAnnotation: claim})
		if want := (Carried{Seat: seat, Origin: OriginClaimed, ID: id, Source: Source{source.UID, source.Generation, strings.TrimPrefix(pool, "spot@")}}); !ok || got != want || UnverifiedID(claim) != id {
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

	// Of another source it has the hash alone, and no part of the pool's key.
	seat.Pool, source = "spot", Source{Selector: sequence.SelectorHash(nodeset.Set{Labels: map[string]string{"type": "spot"}})}
	for _, id := range []string{"", "id", "id~12"} {
		claim := key.Sign(OriginClaimed, WithSource(id, "spot", source), holder, seat)
		got, ok := SeatOf(key, "ns", "uid", labels, map[string]string{stowage.ClaimAnnotation: claim})
		if want := (Carried{Seat: seat, Origin: OriginClaimed, ID: id, Source: source}); !ok || got != want || UnverifiedID(claim) != id || UnverifiedSource(claim).UID != "" {
			t.Errorf("the claim %s is %+v (%t)", claim, got, ok)
		}
		if _, ok := SeatOf(key, "ns", "uid", labels, map[string]string{stowage.ClaimAnnotation: strings.Replace(claim, source.Selector, "AAAAAAAA", 1)}); ok {
			t.Error("a claim with another hash is genuine")
		}
	}
}

func TestOrigins(t *testing.T) {
	key, h, seat := NewKey(), Holder{"ns", "uid"}, Seat{Pool: "spot", Ordinal: 3}
	admitted := map[Origin]bool{OriginClaimed: true, OriginUnshared: true, OriginOrdinal: true}
	for _, origin := range []Origin{OriginClaimed, OriginUnshared, OriginOrdinal, OriginAdopted, OriginDryRun, OriginFull} {
		if got := origin.Admitted(); got != admitted[origin] {
			t.Errorf("admitted with origin %c: %t", origin, got)
		}
		// Only this origin says that there was no seat, and only if the claim is genuine.
		at := Seat{}
		if origin != OriginFull {
			at = seat
		}
		full := map[string]string{stowage.ClaimAnnotation: key.Sign(origin, "", h, at)}
		if got := FoundFull(key, h.Namespace, types.UID(h.Owner), full); got != (origin == OriginFull) {
			t.Errorf("full with origin %c: %t", origin, got)
		}
		if FoundFull(NewKey(), h.Namespace, types.UID(h.Owner), full) {
			t.Errorf("full with origin %c of another key", origin)
		}
	}
	if FoundFull(key, h.Namespace, types.UID(h.Owner), nil) {
		t.Error("full without a claim")
	}
}

// What a pod's labels and claim say of its seat.
func TestReadCarried(t *testing.T) {
	key, h := NewKey(), Holder{"ns", "uid"}
	for name, tc := range map[string]struct {
		pool, ordinal string
		signed        Seat
		ok            bool
	}{
		"the first seat":      {"spot", "1", Seat{Pool: "spot", Ordinal: 1}, true},
		"a later one":         {"spot", "10", Seat{Pool: "spot", Ordinal: 10}, true},
		"ordinal 0":           {"spot", "0", Seat{Pool: "spot", Ordinal: 0}, false},
		"a negative ordinal":  {"spot", "-1", Seat{Pool: "spot", Ordinal: -1}, false},
		"no number":           {"spot", "x", Seat{Pool: "spot", Ordinal: 0}, false},
		"no ordinal":          {"spot", "", Seat{Pool: "spot", Ordinal: 0}, false},
		"another ordinal":     {"spot", "2", Seat{Pool: "spot", Ordinal: 1}, false},
		"a hexadecimal digit": {"spot", "a", Seat{Pool: "spot", Ordinal: 10}, false},
		"no label":            {"spot", "-", Seat{Pool: "spot", Ordinal: 1}, false},
	} {
		labels := map[string]string{stowage.PoolLabel: tc.pool, stowage.SeatLabel: tc.ordinal}
		if tc.ordinal == "-" {
			delete(labels, stowage.SeatLabel)
		}
		claim := map[string]string{stowage.ClaimAnnotation: key.Sign(OriginClaimed, "id", h, tc.signed)}
		if got, ok := Read(key, h.Namespace, types.UID(h.Owner), labels, claim); ok != tc.ok || ok && got.Seat != tc.signed {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
}

// Decisions made offline: one after the other for each owner.
func TestMemory(t *testing.T) {
	m, other := NewMemory(), testOwner
	other.UID = "other"
	ids := map[string]bool{}
	for _, owner := range []Owner{testOwner, other} {
		for n := int64(1); n <= 2; n++ {
			want := Seat{Pool: "0", Ordinal: n}
			peeked, err := m.Peek(owner, limited())
			if err != nil || peeked != want {
				t.Fatalf("peek: %v, %v, want %v", peeked, err, want)
			}
			got, err := m.Claim(t.Context(), owner, limited(), false)
			if err != nil || got.Seat != want || !got.Written || ids[got.ID] {
				t.Fatalf("claim: %+v, %v, want %v", got, err, want)
			}
			ids[got.ID] = true
			if claimed, err := m.Claimed(t.Context(), owner, got.ID); err != nil || !claimed {
				t.Errorf("the claim %s is not known: %v", got.ID, err)
			}
		}
		if _, err := m.Peek(owner, limited()); !errors.Is(err, sequence.ErrFull) {
			t.Errorf("peek beyond the pools: %v", err)
		}
		if got, err := m.Claim(t.Context(), owner, limited(), false); !errors.Is(err, sequence.ErrFull) || got.Written {
			t.Errorf("claim beyond the pools: %+v, %v", got, err)
		}
	}
	if claimed, _ := m.Claimed(t.Context(), testOwner, "never"); claimed {
		t.Error("a claim that was never made is known")
	}
}

func TestUnshared(t *testing.T) {
	got, err := Unshared(limited(), true)
	if err != nil || got.Seat != (Seat{Pool: "0", Ordinal: 1}) || got.Written || CostRank(got.ID) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Each wait for room in the API server is twice as long as the one before it, up to eight times the first one.
func TestLoad(t *testing.T) {
	var l Load
	now := time.Hour
	for i, wait := range []time.Duration{1, 2, 4, 8, 8, 8} {
		if got, want := l.full(), i >= 2; got != want {
			t.Errorf("full after %d waits: %t", i, got)
		}
		l.Refused(now, time.Second)
		if l.until != now+wait*time.Second {
			t.Fatalf("wait %d is %s, want %d s", i+1, l.until-now, wait)
		}
		l.Refused(l.until-1, time.Second) // was sent before
		now = l.until
	}
	l.Served()
	if l.full() || l.until != 0 {
		t.Error("there was room, and the wait goes on")
	}
	if l.Refused(now, time.Second); l.until != now+time.Second {
		t.Errorf("the first wait after that is %s", l.until-now)
	}
}

// A watch that begins anew knows nothing.
func TestWatchReset(t *testing.T) {
	var w Watch
	w.Reached(5)
	w.wrote(time.Second, 4)
	w.wrote(2*time.Second, 7)
	w.wrote(3*time.Second, 8)
	w.note(time.Second, 9)
	w.Reset()
	if w.reached != 0 || w.shown != 0 || w.next != (sighting{}) || w.last != (sighting{}) || w.noted != nil {
		t.Errorf("it has %d, %s, %v, %v, %v", w.reached, w.shown, w.next, w.last, w.noted)
	}
	for i := range uint64(2 * mostNotes) {
		w.note(time.Duration(i)*time.Second, i+1)
	}
	if len(w.noted) != mostNotes || w.noted[mostNotes-1] != (sighting{(mostNotes - 1) * time.Second, 2 * mostNotes}) {
		t.Errorf("it keeps %d notes, the last of %v", len(w.noted), w.noted[len(w.noted)-1])
	}
}

// What pods and ledgers carry stays what it was, so that versions of Stowage side by side read each other's claims.
func TestStoredForms(t *testing.T) {
	key := make(Key, KeySize)
	pool := PolicyPool("spot", nodeset.Set{Labels: map[string]string{"type": "spot", "zone": "a"}})
	for name, tc := range map[string]struct{ got, want string }{
		"a claim":         {key.Sign(OriginClaimed, "id", Holder{"ns", "uid"}, Seat{Pool: "spot", Ordinal: 7}), "cid.2oRvHsZUR64ymSFQDQWhEw"},
		"a policy's pool": {pool, "spot@NKCxkoIh"},
		"an id with both": {WithSource(WithCostRank("id", 12), pool, Source{UID: "uid", Generation: 12}), "id~12!NKCxkoIh:uid:12"},
		"an id of others": {WithSource("id~12", "spot", Source{Selector: "NKCxkoIh"}), "id~12!:::NKCxkoIh"},
		"a ledger's line": {formatClaim(Claim{Seat: Seat{Pool: "spot", Ordinal: 12}, ID: "id", Settled: 34}), "spot/12 id 34"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %q, want %q", name, tc.got, tc.want)
		}
	}
	a, b := NewID(), NewID()
	if len(a) != 14 || a == b {
		t.Errorf("ids are %q and %q, want two of 80 bits", a, b)
	}
	if id, hash, source := cutSource(WithSource("id", pool, Source{UID: "uid", Generation: 12})); id != "id" || "spot@"+hash != pool || source != (Source{"uid", 12, hash}) {
		t.Errorf("the parts are %q, %q and %v", id, hash, source)
	}
	if ParseVersion("12") != 12 || ParseVersion("x") != 0 || ParseVersion("-1") != 0 {
		t.Error("a resource version is read otherwise")
	}
	if sl := ToSeatLedger(Owner{Namespace: "ns", UID: "uid", Name: "web", Unverified: true}, &Object{Version: 12}); sl.OwnerReferences != nil || sl.ResourceVersion != "12" {
		t.Errorf("the SeatLedger of an owner that nobody knows is %+v", sl)
	}
	if sl := ToSeatLedger(Owner{Namespace: "ns", UID: "uid"}, &Object{}); sl.OwnerReferences != nil || sl.ResourceVersion != "" {
		t.Errorf("the SeatLedger of an owner without a name is %+v", sl)
	}
}
