// Package spill decides about pools without room. It decides when a pool counts as exhausted, and which of its pods
// go to other pools. It decides when the pool is tried again, and when it is as before.
//
// The package is pure. A state and what is seen of a workload go in; the next state and the pods to evict come out. It
// promises that
//   - a pod that has a node is never among the pods to evict;
//   - no more pods are evicted than the other pools take;
//   - while a pool is tried, at most one step of pods waits there;
//   - a pool that is tried is available only once a pod of the try has a node, or after [tries.Timing]. It is, too, once no pod waits, and it
//     and all other pools without room have the pods that are due.
//
// What a pool without room means for seats is [sequence.Strategy.Without].
//
// Where a strategy divides its pools over domains, each pair of a pool and a domain, a cell, has a state of its own. The cells of a pool
// stand side by side, in the order of the pools. A pool has no room once none of its cells has: see [MergeCells]. Until then its other
// cells take the pods of one without room: see [domain.Assignment].
package spill

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Phase is what is known of a pool's room.
type Phase string

// The phases. A pool without a record is available.
const (
	Available Phase = "Available"
	Exhausted Phase = "Exhausted" // no pod gets a seat above Max
	Probing   Phase = "Probing"   // Max was raised, to find out whether there is room again
	// Unsuitable is the phase of a cell in which no pod of the workload can run, while other cells of its pool are suitable. It is not stored as a
	// phase: see [CloseUnsuitable].
	Unsuitable Phase = "Unsuitable"
)

// enough is how many pods must have waited for a pool to be exhausted, if so many wait at all. One pod alone may have
// a reason of its own that nobody knows.
const enough = 3

// Pool is the state of one pool of a workload, or of one cell.
type Pool struct {
	Phase Phase
	// Epoch counts the times that Max was set anew because pods waited too long. It never goes back.
	Epoch int64
	// Since is when the phase began.
	Since time.Time
	// Max is how many seats of the pool are given, while it is not available. 0 is a maximum, too.
	Max int64
	// LeftOut is how many seats after Max are not given; 0 stands for all. It stays until the pool is available.
	LeftOut int64
	// Tries is how many probes were in vain since the pool was available, and Next when the next one begins.
	Tries int
	Next  time.Time
	// Step is by how much the current probe has raised Max last.
	Step int64
	// Early says that room which was seen has brought a probe forward since the last one that was due.
	Early bool
	// Waited is when a pod was seen to wait last, or a hard signal.
	Waited time.Time
}

// Pod is an active pod with a seat.
type Pod struct {
	Seat   sequence.Seat
	Domain int // of the seat; 0 without domains
	Rank   int64
	Node   bool // it has one, in the pool of its seat
	// Waits is for how long no node was found for the pod. The time in which room was on its way does not count.
	Waits time.Duration
	// Misfit says that the pod would not fit on an empty node of its pool either.
	Misfit bool
}

// Rule is what a policy asks for where a pool has no room.
type Rule struct {
	// After is how long a pod waits before other pools take it; 0 is for ever.
	After time.Duration
	// MaxSpill is how many of the pool's pods other pools may take: a number, or a percentage of the pool's target. Nil
	// stands for all.
	MaxSpill *intstr.IntOrString
}

// LeftOut returns how many seats of a pool after the first max are left out. So other pools take no more of n pods,
// or more, than the rule allows. A result of 0 stands for all.
//
// A later seat of the pool comes in the place of a seat that is left out. So more seats are left out than pods move.
func (r Rule) LeftOut(s *sequence.Strategy, pool int, maximum, n int64) int64 {
	if r.MaxSpill == nil {
		return 0
	}
	target := s.Target(pool, n)
	part, err := intstr.GetScaledValueFromIntOrPercent(r.MaxSpill, int(target), true)
	if err != nil {
		return 0
	}
	spilled := max(1, int64(part))
	if target-spilled < maximum { // all that wait now may move; the limit binds once there are more pods
		rank, ok := s.Rank(sequence.Seat{Pool: pool, Ordinal: maximum + spilled})
		if !ok {
			return 0
		}
		n, target = rank, maximum+spilled
	}
	return s.SeatsToLeaveOut(pool, n, target-spilled)
}

// View is what is seen of a workload.
type View struct {
	Now time.Time
	// Layout says where the pods go. Pools without room are in the states, and not in it.
	Layout   *layout.Layout
	Rules    []Rule // of each pool
	Pods     []Pod
	Replicas int64
	// Hard reports, for each pool or cell, that its node autoscaler has said that it can make no node now.
	Hard []bool
	// Room is, for each pool or cell, how many more pods its nodes are proven to have room for.
	Room []int64
}

// TakesRoom reports whether [View.Room] may raise the maximum now.
func (p *Pool) TakesRoom() bool { return p.Phase == Probing || p.Phase == Exhausted && !p.Early }

// closed reports whether the pool or cell has no room.
func (p *Pool) closed() bool {
	return p.Phase == Exhausted || p.Phase == Probing || p.Phase == Unsuitable
}

// Gaps returns the seats that the states of pools leave out: see [MergeCells].
func Gaps(pools []Pool) []sequence.Gap {
	gaps := make([]sequence.Gap, len(pools))
	for i := range pools {
		if p := &pools[i]; p.closed() {
			gaps[i] = sequence.Gap{From: p.Max, Count: cmp.Or(p.LeftOut, sequence.All)}
		}
	}
	return gaps
}

// tally counts the pods of one pool or cell.
type tally struct {
	placed  int64 // pods with a node
	waiting int64 // pods without one that are no misfits
	ripe    int64 // of these, pods that have waited long enough
}

// Next returns the next state of each pool or cell. It is to be stored before a pod is evicted for it, see [Moves].
func Next(v View, pools []Pool, timing tries.Timing) []Pool {
	next, of := slices.Clone(pools), v.Layout.Cells()
	for i := range next {
		switch {
		case next[i].Phase == Unsuitable:
		case v.Rules[of.At(i).Pool].After > 0:
			step(next, i, count(v, i), v, timing)
		case next[i].Phase != Available:
			next[i].open(v.Now)
		}
	}
	if of.OfPool() > 1 {
		endTries(v, pools, next)
		leaveOut(v, pools, next)
	}
	return next
}

// count counts the pods of a pool or cell.
func count(v View, at int) (t tally) {
	cell := v.Layout.Cells().At(at)
	rule := &v.Rules[cell.Pool]
	for i := range v.Pods {
		p := &v.Pods[i]
		switch {
		case p.Cell() != cell:
		case p.Node:
			t.placed++
		case !p.Misfit:
			t.waiting++
			if p.Waits >= rule.After || v.Hard[at] && p.Waits > 0 {
				t.ripe++
			}
		}
	}
	return t
}

// Cell returns the cell of the pod's seat.
func (p *Pod) Cell() sequence.Cell { return sequence.Cell{Pool: p.Seat.Pool, Domain: p.Domain} }

// step takes one pool or cell from state to state.
func step(pools []Pool, pool int, t tally, v View, timing tries.Timing) {
	p := &pools[pool]
	if p.Phase == "" {
		p.Phase = Available
	}
	if t.waiting > 0 || v.Hard[pool] {
		p.Waited = v.Now
	}
	switch p.Phase {
	case Available:
		if t.enough() {
			if p.close(t, v.Now); v.Layout.Cells().OfPool() == 1 {
				p.LeftOut = v.Rules[pool].LeftOut(v.Layout.Whole(), pool, p.Max, v.Replicas)
			}
			p.Tries, p.Next = 0, v.Now.Add(timing.First)
		}
		return
	case Exhausted:
		p.stepExhausted(t, v.Room[pool], v.Now)
	case Probing:
		p.Max = max(p.Max, t.placed)
		level := p.Max - p.Step
		p.stepProbing(t, v.Room[pool], v.Now, timing)
		if satisfied(v, pools, pool, t, level) {
			p.open(v.Now)
		}
	}
	if p.Phase != Available && v.Now.Sub(p.Waited) >= timing.Forget {
		p.open(v.Now)
	}
}

// enough reports whether so many pods have waited long enough that the pool or cell has no room.
func (t tally) enough() bool { return t.ripe > 0 && t.ripe >= min(enough, t.waiting) }

// stepExhausted tries a pool or cell without room again once it is time, or once there is room for more pods.
func (p *Pool) stepExhausted(t tally, room int64, now time.Time) {
	p.Max = max(p.Max, t.placed)
	switch {
	case !now.Before(p.Next):
		p.probe(max(1, t.placed+room-p.Max), now)
		p.Early = false
	case room > 0 && !p.Early:
		// Room that was seen brings the next probe forward, but only once: the pods may need more than what room is
		// measured by.
		p.probe(max(1, t.placed+room-p.Max), now)
		p.Early = true
	case t.enough() && t.placed < p.Max:
		// A pod below the maximum is gone, and its successor finds no room.
		p.close(t, now)
	}
}

// stepProbing raises the maximum of a pool or cell that is tried, or ends the try if it was in vain.
func (p *Pool) stepProbing(t tally, room int64, now time.Time, timing tries.Timing) {
	switch {
	case t.placed >= p.Max:
		p.Step *= 2
		p.Max += p.Step
	case room > p.Max-t.placed && (!p.Early || !t.enough()):
		// Nodes come one by one, so room may raise the maximum again, but not while pods wait in vain.
		p.Step, p.Early = room, true
		p.Max = t.placed + p.Step
	case t.enough():
		p.close(t, now)
		p.Tries++
		p.Next = now.Add(timing.After(p.Tries))
	}
}

// satisfied reports whether a pool or cell that is tried needs no further try, because it has what is due. Level was its maximum before the
// try. Where nobody lacks anything, no pod will come that shows the room: the pool got full with a pod of a rollout, say, or with others' pods.
func satisfied(v View, pools []Pool, at int, t tally, level int64) bool {
	if t.waiting > 0 || t.placed < due(v, pools, at) {
		return false
	}
	if t.placed > level { // a pod of the last step has a node
		return true
	}
	if level == 0 {
		return false // the next pod would wait there again: a Job asks for fewer pods for each that ends
	}
	return !slices.ContainsFunc(v.Pods, func(p Pod) bool { return !p.Node && !p.Misfit }) && !lacksOther(v, pools, at)
}

// lacksOther reports whether another pool or cell without room has fewer pods than are due.
func lacksOther(v View, pools []Pool, at int) bool {
	for i := range pools {
		if i != at && pools[i].closed() && pools[i].Phase != Unsuitable && count(v, i).placed < due(v, pools, i) {
			return true
		}
	}
	return false
}

// due returns how many pods a pool or cell should have if it had room for all, while others leave out their seats.
func due(v View, pools []Pool, at int) int64 {
	of := v.Layout.Cells()
	cell := of.At(at)
	gaps := Gaps(MergeCells(pools, of))
	gaps[cell.Pool] = sequence.Gap{}
	target := v.Layout.Whole().Without(gaps).Target(cell.Pool, v.Replicas)
	if v.Layout.Homes() == nil {
		return target
	}
	limits := Limits(pools, of)
	if limits != nil {
		limits[cell.Pool][cell.Domain] = domain.Open
	}
	return v.Layout.Homes().Assign(limits).Given(cell.Pool, cell.Domain, target)
}

// close leaves out the seats above those whose pods have a node.
func (p *Pool) close(t tally, now time.Time) {
	p.Phase, p.Since, p.Max, p.Step = Exhausted, now, t.placed, 0
	p.Epoch++
}

// probe raises the maximum by a step.
func (p *Pool) probe(step int64, now time.Time) {
	p.Phase, p.Since, p.Max, p.Step = Probing, now, p.Max+step, step
}

// open makes a pool available again. What the epoch counts goes on.
func (p *Pool) open(now time.Time) {
	*p = Pool{Phase: Available, Epoch: p.Epoch, Since: now}
}

// Moves returns the pods to evict of one owner, by their index, the highest ranks first. They wait where there is no room, and their
// successors go elsewhere. The strategy leaves out what pools lack room for, and the domains, nil without any, what cells lack
// room for.
func Moves(s *sequence.Strategy, domains *domain.Assignment, cells []Pool, pods []Pod, replicas int64) []int {
	pools, counts := MergeCells(cells, s.Cells()), make([]int64, s.Len())
	for i := range pods {
		counts[pods[i].Seat.Pool]++
	}
	// 1. What other pools take: what they lack, less what pods that do not exist yet will get.
	take := int64(len(pods)) - replicas
	for i := range counts {
		take += max(0, s.Target(i, replicas)-counts[i])
	}
	// 2. Pods above the maximum that have waited go.
	var out []int
	for i, p := range pools {
		if !p.closed() {
			continue
		}
		surplus := counts[i] - s.Target(i, replicas)
		waiting := waitingIn(pods, func(pod *Pod) bool { return pod.Seat.Pool == i })
		n := max(0, min(surplus, int64(len(waiting)), take))
		out = append(out, waiting[:n]...)
		take -= n
	}
	// 3. Other cells of the same pool take the pods of one without room, if the lowest seats of the pool that are free are there. Repair
	// gives the lowest seats of a cell to pods that have a node.
	if domains == nil {
		return out
	}
	gone := make(map[int]bool, len(out))
	for _, i := range out {
		gone[i] = true
	}
	for pool := range pools {
		out = append(out, movesWithin(domains, cells, s.Cells(), pods, pool, gone)...)
	}
	return out
}

// waitingIn returns the pods that have waited, of some, by their index, the highest ranks first.
func waitingIn(pods []Pod, in func(*Pod) bool) (out []int) {
	for i := range pods {
		if pod := &pods[i]; !pod.Node && !pod.Misfit && pod.Waits > 0 && in(pod) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(pods[b].Rank, pods[a].Rank) })
	return out
}
