package ledger

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What cannot be demanded at once of a history that flaps, or in which seats were guessed, is
// demanded after repair: package planner plans, and this carries the plans out as the controller
// does.

// checked counts what was checked at quiet points.
type checked struct {
	exact    int // points at which every count and ordinal was demanded at once
	repaired int // points at which they were demanded after repair
	pods     int // pods that were created
	ahead    int // requests that got a seat that was claimed ahead
	relayed  int // requests of one webhook to another
	moves    int // what repair had to do for that: seats given anew, and pods evicted
}

func (c *checked) add(o checked) {
	c.exact, c.repaired, c.moves = c.exact+o.exact, c.repaired+o.repaired, c.moves+o.moves
	c.pods, c.ahead, c.relayed = c.pods+o.pods, c.ahead+o.ahead, c.relayed+o.relayed
}

// state is the workload as repair sees it.
func (w *world) state() (planner.State, []*simPod) {
	s := planner.State{Layout: w.layout, Replicas: w.replicas, Settled: true, Mode: stowage.RepairRecreate, Evict: true}
	if w.bug == renumberedAnyhow {
		s.Layout = testkit.Layout(w.strategy, layout.Workload{})
	}
	for range w.strategy.Len() {
		s.Available = append(s.Available, true)
	}
	var pods []*simPod
	for _, p := range w.pods {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b *simPod) int { return a.uid - b.uid })
	for _, p := range pods {
		view := planner.Pod{Name: strconv.Itoa(p.uid), Created: time.Unix(int64(p.uid), 0), Ready: true, Ours: true, Claimed: p.Pool != "", NodePool: planner.OtherNode, Rank: p.rank, Domain: p.domain, Position: Position(p.ID), Running: true}
		view.Seat.Pool = -1
		if p.Pool != "" {
			pool, _ := strconv.Atoi(p.Pool)
			view.Seat = sequence.Seat{Pool: pool, Ordinal: p.Ordinal}
			view.NodePool = pool
		}
		s.Pods = append(s.Pods, view)
	}
	return s, pods
}

// distance is how many pods are in a pool that has too many.
func (w *world) distance() int64 {
	s, _ := w.state()
	plan := planner.Make(s)
	return plan.Distance()
}

// repair carries out plans until there is nothing to do, and returns an error if that does not end,
// or if an eviction wins nothing.
func (w *world) repair() error {
	before := w.distance()
	for step := 0; ; step++ {
		if step > 2*len(w.pods)+20 {
			return fmt.Errorf("repair does not end")
		}
		s, pods := w.state()
		plan := planner.Make(s)
		switch {
		case len(plan.Renumber) > 0:
			for _, m := range plan.Renumber {
				p := pods[m.Pod]
				p.Ordinal, p.rank, p.ID = m.Seat.Ordinal, m.Rank, WithPosition(p.ID, m.Position)
				if w.bug == costByOrdinal {
					p.rank = w.strategy.RankOrNone(m.Seat)
				}
				w.note("repair gives pod %d the ordinal %d", p.uid, p.Ordinal)
				w.publish(p, false)
				w.checked.moves++
			}
		case plan.Remove != nil:
			w.checked.moves++
			w.remove(pods[plan.Remove.Pod].uid)
		default:
			return nil
		}
		if err := w.settle(); err != nil {
			return err
		}
		now := w.distance()
		if now > before {
			return fmt.Errorf("repair makes it worse: %d pods were in the wrong pool, and now %d are", before, now)
		}
		before = now
	}
}
