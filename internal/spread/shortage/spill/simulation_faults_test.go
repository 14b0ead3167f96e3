package spill

import (
	"slices"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The simulation finds each of these faults, in at most 2,000 histories.
func TestSimulationFindsFaults(t *testing.T) {
	each := func(change func(v View, before, next []Pool, i int)) faults {
		return faults{next: func(_ *world, l *workload, v View, next []Pool) []Pool {
			for i := range next {
				change(v, l.state, next, i)
			}
			return next
		}}
	}
	seen := func(change func(w *world, l *workload, v *View)) faults {
		return faults{next: func(w *world, l *workload, v View, _ []Pool) []Pool {
			v.Pods = slices.Clone(v.Pods)
			change(w, l, &v)
			return Next(v, l.state, w.timing)
		}}
	}
	for name, tc := range map[string]struct {
		kind int
		faults
	}{
		"a full pool is available at its first try": {0, each(func(v View, before, next []Pool, i int) {
			if t := count(v, i); before[i].Phase == Probing && next[i].Phase == Probing && t.waiting == 0 && t.placed > 0 && t.placed >= v.Layout.Target(i, v.Replicas) {
				next[i].open(v.Now)
			}
		})},
		"one pod that has waited closes the pool": {0, seen(func(_ *world, _ *workload, v *View) {
			ripe := make([]bool, simPools)
			for _, p := range v.Pods {
				ripe[p.Seat.Pool] = ripe[p.Seat.Pool] || p.Waits >= v.Rules[p.Seat.Pool].After
			}
			for i := range v.Pods {
				if p := &v.Pods[i]; !p.Node && ripe[p.Seat.Pool] {
					p.Waits = v.Rules[p.Seat.Pool].After
				}
			}
		})},
		"the age of a pod is the clock": {0, seen(func(w *world, l *workload, v *View) {
			at := 0
			for _, p := range l.pods {
				if !p.seen {
					continue
				}
				if !v.Pods[at].Node {
					v.Pods[at].Waits = w.now.Sub(p.created)
				}
				at++
			}
		})},
		"a hard signal closes a pool of which no pod waits": {0, each(func(v View, before, next []Pool, i int) {
			if v.Hard[i] && next[i].Phase == Available {
				next[i].Phase, next[i].Epoch, next[i].Max = Exhausted, before[i].Epoch+1, count(v, i).placed
			}
		})},
		"a pod that fits nowhere closes the pool": {0, seen(func(_ *world, _ *workload, v *View) {
			for i := range v.Pods {
				v.Pods[i].Misfit = false
			}
		})},
		"the maximum is the number of pods that run": {0, each(func(v View, _, next []Pool, i int) {
			if next[i].Phase == Exhausted {
				next[i].Max = count(v, i).placed
			}
		})},
		"a maximum of 0 is taken for none": {0, faults{gaps: func(pools []Pool) []sequence.Gap {
			gaps := Gaps(pools)
			for i := range gaps {
				if gaps[i].From == 0 {
					gaps[i].Count = 0
				}
			}
			return gaps
		}}},
		"the state goes when an older replica writes": {0, faults{wiped: true}},
		"a pod is evicted without its version":        {0, faults{unsafe: true}},
		"no ramp": {0, each(func(_ View, before, next []Pool, i int) {
			if next[i].Phase == Probing && before[i].Phase == Exhausted {
				next[i].Max += 10
			}
		})},
		"epochs go back": {0, each(func(_ View, _, next []Pool, i int) {
			if next[i].Phase == Available {
				next[i].Epoch = 0
			}
		})},
		"more pods are moved than other pools take": {0, faults{moves: func(_ *world, _ *workload, v View, next []Pool, _ []int) (evict []int) {
			for i := range v.Pods {
				if p := &v.Pods[i]; !p.Node && p.Waits >= v.Rules[p.Seat.Pool].After && next[p.Seat.Pool].Phase == Exhausted {
					evict = append(evict, i)
				}
			}
			return evict
		}}},
		"a pool is never tried": {0, each(func(v View, _, next []Pool, i int) {
			next[i].Next, next[i].Waited = v.Now.Add(time.Hour), v.Now
		})},
		"each revision has the whole maximum":            {1, faults{shared: true}},
		"running pods are evicted without room":          {2, faults{roomless: true}},
		"maxSpill is not asked":                          {3, each(func(_ View, _, next []Pool, i int) { next[i].LeftOut = 0 })},
		"repair does not ask where an ordinal was moved": {5, faults{ordinals: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				w := newWorld(kinds[tc.kind], seed)
				w.faults = tc.faults
				if failed := w.run(); failed != "" {
					t.Logf("found in history %d: %s", seed, failed)
					return
				}
			}
			t.Error("it is not found")
		})
	}
}
