package spill

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

var histories = flag.Int("histories", 300, "histories of each kind of the simulation")

const (
	simPools = 3
	// noRank is the rank of a seat that a strategy does not have.
	noRank = 9_000_000
)

// kind is what the histories of a run have in common.
type kind struct {
	name      string
	workloads int
	ordinals  bool // StatefulSets
	rollouts  bool // rollouts begin during outages, too
	evicts    bool // rebalance: Evict
	limited   bool // some pools have maxSpill
}

var kinds = []kind{
	{name: "Deployment", workloads: 1},
	{name: "rollouts", workloads: 1, rollouts: true},
	{name: "rebalanced", workloads: 1, evicts: true, rollouts: true},
	{name: "maxSpill", workloads: 1, limited: true, rollouts: true},
	{name: "three workloads", workloads: 3, rollouts: true},
	{name: "StatefulSet", workloads: 1, ordinals: true},
}

// simPod is a pod of a simulated workload.
type simPod struct {
	id       int
	revision int
	ordinal  int64 // of a StatefulSet's pod, from 0
	seat     sequence.Seat
	rank     int64
	node     bool
	seen     bool // the leader has seen the pod
	seenNode bool // the leader has seen that the pod has a node
	misfit   bool
	version  int // changes when the pod gets a node
	created  time.Time
	waits    time.Duration // as the leader counts it
}

// workload is a workload: a StatefulSet, or a Deployment with one revision, or with two during a rollout.
type workload struct {
	strategy *sequence.Strategy
	layout   *layout.Layout
	rules    []Rule
	replicas int64
	revision int
	older    int64 // how many pods of the older revision there are to be; a rollout ends when it is 0
	newer    int64
	pods     []*simPod

	state, old       []Pool // old is what a webhook that is behind knows
	ordinals, oldOrd map[int64]int
	lastLook         time.Time
	evicted          []map[int64]int // of each pool and epoch
	budget           []map[int64]int // how many may be: those that waited, probes, and those that a stale webhook seated
	shorts           map[[simPools]sequence.Gap]*sequence.Strategy
	// loose says that counts may differ until the workload changes: a pool got more seats, or a scale-down removed a pod
	// that waited instead of the one of the highest rank.
	loose bool
}

// faults are the decisions that a test replaces by wrong ones. The zero value is correct.
type faults struct {
	next     func(w *world, l *workload, v View, pools []Pool) []Pool
	gaps     func([]Pool) []sequence.Gap
	moves    func(w *world, l *workload, v View, next []Pool, evict []int) []int
	unsafe   bool // pods are evicted without their version as a precondition
	wiped    bool // the state goes away when a replica of an older version writes
	roomless bool // running pods are evicted without room for their successors
	ordinals bool // repair does not ask where a StatefulSet's pod is to be
	shared   bool // revisions do not share a maximum
}

// world is workloads over the same pools, a webhook that may know an old state, and a leader that may crash.
type world struct {
	kind
	faults
	random *rand.Rand
	now    time.Time
	timing tries.Timing
	room   []int64     // pods that each pool has nodes for
	onWay  []time.Time // until when a node of the pool is on its way
	loads  []*workload
	serial int

	seenPods []*simPod // what view returned last; kept for the next time
	views    []Pod
	versions []int

	exact  bool // no webhook is behind, and no event is late
	log    []string
	failed string

	outage, cycle, rolled bool // what the history went through
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
	}
}

func (w *world) note(format string, args ...any) {
	if w.log != nil {
		w.log = append(w.log, fmt.Sprintf("%6.0fs ", w.now.Sub(time.Unix(0, 0)).Seconds())+fmt.Sprintf(format, args...))
	}
}

func newWorld(k kind, seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, uint64(len(k.name))))
	w := &world{kind: k, random: random, now: time.Unix(0, 0), timing: tries.Default(), onWay: make([]time.Time, simPools)}
	for range simPools {
		w.room = append(w.room, 1000)
	}
	for range k.workloads {
		l := &workload{shorts: map[[simPools]sequence.Gap]*sequence.Strategy{}, replicas: int64(1 + random.IntN(20)), state: make([]Pool, simPools), old: make([]Pool, simPools)}
		var pools []sequence.Pool
		for i := range simPools {
			p := sequence.Pool{Name: fmt.Sprint(i), Labels: map[string]string{"p": fmt.Sprint(i)}, Base: int64(random.IntN(3)), Weight: int64(random.IntN(5))}
			if random.IntN(3) == 0 {
				p.Overflow = 1
			}
			rule := Rule{After: time.Duration(1+random.IntN(4)) * 30 * time.Second}
			if k.limited && random.IntN(2) == 0 {
				rule.MaxSpill = new(intstr.FromInt32(int32(1 + random.IntN(5))))
			}
			pools, l.rules = append(pools, p), append(l.rules, rule)
			l.evicted, l.budget = append(l.evicted, map[int64]int{}), append(l.budget, map[int64]int{})
		}
		pools[0].Weight++
		var err error
		if l.strategy, err = sequence.New(pools, sequence.EarlierWins); err != nil {
			panic(err)
		}
		l.layout = plain(l.strategy)
		l.newer = l.replicas
		w.loads = append(w.loads, l)
	}
	return w
}

// without returns the strategy of one revision's new pods: the revisions share the maxima.
func (w *world) without(l *workload, pools []Pool, revision int) *sequence.Strategy {
	gapsOf := w.gaps
	if gapsOf == nil {
		gapsOf = Gaps
	}
	var key [simPools]sequence.Gap
	copy(key[:], gapsOf(pools))
	if !w.shared {
		for _, p := range l.pods {
			if g := &key[p.seat.Pool]; p.revision != revision && g.Count > 0 {
				g.From = max(0, g.From-1)
			}
		}
	}
	s := l.shorts[key]
	if s == nil {
		s = l.strategy.Without(key[:])
		l.shorts[key] = s
	}
	return s
}

// held shows the pods of one revision to a strategy.
type held struct {
	l        *workload
	revision int
}

func (h held) Count(pool int) (n int64) {
	for _, p := range h.l.pods {
		if p.seat.Pool == pool && p.revision == h.revision {
			n++
		}
	}
	return n
}

func (h held) LowestFree(pool int) int64 {
	for o := int64(1); ; o++ {
		if !slices.ContainsFunc(h.l.pods, func(p *simPod) bool {
			return p.seat.Pool == pool && p.revision == h.revision && p.seat.Ordinal == o
		}) {
			return o
		}
	}
}

func (l *workload) counts() (out [simPools]int64) {
	for _, p := range l.pods {
		out[p.seat.Pool]++
	}
	return out
}

func (l *workload) countOf(revision int) (n int64) {
	for _, p := range l.pods {
		if p.revision == revision {
			n++
		}
	}
	return n
}

func (l *workload) waiting() bool {
	return slices.ContainsFunc(l.pods, func(p *simPod) bool { return !p.node })
}

func (l *workload) remove(p *simPod) {
	l.pods = slices.DeleteFunc(l.pods, func(o *simPod) bool { return o == p })
}

// rollOn is a step of the Deployment's controller: a quarter more pods than asked for, and a quarter less that have a node.
func (w *world) rollOn(l *workload) {
	if l.older == 0 {
		l.newer = l.replicas
		return
	}
	quarter := l.replicas / 4
	l.older = min(l.older, l.countOf(l.revision-1))
	l.newer = min(l.replicas, max(l.newer, l.replicas+quarter+1-l.older))
	have := int64(0)
	for _, p := range l.pods {
		if p.node {
			have++
		}
	}
	for _, p := range l.pods { // old pods that wait go at once
		if p.revision < l.revision && !p.node && l.older > 0 {
			l.older--
		}
	}
	if spare := have - (l.replicas - quarter); spare > 0 {
		l.older = max(0, l.older-spare)
	}
	if l.newer == l.replicas && l.countOf(l.revision) == l.replicas && have >= l.replicas {
		l.older = 0
	}
}

// control is the workload's controller with the webhook: it creates what lacks, and removes what is too much.
func (w *world) control(l *workload) {
	if w.kind.ordinals {
		w.controlOrdinals(l)
		return
	}
	w.rollOn(l)
	for revision := l.revision; revision >= l.revision-1 && revision >= 0; revision-- {
		want := l.newer
		if revision < l.revision {
			want = l.older
		}
		for l.countOf(revision) < want {
			if !w.create(l, revision) {
				break // no pool may take the pod; here it is not created
			}
		}
		for l.countOf(revision) > want {
			w.shrink(l, revision)
		}
	}
}

// create creates a pod through the webhook, and reports whether a pool may take it.
func (w *world) create(l *workload, revision int) bool {
	state, stale := l.state, false
	if !w.exact && w.random.IntN(10) == 0 {
		state, stale = l.old, true
	}
	s := w.without(l, state, revision)
	seat, err := s.Admit(held{l, revision})
	if err != nil {
		return false
	}
	_, none := s.Next(held{l, revision}) // an error: no pool has room, and the pod waits
	if stale {                           // it may choose a pool that nobody would choose who knows that there is room again
		now, err := w.without(l, l.state, revision).Admit(held{l, revision})
		l.loose = l.loose || err != nil || now.Pool != seat.Pool
	}
	if p := &l.state[seat.Pool]; p.Phase == Exhausted || p.Phase == Probing {
		if l.counts()[seat.Pool] >= p.Max {
			if !stale && p.LeftOut == 0 && none == nil {
				w.fail("a pod got a seat above the maximum %d of pool %d", p.Max, seat.Pool)
			}
			l.budget[seat.Pool][p.Epoch]++
		}
	}
	w.serial++
	p := &simPod{id: w.serial, revision: revision, seat: seat, rank: rankOf(s, seat), created: w.now, misfit: !w.exact && w.random.IntN(30) == 0}
	l.pods = append(l.pods, p)
	w.note("pod %d of pool %d is created", p.id, seat.Pool)
	return true
}

func rankOf(s *sequence.Strategy, seat sequence.Seat) int64 {
	if rank, ok := s.Rank(seat); ok {
		return rank
	}
	return noRank
}

// shrink removes a pod as a ReplicaSet does: one that waits, then by the deletion cost. While a newer revision has pods, those
// in pools without room have the lowest.
func (w *world) shrink(l *workload, revision int) {
	order := func(p *simPod) int64 {
		switch {
		case !p.node:
			return 2*noRank + p.rank
		case revision < l.revision && l.newer > 0 && l.state[p.seat.Pool].Phase != Available && l.state[p.seat.Pool].Phase != "":
			return noRank + 1
		}
		return p.rank
	}
	var worst *simPod
	for _, p := range l.pods {
		if p.revision == revision && (worst == nil || order(p) > order(worst)) {
			worst = p
		}
	}
	for _, p := range l.pods {
		l.loose = l.loose || p.rank > worst.rank
	}
	w.note("pod %d of pool %d is removed", worst.id, worst.seat.Pool)
	l.remove(worst)
}

// controlOrdinals is the controller of a StatefulSet with podManagementPolicy Parallel.
func (w *world) controlOrdinals(l *workload) {
	has := map[int64]bool{}
	for _, p := range slices.Clone(l.pods) {
		if p.ordinal >= l.replicas {
			l.remove(p)
		}
		has[p.ordinal] = true
	}
	for o := range l.replicas {
		if has[o] {
			continue
		}
		ordinals := l.ordinals
		if !w.exact && w.random.IntN(10) == 0 {
			ordinals = l.oldOrd
			l.loose = true
		}
		seat, ok := l.seatOf(o, ordinals)
		if !ok {
			continue
		}
		w.serial++
		l.pods = append(l.pods, &simPod{id: w.serial, ordinal: o, seat: seat, rank: o + 1, created: w.now, misfit: !w.exact && w.random.IntN(30) == 0})
		if p := &l.state[seat.Pool]; p.Phase != Available {
			l.budget[seat.Pool][p.Epoch]++
		}
	}
}

// seatOf returns where a pod with an ordinal is to be.
func (l *workload) seatOf(ordinal int64, ordinals map[int64]int) (sequence.Seat, bool) {
	seat, err := l.strategy.SeatAt(ordinal + 1)
	if err != nil {
		return seat, false
	}
	if pool, ok := ordinals[ordinal]; ok {
		return sequence.Seat{Pool: pool, Ordinal: noRank + ordinal}, true
	}
	return seat, true
}

// schedule gives nodes to pods that wait, while there is room.
func (w *world) schedule() {
	var live, waiting [simPools]int64
	for _, l := range w.loads {
		for _, p := range l.pods {
			switch {
			case p.node:
				live[p.seat.Pool]++
			case !p.misfit:
				waiting[p.seat.Pool]++
			}
		}
	}
	for i, room := range w.room {
		for free := min(room-live[i], waiting[i]); free > 0; free-- {
			k := w.random.Int64N(waiting[i])
			for _, l := range w.loads {
				for _, p := range l.pods {
					if p.seat.Pool != i || p.node || p.misfit {
						continue
					}
					if k == 0 {
						p.node = true
						p.version++
					}
					k--
				}
			}
			waiting[i]--
		}
	}
}

// free returns how many more pods a pool has room for.
func (w *world) free(pool int) int64 {
	n := w.room[pool]
	for _, l := range w.loads {
		for _, p := range l.pods {
			if p.node && p.seat.Pool == pool {
				n--
			}
		}
	}
	return n
}

// view is what the leader sees of a workload now. An event may be late.
func (w *world) view(l *workload) (View, []*simPod) {
	v := View{Now: w.now, Layout: l.layout, Rules: l.rules, Replicas: l.replicas, Hard: make([]bool, simPools), Room: make([]int64, simPools)}
	if l.older > 0 {
		v.Replicas = l.newer + l.older
	}
	pods := w.seenPods[:0]
	v.Pods = w.views[:0]
	for _, p := range l.pods {
		if w.exact || w.random.IntN(10) > 0 {
			p.seen, p.seenNode = true, p.node
		}
		if !p.seen {
			continue
		}
		if p.seenNode {
			p.waits = 0
		} else if w.onWay[p.seat.Pool].Before(w.now) {
			p.waits += max(time.Second, w.now.Sub(l.lastLook))
			if p.created.After(l.lastLook) {
				p.waits = max(time.Second, w.now.Sub(p.created))
			}
		}
		v.Pods = append(v.Pods, Pod{Seat: p.seat, Rank: p.rank, Node: p.seenNode, Misfit: p.misfit, Waits: p.waits})
		pods = append(pods, p)
	}
	l.lastLook, w.seenPods, w.views = w.now, pods, v.Pods
	for i := range w.room {
		free := w.free(i)
		if w.random.IntN(4) == 0 { // room is looked at now and then, and may be measured wrong
			v.Room[i] = max(0, free)
			if w.random.IntN(3) == 0 {
				v.Room[i] += 3
			}
			v.Room[i] = min(v.Room[i], 30)
		}
		v.Hard[i] = free <= 0 && w.random.IntN(4) == 0
	}
	return v, pods
}

// crash reports whether the leader crashes now. The next one starts the clocks anew.
func (w *world) crash() bool {
	if w.random.IntN(40) != 0 {
		return false
	}
	for _, l := range w.loads {
		for _, p := range l.pods {
			p.waits = 0
		}
	}
	w.note("the leader crashes")
	return true
}

// lead is one look of the leader at a workload: it may crash between its writes, and pods may get their node before they are
// evicted.
func (w *world) lead(l *workload) {
	v, pods := w.view(l)
	versions := w.versions[:0]
	for i, p := range pods {
		versions = append(versions, p.version)
		if v.Pods[i].Node != p.node {
			versions[i]-- // what the leader has seen is older
		}
	}
	w.versions = versions
	next := Next(v, l.state, w.timing)
	if w.next != nil {
		next = w.next(w, l, v, next)
	}
	var ordinals map[int64]int
	var evict []int
	if w.kind.ordinals {
		numbers := make([]int64, len(pods))
		for i, p := range pods {
			numbers[i] = p.ordinal
		}
		ordinals = Ordinals(v, next, v.Pods, numbers, l.replicas, l.ordinals)
		for o, pool := range ordinals {
			if _, was := l.ordinals[o]; !was && !slices.ContainsFunc(l.pods, func(p *simPod) bool { return p.ordinal == o && (p.waits > 0 || p.seat.Pool == pool) }) {
				w.fail("ordinal %d moves to pool %d and has not waited", o, pool)
			}
		}
	}
	if w.crash() {
		return
	}
	if w.random.IntN(500) == 0 && w.wiped {
		next = make([]Pool, simPools)
	}
	w.transitions(l, next, v)
	l.old, l.oldOrd = l.state, l.ordinals
	l.state, l.ordinals = next, ordinals
	if w.kind.ordinals {
		for i, p := range pods {
			if to, ok := l.ordinals[p.ordinal]; ok && to != p.seat.Pool && v.Pods[i].Waits > 0 {
				evict = append(evict, i)
			}
		}
	} else if l.older == 0 && l.countOf(l.revision) == int64(len(l.pods)) {
		evict = Moves(w.without(l, next, l.revision), nil, next, v.Pods, l.newer)
	} else {
		for revision := l.revision; revision >= l.revision-1 && revision >= 0; revision-- {
			want := l.newer
			if revision < l.revision {
				want = l.older
			}
			var mine []Pod
			var which []int
			for i, p := range pods {
				if p.revision == revision {
					mine, which = append(mine, v.Pods[i]), append(which, i)
				}
			}
			for _, i := range Moves(w.without(l, next, revision), nil, next, mine, want) {
				evict = append(evict, which[i])
			}
		}
	}
	if w.moves != nil {
		evict = w.moves(w, l, v, next, evict)
	}
	if !w.exact && len(evict) > 0 && w.random.IntN(8) == 0 { // room comes while the leader is about to evict
		w.room[pods[evict[0]].seat.Pool] += 2
		w.schedule()
	}
	for _, i := range evict {
		if w.crash() {
			return
		}
		p := pods[i]
		if v.Pods[i].Node {
			w.fail("a pod with a node is evicted")
		}
		if !slices.Contains(l.pods, p) || p.version != versions[i] && !w.unsafe {
			continue // the precondition fails
		}
		if p.node {
			w.fail("pod %d is evicted, which has got its node", p.id)
		}
		l.evicted[p.seat.Pool][l.state[p.seat.Pool].Epoch]++
		w.note("pod %d of pool %d is evicted", p.id, p.seat.Pool)
		l.remove(p)
		if !w.kind.ordinals && l.older == 0 && int64(len(l.pods)) == l.replicas-1 {
			if _, err := w.without(l, l.state, l.revision).Next(held{l, l.revision}); err != nil {
				w.fail("pod %d is evicted, and no pool takes its successor", p.id)
			}
		}
	}
	w.control(l)
}

// lacks reports whether a pool that is tried no more, or another one without room, has fewer pods than are due.
func lacks(v View, next []Pool, tried int) bool {
	for i := range next {
		if (i == tried || next[i].closed()) && count(v, i).placed < due(v, next, i) {
			return true
		}
	}
	return false
}

// transitions checks what the leader writes, and counts how many pods may be evicted for that.
func (w *world) transitions(l *workload, next []Pool, v View) {
	before := l.state
	for i := range next {
		is, was := &next[i], &before[i]
		live, waiting, misfits, seenWaiting, ripe := int64(0), 0, 0, 0, 0
		for _, p := range l.pods {
			switch {
			case p.seat.Pool != i:
			case p.node:
				live++
			case p.misfit:
				misfits++
			default:
				waiting++
			}
		}
		for j := range v.Pods {
			if p := &v.Pods[j]; p.Seat.Pool == i && !p.Node && !p.Misfit {
				seenWaiting++
				if p.Waits >= l.rules[i].After || v.Hard[i] && p.Waits > 0 {
					ripe++
				}
			}
		}
		closed := is.Epoch > was.Epoch
		switch {
		case is.Epoch < was.Epoch:
			w.fail("the epoch of pool %d went back from %d to %d", i, was.Epoch, is.Epoch)
		case closed:
			// Pods of which the leader has not seen yet that they have a node do not count as ones that may be evicted.
			l.budget[i][is.Epoch] += waiting + misfits
			w.note("pool %d is %s at %d, epoch %d, %d wait", i, is.Phase, is.Max, is.Epoch, waiting)
			w.outage = w.outage || is.Phase == Exhausted
			w.rolled = w.rolled || l.older > 0
			if seenWaiting == 0 {
				w.fail("pool %d is exhausted although only pods wait that fit nowhere", i)
			}
			if ripe < min(enough, seenWaiting) {
				w.fail("pool %d is exhausted though only %d of %d pods have waited for %s", i, ripe, seenWaiting, l.rules[i].After)
			}
		case is.Phase != was.Phase || is.Max != was.Max:
			l.budget[i][is.Epoch] += int(max(0, is.Max-was.Max)) // a probe may go, too
			w.note("pool %d is %s at %d", i, is.Phase, is.Max)
		}
		w.cycle = w.cycle || was.Phase == Probing && is.Phase == Available
		waits := slices.ContainsFunc(v.Pods, func(p Pod) bool { return !p.Node && !p.Misfit })
		if was.Phase == Probing && is.Phase == Available && w.now.Sub(was.Waited) < w.timing.Forget && count(v, i).placed <= was.Max-was.Step &&
			(waits || was.Max == was.Step || lacks(v, next, i)) {
			w.fail("pool %d is available, though no pod beyond %d has found a node", i, was.Max-was.Step)
		}
		if step := is.Max - max(was.Max, live); is.Phase == Probing && step > max(1, 2*was.Step, v.Room[i]) {
			w.fail("the maximum of pool %d grew by %d at once, after a step of %d", i, step, was.Step)
		}
		if !closed && is.Phase != Available && is.Max < was.Max {
			w.fail("the maximum of pool %d fell from %d to %d in one epoch", i, was.Max, is.Max)
		}
	}
	was := Gaps(before)
	for i, gap := range Gaps(next) {
		if was[i].Count == 0 || gap.Count > 0 && gap.From <= was[i].From {
			continue
		}
		l.loose = true
		for j := range next { // pods that wait elsewhere may move to this pool
			for _, p := range l.pods {
				if p.seat.Pool == j && !p.node {
					l.budget[j][next[j].Epoch]++
				}
			}
		}
	}
	if l.older > 0 { // the revisions' shares of a maximum change as the rollout goes on
		for j := range next {
			for _, p := range l.pods {
				if p.seat.Pool == j && !p.node {
					l.budget[j][next[j].Epoch]++
				}
			}
		}
	}
}

// repair is what the other controllers of Stowage do with a workload: ordinals without gaps and costs that agree; and with
// rebalance, one running pod at a time goes to a pool that lacks pods and has room.
func (w *world) repair(l *workload) {
	if w.kind.ordinals {
		w.repairOrdinals(l)
		return
	}
	for revision := max(0, l.revision-1); revision <= l.revision; revision++ {
		if l.countOf(revision) == 0 {
			continue
		}
		s := w.without(l, l.state, revision)
		for i := range simPools {
			pods := w.seenPods[:0]
			for _, p := range l.pods {
				if p.seat.Pool == i && p.revision == revision {
					pods = append(pods, p)
				}
			}
			slices.SortStableFunc(pods, func(a, b *simPod) int { return int(a.seat.Ordinal - b.seat.Ordinal) })
			for o, p := range pods {
				p.seat.Ordinal = int64(o) + 1
				p.rank = rankOf(s, p.seat)
			}
		}
	}
	if !w.evicts || l.older > 0 || l.waiting() || int64(len(l.pods)) != l.replicas {
		return
	}
	counts := l.counts()
	s := w.without(l, l.state, l.revision)
	for to := range counts {
		if s.Target(to, l.replicas) <= counts[to] || w.free(to) <= 0 && !w.roomless {
			continue
		}
		var worst *simPod
		for _, p := range l.pods {
			from := p.seat.Pool
			if counts[from] > s.Target(from, l.replicas) && (l.state[from].Phase == Available || l.state[from].Phase == "") && (worst == nil || p.rank > worst.rank) {
				worst = p
			}
		}
		if worst == nil {
			continue
		}
		w.note("pod %d of pool %d is evicted to rebalance", worst.id, worst.seat.Pool)
		l.remove(worst)
		if w.free(to) <= 0 {
			w.fail("pod %d had a node and was evicted, and pool %d has no room for its successor", worst.id, to)
		}
		w.control(l)
		return
	}
}

// repairOrdinals evicts a running pod of a StatefulSet that is not where it is to be, if there is room.
func (w *world) repairOrdinals(l *workload) {
	if l.waiting() {
		return
	}
	ordinals := l.ordinals
	if w.faults.ordinals {
		ordinals = nil
	}
	for _, p := range l.pods {
		seat, ok := l.seatOf(p.ordinal, ordinals)
		if !ok || seat.Pool == p.seat.Pool || w.free(seat.Pool) <= 0 || !w.evicts && !w.faults.ordinals {
			continue
		}
		if pool, moved := l.ordinals[p.ordinal]; moved && pool == p.seat.Pool {
			w.fail("pod %d is evicted from pool %d, where it was moved", p.id, pool)
		}
		l.remove(p)
		return
	}
}

// look lets every part act once.
func (w *world) look() {
	for _, l := range w.loads {
		w.control(l)
	}
	w.schedule()
	for _, l := range w.loads {
		if w.exact || w.random.IntN(4) == 0 {
			w.repair(l)
		}
		w.lead(l)
	}
}

// settle lets time pass until no pod waits. A pool may be in a probe that no pod has tried.
func (w *world) settle(atLeast time.Duration) bool {
	for end := w.now.Add(atLeast); w.now.Before(end); {
		w.now = w.now.Add(3 * time.Minute)
		w.look()
	}
	for range 100 {
		w.now = w.now.Add(3 * time.Minute)
		w.look()
		calm := true
		for _, l := range w.loads {
			calm = calm && !l.waiting() && l.older == 0
		}
		if calm {
			for _, l := range w.loads {
				w.repair(l)
			}
			return true
		}
	}
	return false
}

// event changes something.
func (w *world) event() {
	l := w.loads[w.random.IntN(len(w.loads))]
	i := w.random.IntN(simPools)
	switch k := w.random.IntN(12); {
	case k < 3:
		l.replicas = int64(1 + w.random.IntN(25))
		w.note("scaled to %d", l.replicas)
	case k < 5:
		w.room[i] = int64(w.random.IntN(15 * len(w.loads)))
		w.note("pool %d has room for %d", i, w.room[i])
	case k < 6:
		w.room[i] = 1000
		w.note("pool %d has room again", i)
	case k < 7 && len(l.pods) > 0: // a node is lost
		p := l.pods[w.random.IntN(len(l.pods))]
		w.note("pod %d of pool %d is lost", p.id, p.seat.Pool)
		l.remove(p)
	case k < 8:
		w.onWay[i] = w.now.Add(time.Duration(w.random.IntN(300)) * time.Second)
		w.note("a node of pool %d is on its way", i)
	case k < 9 && w.rollouts && l.older == 0:
		l.revision++
		l.older, l.newer = int64(len(l.pods)), 0
		l.loose = true
		w.note("a rollout begins")
		for _, p := range l.state {
			w.rolled = w.rolled || p.Phase == Exhausted || p.Phase == Probing
		}
	}
}

// run plays a history and returns what is wrong.
func (w *world) run() string {
	for range 100 {
		w.event()
		for range 1 + w.random.IntN(2) {
			w.now = w.now.Add(time.Duration(1+w.random.IntN(90)) * time.Second)
			w.look()
		}
		for _, l := range w.loads {
			w.limits(l)
			if l.older == 0 && l.counts() == w.targets(l) {
				w.repair(l)
				l.loose = false
			}
		}
		w.evictionsAreBounded()
		if w.failed != "" {
			return w.failed
		}
	}
	w.exact = true
	for _, l := range w.loads {
		for _, p := range l.pods {
			p.misfit = false
		}
	}
	w.rest()
	if w.failed == "" {
		w.recover()
	}
	return w.failed
}

// rest checks that with the room that there is now, every pod runs if there is room enough, and that the counts are those of the
// strategy with its gaps: at rest, after a rollout, and after each scale-down by one.
func (w *world) rest() {
	if !w.settle(30 * time.Minute) {
		if w.roomy() {
			w.fail("it never comes to rest, though there is room: %v for %d, state %+v", w.room, w.loads[0].replicas, w.loads[0].state)
		}
		return
	}
	for _, l := range w.loads {
		if w.kind.ordinals {
			continue // the counts of StatefulSets are not promised
		}
		if !l.loose || w.evicts && w.settled(l) {
			w.balanced(l, "at rest")
		}
		w.replace(l, func() {})
		w.balanced(l, "after every pod was replaced")
		// A scale-down begins with pods that wait, whatever their pool.
		for l.replicas > 1 && w.failed == "" && !l.waiting() {
			l.replicas--
			w.control(l)
			w.balanced(l, "after a scale-down")
		}
	}
}

// settled lets a workload be rebalanced, and reports whether nothing hinders that.
func (w *world) settled(l *workload) bool {
	for range 30 {
		w.look()
	}
	for i, p := range l.state {
		if p.Phase != Available && p.Phase != "" || w.free(i) <= 0 {
			return false
		}
	}
	return !l.waiting()
}

// recover checks that it is as if nothing had been, once the shortage ends and the workloads went through a change.
func (w *world) recover() {
	if w.kind.ordinals { // tries alone bring their pods back
		w.timing.Forget = 1000 * time.Hour
	}
	for i := range w.room {
		w.room[i] = 1000
	}
	w.note("all pools have room again")
	if !w.settle(time.Hour) {
		w.fail("it never comes to rest after the shortage: state %+v", w.loads[0].state)
		return
	}
	for _, l := range w.loads {
		if w.evicts { // it is rebalanced
			w.settle(6 * time.Hour)
		} else {
			restarts := 1
			if w.kind.ordinals { // each restart is one more step of a try
				restarts = 10
			}
			for range restarts {
				w.replace(l, func() { w.now = w.now.Add(3 * time.Minute); w.look() })
			}
			w.settle(time.Hour)
		}
		want := [simPools]int64{}
		for i := range want {
			want[i] = l.strategy.Target(i, l.replicas)
		}
		if l.counts() != want {
			w.fail("after the shortage the pools have %v, not %v; state %+v", l.counts(), want, l.state)
		}
	}
}

// replace replaces each pod of a workload.
func (w *world) replace(l *workload, between func()) {
	for _, p := range slices.Clone(l.pods) {
		if slices.Contains(l.pods, p) {
			l.remove(p)
		}
		w.control(l)
		w.schedule()
		between()
	}
	w.repair(l)
}

// balanced checks the counts. Pods for which the pools have no seat left wait in addition to the targets.
func (w *world) balanced(l *workload, when string) {
	got, want := l.counts(), w.targets(l)
	seats, wrong := int64(0), false
	for i := range want {
		seats += want[i]
		wrong = wrong || got[i] < want[i]
	}
	wrong = wrong || seats == l.replicas && got != want
	if int64(len(l.pods)) == l.replicas && wrong {
		w.fail("%s with %d pods the pools have %v, not %v; room %v, state %+v", when, l.replicas, got, want, w.room, l.state)
	}
}

// limits checks that other pools take no more of a pool's pods than its maxSpill allows. Rounding may add one.
func (w *world) limits(l *workload) {
	targets := w.targets(l)
	for i, rule := range l.rules {
		others := int64(0)
		for j := range simPools {
			if j != i {
				others += l.strategy.Pool(j).Weight
			}
		}
		if rule.MaxSpill == nil || others == 0 || l.state[i].Phase == Available {
			continue
		}
		if spilled := l.strategy.Target(i, l.replicas) - targets[i]; spilled > int64(rule.MaxSpill.IntValue())+1 {
			w.fail("of pool %d %d pods went elsewhere, though maxSpill is %s; state %+v", i, spilled, rule.MaxSpill, l.state[i])
		}
	}
}

// targets returns what the pools should have now.
func (w *world) targets(l *workload) (out [simPools]int64) {
	s := w.without(l, l.state, l.revision)
	for i := range out {
		out[i] = s.Target(i, l.replicas)
	}
	return out
}

// roomy reports whether the pools that may take the pods of the only workload have room for all.
func (w *world) roomy() bool {
	if len(w.loads) > 1 || w.limited || w.kind.ordinals {
		return false
	}
	l, sum, weighted := w.loads[0], int64(0), false
	for i, room := range w.room {
		p, most := l.strategy.Pool(i), room
		switch {
		case room == 0:
			return false
		case p.Weight == 0 && p.Overflow == 0:
			most = min(room, p.Base)
		case room >= l.replicas: // it gets pods without end
			weighted = true
		}
		sum += min(most, l.replicas)
	}
	return weighted && sum >= l.replicas
}

func (w *world) evictionsAreBounded() {
	for _, l := range w.loads {
		for i := range l.evicted {
			for epoch, n := range l.evicted[i] {
				if limit := l.budget[i][epoch]; n > limit {
					w.fail("in epoch %d of pool %d %d pods were evicted; %d waited", epoch, i, n, limit)
				}
			}
		}
	}
}

// Whatever happens to the room of pools and to the workloads, the promises of the package hold.
func TestSimulation(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(2000))
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			var outages, cycles, rolled atomic.Int64
			var all sync.WaitGroup
			threads := uint64(runtime.GOMAXPROCS(0))
			for first := range threads {
				all.Go(func() {
					for seed := first; seed < uint64(*histories) && !t.Failed(); seed += threads {
						w := newWorld(k, seed)
						if failed := w.run(); failed != "" {
							again := newWorld(k, seed)
							again.log = []string{""}
							again.run()
							t.Errorf("history %d: %s\n%s", seed, failed, strings.Join(again.log[max(0, len(again.log)-60):], "\n"))
						}
						for n, is := range map[*atomic.Int64]bool{&outages: w.outage, &cycles: w.cycle, &rolled: w.rolled} {
							if is {
								n.Add(1)
							}
						}
					}
				})
			}
			all.Wait()
			n := float64(*histories) / 100
			t.Logf("%d histories; %.0f%% had an outage, %.0f%% a whole cycle from it back, %.0f%% a rollout in it", *histories,
				float64(outages.Load())/n, float64(cycles.Load())/n, float64(rolled.Load())/n)
		})
	}
}
