// Package spill decides about pools without room. It decides when a pool counts as exhausted, and which of its pods
// go to other pools. It decides when the pool is tried again, and when it is as before.
//
// The package is pure. A state and what is seen of a workload go in; the next state and the pods to evict come out. It
// promises that
//   - a pod that has a node is never among the pods to evict;
//   - no more pods are evicted than the other pools take;
//   - while a pool is tried, at most one step of pods waits there;
//   - a pool that is tried is available only once a pod of the try has a node, or after [Timing.Forget].
//
// What a pool without room means for seats is [sequence.Strategy.Without].
//
// Where a strategy divides its pools over domains, each pair of a pool and a domain, a cell, has a state of its own. The cells of a pool
// stand side by side, in the order of the pools. A pool has no room once none of its cells has: see [Whole]. Until then its other
// cells take the pods of one without room: see [domain.Map].
package spill

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Phase is what is known of a pool's room.
type Phase string

// The phases. A pool of which nothing is known is available.
const (
	Available Phase = "Available"
	Exhausted Phase = "Exhausted" // no pod gets a seat above Max
	Probing   Phase = "Probing"   // Max was raised, to find out whether there is room again
)

// Timing is the waits of [Next].
type Timing struct {
	// FirstProbe is the wait before an exhausted pool is tried again. It doubles after each try in vain, up to
	// LastProbe.
	FirstProbe, LastProbe time.Duration
	// Forget is how long nothing must have waited for a pool, without a hard signal, for it to be available again.
	Forget time.Duration
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{FirstProbe: time.Minute, LastProbe: 30 * time.Minute, Forget: 30 * time.Minute}
}

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
	Now      time.Time
	Strategy *sequence.Strategy // as the policy has it, without gaps
	// Homes are those of the strategy's seats, or nil without domains.
	Homes *domain.Homes
	// Own returns the seat of a pod with an ordinal of its own, by its rank; nil is as the strategy has it.
	Own      func(rank int64) (sequence.Seat, error)
	Rules    []Rule // of each pool
	Pods     []Pod
	Replicas int64
	// Hard reports, for each pool or cell, that who makes its nodes has said that it cannot make any now.
	Hard []bool
	// Room is, for each pool or cell, how many more pods its nodes are proven to have room for.
	Room []int64
}

// cells returns how many states each pool has.
func (v *View) cells() int {
	if v.Homes == nil {
		return 1
	}
	return v.Homes.Len()
}

// Cells returns how many states each pool of a strategy has: one, or one for each domain.
func Cells(s *sequence.Strategy) int {
	if a := s.Across(); a != nil {
		return len(a.Domains)
	}
	return 1
}

// closed reports whether the pool or cell has no room.
func (p *Pool) closed() bool { return p.Phase == Exhausted || p.Phase == Probing }

// Whole returns the states of pools, of which each has so many cells. A pool has no room if none of its cells has. Then it has as many
// seats as they have together, and it is tried as soon as one of them is.
func Whole(cells []Pool, each int) []Pool {
	if each == 1 {
		return cells
	}
	out := make([]Pool, len(cells)/each)
	for i := range out {
		sum, open, of := Pool{Phase: Exhausted}, false, cells[i*each:(i+1)*each]
		for j := range of {
			c := &of[j]
			open = open || !c.closed()
			sum.Max, sum.Epoch, sum.Tries, sum.Step = sum.Max+c.Max, sum.Epoch+c.Epoch, max(sum.Tries, c.Tries), sum.Step+c.Step
			sum.LeftOut = max(sum.LeftOut, c.LeftOut)
			if c.Phase == Probing {
				sum.Phase = Probing
			}
			if c.Since.After(sum.Since) {
				sum.Since = c.Since
			}
			if sum.Next.IsZero() || !c.Next.IsZero() && c.Next.Before(sum.Next) {
				sum.Next = c.Next
			}
		}
		if out[i] = sum; open {
			out[i] = Pool{Phase: Available}
		}
	}
	return out
}

// Limits returns how many seats each cell has, for [domain.Homes.Map], or nil if all have room.
func Limits(cells []Pool, each int) (limits [][]int64) {
	if !slices.ContainsFunc(cells, func(p Pool) bool { return p.closed() }) {
		return nil
	}
	for i := range cells {
		if i%each == 0 {
			limits = append(limits, nil)
		}
		limit := domain.Open
		if cells[i].closed() {
			limit = cells[i].Max
		}
		limits[i/each] = append(limits[i/each], limit)
	}
	return limits
}

// Gaps returns the seats that the states of whole pools leave out: see [Whole].
func Gaps(pools []Pool) []sequence.Gap {
	gaps := make([]sequence.Gap, len(pools))
	for i, p := range pools {
		if p.Phase == Exhausted || p.Phase == Probing {
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
func Next(v View, pools []Pool, timing Timing) []Pool {
	next, each := slices.Clone(pools), v.cells()
	for i := range next {
		if v.Rules[i/each].After > 0 {
			step(next, i, count(v, i), v, timing)
		} else if next[i].Phase != Available {
			next[i].open(v.Now)
		}
	}
	if each > 1 {
		endTries(v, pools, next)
		leaveOut(v, pools, next)
	}
	return next
}

// endTries ends the tries of the other cells of a pool without any room once one of them was in vain. Otherwise a pod would try one cell
// after the other and never go to another pool. A cell that has a pod of its try, or in which there is proven room, goes on.
func endTries(v View, was, is []Pool) {
	each := v.cells()
	whole := Whole(is, each)
	for i := range is {
		if failed := is[i].Phase == Exhausted && was[i].Phase == Probing; !failed || !whole[i/each].closed() {
			continue
		}
		for j := i / each * each; j < (i/each+1)*each; j++ {
			p, t := &is[j], count(v, j)
			if j == i || v.Room[j] > 0 || p.Phase == Probing && (t.waiting > 0 || t.placed > p.Max-p.Step) {
				continue
			}
			if p.Phase == Probing {
				p.Phase, p.Since, p.Max, p.Step, p.Tries = Exhausted, v.Now, p.Max-p.Step, 0, max(p.Tries, is[i].Tries)
			}
			if p.Next.Before(is[i].Next) {
				p.Next = is[i].Next
			}
		}
	}
}

// leaveOut notes how many seats of pools are left out whose last cell has just lost its room.
func leaveOut(v View, was, is []Pool) {
	each := v.cells()
	before, after := Whole(was, each), Whole(is, each)
	for i := range after {
		if after[i].closed() && before[i].closed() {
			continue
		}
		left := int64(0)
		if after[i].closed() {
			left = v.Rules[i].LeftOut(v.Strategy, i, after[i].Max, v.Replicas)
		}
		for j := i * each; j < (i+1)*each; j++ {
			is[j].LeftOut = left
		}
	}
}

// count counts the pods of a pool or cell.
func count(v View, at int) (t tally) {
	each := v.cells()
	rule := &v.Rules[at/each]
	for i := range v.Pods {
		p := &v.Pods[i]
		switch {
		case p.at(each) != at:
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

// at returns the index of the state of the pod's pool or cell.
func (p *Pod) at(each int) int { return p.Seat.Pool*each + p.Domain }

// step takes one pool or cell from state to state.
func step(pools []Pool, pool int, t tally, v View, timing Timing) {
	p, each := &pools[pool], v.cells()
	if p.Phase == "" {
		p.Phase = Available
	}
	if t.waiting > 0 || v.Hard[pool] {
		p.Waited = v.Now
	}
	enough := t.ripe > 0 && t.ripe >= min(enough, t.waiting)
	switch p.Phase {
	case Available:
		if enough {
			if p.close(t, v.Now); each == 1 {
				p.LeftOut = v.Rules[pool].LeftOut(v.Strategy, pool, p.Max, v.Replicas)
			}
			p.Tries, p.Next = 0, v.Now.Add(timing.FirstProbe)
		}
		return
	case Exhausted:
		p.Max = max(p.Max, t.placed)
		switch {
		case !v.Now.Before(p.Next):
			p.probe(1, v.Now)
			p.Early = false
		case v.Room[pool] > 0 && !p.Early:
			// Room that was seen brings the next probe forward, but only once: the pods may need more than what room is
			// measured by.
			p.probe(max(1, t.placed+v.Room[pool]-p.Max), v.Now)
			p.Early = true
		case enough && t.placed < p.Max:
			// A pod below the maximum is gone, and its successor finds no room.
			p.close(t, v.Now)
		}
	case Probing:
		p.Max = max(p.Max, t.placed)
		found := t.placed > p.Max-p.Step // a pod of the last step has a node
		switch {
		case t.placed >= p.Max:
			p.Step *= 2
			p.Max += p.Step
		case v.Room[pool] > p.Max-t.placed && (!p.Early || !enough):
			// Nodes come one by one, so room may raise the maximum again, but not while pods wait in vain.
			p.Step, p.Early = v.Room[pool], true
			p.Max = t.placed + p.Step
		case enough:
			p.close(t, v.Now)
			p.Tries++
			p.Next = v.Now.Add(backoff(p.Tries, timing))
		}
		if found && t.waiting == 0 && t.placed >= due(v, pools, pool) {
			p.open(v.Now)
			return
		}
	}
	if p.Phase != Available && v.Now.Sub(p.Waited) >= timing.Forget {
		p.open(v.Now)
	}
}

// due returns how many pods a pool or cell should have if it had room for all, while others leave out their seats.
func due(v View, pools []Pool, at int) int64 {
	each := v.cells()
	pool := at / each
	gaps := Gaps(Whole(pools, each))
	gaps[pool] = sequence.Gap{}
	target := v.Strategy.Without(gaps).Target(pool, v.Replicas)
	if v.Homes == nil {
		return target
	}
	limits := Limits(pools, each)
	if limits != nil {
		limits[pool][at%each] = domain.Open
	}
	return v.Homes.Map(limits).Given(pool, at%each, target)
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

func backoff(tries int, timing Timing) time.Duration {
	wait := timing.FirstProbe
	for range tries {
		if wait *= 2; wait >= timing.LastProbe {
			return timing.LastProbe
		}
	}
	return wait
}

// Moves returns the pods to evict of one owner, by their index, the highest ranks first. They wait where there is no room, and their
// successors go elsewhere. The strategy leaves out what pools lack room for, and the domains, nil without any, what cells lack
// room for.
func Moves(s *sequence.Strategy, domains *domain.Map, cells []Pool, pods []Pod, replicas int64) []int {
	each := 1
	if domains != nil {
		each = domains.Len()
	}
	pools, counts := Whole(cells, each), make([]int64, s.Len())
	for i := range pods {
		counts[pods[i].Seat.Pool]++
	}
	// 1. What other pools take: what they lack, less what pods that do not exist yet will get.
	take := int64(len(pods)) - replicas
	for i := range counts {
		take += max(0, s.Target(i, replicas)-counts[i])
	}
	// 2. Who goes: pods above the maximum that have waited.
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
		out = append(out, movesWithin(domains, cells, pods, pool, gone)...)
	}
	return out
}

// movesWithin returns the pods to evict of one pool whose successors go to other cells of it. Some pods are gone already.
func movesWithin(domains *domain.Map, cells []Pool, pods []Pod, pool int, gone map[int]bool) (out []int) {
	each := domains.Len()
	waiting := waitingIn(pods, func(pod *Pod) bool { return pod.Seat.Pool == pool && cells[pod.at(each)].closed() })
	if len(waiting) == 0 {
		return nil
	}
	held, surplus := map[int64]int{}, make([]int64, each)
	for i := range pods {
		if pods[i].Seat.Pool == pool && !gone[i] {
			held[pods[i].Seat.Ordinal]++
			surplus[pods[i].Domain]++
		}
	}
	for i := range surplus { // those within the maximum are the try of a cell
		surplus[i] -= max(0, domains.Limit(pool, i))
	}
	free := int64(1)
	for _, i := range waiting {
		if gone[i] || surplus[pods[i].Domain] <= 0 {
			continue
		}
		own := pods[i].Seat.Ordinal
		for held[free] > 0 && (free != own || held[free] > 1) {
			free++
		}
		if domains.HasRoom(pool, free) && domains.Domain(pool, free) != pods[i].Domain {
			surplus[pods[i].Domain]--
			held[own]--
			held[free]++ // its successor's
			free = min(free, own)
			out = append(out, i)
		}
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

// Ordinals returns which pods with an ordinal of their own, as those of a StatefulSet, are to be elsewhere than the strategy has them. Pods that wait in vain move, and stay there while their own has no seat for them. When that one
// is tried, the lowest ordinals are to return, as many as its maximum allows: they are the try. Ordinals count
// from 0. The ordinals are those of the pods, in their order. Pools and cells are named by the index of their state.
func Ordinals(v View, next []Pool, pods []Pod, ordinals []int64, replicas int64, now map[int64]int) map[int64]int {
	own, each := v.ownCells(), v.cells()
	// 1. Who is elsewhere, or is to be.
	out, home := map[int64]int{}, map[int64]bool{}
	away := make([][]int64, len(next)) // by their own pool or cell
	note := func(n int64, at int) {
		mine, err := own(n)
		if _, known := out[n]; known || err != nil || n >= replicas || mine == at || next[mine].Phase == Available {
			return
		}
		out[n] = at
		away[mine] = append(away[mine], n)
	}
	for n, at := range now {
		note(n, at)
	}
	for i := range pods {
		note(ordinals[i], pods[i].at(each))
		mine, err := own(ordinals[i])
		home[ordinals[i]] = err == nil && mine == pods[i].at(each) && pods[i].Node
	}
	// 2. Those for whom their own pool has seats are to return: first who runs there, then the lowest.
	for at := range away {
		stay := min(max(0, v.given(at, replicas)-next[at].Max), cmp.Or(next[at].LeftOut, sequence.All))
		slices.SortFunc(away[at], func(a, b int64) int {
			if home[a] != home[b] {
				if home[a] {
					return -1
				}
				return 1
			}
			return cmp.Compare(a, b)
		})
		for _, n := range away[at][:max(0, int64(len(away[at]))-stay)] {
			delete(out, n)
		}
	}
	// 3. Who has waited in vain moves to where most is lacking.
	counts := make([]int64, len(next))
	seen := slices.Clone(pods)
	for i := range seen {
		if to, ok := out[ordinals[i]]; ok && to != seen[i].at(each) {
			seen[i].Seat.Pool, seen[i].Domain, seen[i].Waits = to/each, to%each, 0 // where it is to be
		}
		counts[seen[i].at(each)]++
	}
	d := divide(v, next, replicas)
	for _, i := range d.moves(seen, counts) {
		if ordinals[i] < 0 {
			break
		}
		best := d.lacksMost(seen[i].Seat.Pool, counts)
		if best < 0 {
			continue
		}
		counts[seen[i].at(each)]--
		counts[best]++
		out[ordinals[i]] = best
	}
	return out
}

// ownCells returns the function that returns where a pod with an ordinal of its own is while all have room.
func (v *View) ownCells() func(n int64) (int, error) {
	seatOf := v.Strategy.SeatAt
	if v.Own != nil {
		seatOf = v.Own
	}
	return func(n int64) (int, error) {
		seat, err := seatOf(n + 1)
		if err != nil || v.Homes == nil {
			return seat.Pool, err
		}
		return seat.Pool*v.cells() + v.Homes.Of(seat.Pool, seat.Ordinal), nil
	}
}

// given returns how many of the first n seats are in a pool or cell while all have room.
func (v *View) given(at int, n int64) int64 {
	pool := at / v.cells()
	target := v.Strategy.Target(pool, n)
	if v.Homes == nil {
		return target
	}
	return v.Homes.Count(pool, at%v.cells(), target)
}

// divided is how so many pods are divided while some pools and cells have no room.
type divided struct {
	strategy *sequence.Strategy
	domains  *domain.Map
	cells    []Pool
	targets  []int64 // of each pool or cell
	replicas int64
}

func divide(v View, cells []Pool, replicas int64) divided {
	each := v.cells()
	d := divided{strategy: v.Strategy.Without(Gaps(Whole(cells, each))), cells: cells, targets: make([]int64, len(cells)), replicas: replicas}
	if v.Homes != nil {
		d.domains = v.Homes.Map(Limits(cells, each))
	}
	for at := range d.targets {
		if d.targets[at] = d.strategy.Target(at/each, replicas); d.domains != nil {
			d.targets[at] = d.domains.Given(at/each, at%each, d.targets[at])
		}
	}
	return d
}

// moves returns the pods with ordinals of their own that are to move, by their index.
func (d *divided) moves(pods []Pod, counts []int64) []int {
	if d.domains == nil {
		return Moves(d.strategy, nil, d.cells, pods, d.replicas)
	}
	var out []int
	for at := range d.cells {
		if !d.cells[at].closed() {
			continue
		}
		waiting := waitingIn(pods, func(pod *Pod) bool { return pod.at(d.domains.Len()) == at })
		out = append(out, waiting[:max(0, min(int64(len(waiting)), counts[at]-d.targets[at]))]...)
	}
	return out
}

// lacksMost returns the pool or cell with room that lacks most, or -1 if none lacks any. While a pool has a cell with room, its pods stay in
// the pool.
func (d *divided) lacksMost(pool int, counts []int64) int {
	each := len(d.cells) / d.strategy.Len()
	within := d.domains != nil && slices.ContainsFunc(d.cells[pool*each:(pool+1)*each], func(p Pool) bool { return !p.closed() })
	best, most := -1, int64(0)
	for at := range counts {
		if within && at/each != pool {
			continue
		}
		if lacks := d.targets[at] - counts[at]; lacks > most {
			best, most = at, lacks
		}
	}
	return best
}
