package planner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func strategy(text string) *sequence.Strategy {
	s, err := sequence.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// plain is the layout of a strategy for a workload that nothing is known of.
func plain(s *sequence.Strategy) *layout.Layout { return testkit.Layout(s, layout.Workload{}) }

// limited is a strategy of pools of equal weight with these maxima.
func limited(maxima ...int64) *sequence.Strategy {
	var pools []sequence.Pool
	for i, limit := range maxima {
		pools = append(pools, sequence.Pool{Name: fmt.Sprint(i), Labels: map[string]string{"p": fmt.Sprint(i)}, Weight: 1, Max: limit})
	}
	s, err := sequence.New(pools, sequence.EarlierWins)
	if err != nil {
		panic(err)
	}
	return s
}

// seated is a pod that came through the webhook.
func seated(pool int, ordinal int64) Pod {
	return Pod{Seat: sequence.Seat{Pool: pool, Ordinal: ordinal}, Claimed: true, Ready: true, Ours: true, NodePool: pool, Created: begin.Add(time.Minute)}
}

// early is a pod that came before its policy and was adopted.
func early(pool int, ordinal int64) Pod {
	p := seated(pool, ordinal)
	p.Claimed, p.BeforePolicy = false, true
	return p
}

// unseated is one that did not, on a node of a pool.
func unseated(nodePool int, age time.Duration) Pod {
	return Pod{Seat: sequence.Seat{Pool: -1}, Ready: true, Ours: true, NodePool: nodePool, Created: begin.Add(time.Minute - age)}
}

// removal is what a table says of a [Removal].
type removal struct {
	reason Reason
	pod    int
}

func TestMake(t *testing.T) {
	two := strategy("p=a,weight=1:p=b,weight=1") // the later pool first
	settled := func(pods ...Pod) State {
		return State{Layout: plain(two), Pods: pods, Replicas: int64(len(pods)), Settled: true, Mode: stowage.RepairRecreate, Available: []bool{true, true}}
	}
	full := func(evict bool, node int) State {
		p := unseated(node, time.Second)
		p.Full, p.Running = true, node != NoNode
		s := settled(seated(0, 1), seated(0, 2), seated(1, 1), p)
		s.Layout, s.Evict = plain(limited(2, 2)), evict
		return s
	}
	crowded := func(short bool) State { // the first pool
		s := settled(seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1))
		s.Evict, s.Short = true, []bool{short, false}
		return s
	}
	cases := map[string]struct {
		state    State
		adopt    []Move
		renumber []Move
		remove   removal
		distance int64
		early    bool
	}{
		"nothing is wrong": {
			state: settled(seated(1, 1), seated(0, 1)),
		},
		"a pod that runs in a pool is adopted with the lowest free ordinal": {
			state: settled(seated(0, 1), seated(1, 2), unseated(1, 0)),
			adopt: []Move{{Pod: 2, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 1}},
		},
		"a pod that runs in a pool with too many is adopted, too": {
			state: settled(seated(0, 1), unseated(0, 0)), distance: 1,
			adopt: []Move{{Pod: 1, Seat: sequence.Seat{Pool: 0, Ordinal: 2}, Rank: 4}},
		},
		"a pod beyond its pool's base, where that has no weight, is adopted as the first to go": {
			state: func() State {
				s := settled(seated(0, 1), unseated(0, 0))
				s.Layout = plain(strategy("p=a,base=1:p=b,weight=1"))
				return s
			}(), distance: 1,
			adopt: []Move{{Pod: 1, Seat: sequence.Seat{Pool: 0, Ordinal: 2}, Rank: sequence.NoRank}},
		},
		"a pod that runs outside of the pools stays while another is not ready": {
			state: func() State {
				s := settled(seated(1, 1), unseated(OtherNode, time.Second))
				s.Pods[0].Ready = false
				return s
			}(), distance: 1,
		},
		"and while no node could take it": {
			state: func() State {
				s := settled(seated(1, 1), unseated(OtherNode, time.Second))
				s.Available = nil
				return s
			}(),
			distance: 1,
		},
		"and if its pool was there when it came": {
			state:    settled(seated(1, 1), func() Pod { p := unseated(OtherNode, time.Second); p.Foreign = true; return p }()),
			distance: 1,
		},
		"unless eviction was asked for": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := unseated(OtherNode, time.Second); p.Foreign = true; return p }())
				s.Evict = true
				return s
			}(), remove: removal{Misplaced, 1}, distance: 1,
		},
		"none goes if a later one bypassed the webhook: the webhook is not reached again": {
			state: settled(seated(1, 1), unseated(OtherNode, time.Second), unseated(NoNode, -time.Second)), distance: 2,
		},
		"a Job's pods stay": {
			state:    func() State { s := settled(seated(1, 1), unseated(NoNode, time.Second)); s.Keep = true; return s }(),
			distance: 1,
		},
		"a pod with an ordinal of its own is adopted where that belongs": {
			state:    settled(seated(0, 1), func() Pod { p := unseated(1, 0); p.OwnRank = 3; return p }(), func() Pod { p := unseated(1, 0); p.OwnRank = 2; return p }()),
			distance: 1,
			adopt:    []Move{{Pod: 1, Seat: sequence.Seat{Pool: 1, Ordinal: 2}, Rank: 3}},
		},
		"a pod with an ordinal of its own whose pool is no more is evicted, too": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := unseated(OtherNode, 0); p.OwnRank, p.Foreign = 2, true; return p }())
				s.Evict = true
				return s
			}(), remove: removal{Misplaced, 1}, distance: 1,
		},
		"a pod whose own ordinal has another place in the same pool stays": {
			state: func() State {
				s := settled(func() Pod { p := seated(1, 1); p.OwnRank = 1; return p }(), func() Pod { p := seated(1, 5); p.OwnRank = 3; return p }())
				s.Evict = true
				return s
			}(), distance: 1,
		},
		"a pod whose own ordinal belongs elsewhere since an edit is evicted if that was asked for": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := seated(1, 2); p.OwnRank = 2; return p }())
				s.Evict = true
				return s
			}(), remove: removal{Misplaced, 1}, distance: 1,
		},
		"a pod stays in a pool without room that has too many": {state: crowded(true), distance: 1},
		"it goes if the pool has room":                         {state: crowded(false), remove: removal{Misplaced, 2}, distance: 1},
		"a pod outside of the pools is recreated if a later one passed the webhook": {
			state: settled(seated(1, 1), unseated(OtherNode, time.Second)), remove: removal{Unseated, 1}, distance: 1,
		},
		"a StatefulSet's pod with a volume stays where it runs": {
			state: settled(seated(1, 1), func() Pod { p := unseated(OtherNode, time.Second); p.OwnRank, p.Volume = 2, true; return p }()), distance: 1,
		},
		"a StatefulSet's pod without a volume does not": {
			state: settled(seated(1, 1), func() Pod { p := unseated(OtherNode, time.Second); p.OwnRank = 2; return p }()), remove: removal{Unseated, 1}, distance: 1,
		},
		"a pod that waits for a node, too": {
			state: settled(seated(1, 1), unseated(NoNode, time.Second)), remove: removal{Unseated, 1}, distance: 1,
		},
		"not if no later one came through us: the webhook may not be reachable": {
			state: settled(seated(1, 1), unseated(OtherNode, -time.Second)), distance: 1,
		},
		"not if none ever came through us": {
			state: settled(unseated(OtherNode, time.Second), unseated(OtherNode, time.Second)), distance: 2,
		},
		"not if the later one was adopted": {
			state:    settled(func() Pod { p := seated(1, 1); p.Claimed = false; return p }(), unseated(OtherNode, time.Second)),
			distance: 1,
		},
		"not if it is excluded from the webhook": {
			state: settled(seated(1, 1), func() Pod { p := unseated(OtherNode, time.Second); p.Ours = false; return p }()),
		},
		"not if recreation is off": {
			state: func() State {
				s := settled(seated(1, 1), unseated(OtherNode, time.Second))
				s.Mode = stowage.RepairAdopt
				return s
			}(),
			distance: 1,
		},
		"nothing at all if repair is off": {
			state: func() State {
				s := settled(seated(1, 2), unseated(0, time.Second))
				s.Mode = stowage.RepairOff
				return s
			}(),
			distance: 1,
		},
		"nothing while the workload moves": {
			state: func() State {
				s := settled(seated(1, 2), unseated(OtherNode, time.Second))
				s.Settled = false
				return s
			}(),
			distance: 1,
		},
		"one pod at a time, first one that waits": {
			state: settled(seated(1, 1), unseated(OtherNode, 2*time.Second), unseated(NoNode, time.Second)), remove: removal{Unseated, 2}, distance: 2,
		},
		"gaps are filled from the top": {
			state:    settled(seated(1, 2), seated(1, 5), seated(0, 1), seated(0, 2)),
			renumber: []Move{{Pod: 1, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 1}},
		},
		"of two with one ordinal the younger moves": {
			state:    settled(seated(1, 1), func() Pod { p := seated(1, 1); p.Created = begin; return p }(), seated(0, 1), seated(0, 2)),
			renumber: []Move{{Pod: 0, Seat: sequence.Seat{Pool: 1, Ordinal: 2}, Rank: 3}},
		},
		"a deletion cost of another rank is written anew": {
			state:    settled(func() Pod { p := seated(1, 1); p.Rank = 9; return p }(), seated(0, 1)),
			renumber: []Move{{Pod: 0, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 1}},
		},
		"a deletion cost that is gone is written again": {
			state:    settled(func() Pod { p := seated(1, 1); p.Rank, p.CostGone = 0, true; return p }(), seated(0, 1)),
			renumber: []Move{{Pod: 0, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 1}},
		},
		"a pod without a rank needs no cost": {
			state: func() State {
				s := settled(func() Pod { p := seated(1, 1); p.Rank, p.CostGone = 0, true; return p }(), seated(0, 1))
				s.Yields = []bool{false, true}
				return s
			}(),
		},
		"somebody else's deletion cost stays": {
			state: settled(func() Pod { p := seated(1, 1); p.Rank = 0; return p }(), seated(0, 1)),
		},
		"the cost of a pod that its owner removes by ordinal does not matter": {
			state: settled(func() Pod { p := seated(1, 3); p.OwnRank, p.CostGone = 5, true; return p }(), seated(0, 1)),
		},
		"seats that follow from the pods' own ordinals stay": {
			state: settled(func() Pod { p := seated(1, 3); p.OwnRank = 5; return p }(), seated(0, 1)),
		},
		"too many in a pool are reported": {
			state: settled(seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1)), distance: 1,
		},
		"and evicted, the highest first, if that was asked for": {
			state: func() State {
				s := settled(seated(0, 1), seated(0, 3), seated(0, 2), seated(1, 1))
				s.Evict = true
				return s
			}(),
			remove: removal{Misplaced, 1}, distance: 1,
		},
		"not while the workload rolls out": {
			state: func() State {
				s := settled(seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1))
				s.Evict, s.RollingOut = true, true
				return s
			}(), distance: 1,
		},
		"not while a pod is not ready": {
			state: func() State {
				s := settled(seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1))
				s.Evict, s.Pods[3].Ready = true, false
				return s
			}(), distance: 1,
		},
		"not if no node could take the pod": {
			state: func() State {
				s := settled(seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1))
				s.Evict, s.Available = true, []bool{true, false}
				return s
			}(), distance: 1,
		},
		"a pod that came before its policy goes while it is not ready": {
			state: func() State {
				s := settled(early(0, 1), early(0, 2), early(0, 3), early(1, 1))
				s.Pods[1].Ready = false
				return s
			}(), remove: removal{Misplaced, 1}, distance: 1, early: true,
		},
		"and while the whole workload is young, the last one first": {
			state: func() State {
				s := settled(early(0, 1), early(0, 2), early(0, 3), early(1, 1))
				s.Young = true
				return s
			}(), remove: removal{Misplaced, 2}, distance: 1, early: true,
		},
		"it stays once it is in use": {
			state: settled(early(0, 1), early(0, 2), early(0, 3), early(1, 1)), distance: 1,
		},
		"a pod that came before its policy and waits outside of the pools goes, though none came through us": {
			state: func() State {
				s := settled(early(1, 1), unseated(NoNode, time.Second))
				s.Pods[1].BeforePolicy, s.Pods[1].Ready = true, false
				return s
			}(), remove: removal{Unseated, 1}, distance: 1, early: true,
		},
		"it stays in mode Adopt": {
			state: func() State {
				s := settled(early(1, 1), unseated(NoNode, time.Second))
				s.Mode, s.Pods[1].BeforePolicy, s.Pods[1].Ready = stowage.RepairAdopt, true, false
				return s
			}(), distance: 1,
		},
		"unless its policy has such pods go in that mode, too": {
			state: func() State {
				s := settled(early(1, 1), unseated(NoNode, time.Second))
				s.Mode, s.EvictEarly, s.Pods[1].BeforePolicy, s.Pods[1].Ready = stowage.RepairAdopt, true, true, false
				return s
			}(), remove: removal{Unseated, 1}, distance: 1, early: true,
		},
		"but not with repair off": {
			state: func() State {
				s := settled(early(1, 1), unseated(NoNode, time.Second))
				s.Mode, s.EvictEarly, s.Pods[1].BeforePolicy, s.Pods[1].Ready = stowage.RepairOff, true, true, false
				return s
			}(), distance: 1,
		},
		"it stays if it has an ordinal of its own": {
			state: func() State {
				s := settled(early(1, 1), unseated(NoNode, time.Second))
				s.Pods[1].BeforePolicy, s.Pods[1].Ready, s.Pods[1].OwnRank = true, false, 2
				return s
			}(), distance: 1,
		},
		"and if no node could take its successor": {
			state: func() State {
				s := settled(early(0, 1), early(0, 2), early(0, 3), early(1, 1))
				s.Young, s.Available = true, []bool{true, false}
				return s
			}(), distance: 1,
		},
		"and in a pool that has not too many": {
			state: func() State {
				s := settled(early(0, 1), early(1, 1))
				s.Young = true
				return s
			}(),
		},
		"a pod with an ordinal of its own that runs in another pool than its ordinal's is evicted if that was asked for": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := unseated(1, 0); p.OwnRank = 2; return p }())
				s.Evict = true
				return s
			}(), remove: removal{Misplaced, 1}, distance: 1,
		},
		"and stays if that was not asked for": {
			state:    settled(seated(1, 1), func() Pod { p := unseated(1, 0); p.OwnRank = 2; return p }()),
			distance: 1,
		},
		"and if its own pool has no room": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := unseated(1, 0); p.OwnRank = 2; return p }())
				s.Evict, s.Available = true, []bool{false, true}
				return s
			}(), distance: 1,
		},
		"of pods with an ordinal of their own, one whose ordinal has a seat is recreated, and none whose ordinal has none": {
			state: func() State {
				s := settled(seated(0, 1), unseated(OtherNode, 2*time.Second), unseated(OtherNode, time.Second), unseated(OtherNode, time.Second))
				for i := range s.Pods {
					s.Pods[i].OwnRank = int64(i) + 1
				}
				s.Layout = plain(limited(1, 1))
				return s
			}(), remove: removal{Unseated, 1}, distance: 1,
		},
		"adoption follows what the pools lack, and not the order of the list": {
			state: func() State {
				s := settled(unseated(0, 0), unseated(0, 0), unseated(0, 0), unseated(1, 0))
				s.Layout = plain(limited(2, 1))
				return s
			}(),
			adopt: []Move{
				{Pod: 0, Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Rank: 1},
				{Pod: 1, Seat: sequence.Seat{Pool: 0, Ordinal: 2}, Rank: 3},
				{Pod: 3, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: 2},
			},
		},
		"no pool gets more than its maximum while a pod outside of the pools can have the seat": {
			state: func() State {
				s := settled(seated(1, 1), unseated(0, 0), unseated(0, 0), unseated(OtherNode, time.Second))
				s.Layout = plain(limited(1, 2))
				return s
			}(), remove: removal{Unseated, 3}, distance: 1,
			adopt: []Move{{Pod: 1, Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Rank: 1}},
		},
		"a pod outside of the pools is recreated if the webhook gave a later pod of another workload its seat": {
			state: func() State {
				s := settled(unseated(OtherNode, 0), unseated(OtherNode, time.Second))
				s.Reached = begin.Add(2 * time.Minute)
				return s
			}(), remove: removal{Unseated, 0}, distance: 2,
		},
		"also one that was stored later than its siblings, because the webhook timed out": {
			state: func() State {
				s := settled(seated(1, 1), unseated(NoNode, -5*time.Second))
				s.Reached = begin.Add(2 * time.Minute)
				return s
			}(), remove: removal{Unseated, 1}, distance: 1,
		},
		"not if the last pod that reached the webhook is older": {
			state: func() State {
				s := settled(unseated(OtherNode, 0), unseated(OtherNode, time.Second))
				s.Reached = begin.Add(time.Minute)
				return s
			}(), distance: 2,
		},
		"a pod that came when every pool had its maximum stays where it runs": {state: full(false, OtherNode), distance: 1},
		"it goes if eviction was asked for":                                   {state: full(true, OtherNode), remove: removal{Unseated, 3}, distance: 1},
		"and if it waits for a node":                                          {state: full(false, NoNode), remove: removal{Unseated, 3}, distance: 1},
		"a StatefulSet's pod with a volume that runs in another pool than its ordinal's stays, also with eviction": {
			state: func() State {
				s := settled(seated(1, 1), func() Pod { p := unseated(1, 0); p.OwnRank, p.Volume = 2, true; return p }())
				s.Evict = true
				return s
			}(), distance: 1,
		},
		"pods beyond the pools' maxima need no seat": {
			state: func() State {
				s := settled(seated(0, 1), unseated(0, time.Second), unseated(OtherNode, time.Second))
				s.Layout = plain(limited(1))
				return s
			}(),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := Make(tc.state)
			if diff := cmp.Diff(tc.adopt, p.Adopt); diff != "" {
				t.Errorf("adopt (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.renumber, p.Renumber); diff != "" {
				t.Errorf("renumber (-want +got):\n%s", diff)
			}
			var remove removal
			if r := p.Remove; r != nil {
				if remove = (removal{r.Reason, r.Pod}); r.BeforePolicy != tc.early {
					t.Errorf("before its policy: %v", r.BeforePolicy)
				}
			}
			if remove != tc.remove || p.Distance() != tc.distance {
				t.Errorf("%+v is removed, distance %d; want %+v, %d", remove, p.Distance(), tc.remove, tc.distance)
			}
		})
	}
}

// A plan names the pool that needs room for the successor of a running pod, and none for a pod that waits.
func TestSuccessor(t *testing.T) {
	two := strategy("p=a,weight=1:p=b,weight=1")
	state := func(running bool, pods ...Pod) State {
		for i := range pods {
			pods[i].Running = running
		}
		return State{Layout: plain(two), Pods: pods, Replicas: int64(len(pods)), Settled: true, Evict: true, Mode: stowage.RepairRecreate, Available: []bool{true, true}}
	}
	own := unseated(1, 0)
	own.OwnRank = 2
	for name, tc := range map[string]struct {
		state State
		needs bool
		to    int
	}{
		"evicted":                        {state(true, seated(0, 1), seated(0, 2), seated(0, 3), seated(1, 1)), true, 1},
		"with an ordinal of its own":     {state(true, seated(1, 1), own), true, 0},
		"recreated":                      {state(true, seated(1, 1), unseated(OtherNode, time.Second)), true, 0},
		"recreated, and waits":           {state(false, seated(1, 1), unseated(NoNode, time.Second)), false, 0},
		"came before its policy":         {state(true, early(0, 1), early(0, 2), func() Pod { p := early(0, 3); p.Ready = false; return p }(), early(1, 1)), true, 1},
		"nothing is to be done about it": {state(true, seated(1, 1), seated(0, 1)), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := Make(tc.state).Remove
			if needs := r != nil && r.NeedsRoom; needs != tc.needs || needs && r.To != tc.to {
				t.Errorf("%+v; want room in pool %d: %t", r, tc.to, tc.needs)
			}
		})
	}
}

// Whatever there is, carrying out plans comes to an end, and then the seats have no gaps;
// where eviction was asked for, each pool has its target.
func TestPlansEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := State{
			Layout:  plain(strategy(rapid.SampledFrom([]string{"p=a,weight=1:p=b,weight=1", "p=a,base=2,weight=1:p=b,weight=3:p=c,weight=2", "p=a,weight=80:p=b,weight=20"}).Draw(t, "strategy"))),
			Settled: true, Mode: stowage.RepairRecreate, Evict: rapid.Bool().Draw(t, "evict"),
		}
		for range s.Layout.Len() {
			s.Available = append(s.Available, true)
		}
		for i := range rapid.IntRange(1, 20).Draw(t, "pods") {
			pool := rapid.IntRange(-2, s.Layout.Len()-1).Draw(t, "pool")
			p := unseated(pool, time.Second)
			if pool >= 0 && rapid.Bool().Draw(t, "seated") {
				p = seated(pool, int64(rapid.IntRange(1, 25).Draw(t, "ordinal")))
			}
			p.Name = fmt.Sprint(i)
			p.BeforePolicy = rapid.Bool().Draw(t, "before its policy")
			p.CostGone = rapid.Bool().Draw(t, "cost gone")
			p.Claimed = p.Claimed && !p.BeforePolicy
			s.Pods = append(s.Pods, p)
		}
		s.Young = rapid.Bool().Draw(t, "young")
		s.Replicas = int64(len(s.Pods))
		s.Pods[0] = seated(0, 1) // one came through us
		// arrive is a new pod that comes through the webhook.
		arrive := func() {
			counts := make([]int64, s.Layout.Len())
			for _, p := range s.Pods {
				if p.Seat.Pool >= 0 {
					counts[p.Seat.Pool]++
				}
			}
			seats := newTable(&s)
			seat, err := s.Layout.Next(held{counts, seats})
			if err != nil {
				t.Fatal(err)
			}
			s.Pods = append(s.Pods, seated(seat.Pool, seat.Ordinal))
		}
		for round := 0; ; round++ {
			if round > 200 {
				t.Fatalf("the plans do not end: %+v", s.Pods)
			}
			p := Make(s)
			for _, m := range append(p.Adopt, p.Renumber...) {
				s.Pods[m.Pod].Seat, s.Pods[m.Pod].Rank, s.Pods[m.Pod].CostGone = m.Seat, m.Rank, false
			}
			if p.Remove != nil {
				s.Pods = slices.Delete(s.Pods, p.Remove.Pod, p.Remove.Pod+1)
				arrive()
				continue
			}
			if len(p.Adopt)+len(p.Renumber) > 0 {
				continue
			}
			for pool, o := range newTable(&s) {
				if int64(len(o.held)) != p.Counts[pool] || !o.held[p.Counts[pool]] && p.Counts[pool] > 0 {
					t.Fatalf("pool %d has %d pods on the ordinals %v", pool, p.Counts[pool], o)
				}
			}
			if p.Unseated > 0 || s.Evict && !p.Balanced() {
				t.Fatalf("counts %v, targets %v, %d without a seat", p.Counts, p.Targets, p.Unseated)
			}
			return
		}
	})
}

type held struct {
	counts []int64
	seats  table
}

func (h held) Count(pool int) int64 { return h.counts[pool] }
func (h held) LowestFree(pool int) int64 {
	o := int64(1)
	for h.seats[pool].held[o] {
		o++
	}
	return o
}

// The pods of an older revision go first in pools without room. A pod whose deletion cost is not ours, or that has an ordinal of
// its own, stays as it is.
func TestYield(t *testing.T) {
	ranked := func(pool int, ordinal, rank int64) Pod {
		p := seated(pool, ordinal)
		p.Rank = rank
		return p
	}
	own := ranked(1, 3, 4)
	own.OwnRank = 4
	s := State{
		Layout: plain(strategy("p=a,weight=1:p=b,weight=1")), Replicas: 5, Settled: true, Mode: stowage.RepairRecreate, Yields: []bool{false, true},
		Pods: []Pod{ranked(0, 1, 2), ranked(1, 1, 1), ranked(1, 2, 0), own, ranked(1, 4, sequence.NoRank)},
	}
	want := []Move{{Pod: 1, Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Rank: sequence.NoRank}}
	if diff := cmp.Diff(want, s.Yield()); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	s.Pods[1].Rank = sequence.NoRank
	if again := s.Yield(); len(again) > 0 {
		t.Errorf("once more: %v", again)
	}
	s.Pods = []Pod{ranked(0, 1, 2), ranked(1, 1, sequence.NoRank), ranked(1, 2, sequence.NoRank)}
	s.Replicas = 3
	if p := Make(s); len(p.Renumber) > 0 {
		t.Errorf("repair takes that back: %v", p.Renumber)
	}
	s.Yields = nil
	if p := Make(s); len(p.Renumber) != 2 {
		t.Errorf("after a rollback, repair restores the costs by %v", p.Renumber)
	}
}

// Pods whose volumes reach no place for a seat need none, and the others are divided around them.
func TestElsewhere(t *testing.T) {
	away := func(rank int64) Pod {
		p := unseated(OtherNode, time.Second)
		p.VolumeElsewhere, p.OwnRank, p.Running = true, rank, true
		return p
	}
	own := func(p Pod, rank int64) Pod { p.OwnRank = rank; return p }
	two := strategy("p=a,weight=1:p=b,weight=1")
	for name, tc := range map[string]struct {
		pods     []Pod
		ordinals *layout.Ordinals
		want     layout.Elsewhere
		after    []int64 // targets of the plan
	}{
		"none":                       {pods: []Pod{seated(1, 1), seated(0, 1)}, after: []int64{1, 1}},
		"one of four":                {pods: []Pod{seated(1, 1), seated(0, 1), seated(1, 2), away(0)}, want: layout.Elsewhere{Others: 1}, after: []int64{1, 2}},
		"two of four":                {pods: []Pod{seated(1, 1), seated(0, 1), away(0), away(0)}, want: layout.Elsewhere{Others: 2}, after: []int64{1, 1}},
		"with an ordinal of its own": {pods: []Pod{own(seated(1, 1), 1), own(seated(0, 1), 2), away(3)}, want: layout.Elsewhere{Own: []sequence.Cell{{Pool: 1}}}, after: []int64{1, 1}},
		"with an ordinal, and targets of volumes": {pods: []Pod{own(seated(1, 1), 1), own(seated(0, 1), 2), away(3)}, ordinals: &layout.Ordinals{Held: map[int64]sequence.Cell{2: {Pool: 1}}}, want: layout.Elsewhere{Own: []sequence.Cell{{Pool: 1}}}, after: []int64{0, 2}},
		"an ordinal that had moved":               {pods: []Pod{away(1)}, ordinals: &layout.Ordinals{Moves: true, Moved: map[string]string{"0": "0"}}, want: layout.Elsewhere{Own: []sequence.Cell{{Pool: 1}}}, after: []int64{0, 0}},
		"all of them":                             {pods: []Pod{away(0), away(0)}, want: layout.Elsewhere{Others: 2}, after: []int64{0, 0}},
	} {
		s := State{Layout: plain(two), Pods: tc.pods, Replicas: int64(len(tc.pods)), Settled: true, Mode: stowage.RepairRecreate, Available: []bool{true, true}, Evict: true}
		if tc.ordinals != nil {
			s.Layout = testkit.Layout(two, layout.Workload{Ordinals: tc.ordinals})
		}
		p := Make(s)
		if diff := cmp.Diff(tc.want, p.Elsewhere); diff != "" || p.Elsewhere.Any() != (name != "none") {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !slices.Equal(p.Targets, tc.after) || p.Unseated != 0 || tc.ordinals == nil && (p.Remove != nil || !p.Balanced()) {
			t.Errorf("%s: targets %v, %d without a seat, removed %+v", name, p.Targets, p.Unseated, p.Remove)
		}
	}

	// They have none of the seats that a maximum leaves.
	s := State{Layout: plain(limited(3)), Replicas: 5, Settled: true, Mode: stowage.RepairRecreate, Available: []bool{true}, Pods: []Pod{seated(0, 1), seated(0, 2), unseated(0, 0), away(0), away(0)}}
	if p := Make(s); p.Unseated != 0 || len(p.Adopt) != 1 || p.Adopt[0].Pod != 2 {
		t.Errorf("of a pool with two of three, %v is adopted, and %d are without a seat", p.Adopt, p.Unseated)
	}
}

// In a zone without room, pods that have a node get its first ordinals, whether other zones of the pool have room or not. So those that wait are
// beyond its limit, and may move.
func TestRenumberWithoutRoom(t *testing.T) {
	whole, err := sequence.New([]sequence.Pool{{Name: "a", Labels: map[string]string{"p": "a"}, Weight: 1}}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	for name, limits := range map[string][]int64{"one zone": {2, domain.Open, domain.Open}, "all zones": {2, 2, 3}} {
		s := State{Layout: testkit.Layout(testkit.Over(whole, 1, 1, 1), layout.Workload{Orders: &layout.Orders{}, Limits: [][]int64{limits}}), Settled: true, Mode: stowage.RepairAdopt}
		homes := s.Layout.Homes()
		for i := range 9 { // two of the pods of the first zone run, and the one with the first ordinal waits
			in := homes.Of(0, int64(i+1))
			s.Pods = append(s.Pods, Pod{Name: fmt.Sprint(i), Seat: sequence.Seat{Ordinal: int64(i + 1)}, Domain: in, Running: i != 0, Claimed: true, Ours: true})
		}
		s.Replicas = 9
		for _, m := range Make(s).Renumber {
			s.Pods[m.Pod].Seat = m.Seat
		}
		var running []int64
		for _, p := range s.Pods {
			if p.Domain == 0 && p.Running {
				running = append(running, p.Seat.Ordinal)
			}
		}
		slices.Sort(running)
		if want := []int64{homes.Nth(0, 0, 1), homes.Nth(0, 0, 2)}; !slices.Equal(running, want) {
			t.Errorf("%s: the pods with a node have the ordinals %v, want %v", name, running, want)
		}
		if own := s.Pods[0].Seat.Ordinal; s.Layout.Domains().HasRoom(0, own) && s.Layout.Domains().Domain(0, own) == 0 {
			t.Errorf("%s: the pod that waits has ordinal %d, for which its zone has room", name, own)
		}
	}
}
