package planner

import (
	"testing"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Which pods would go if nothing held them. Of two pools, a and b, the first ordinal is b's and the second a's.
func TestMisplaced(t *testing.T) {
	s := strategy("p=a,weight=1:p=b,weight=1")
	own := testkit.Layout(s, layout.Workload{Ordinals: &layout.Ordinals{Held: map[int64]sequence.Cell{9: {Pool: 0}}}})
	const a, b, ours, rank1 = 0, 1, true, 1
	full := Plan{Counts: []int64{1, 3}, Targets: []int64{2, 2}}
	right := Plan{Counts: []int64{2, 2}, Targets: []int64{2, 2}}
	seat := func(pool int, ordinal int64) sequence.Seat { return sequence.Seat{Pool: pool, Ordinal: ordinal} }
	none := seat(-1, 0)
	for name, tc := range map[string]struct {
		pod    Pod
		plan   Plan
		evict  bool
		adopts bool // no pod is recreated
		keep   bool
		want   bool
	}{
		"in a pool with too many":                   {pod: Pod{Seat: seat(b, 1)}, plan: full, evict: true, want: true},
		"in a pool with as many as are due":         {pod: Pod{Seat: seat(b, 1)}, plan: right, evict: true},
		"in a pool with too few":                    {pod: Pod{Seat: seat(a, 1)}, plan: full, evict: true},
		"nobody asked for evictions":                {pod: Pod{Seat: seat(b, 1)}, plan: full},
		"it came before its policy":                 {pod: Pod{Seat: seat(b, 1), BeforePolicy: true}, plan: full, want: true},
		"and is to be adopted":                      {pod: Pod{Seat: seat(b, 1), BeforePolicy: true}, plan: full, adopts: true},
		"none of the workload may go":               {pod: Pod{Seat: seat(b, 1)}, plan: full, evict: true, keep: true},
		"without a seat, in no pool":                {pod: Pod{Seat: none, Ours: ours, NodePool: OtherNode}, plan: right, want: true},
		"that is to be adopted":                     {pod: Pod{Seat: none, Ours: ours, NodePool: OtherNode}, plan: right, adopts: true},
		"without a seat, in a pool":                 {pod: Pod{Seat: none, Ours: ours, NodePool: a}, plan: right},
		"without a seat, and it waits":              {pod: Pod{Seat: none, Ours: ours, NodePool: NoNode}, plan: right},
		"it is not ours":                            {pod: Pod{Seat: none, NodePool: OtherNode}, plan: right, evict: true},
		"its pool is gone":                          {pod: Pod{Seat: none, Foreign: true, NodePool: a}, plan: right, evict: true, want: true},
		"its pool is gone, and nobody asked":        {pod: Pod{Seat: none, Foreign: true, NodePool: a}, plan: right},
		"an ordinal in its pool":                    {pod: Pod{Seat: seat(b, 1), OwnRank: rank1}, plan: full, evict: true},
		"an ordinal in another pool":                {pod: Pod{Seat: seat(a, 1), OwnRank: rank1}, plan: right, evict: true, want: true},
		"and nobody asked":                          {pod: Pod{Seat: seat(a, 1), OwnRank: rank1}, plan: right},
		"an ordinal without a seat, in its pool":    {pod: Pod{Seat: none, Ours: ours, OwnRank: rank1, NodePool: b}, plan: right, evict: true},
		"an ordinal without a seat, in another one": {pod: Pod{Seat: none, Ours: ours, OwnRank: rank1, NodePool: a}, plan: right, want: true},
		"an ordinal that is not ours":               {pod: Pod{Seat: none, OwnRank: rank1, NodePool: a}, plan: right, evict: true},
		"an ordinal without a seat, in no pool":     {pod: Pod{Seat: none, Ours: ours, OwnRank: rank1, NodePool: OtherNode}, plan: right, want: true},
		"that is to be adopted, too":                {pod: Pod{Seat: none, Ours: ours, OwnRank: rank1, NodePool: OtherNode}, plan: right, adopts: true},
		"an ordinal that waits":                     {pod: Pod{Seat: none, Ours: ours, OwnRank: rank1, NodePool: NoNode}, plan: right},
		"an ordinal that is held":                   {pod: Pod{Seat: seat(a, 1), OwnRank: 9}, plan: full, evict: true},
	} {
		t.Run(name, func(t *testing.T) {
			state := &State{Layout: own, Evict: tc.evict, Keep: tc.keep, Mode: stowage.RepairRecreate}
			if tc.adopts {
				state.Mode = stowage.RepairAdopt
			}
			if got := state.Misplaced(&tc.plan, &tc.pod); got != tc.want {
				t.Errorf("it would go: %t", got)
			}
		})
	}

	state := &State{Layout: testkit.Layout(testkit.Over(s, 1, 1), layout.Workload{Orders: &layout.Orders{}}), Evict: true, Mode: stowage.RepairRecreate}
	homes := state.Layout.Homes()
	for ordinal, want := range map[int64]bool{1: false, 3: true} { // both are in the domain of the first one, which should have one of two
		state.Pods = []Pod{{Seat: seat(b, 1), Domain: homes.Of(b, 1)}, {Seat: seat(b, 3), Domain: homes.Of(b, 1)}}
		right.inDomains = state.domainSurplus(right.Counts)
		if got := state.Misplaced(&right, &Pod{Seat: seat(b, ordinal), Domain: homes.Of(b, 1)}); got != want {
			t.Errorf("ordinal %d of two would go: %t", ordinal, got)
		}
		if state.Misplaced(&right, &Pod{Seat: seat(b, ordinal), Domain: 1 - homes.Of(b, 1)}) {
			t.Errorf("ordinal %d would go from the other domain", ordinal)
		}
	}
	first, _ := state.own(&Pod{OwnRank: 1})
	at := state.Layout.DomainOf(first)
	for in, want := range map[int]bool{at: false, 1 - at: true} {
		if got := state.Misplaced(&right, &Pod{Seat: first, OwnRank: 1, Domain: in}); got != want {
			t.Errorf("an ordinal in domain %d of %d would go: %t", in, at, got)
		}
	}
}

// Pods without a seat that would be recreated wait for a later pod that came through the webhook. Others do not wait for that.
func TestUnproven(t *testing.T) {
	two := plain(strategy("p=a,weight=1:p=b,weight=1"))
	named := func(name string, p Pod, edit func(*Pod)) Pod {
		if p.Name = name; edit != nil {
			edit(&p)
		}
		return p
	}
	waits := func(name string, age time.Duration) Pod { return named(name, unseated(NoNode, age), nil) }
	for name, tc := range map[string]struct {
		pods  []Pod
		edit  func(*State)
		want  int64
		first string
	}{
		"none came later":                  {pods: []Pod{waits("y", 0), waits("x", 0)}, want: 2, first: "x"},
		"a later one has no seat":          {pods: []Pod{waits("x", time.Minute), named("z", seated(0, 1), nil), waits("y", -time.Second)}, want: 2, first: "x"},
		"one came later":                   {pods: []Pod{waits("x", time.Second), named("z", seated(0, 1), nil)}},
		"one of another workload did":      {pods: []Pod{waits("x", time.Minute)}, edit: func(s *State) { s.Reached = begin.Add(time.Hour) }},
		"one runs outside the pools":       {pods: []Pod{named("x", unseated(OtherNode, 0), nil)}, want: 1, first: "x"},
		"one runs in a pool":               {pods: []Pod{named("x", unseated(0, 0), nil)}},
		"one is held":                      {pods: []Pod{named("x", unseated(OtherNode, 0), func(p *Pod) { p.Held = "why" })}},
		"one had its seat in another pool": {pods: []Pod{named("x", unseated(OtherNode, 0), func(p *Pod) { p.Foreign = true })}},
		"one is beyond all maxima":         {pods: []Pod{named("x", unseated(OtherNode, 0), func(p *Pod) { p.Full, p.Running = true, true }), waits("y", -time.Hour)}, want: 1, first: "y"},
		"one is not ours":                  {pods: []Pod{named("x", unseated(OtherNode, 0), func(p *Pod) { p.Ours = false })}},
		"pods are only adopted":            {pods: []Pod{waits("x", 0)}, edit: func(s *State) { s.Mode = stowage.RepairAdopt }},
		"they are a Job's":                 {pods: []Pod{waits("x", 0)}, edit: func(s *State) { s.Keep = true }},
	} {
		s := State{Layout: two, Pods: tc.pods, Replicas: int64(len(tc.pods)), Settled: true, Mode: stowage.RepairRecreate}
		if tc.edit != nil {
			tc.edit(&s)
		}
		if n, first := s.Unproven(); n != tc.want || first != tc.first {
			t.Errorf("%s: %d pods such as %q, want %d such as %q", name, n, first, tc.want, tc.first)
		}
	}
}
