package spill

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func TestPoolState(t *testing.T) {
	strategy := func(first, second string) *sequence.Strategy {
		s, err := sequence.New([]sequence.Pool{
			{Name: "0", Labels: map[string]string{"p": first}, Weight: 1}, {Name: "1", Labels: map[string]string{"p": second}, Weight: 1},
		}, sequence.EarlierWins)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	at := time.Date(2026, 1, 1, 10, 2, 3, 0, time.UTC)
	available := Pool{Phase: Available}
	short := Pool{Phase: Exhausted, Epoch: 3, Since: at, Max: 0, Tries: 2, Next: at.Add(time.Minute), Early: true}

	rooms := ToPoolRooms([]Pool{available, short}, strategy("a", "b"))
	if diff := cmp.Diff([]Pool{available, short}, FromPoolState(&stowage.PoolState{Pools: rooms}, strategy("a", "b"))); diff != "" {
		t.Errorf("what was written is read (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Pool{short, available}, FromPoolState(&stowage.PoolState{Pools: rooms}, strategy("b", "a"))); diff != "" {
		t.Errorf("a pool is known by its labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Pool{available, available}, FromPoolState(&stowage.PoolState{Pools: rooms}, strategy("c", "d"))); diff != "" {
		t.Errorf("a pool that was edited away is forgotten (-want +got):\n%s", diff)
	}
	if rooms := ToPoolRooms([]Pool{{Phase: Available, Epoch: 3}, available}, strategy("a", "b")); rooms != nil {
		t.Errorf("while all pools are available, %+v is written", rooms)
	}
	all := Shortages([]Pool{available, short}, strategy("a", "b"))
	if len(all) != 1 || all[0].String()+all[0].NextTry() != "pool 1 has had no room since 2026-01-01T10:02:03Z, and keeps at most 0 pod(s), and it is tried again at 2026-01-01T10:03:03Z" {
		t.Errorf("the shortages are %v", all)
	}
}

// A pool of which spill is withdrawn is available from now on, and stays in the record of the others.
func TestSpillIsWithdrawnFromOnePool(t *testing.T) {
	s := twoPools(t, 1, 1)
	now := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	short := Pool{Phase: Exhausted, Epoch: 1, Since: now.Add(-time.Minute), Next: now.Add(time.Hour), Waited: now}
	v := View{Now: now, Layout: plain(s), Rules: []Rule{{After: time.Minute}, {}}, Hard: make([]bool, 2), Room: make([]int64, 2)}
	next := Next(v, []Pool{short, short}, tries.Default())
	rooms := ToPoolRooms(next, s)
	if len(rooms) != 2 || rooms[1].Phase != stowage.PoolAvailable || !rooms[1].Since.Time.Equal(now) {
		t.Errorf("the record is %+v", rooms)
	}
	v.Now = now.Add(time.Second)
	if diff := cmp.Diff(rooms, ToPoolRooms(Next(v, next, tries.Default()), s)); diff != "" {
		t.Errorf("it is written again (-before +after):\n%s", diff)
	}
}
