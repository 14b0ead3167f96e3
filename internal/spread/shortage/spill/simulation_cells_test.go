package spill

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Random histories of a workload with two pools over three zones. Zones lose their room, and get it back. The leader, the scheduler
// and repair act at any time. The test demands that
//   - no pod that has a node is ever evicted;
//   - once nothing changes, the pools are as the state has them, and no pod waits, but for tries;
//   - the pools are exact while each has a zone with room;
//   - once all zones have room again and the pods were recreated, all cells are as if nothing had been.

const (
	cellPools = 2
	cellZones = 3
	cellTick  = 10 * time.Second
)

// cellBug is a mistake that the histories must find.
type cellBug string

const (
	noCellBug     cellBug = ""
	poolGoesFirst cellBug = "one zone without room closes its pool"
	staysHome     cellBug = "pods are created at home, though it has no room"
	neverCloses   cellBug = "a pool without room in any zone stays open"
)

type cellPod struct {
	id      int
	seat    sequence.Seat
	domain  int
	node    bool
	waits   time.Duration
	created time.Time
}

type cellWorld struct {
	bug      cellBug
	random   *rand.Rand
	now      time.Time
	strategy *sequence.Strategy
	orders   *layout.Orders
	layout   *layout.Layout // while all have room
	rules    []Rule
	room     []int64
	state    []Pool
	pods     []*cellPod
	replicas int64
	serial   int
	evicted  int
	events   int
	pooled   bool // some pool had no zone with room
}

func newCellWorld(seed uint64, bug cellBug) *cellWorld {
	w := &cellWorld{bug: bug, random: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1000, 0), state: make([]Pool, cellPools*cellZones)}
	var pools []sequence.Pool
	for i := range cellPools {
		pools = append(pools, sequence.Pool{Name: fmt.Sprint(i), Labels: map[string]string{"p": fmt.Sprint(i)}, Base: int64(w.random.IntN(3)), Weight: int64(1 + w.random.IntN(4))})
		w.rules = append(w.rules, Rule{After: time.Duration(1+w.random.IntN(4)) * 30 * time.Second})
	}
	s, err := sequence.New(pools, sequence.EarlierWins)
	if err != nil {
		panic(err)
	}
	across := sequence.Across{Key: "zone"}
	for i := range cellZones {
		across.Domains = append(across.Domains, sequence.Domain{Value: fmt.Sprint("z", i), Weight: int64(1 + w.random.IntN(2))})
	}
	if w.strategy, err = s.WithDomains(across); err != nil {
		panic(err)
	}
	order := domain.Order(w.random.IntN(6))
	w.orders = &layout.Orders{Now: order, Former: order}
	w.layout = testkit.Layout(w.strategy, layout.Workload{Orders: w.orders})
	for range w.state {
		w.room = append(w.room, 1000)
	}
	w.replicas = int64(5 + w.random.IntN(30))
	return w
}

// divided returns how new pods are divided by a state.
func (w *cellWorld) divided() *layout.Layout {
	gaps := Gaps(MergeCells(w.state, w.strategy.Cells()))
	if w.bug == poolGoesFirst {
		for i := range gaps {
			for _, c := range w.state[i*cellZones : (i+1)*cellZones] {
				if c.closed() && gaps[i].Count == 0 {
					gaps[i] = sequence.Gap{From: c.Max, Count: sequence.All}
				}
			}
		}
	}
	if w.bug == neverCloses {
		clear(gaps)
	}
	limits := Limits(w.state, w.strategy.Cells())
	if w.bug == staysHome {
		limits = nil
	}
	return testkit.Layout(w.strategy, layout.Workload{Orders: w.orders, Gaps: gaps, Limits: limits})
}

// cellHeld shows the pods to a strategy.
type cellHeld struct{ w *cellWorld }

func (h cellHeld) Count(pool int) (n int64) {
	for _, p := range h.w.pods {
		if p.seat.Pool == pool {
			n++
		}
	}
	return n
}

func (h cellHeld) LowestFree(pool int) int64 {
	for o := int64(1); ; o++ {
		if !slices.ContainsFunc(h.w.pods, func(p *cellPod) bool { return p.seat == sequence.Seat{Pool: pool, Ordinal: o} }) {
			return o
		}
	}
}

// control creates the pods that are missing, and removes those that are too many: first who waits, then the highest rank.
func (w *cellWorld) control() {
	s := w.divided()
	for int64(len(w.pods)) < w.replicas {
		seat, err := s.Admit(cellHeld{w})
		if err != nil {
			panic(err)
		}
		w.serial++
		w.pods = append(w.pods, &cellPod{id: w.serial, seat: seat, domain: s.DomainOf(seat), created: w.now})
	}
	for int64(len(w.pods)) > w.replicas {
		last := slices.MaxFunc(w.pods, func(a, b *cellPod) int {
			if a.node != b.node {
				if a.node {
					return -1
				}
				return 1
			}
			return cmp.Compare(w.rank(a), w.rank(b))
		})
		w.remove(last)
	}
}

// rank is the one of a pod's position among its pool's pods.
func (w *cellWorld) rank(p *cellPod) int64 {
	position := int64(1)
	for _, o := range w.pods {
		if o.seat.Pool == p.seat.Pool && (o.seat.Ordinal < p.seat.Ordinal || o.seat.Ordinal == p.seat.Ordinal && o.id < p.id) {
			position++
		}
	}
	return w.strategy.RankOrNone(sequence.Seat{Pool: p.seat.Pool, Ordinal: position})
}

func (w *cellWorld) remove(p *cellPod) {
	w.pods = slices.DeleteFunc(w.pods, func(o *cellPod) bool { return o == p })
}

// schedule gives nodes to pods, where there is room.
func (w *cellWorld) schedule() {
	used := make([]int64, len(w.room))
	for _, p := range w.pods {
		if p.node {
			used[p.seat.Pool*cellZones+p.domain]++
		}
	}
	for _, p := range w.pods {
		at := p.seat.Pool*cellZones + p.domain
		switch {
		case p.node:
		case used[at] < w.room[at]:
			p.node, p.waits = true, 0
			used[at]++
		default:
			p.waits += cellTick
		}
	}
}

// lead is a look of the leader.
func (w *cellWorld) lead() error {
	v := View{Now: w.now, Layout: w.layout, Rules: w.rules, Replicas: w.replicas, Hard: make([]bool, len(w.state)), Room: make([]int64, len(w.state))}
	pods := slices.Clone(w.pods)
	for _, p := range pods {
		v.Pods = append(v.Pods, Pod{Seat: p.seat, Domain: p.domain, Rank: w.rank(p), Node: p.node, Waits: p.waits})
	}
	w.state = Next(v, w.state, tries.Default())
	l := w.divided()
	moves := Moves(l.Strategy, l.Domains(), w.state, v.Pods, w.replicas)
	for _, i := range moves[:min(len(moves), 5)] {
		if pods[i].node {
			return fmt.Errorf("pod %d has a node and is evicted", pods[i].id)
		}
		w.evicted++
		w.remove(pods[i])
	}
	return nil
}

// repair gives pods other seats of their domains.
func (w *cellWorld) repair() {
	state := planner.State{Layout: w.divided(), Replicas: w.replicas, Settled: int64(len(w.pods)) == w.replicas, Mode: stowage.RepairAdopt}
	for _, p := range w.pods {
		state.Pods = append(state.Pods, planner.Pod{Name: strconv.Itoa(p.id), Created: p.created, Running: p.node, Ready: p.node, Ours: true, Seat: p.seat, Domain: p.domain, Claimed: true, NodePool: planner.NoNode})
	}
	pods := slices.Clone(w.pods)
	for _, move := range planner.Make(state).Renumber {
		pods[move.Pod].seat = move.Seat
	}
}

// run lets time pass. It returns whether, at some tick of the second half, each pool had what the state gives it and no pod waited.
func (w *cellWorld) run(ticks int) (settled bool, err error) {
	for tick := range ticks {
		w.now = w.now.Add(cellTick)
		w.control()
		w.schedule()
		if w.random.IntN(4) > 0 {
			if err := w.lead(); err != nil {
				return false, err
			}
		}
		if w.random.IntN(2) > 0 {
			w.repair()
		}
		w.pooled = w.pooled || slices.ContainsFunc(MergeCells(w.state, w.strategy.Cells()), func(p Pool) bool { return p.closed() })
		s := w.divided()
		placed := int64(len(w.pods)) == w.replicas && !slices.ContainsFunc(w.pods, func(p *cellPod) bool { return !p.node })
		exact := placed
		for i := range cellPools {
			exact = exact && cellHeld{w}.Count(i) == s.Target(i, w.replicas)
		}
		open := !slices.ContainsFunc(w.state, func(p Pool) bool { return p.closed() })
		settled = settled || 2*tick >= ticks && (exact || placed && open) // what a shortage has moved stays until the workload changes
	}
	return settled, nil
}

// setRoom gives a cell some room, but no less than for the pods that run there.
func (w *cellWorld) setRoom(at int) {
	used := int64(0)
	for _, p := range w.pods {
		if p.node && p.seat.Pool*cellZones+p.domain == at {
			used++
		}
	}
	w.room[at] = max(used, []int64{0, 2, 5, 1000}[w.random.IntN(4)])
}

// String is the state and the pods of each cell.
func (w *cellWorld) String() string {
	s := w.divided()
	text := fmt.Sprintf("%d pods\n", w.replicas)
	for i := range w.state {
		text += fmt.Sprintf("pool %d (%d of %d), zone %d: %+v:", i/cellZones, cellHeld{w}.Count(i/cellZones), s.Target(i/cellZones, w.replicas), i%cellZones, w.state[i])
		for _, p := range w.pods {
			if p.seat.Pool*cellZones+p.domain == i {
				text += fmt.Sprintf(" %d/%t", p.seat.Ordinal, p.node)
			}
		}
		text += "\n"
	}
	return text
}

// history plays one history, and returns what is wrong.
func (w *cellWorld) history() error {
	hours := int(time.Hour / cellTick)
	for range 1 + w.random.IntN(4) {
		w.events++
		switch w.random.IntN(4) {
		case 0:
			w.replicas = int64(1 + w.random.IntN(40))
		case 1: // all zones of the second pool
			for zone := range cellZones {
				w.setRoom(cellZones + zone)
			}
		default:
			w.setRoom(1 + w.random.IntN(len(w.room)-1)) // the first zone of the first pool has room for all
		}
		settled, err := w.run(2 * hours)
		if err != nil {
			return err
		}
		if !settled {
			return fmt.Errorf("in two hours the pods never settled: room %v\n%s", w.room, w)
		}
		for pool := range cellPools {
			if have, want := (cellHeld{w}).Count(pool), w.strategy.Target(pool, w.replicas); !w.pooled && have != want {
				return fmt.Errorf("pool %d has %d pods of %d, though each pool always had a zone with room; state %+v", pool, have, want, w.state)
			}
		}
	}
	if w.evicted > 40*w.events { // those that waited once, and tries
		return fmt.Errorf("%d pods were evicted in %d events", w.evicted, w.events)
	}

	// All zones have room, and the pods are created anew.
	for i := range w.room {
		w.room[i] = 1000
	}
	if _, err := w.run(2 * hours); err != nil {
		return err
	}
	if i := slices.IndexFunc(w.state, func(p Pool) bool { return p.closed() }); i >= 0 {
		return fmt.Errorf("cell %d has no room, though nothing waits for it: %+v", i, w.state[i])
	}
	for _, p := range slices.Clone(w.pods) {
		w.remove(p)
		if _, err := w.run(2); err != nil {
			return err
		}
	}
	for _, p := range w.pods {
		if p.domain != w.layout.Homes().Of(p.seat.Pool, p.seat.Ordinal) || p.seat.Ordinal > (cellHeld{w}).Count(p.seat.Pool) {
			return fmt.Errorf("pod %d has the seat %v in domain %d", p.id, p.seat, p.domain)
		}
	}
	return nil
}

func TestCellSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*histories / 4) {
		w := newCellWorld(seed, noCellBug)
		if err := w.history(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestCellSimulationFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	for _, bug := range []cellBug{poolGoesFirst, staysHome, neverCloses} {
		wrong, n := 0, uint64(0)
		for ; n < 300 && wrong < 3; n++ {
			if newCellWorld(n, bug).history() != nil {
				wrong++
			}
		}
		if t.Logf("%s: %d of %d histories end wrong", bug, wrong, n); wrong == 0 {
			t.Errorf("the histories do not notice: %s", bug)
		}
	}
}
