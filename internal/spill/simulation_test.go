package spill

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/internal/spread"
)

var histories = flag.Int("histories", 2000, "histories of the simulation")

// simPod is a pod of the simulated workload.
type simPod struct {
	id      int
	seat    spread.Seat
	rank    int64
	node    bool
	misfit  bool
	version int // changes when the pod gets a node
	created time.Time
}

// world is a workload, its pools' room, a webhook that may know an old state, and a leader that may crash.
type world struct {
	random   *rand.Rand
	now      time.Time
	strategy *spread.Strategy
	after    []time.Duration
	timing   Timing
	decide   func(View, []Pool, Timing) ([]Pool, []int)
	gaps     func([]Pool) []spread.Gap
	unsafe   bool // pods are evicted without their version as a precondition

	room     []int64 // pods that each pool has nodes for
	replicas int64
	pods     []*simPod
	serial   int
	state    []Pool
	old      []Pool            // what a webhook that is behind knows
	waits    map[int]time.Time // since when the leader has seen a pod wait
	evicted  []map[int64]int   // of each pool and epoch
	budget   []map[int64]int   // how many may be: those that waited, probes, and those that a stale webhook seated
	log      []string
	failed   string
	complete bool // the history had an outage that ended
	// loose says that counts may differ until the workload changes: a pool got more seats, or a scale-down removed a pod
	// that waited instead of the one of the highest rank.
	loose bool
	exact bool // no webhook is behind
}

const second = time.Second

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
	}
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%6.0fs ", w.now.Sub(time.Unix(0, 0)).Seconds())+fmt.Sprintf(format, args...))
}

// decide returns the next state and the pods to evict.
func decide(v View, pools []Pool, timing Timing) ([]Pool, []int) {
	next := Next(v, pools, timing)
	return next, moves(v, next)
}

func moves(v View, next []Pool) []int {
	return Moves(v.Strategy.Without(Gaps(next)), next, v.Pods, v.Replicas)
}

func newWorld(seed uint64, decide func(View, []Pool, Timing) ([]Pool, []int)) *world {
	random := rand.New(rand.NewPCG(seed, 1))
	w := &world{random: random, now: time.Unix(0, 0), timing: DefaultTiming(), decide: decide, gaps: Gaps, waits: map[int]time.Time{}}
	n := 2 + random.IntN(2)
	var pools []spread.Pool
	for i := range n {
		p := spread.Pool{Name: fmt.Sprint(i), Labels: map[string]string{"p": fmt.Sprint(i)}, Base: int64(random.IntN(3)), Weight: int64(random.IntN(5))}
		if random.IntN(3) == 0 {
			p.Overflow = 1
		}
		pools = append(pools, p)
		w.room = append(w.room, 1000)
		w.after = append(w.after, time.Duration(1+random.IntN(4))*30*second)
		w.evicted, w.budget = append(w.evicted, map[int64]int{}), append(w.budget, map[int64]int{})
	}
	pools[0].Weight++
	var err error
	if w.strategy, err = spread.New(pools, spread.EarlierWins); err != nil {
		panic(err)
	}
	w.state, w.old = make([]Pool, n), make([]Pool, n)
	w.replicas = int64(1 + random.IntN(20))
	return w
}

// held shows the pods to a strategy.
type held struct{ w *world }

func (h held) Count(pool int) int64 { return h.w.counts()[pool] }

func (h held) LowestFree(pool int) int64 {
	taken := map[int64]bool{}
	for _, p := range h.w.of(pool) {
		taken[p.seat.Ordinal] = true
	}
	for o := int64(1); ; o++ {
		if !taken[o] {
			return o
		}
	}
}

func (w *world) of(pool int) []*simPod {
	out := make([]*simPod, 0, len(w.pods))
	for _, p := range w.pods {
		if p.seat.Pool == pool {
			out = append(out, p)
		}
	}
	return out
}

func (w *world) counts() []int64 {
	out := make([]int64, len(w.room))
	for _, p := range w.pods {
		out[p.seat.Pool]++
	}
	return out
}

// control is the workload's controller with the webhook: it creates what lacks, and removes what is too much, pods that
// wait first and then the highest rank.
func (w *world) control() {
	for int64(len(w.pods)) < w.replicas {
		state, stale := w.state, false
		if !w.exact && w.random.IntN(10) == 0 {
			state, stale = w.old, true
		}
		s := w.strategy.Without(w.gaps(state))
		seat, err := s.Next(held{w})
		if err != nil {
			return // no pool may take the pod; here it is not created
		}
		if stale { // it may choose a pool that nobody would choose who knows that there is room again
			now, err := w.strategy.Without(w.gaps(w.state)).Next(held{w})
			w.loose = w.loose || err != nil || now.Pool != seat.Pool
		}
		rank, ok := s.Rank(seat)
		if !ok {
			rank = 9_000_000
		}
		if p := w.state[seat.Pool]; p.Phase == Exhausted || p.Phase == Probing {
			if int64(len(w.of(seat.Pool))) >= p.Max {
				if !stale {
					w.fail("a pod got a seat above the maximum %d of pool %d", p.Max, seat.Pool)
				}
				w.budget[seat.Pool][p.Epoch]++
			}
		}
		w.serial++
		w.pods = append(w.pods, &simPod{created: w.now, id: w.serial, seat: seat, rank: rank, misfit: !w.exact && w.random.IntN(30) == 0})
	}
	for int64(len(w.pods)) > w.replicas {
		worst := slices.MaxFunc(w.pods, func(a, b *simPod) int {
			if a.node != b.node {
				if a.node {
					return -1
				}
				return 1
			}
			return cmp.Compare(a.rank, b.rank)
		})
		w.loose = w.loose || slices.ContainsFunc(w.pods, func(p *simPod) bool { return p.rank > worst.rank })
		w.remove(worst)
	}
}

func (w *world) remove(p *simPod) {
	w.pods = slices.DeleteFunc(w.pods, func(o *simPod) bool { return o == p })
	delete(w.waits, p.id)
}

// schedule gives nodes to pods that wait, while there is room, and takes them away where there is none any more.
func (w *world) schedule() {
	for i, room := range w.room {
		live := int64(0)
		for _, p := range w.of(i) {
			if p.node {
				live++
			}
		}
		waiting := w.of(i)
		w.random.Shuffle(len(waiting), func(a, b int) { waiting[a], waiting[b] = waiting[b], waiting[a] })
		for _, p := range waiting {
			if !p.node && !p.misfit && live < room {
				p.node, live = true, live+1
				p.version++
				delete(w.waits, p.id)
			}
		}
	}
}

// view is what the leader sees now.
func (w *world) view() (View, []*simPod) {
	v := View{Now: w.now, Strategy: w.strategy, After: w.after, Replicas: w.replicas, Hard: make([]bool, len(w.room)), Room: make([]int64, len(w.room))}
	pods := slices.Clone(w.pods)
	for _, p := range pods {
		view := Pod{Seat: p.seat, Rank: p.rank, Node: p.node, Misfit: p.misfit}
		if !p.node {
			since, seen := w.waits[p.id]
			if !seen {
				since = w.now
				w.waits[p.id] = since
			}
			view.Waits = w.now.Sub(since)
		}
		v.Pods = append(v.Pods, view)
	}
	for i, room := range w.room {
		live := int64(0)
		for _, p := range w.of(i) {
			if p.node {
				live++
			}
		}
		if w.random.IntN(4) == 0 { // room is looked at now and then, and may be measured wrong
			v.Room[i] = max(0, room-live)
			if w.random.IntN(3) == 0 {
				v.Room[i] += 3
			}
			v.Room[i] = min(v.Room[i], 30)
		}
		v.Hard[i] = room <= live && w.random.IntN(4) == 0
	}
	return v, pods
}

// lead is one look of the leader: it may crash between its writes, and pods may get their node before they are evicted.
func (w *world) lead() {
	v, pods := w.view()
	versions := make([]int, len(pods))
	for i, p := range pods {
		versions[i] = p.version
	}
	before := w.state
	next, evict := w.decide(v, slices.Clone(w.state), w.timing)
	crash := func() bool {
		if w.random.IntN(40) != 0 {
			return false
		}
		w.waits = map[int]time.Time{} // a new leader starts the clocks anew
		w.note("the leader crashes")
		return true
	}
	if crash() {
		return
	}
	w.transitions(before, next, v)
	w.old, w.state = w.state, next
	if !w.exact && len(evict) > 0 && w.random.IntN(8) == 0 { // room comes while the leader is about to evict
		w.room[pods[evict[0]].seat.Pool] += 2
		w.schedule()
	}
	for _, i := range evict {
		if crash() {
			return
		}
		p := pods[i]
		if v.Pods[i].Node {
			w.fail("a pod with a node is evicted")
		}
		if !slices.Contains(w.pods, p) || p.version != versions[i] && !w.unsafe {
			continue // the precondition fails
		}
		if p.node {
			w.fail("pod %d is evicted, which has got its node", p.id)
		}
		w.evicted[p.seat.Pool][w.state[p.seat.Pool].Epoch]++
		w.note("pod %d of pool %d is evicted", p.id, p.seat.Pool)
		w.remove(p)
		if len(w.pods) == int(w.replicas)-1 {
			if _, err := w.strategy.Without(w.gaps(w.state)).Next(held{w}); err != nil {
				w.fail("pod %d is evicted, and no pool takes its successor", p.id)
			}
		}
	}
	w.control()
}

// transitions checks what the leader writes, and counts how many pods may be evicted for that.
func (w *world) transitions(before, next []Pool, v View) {
	w.closedByEnough(before, next, v)
	for i := range next {
		if next[i].Epoch < before[i].Epoch {
			w.fail("the epoch of pool %d went back from %d to %d", i, before[i].Epoch, next[i].Epoch)
		}
		if next[i].Epoch > before[i].Epoch {
			waiting := 0
			for _, p := range w.of(i) {
				if !p.node {
					waiting++
				}
			}
			w.budget[i][next[i].Epoch] += waiting
			w.note("pool %d is %s at %d, epoch %d, %d wait", i, next[i].Phase, next[i].Max, next[i].Epoch, waiting)
		} else if next[i].Phase != before[i].Phase || next[i].Max != before[i].Max {
			w.budget[i][next[i].Epoch] += int(max(0, next[i].Max-before[i].Max)) // a probe may go, too
			w.note("pool %d is %s at %d", i, next[i].Phase, next[i].Max)
		}
	}
	for i := range next {
		live, waiting := int64(0), int64(0)
		for _, p := range w.of(i) {
			switch {
			case p.node:
				live++
			case !p.misfit:
				waiting++
			}
		}
		closed := next[i].Epoch > before[i].Epoch
		if closed && waiting == 0 {
			w.fail("pool %d is exhausted although only pods wait that fit nowhere", i)
		}
		if step := next[i].Max - max(before[i].Max, live); next[i].Phase == Probing && step > max(1, 2*before[i].Step, v.Room[i]) {
			w.fail("the maximum of pool %d grew by %d at once, after a step of %d", i, step, before[i].Step)
		}
		if !closed && next[i].Phase != Available && next[i].Max < before[i].Max {
			w.fail("the maximum of pool %d fell from %d to %d in one epoch", i, before[i].Max, next[i].Max)
		}
	}
	for i, gap := range Gaps(next) {
		was := Gaps(before)[i]
		if was.Count == 0 || gap.Count > 0 && gap.From <= was.From {
			continue
		}
		w.loose = true
		for j := range next { // pods that wait elsewhere may move to this pool
			for _, p := range w.of(j) {
				if !p.node {
					w.budget[j][next[j].Epoch]++
				}
			}
		}
	}
}

// closedByEnough checks that enough pods have waited for each pool that becomes exhausted.
func (w *world) closedByEnough(before, next []Pool, v View) {
	for i := range next {
		if next[i].Epoch == before[i].Epoch {
			continue
		}
		waiting, ripe := 0, 0
		for j := range v.Pods {
			if p := &v.Pods[j]; p.Seat.Pool == i && !p.Node && !p.Misfit {
				waiting++
				if p.Waits >= w.after[i] || v.Hard[i] && p.Waits > 0 {
					ripe++
				}
			}
		}
		if ripe < min(Enough, waiting) {
			w.fail("pool %d is exhausted though only %d of %d pods have waited for %s", i, ripe, waiting, w.after[i])
		}
	}
}

// renumber is what repair does with a workload at rest: ordinals without gaps, and costs that agree.
func (w *world) renumber() {
	s := w.strategy.Without(w.gaps(w.state))
	for i := range w.room {
		pods := w.of(i)
		slices.SortFunc(pods, func(a, b *simPod) int {
			return cmp.Or(cmp.Compare(a.seat.Ordinal, b.seat.Ordinal), cmp.Compare(a.id, b.id))
		})
		for o, p := range pods {
			p.seat.Ordinal = int64(o) + 1
			if rank, ok := s.Rank(p.seat); ok {
				p.rank = rank
			} else {
				p.rank = 9_000_000
			}
		}
	}
}

// rest lets time pass without events.
func (w *world) rest(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Minute)
		w.control()
		w.schedule()
		w.renumber()
		w.lead()
	}
}

// settle lets time pass until no pod waits. A pool may be in a probe that no pod has tried.
func (w *world) settle() bool {
	w.rest(time.Hour)
	for range 300 {
		w.rest(time.Minute)
		calm := true
		for _, pod := range w.pods {
			calm = calm && pod.node
		}
		if calm {
			w.renumber()
			return true
		}
	}
	return false
}

// event changes something.
func (w *world) event() {
	switch k := w.random.IntN(10); {
	case k < 3:
		w.replicas = int64(1 + w.random.IntN(25))
		w.note("scaled to %d", w.replicas)
	case k < 5:
		i := w.random.IntN(len(w.room))
		w.room[i] = int64(w.random.IntN(15))
		w.note("pool %d has room for %d", i, w.room[i])
	case k < 6:
		i := w.random.IntN(len(w.room))
		w.room[i] = 1000
		w.note("pool %d has room again", i)
	case k < 7 && len(w.pods) > 0: // a node is lost
		p := w.pods[w.random.IntN(len(w.pods))]
		w.note("pod %d of pool %d is lost", p.id, p.seat.Pool)
		w.remove(p)
	}
}

// run plays a history and returns what is wrong.
func (w *world) run() string {
	outage := false
	for range 100 {
		w.event()
		for range 1 + w.random.IntN(8) {
			w.now = w.now.Add(time.Duration(1+w.random.IntN(60)) * second)
			w.control()
			w.schedule()
			if w.random.IntN(4) == 0 {
				w.renumber()
			}
			w.lead()
			for _, p := range w.state {
				outage = outage || p.Phase == Exhausted
			}
		}
		if slices.Equal(w.counts(), w.targets()) {
			w.renumber() // as repair does with a workload at rest
			w.loose = false
		}
		w.evictionsAreBounded()
		if w.failed != "" {
			return w.failed
		}
	}

	// 1. With the room that there is now, every pod runs if there is room enough, and the counts are those of the strategy
	// with its gaps: at rest, after a rollout, and after each scale-down by one.
	w.exact = true
	for _, p := range w.pods {
		p.misfit = false
	}
	switch settled := w.settle(); {
	case settled:
		if !w.loose {
			w.balanced("at rest")
		}
		w.roll(func() {})
		w.balanced("after a rollout")
		// A scale-down begins with pods that wait, whatever their pool.
		for w.replicas > 1 && w.failed == "" && !slices.ContainsFunc(w.pods, func(p *simPod) bool { return !p.node }) {
			w.replicas--
			w.control()
			w.balanced("after a scale-down")
		}
	case w.roomy():
		w.fail("it never comes to rest, though there is room: %v for %d, state %+v", w.room, w.replicas, w.state)
	}
	if w.failed != "" {
		return w.failed
	}

	// 2. The shortage ends, and the workload is rolled through: it is as if nothing had been.
	for i := range w.room {
		w.room[i] = 1000
	}
	w.note("all pools have room again")
	if !w.settle() {
		w.fail("it never comes to rest after the shortage: state %+v", w.state)
		return w.failed
	}
	w.roll(func() { w.rest(time.Minute) })
	w.settle()
	if want := targets(w.strategy, w.replicas); !slices.Equal(w.counts(), want) {
		w.fail("after the shortage the pools have %v, not %v; state %+v", w.counts(), want, w.state)
	}
	w.complete = outage
	return w.failed
}

// roll replaces each pod.
func (w *world) roll(between func()) {
	for _, p := range slices.Clone(w.pods) {
		if slices.Contains(w.pods, p) {
			w.remove(p)
		}
		w.control()
		w.schedule()
		between()
	}
	w.renumber()
}

// balanced checks the counts.
func (w *world) balanced(when string) {
	if got, want := w.counts(), w.targets(); int64(len(w.pods)) == w.replicas && !slices.Equal(got, want) {
		w.fail("%s with %d pods the pools have %v, not %v; room %v, state %+v", when, w.replicas, got, want, w.room, w.state)
	}
}

// targets returns what the pools should have now.
func (w *world) targets() []int64 { return targets(w.strategy.Without(w.gaps(w.state)), w.replicas) }

func targets(s *spread.Strategy, n int64) []int64 {
	out := make([]int64, s.Len())
	for i := range out {
		out[i] = s.Target(i, n)
	}
	return out
}

// roomy reports whether the pools that may take pods have room for all.
func (w *world) roomy() bool {
	sum := int64(0)
	for i, room := range w.room {
		p := w.strategy.Pool(i)
		most := room
		if p.Weight == 0 && p.Overflow == 0 {
			most = min(room, p.Base)
		}
		sum += min(most, w.replicas)
	}
	return sum >= w.replicas && !slices.ContainsFunc(w.room, func(r int64) bool { return r == 0 }) && w.weighted()
}

// weighted reports whether a pool with room without end gets pods by weight or overflow.
func (w *world) weighted() bool {
	for i, room := range w.room {
		if p := w.strategy.Pool(i); room >= w.replicas && (p.Weight > 0 || p.Overflow > 0) {
			return true
		}
	}
	return false
}

func (w *world) evictionsAreBounded() {
	for i := range w.evicted {
		for epoch, n := range w.evicted[i] {
			if limit := w.budget[i][epoch]; n > limit {
				w.fail("in epoch %d of pool %d %d pods were evicted; %d waited", epoch, i, n, limit)
			}
		}
	}
}

// Whatever happens to the room of pools and to the workload, the promises of the package hold.
func TestSimulation(t *testing.T) {
	var complete atomic.Int64
	var all sync.WaitGroup
	threads := uint64(runtime.GOMAXPROCS(0))
	for first := range threads {
		all.Go(func() {
			for seed := first; seed < uint64(*histories) && !t.Failed(); seed += threads {
				w := newWorld(seed, decide)
				if failed := w.run(); failed != "" {
					t.Errorf("history %d: %s\n%s", seed, failed, strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
				}
				if w.complete {
					complete.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d histories; %d of them had an outage that ended", *histories, complete.Load())
}

// The simulation finds each of these faults.
func TestSimulationFindsFaults(t *testing.T) {
	after := func(change func(v View, before, next []Pool)) func(*world) {
		return func(w *world) {
			w.decide = func(v View, pools []Pool, timing Timing) ([]Pool, []int) {
				next := Next(v, pools, timing)
				change(v, pools, next)
				return next, moves(v, next)
			}
		}
	}
	seen := func(change func(w *world, v *View)) func(*world) {
		return func(w *world) {
			w.decide = func(v View, pools []Pool, timing Timing) ([]Pool, []int) {
				v.Pods = slices.Clone(v.Pods)
				change(w, &v)
				return decide(v, pools, timing)
			}
		}
	}
	for name, plant := range map[string]func(*world){
		"one pod that has waited closes the pool": seen(func(w *world, v *View) {
			ripe := make([]bool, len(w.after))
			for _, p := range v.Pods {
				ripe[p.Seat.Pool] = ripe[p.Seat.Pool] || p.Waits >= w.after[p.Seat.Pool]
			}
			for i := range v.Pods {
				if p := &v.Pods[i]; !p.Node && ripe[p.Seat.Pool] {
					p.Waits = w.after[p.Seat.Pool]
				}
			}
		}),
		"the age of a pod is the clock": seen(func(w *world, v *View) {
			for i, p := range w.pods {
				if !p.node {
					v.Pods[i].Waits = w.now.Sub(p.created)
				}
			}
		}),
		"a hard signal closes a pool of which no pod waits": after(func(v View, before, next []Pool) {
			for i := range next {
				if v.Hard[i] && next[i].Phase == Available {
					next[i].Phase, next[i].Epoch, next[i].Max = Exhausted, before[i].Epoch+1, count(v, i).live
				}
			}
		}),
		"a pod that fits nowhere closes the pool": func(w *world) {
			w.decide = func(v View, pools []Pool, timing Timing) ([]Pool, []int) {
				v.Pods = slices.Clone(v.Pods)
				for i := range v.Pods {
					v.Pods[i].Misfit = false
				}
				return decide(v, pools, timing)
			}
		},
		"the maximum is the number of pods that run": after(func(v View, _, next []Pool) {
			for i := range next {
				if next[i].Phase == Exhausted {
					next[i].Max = count(v, i).live
				}
			}
		}),
		"a maximum of 0 is taken for none": func(w *world) {
			w.gaps = func(pools []Pool) []spread.Gap {
				gaps := Gaps(pools)
				for i := range gaps {
					if gaps[i].From == 0 {
						gaps[i].Count = 0
					}
				}
				return gaps
			}
		},
		"a pod is evicted without its version": func(w *world) { w.unsafe = true },
		"no ramp": after(func(_ View, before, next []Pool) {
			for i := range next {
				if next[i].Phase == Probing && before[i].Phase == Exhausted {
					next[i].Max += 10
				}
			}
		}),
		"epochs go back": after(func(_ View, _, next []Pool) {
			for i := range next {
				if next[i].Phase == Available {
					next[i].Epoch = 0
				}
			}
		}),
		"more pods are moved than other pools take": func(w *world) {
			w.decide = func(v View, pools []Pool, timing Timing) (next []Pool, evict []int) {
				next, _ = decide(v, pools, timing)
				for i := range v.Pods {
					if p := &v.Pods[i]; !p.Node && p.Waits >= w.after[p.Seat.Pool] && next[p.Seat.Pool].Phase == Exhausted {
						evict = append(evict, i)
					}
				}
				return next, evict
			}
		},
		"a pool is never tried": after(func(v View, _, next []Pool) {
			for i := range next {
				next[i].Next, next[i].Waited = v.Now.Add(time.Hour), v.Now
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				w := newWorld(seed, decide)
				plant(w)
				if failed := w.run(); failed != "" {
					t.Logf("found in history %d: %s", seed, failed)
					return
				}
			}
			t.Error("it is not found")
		})
	}
}
