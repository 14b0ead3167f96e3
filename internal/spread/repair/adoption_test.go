package repair

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Turns go round over namespaces, then over workloads, and all together stay within the rate.
func TestAdoptionsTakeTurns(t *testing.T) {
	a := newAdoptions()
	left := map[ledger.Owner]int{}
	add := func(namespace string, workloads, pods int) {
		for i := range workloads {
			left[ledger.Owner{Namespace: namespace, UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint(i)}] = pods
		}
	}
	add("large", 50, 30)
	add("small", 2, 25)
	for o, pods := range left {
		if n := a.take(o, pods); n != 0 {
			t.Fatalf("%v adopts %d pods before its turn", o, n)
		}
		if !a.waits(o) {
			t.Fatalf("%v does not wait", o)
		}
		a.take(o, pods) // again: it waits once
	}
	smallDone, seconds := 0, 0
	for ; len(left) > 0; seconds++ {
		if seconds > 1000 {
			t.Fatalf("%d workloads are left after %d s", len(left), seconds)
		}
		sum := 0
		for _, o := range a.next() {
			if a.waits(o) {
				t.Fatalf("%v waits in its turn", o)
			}
			n := a.take(o, left[o])
			sum += n
			if left[o] -= n; left[o] == 0 {
				delete(left, o)
				if o.Namespace == "small" {
					smallDone = seconds
				}
			} else if a.take(o, left[o]) != 0 {
				t.Fatalf("%v has two turns at once", o)
			}
		}
		if sum > adoptionRate { // nothing is left of the seconds before
			t.Fatalf("%d pods are adopted in one second", sum)
		}
	}
	if smallDone > 8 {
		t.Errorf("a namespace with 50 pods is done after %d s, beside one with 1500", smallDone)
	}
	if want := (50*30 + 2*25) / adoptionRate; seconds > want+want/2 {
		t.Errorf("all are adopted after %d s, of at least %d", seconds, want)
	}
}

// The turn of a workload that is gone delays nobody for longer than its pods would, and ends.
func TestAdoptionOfAWorkloadThatIsGone(t *testing.T) {
	a := newAdoptions()
	gone, here := ledger.Owner{Namespace: "ns", UID: "gone"}, ledger.Owner{Namespace: "ns", UID: "here"}
	a.take(gone, 100)
	a.take(here, 5)
	if due := a.next(); len(due) != 1 || due[0] != gone {
		t.Fatalf("it is the turn of %v", due)
	}
	if due := a.next(); len(due) != 1 || due[0] != here || a.take(here, 5) != 5 {
		t.Fatalf("then it is the turn of %v", due)
	}
	for range grantLives - 1 {
		a.next()
	}
	if a.waits(gone) || a.take(gone, 7) != 7 {
		t.Fatal("a turn has ended before its time")
	}
	a.take(gone, 100)
	for range grantLives + 2 {
		a.next()
	}
	if a.take(gone, 100) != 0 {
		t.Fatal("a turn of long ago is still there")
	}
}

// A leader that needs longer than a second until it comes to a workload adopts its pods all the same. The workloads of a policy wait in one queue with
// others, which keep moving.
func TestAdoptionBehindALongQueue(t *testing.T) {
	const policies, others, look = 40, 40, 1100 // ms
	a, left := newAdoptions(), map[ledger.Owner]int{}
	var queue []ledger.Owner
	enqueue := func(o ledger.Owner) {
		if !slices.Contains(queue, o) {
			queue = append(queue, o)
		}
	}
	for i := range policies {
		o := ledger.Owner{Namespace: "ns", UID: types.UID(fmt.Sprint(i))}
		left[o] = 2
		enqueue(o)
	}
	for i := range others {
		enqueue(ledger.Owner{Namespace: "other", UID: types.UID(fmt.Sprint(i))})
	}
	at, second := 0, 0
	for ; len(left) > 0; at += look {
		if at > 10*(policies+others)*look {
			t.Fatalf("%d of %d workloads are not adopted after %d s", len(left), policies, at/1000)
		}
		for ; second <= at/1000; second++ {
			for _, o := range a.next() {
				enqueue(o)
			}
		}
		o := queue[0]
		queue = queue[1:]
		switch {
		case o.Namespace == "other":
			enqueue(o)
		case !a.waits(o):
			if left[o] -= a.take(o, left[o]); left[o] == 0 {
				delete(left, o)
			}
		}
	}
	if most := 4 * (policies + others) * look; at > most {
		t.Errorf("all are adopted after %d s, want %d", at/1000, most/1000)
	}
}

// A workload is left alone for some seconds after each part of its pods. It gets as many in a second as others do, all the same.
func TestAdoptionOfOneLargeWorkload(t *testing.T) {
	a, owner, pods, most := newAdoptions(), ledger.Owner{Namespace: "ns", Name: "web", UID: "web"}, 600, 0
	seconds := 0
	for quiet := 0; pods > 0; seconds++ {
		if seconds > 1000 {
			t.Fatalf("%d pods are left", pods)
		}
		turn := len(a.next()) > 0
		if quiet--; quiet > 0 && !turn {
			continue
		}
		n := a.take(owner, pods)
		if pods -= n; n > 0 {
			most, quiet = max(most, n), 5
		}
	}
	if want := 600 / adoptionRate; seconds > want+10 || seconds < want-adoptionBurst/adoptionRate {
		t.Errorf("all are adopted after %d s, want about %d", seconds, want)
	}
	if most > adoptionBurst {
		t.Errorf("%d pods are adopted at once", most)
	}
}
