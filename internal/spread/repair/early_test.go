package repair

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/world"
)

// A pod that came a moment before what divides it goes early only if its workload came with it: the pods of a rollout of an older workload are
// not ready either.
func TestEarlyPodsAreOfAYoungWorkload(t *testing.T) {
	t.Parallel()
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
		"annotations or a PodDistributor":             {of: annotated, workload: moment, pod: moment, want: true},
		"and the workload is older":                   {of: annotated, workload: before, pod: moment},
		"and it is not known how old that is":         {of: annotated, pod: moment},
		"and the pod is older":                        {of: annotated, workload: moment, pod: before},
		"and the pod has a seat":                      {of: annotated, workload: moment, pod: moment, change: func(p *planner.Pod) { p.Claimed = true }},
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
