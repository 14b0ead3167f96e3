package repair

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

// A pod that came a moment before what divides it goes early only if its workload came with it: the pods of a rollout of an older workload are
// not ready either.
func TestEarlyPodsAreOfAYoungWorkload(t *testing.T) {
	t.Parallel()
	parsed, err := sequence.Parse(strategy)
	if err != nil {
		t.Fatal(err)
	}
	annotated := func() *policy.Policy { return &policy.Policy{} }
	selected := func(evicts bool) func() *policy.Policy {
		return func() *policy.Policy {
			return &policy.Policy{Origin: policy.Origin{Policy: &policy.SpreadPolicy{}}, Rules: policy.Rules{EvictEarly: evicts}}
		}
	}
	moment, before := start.Add(-time.Second), start.Add(-podstatus.PolicyGrace-time.Second)
	for name, tc := range map[string]struct {
		of            func() *policy.Policy
		workload, pod time.Time
		change        func(*planner.Pod)
		later         time.Duration
		want          bool
	}{
		"annotations or a PodDistributor":     {of: annotated, workload: moment, pod: moment, want: true},
		"and the workload is older":           {of: annotated, workload: before, pod: moment},
		"and it is not known how old that is": {of: annotated, pod: moment},
		"and the pod is older":                {of: annotated, workload: moment, pod: before},
		"and the pod has a seat":              {of: annotated, workload: moment, pod: moment, change: func(p *planner.Pod) { p.Claimed = true }},
		"and the pod has a seat in a removed pool": {of: annotated, workload: moment, pod: moment, change: func(p *planner.Pod) {
			place(p, &policy.Policy{Layout: testkit.Layout(parsed, layout.Workload{})}, &observed.Pod{Seat: ledger.Seat{Pool: "gone", Ordinal: 1}, Origin: ledger.OriginClaimed})
		}},
		"and the pod waits for room":                  {of: annotated, workload: moment, pod: moment, change: func(p *planner.Pod) { p.Full = true }},
		"and that was long ago":                       {of: annotated, workload: moment, pod: moment, later: goEarlyFor},
		"a SpreadPolicy":                              {of: selected(true), workload: moment, pod: moment, want: true},
		"a SpreadPolicy, and the workload is older":   {of: selected(true), workload: before, pod: moment},
		"a ClusterSpreadPolicy, which evicts no pods": {of: selected(false), workload: moment, pod: moment},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.clock.SetTime(start.Add(tc.later))
			p := tc.of()
			if !tc.workload.IsZero() {
				p.Root = &world.Workload{Created: tc.workload}
			}
			view := planner.Pod{Created: tc.pod}
			if tc.change != nil {
				tc.change(&view)
			}
			s := &sight{run: b.run, policy: p, since: start}
			s.seeAge(&corev1.Pod{}, &view)
			if view.BeforePolicy != tc.want {
				t.Errorf("the pod goes early: %t, want %t", view.BeforePolicy, tc.want)
			}
		})
	}
}

// Pods that are ready go early only if all can that are in the wrong place, within the time in which a workload is young. What has begun is finished.
func TestYoung(t *testing.T) {
	t.Parallel()
	parsed, err := sequence.Parse(strategy)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		age    time.Duration
		of     [2]int // pods of the two pools, which should have as many
		bare   int    // pods that wait for a node, without a seat
		begun  bool
		unseen bool // the age of the workload is not known
		want   bool
	}{
		"few are wrong":                     {age: 2 * time.Second, of: [2]int{34, 26}, want: true},
		"as many as there is time for":      {age: 2 * time.Second, of: [2]int{37, 23}, want: true},
		"one more":                          {age: 2 * time.Second, of: [2]int{38, 22}},
		"few, and most of the time is over": {age: 20 * time.Second, of: [2]int{34, 26}},
		"pods without a seat count, too":    {age: 2 * time.Second, of: [2]int{25, 25}, bare: 10},
		"none is wrong, and it is old":      {age: podstatus.PolicyGrace, of: [2]int{30, 30}},
		"its age is not known":              {of: [2]int{34, 26}, unseen: true},
		"it has begun, and time is over":    {age: time.Minute, of: [2]int{34, 26}, begun: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := &policy.Policy{Layout: testkit.Layout(parsed, layout.Workload{})}
			if !tc.unseen {
				p.Root = &world.Workload{Created: start.Add(-tc.age)}
			}
			state := &planner.State{Layout: p.Layout, Mode: stowage.RepairRecreate, Available: []bool{true, true}}
			for pool, n := range tc.of {
				for i := range n {
					state.Pods = append(state.Pods, planner.Pod{Seat: sequence.Seat{Pool: pool, Ordinal: int64(i + 1)}, NodePool: pool, Ours: true, Ready: true, BeforePolicy: true})
				}
			}
			for range tc.bare {
				state.Pods = append(state.Pods, planner.Pod{Seat: sequence.Seat{Pool: -1}, NodePool: planner.NoNode, Ours: true, BeforePolicy: true})
			}
			state.Replicas = int64(len(state.Pods))
			b.setReplacing(owner.Key(), true, tc.begun)
			s := &sight{run: b.run, owner: owner, policy: p, state: state}
			if got := s.young(); got != tc.want {
				t.Errorf("young: %t, want %t", got, tc.want)
			}
		})
	}
}
