package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

var start = time.Unix(1000, 0)

func put(q *queue, owner string, names ...string) {
	for i, name := range names {
		q.put(waiting{namespace: "ns", name: name, uid: types.UID(name), owner: types.UID(owner), created: int64(100 + i)}, nil)
	}
}

func taken(q *queue, now time.Time) (string, []*waiting) {
	batch, next := q.take("ns", now)
	var names []string
	for _, w := range batch {
		names = append(names, w.name)
	}
	if len(batch) > 0 {
		defer q.done(batch[0])
	}
	if len(batch) == 0 && !next.IsZero() {
		return "in " + next.Sub(now).String(), nil
	}
	return strings.Join(names, " "), batch
}

func TestTurns(t *testing.T) {
	q := newQueue()
	now := start
	expect := func(what, want string) []*waiting {
		t.Helper()
		got, batch := taken(q, now)
		if got != want {
			t.Fatalf("%s: took %q, want %q", what, got, want)
		}
		return batch
	}
	expect("nobody waits", "")

	// Owners take turns, and their pods go by creation.
	put(q, "a", "a1", "a2")
	q.put(waiting{namespace: "ns", name: "a0", uid: "a0", owner: "a", created: 1}, nil)
	put(q, "b", "b1")
	for i := range perTurn + 1 {
		put(q, "c", fmt.Sprintf("c%03d", i))
	}
	a := expect("the oldest first", "a0 a1 a2")
	q.drop("b1")
	first, _ := taken(q, now)
	if n := len(strings.Fields(first)); n != perTurn {
		t.Fatalf("a turn has %d pods", n)
	}
	if q.put(waiting{namespace: "ns", name: "a1", uid: "a1", owner: "a"}, nil) {
		t.Error("a pod that was taken was put a second time")
	}

	// What nobody can decide about comes after a while, and what is undecidable after a longer one.
	q.again(now, a[0])
	q.drop("a1")
	q.later(now, a[2:])
	expect("the next owner", fmt.Sprintf("c%03d", perTurn))
	expect("nobody's turn", "in 250ms")
	now = now.Add(250 * time.Millisecond)
	q.later(now, expect("tried soon", "a2"))
	expect("later the second time", "in 500ms")
	now = now.Add(500 * time.Millisecond)
	q.written(expect("again", "a2")[0])
	q.drop("a2")
	expect("the undecidable one", "in 4.25s")
	now = now.Add(4250 * time.Millisecond)
	expect("the undecidable one", "a0")
	q.drop("a0")
	for n := range strings.FieldsSeq(first) {
		q.drop(types.UID(n))
	}
	q.drop(types.UID(fmt.Sprintf("c%03d", perTurn)))
	expect("all are gone", "")
	if n, oldest := q.state(); n != 0 || !oldest.IsZero() || len(q.namespaces)+len(q.counts)+q.kept != 0 {
		t.Errorf("%d pods, the oldest of %s, and %d namespaces are left", n, oldest, len(q.namespaces))
	}
}

// Pods that are missing in a new list are gone. The queue knows the oldest of the others.
func TestKeep(t *testing.T) {
	q := newQueue()
	put(q, "a", "a1", "a2", "a3")
	q.keep(map[types.UID]bool{"a2": true})
	if got, _ := taken(q, start); got != "a2" {
		t.Errorf("took %q", got)
	}
	if n, oldest := q.state(); n != 1 || !oldest.Equal(time.Unix(101, 0)) {
		t.Errorf("%d pods, the oldest of %s", n, oldest)
	}
}

// Pods that are given back stand in the order of their creation, pods that are gone are left out, and what is empty is forgotten.
func TestGivenBack(t *testing.T) {
	q := newQueue()
	key := ledger.OwnerKey{Namespace: "ns", UID: "a"}
	if q.waits(key) {
		t.Error("a pod waits before there is one")
	}
	put(q, "a", "a0", "a1", "a2", "a3", "a4")
	q.put(waiting{namespace: "ns", name: "only", uid: "only", owner: "b", created: 1}, nil)
	put(q, "c", "c0")
	now := start
	_, a := taken(q, now)
	if len(a) != 5 || !q.waits(key) {
		t.Fatalf("%d pods are taken", len(a))
	}

	// 1. Owners whose pods are all gone lose their turn, and no other one does.
	q.drop("only")
	if got, _ := taken(q, now); got != "c0" {
		t.Errorf("took %q, want c0", got)
	}
	if ns := q.namespaces["ns"]; len(ns.turns) != 2 || len(ns.byUID) != 2 {
		t.Errorf("%d owners have a turn, and %d are known", len(ns.turns), len(ns.byUID))
	}

	// 2. The youngest are given back first; a new one is older than all.
	q.later(now, a[3:])
	q.wait(now.Add(firstRetry), a[1])
	q.wait(now.Add(time.Hour), a[0])
	q.drop("a4")
	q.put(waiting{namespace: "ns", name: "a-first", uid: "a-first", owner: "a", created: 7}, nil)
	now = now.Add(firstRetry)
	if got, _ := taken(q, now); got != "a-first a0 a1 a3" {
		t.Errorf("took %q", got)
	}

	// 3. Pods that are tried again and are gone are forgotten, with their namespace.
	q.wait(now.Add(time.Second), a[3])
	q.keep(nil)
	if got, _ := taken(q, now); got != "" || len(q.namespaces) != 0 || q.waits(key) {
		t.Errorf("took %q, and %d namespaces are known", got, len(q.namespaces))
	}
}

// A full turn of pods is in order, and so are those after it.
func TestFullTurns(t *testing.T) {
	q := newQueue()
	for i := range 3 * perTurn {
		q.put(waiting{namespace: "ns", name: fmt.Sprintf("p%03d", 3*perTurn-i), uid: types.UID(fmt.Sprint(i)), owner: "a", created: int64(3*perTurn - i)}, nil)
	}
	for turn := range 3 {
		got, batch := taken(q, start)
		if len(batch) != perTurn || batch[0].created != int64(turn*perTurn+1) || batch[perTurn-1].created != int64((turn+1)*perTurn) {
			t.Fatalf("turn %d: %.60q", turn, got)
		}
	}
}

// One that has been undecidable for long is tried rarely, and one that is decided about begins anew.
func TestRareRetry(t *testing.T) {
	now := start
	for undecidable, want := range map[time.Duration]time.Duration{0: retryEvery, time.Second: retryEvery, 2 * undecidableFor: retryEvery, 2*undecidableFor + 1: rareRetry} {
		q := newQueue()
		put(q, "a", "a1")
		_, batch := taken(q, now)
		if undecidable > 0 {
			batch[0].undecidable = now.Add(-undecidable)
		}
		q.again(now, batch[0])
		if _, next := q.take("ns", now); next.Sub(now) != want {
			t.Errorf("undecidable for %s, it is tried in %s, want %s", undecidable, next.Sub(now), want)
		}
	}
	q := newQueue()
	put(q, "a", "a1")
	for tries := range 3 {
		_, batch := taken(q, now)
		q.later(now, batch)
		_, next := q.take("ns", now)
		if want := firstRetry << tries; next.Sub(now) != want {
			t.Errorf("after %d tries in vain it waits %s, want %s", tries+1, next.Sub(now), want)
		}
		now = next
	}
	_, batch := taken(q, now)
	q.written(batch[0])
	q.later(now, batch)
	if _, next := q.take("ns", now); next.Sub(now) != firstRetry {
		t.Errorf("after one was written, it waits %s", next.Sub(now))
	}
}

// The waits after tries in vain end somewhere.
func TestLastRetry(t *testing.T) {
	q := newQueue()
	put(q, "a", "a1")
	now := start
	for range 40 {
		_, batch := taken(q, now)
		q.later(now, batch)
		_, next := q.take("ns", now)
		if next.Sub(now) > lastRetry {
			t.Fatalf("the wait is %s", next.Sub(now))
		}
		now = next
	}
}

// Memory and time of many pods that wait, which whoever creates pods chooses.
func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := newQueue()
				for i := range n {
					q.put(waiting{namespace: "ns", name: "pod", uid: types.UID(fmt.Sprint(i)), owner: types.UID(fmt.Sprint(i % 10)), created: int64(i)}, nil)
				}
				for {
					batch, _ := q.take("ns", start)
					if len(batch) == 0 {
						break
					}
					for _, w := range batch {
						q.drop(w.uid)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
		})
	}
}
