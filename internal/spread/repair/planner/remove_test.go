package planner

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The removals are written here once more, as lists that are filtered and sorted. Both must agree on any state.

// anyState returns a state with pods of all kinds, and a plan with counts that need not be theirs.
func anyState(random *rand.Rand) (State, Plan) {
	strategies := []*sequence.Strategy{strategy("p=a,weight=1:p=b,weight=1:p=c,weight=2"), strategy("p=a,base=2:p=b,weight=1:p=c,weight=1"), limited(1, 2, 1)}
	yes := func(percent int) bool { return random.IntN(100) < percent }
	s := State{Layout: plain(strategies[random.IntN(len(strategies))]), Settled: true, Mode: stowage.RepairRecreate, Evict: yes(50), Young: yes(50), RollingOut: yes(10)}
	if yes(80) {
		s.Available = []bool{yes(80), yes(80), yes(80)}
	}
	if yes(50) {
		s.Short = []bool{yes(20), yes(20), yes(20)}
	}
	if yes(80) {
		s.Reached = begin.Add(time.Duration(random.IntN(4)) * time.Second)
	}
	ready := []int{50, 100}[random.IntN(2)]
	for range random.IntN(6) {
		pod := Pod{
			Ready: yes(ready), Running: yes(50), Volume: yes(20), Claimed: yes(40), Foreign: yes(10), Full: yes(10), Ours: yes(90), BeforePolicy: yes(60),
			NodePool: random.IntN(5) - 2, Created: begin.Add(time.Duration(random.IntN(4)) * time.Second), Seat: sequence.Seat{Pool: random.IntN(4) - 1, Ordinal: int64(1 + random.IntN(3))},
		}
		if yes(15) {
			pod.Held = "its volume"
		}
		if yes(10) {
			pod.OwnRank = int64(1 + random.IntN(6))
		}
		s.Pods = append(s.Pods, pod)
	}
	if s.Replicas = int64(len(s.Pods)); yes(10) {
		s.Replicas++
	}
	p := Plan{Unseated: random.IntN(3)}
	for range 3 {
		p.Counts, p.Targets = append(p.Counts, int64(random.IntN(4))), append(p.Targets, int64(random.IntN(4)))
	}
	return s, p
}

// inOrder are pods whose ordinals have no gaps.
type inOrder []int64

func (c inOrder) Count(pool int) int64      { return c[pool] }
func (c inOrder) LowestFree(pool int) int64 { return c[pool] + 1 }

// next is the pool of the next pod, if so many are in each pool, and whether a node there takes it.
func next(s *State, counts []int64) (pool int, exists, taken bool) {
	seat, err := s.Layout.Next(inOrder(counts))
	return seat.Pool, err == nil, err == nil && s.Available != nil && s.Available[seat.Pool]
}

// crowded is the pool with most too many pods, of those with room, or -1.
func crowded(s *State, p *Plan) int {
	pools := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool {
		of := slices.DeleteFunc(slices.Clone(s.Pods), func(pod Pod) bool { return pod.Seat.Pool != i })
		allHeld := len(of) > 0 && !slices.ContainsFunc(of, func(pod Pod) bool { return pod.Held == "" })
		return p.Counts[i] <= p.Targets[i] || s.Short != nil && s.Short[i] || allHeld
	})
	if len(pools) == 0 {
		return -1
	}
	return slices.MaxFunc(pools, func(a, b int) int { return int(p.Counts[a] - p.Targets[a] - p.Counts[b] + p.Targets[b]) })
}

// leaves is the removal of a pod from a crowded pool, or nil if it is -1 or no other pool takes its successor.
func leaves(s *State, p *Plan, pool, pod int) *Removal {
	if pod < 0 {
		return nil
	}
	counts := slices.Clone(p.Counts)
	counts[pool]--
	to, _, taken := next(s, counts)
	if !taken || to == pool {
		return nil
	}
	return &Removal{Pod: pod, Reason: Misplaced, NeedsRoom: s.Pods[pod].Running, To: to}
}

// best returns the first of the pods that a function keeps, in an order.
func best(s *State, keep func(*Pod) bool, compare func(a, b *Pod) int) int {
	var kept []int
	for i := range s.Pods {
		if keep(&s.Pods[i]) {
			kept = append(kept, i)
		}
	}
	if len(kept) == 0 {
		return -1
	}
	slices.SortStableFunc(kept, func(a, b int) int { return compare(&s.Pods[a], &s.Pods[b]) })
	return kept[0]
}

func first(b bool) int {
	if b {
		return 0
	}
	return 1
}

func earlyOf(s *State, p *Plan) *Removal {
	may := func(pod *Pod) bool {
		return pod.BeforePolicy && pod.OwnRank == 0 && pod.Held == "" && (!pod.Ready || s.Young)
	}
	homeless := func(pod *Pod) bool { return p.Unseated > 0 && pod.Seat.Pool < 0 && pod.Ours && pod.NodePool < 0 }
	if i := best(s, func(pod *Pod) bool { return may(pod) && homeless(pod) }, func(a, b *Pod) int { return first(!a.Ready) - first(!b.Ready) }); i >= 0 {
		if to, _, taken := next(s, p.Counts); taken {
			return &Removal{Pod: i, Reason: Unseated, NeedsRoom: s.Pods[i].Running, To: to}
		}
	}
	over := crowded(s, p)
	i := best(s, func(pod *Pod) bool { return over >= 0 && may(pod) && pod.Seat.Pool == over && !pod.Claimed }, func(a, b *Pod) int {
		if d := first(!a.Ready) - first(!b.Ready); d != 0 {
			return d
		}
		return int(b.Seat.Ordinal - a.Seat.Ordinal)
	})
	return leaves(s, p, over, i)
}

func recreateOf(s *State, p *Plan) *Removal {
	var last time.Time
	ready := true
	if !s.Reached.IsZero() {
		last = s.Reached.Add(-time.Second)
	}
	for _, pod := range s.Pods {
		if (pod.Claimed || pod.Full) && pod.Created.After(last) {
			last = pod.Created
		}
		ready = ready && pod.Ready
	}
	to := func(pod *Pod) (pool int, exists, taken bool) {
		if pod.OwnRank == 0 {
			return next(s, p.Counts)
		}
		seat, err := s.Layout.SeatAt(pod.OwnRank)
		return seat.Pool, err == nil, err == nil && s.Available != nil && s.Available[seat.Pool]
	}
	lacks := func(pod *Pod) bool {
		_, exists, _ := to(pod)
		return pod.Seat.Pool < 0 && pod.Ours && (pod.OwnRank == 0 || exists)
	}
	if last.IsZero() || slices.ContainsFunc(s.Pods, func(pod Pod) bool { return lacks(&pod) && pod.Created.After(last) }) {
		return nil
	}
	i := best(s, func(pod *Pod) bool {
		_, _, taken := to(pod)
		switch {
		case !lacks(pod) || pod.Held != "" || pod.NodePool >= 0 || pod.Foreign || pod.Full && pod.Running && !s.Evict:
			return false
		case pod.NodePool == NoNode:
			return true
		}
		return ready && !s.RollingOut && taken && (pod.OwnRank == 0 || !pod.Volume)
	}, func(a, b *Pod) int {
		if d := first(a.NodePool == NoNode) - first(b.NodePool == NoNode); d != 0 {
			return d
		}
		return b.Created.Compare(a.Created)
	})
	if i < 0 {
		return nil
	}
	pool, exists, _ := to(&s.Pods[i])
	return &Removal{Pod: i, Reason: Unseated, NeedsRoom: s.Pods[i].Running && exists, To: pool}
}

func evictOf(s *State, p *Plan) *Removal {
	if s.RollingOut || int(s.Replicas) != len(s.Pods) || slices.ContainsFunc(s.Pods, func(pod Pod) bool { return !pod.Ready }) {
		return nil
	}
	// 1. The first one that is elsewhere than its own ordinal's pool, or whose pool is no more.
	for i := range s.Pods {
		pod := &s.Pods[i]
		if pod.Held != "" {
			continue
		}
		if pod.OwnRank > 0 {
			own, err := s.Layout.SeatAt(pod.OwnRank)
			elsewhere := pod.Foreign || pod.Seat.Pool >= 0 && pod.Seat.Pool != own.Pool || pod.Seat.Pool < 0 && pod.Ours && pod.NodePool >= 0 && pod.NodePool != own.Pool && !pod.Volume
			if err == nil && elsewhere && s.Available != nil && s.Available[own.Pool] {
				return &Removal{Pod: i, Reason: Misplaced, NeedsRoom: pod.Running, To: own.Pool}
			}
		} else if pod.Foreign && pod.Seat.Pool < 0 {
			if to, _, taken := next(s, p.Counts); taken {
				return &Removal{Pod: i, Reason: Misplaced, NeedsRoom: pod.Running, To: to}
			}
		}
	}
	// 2. The highest ordinal of the pool with most too many.
	over := crowded(s, p)
	i := best(s, func(pod *Pod) bool { return over >= 0 && pod.OwnRank == 0 && pod.Held == "" && pod.Seat.Pool == over }, func(a, b *Pod) int { return int(b.Seat.Ordinal - a.Seat.Ordinal) })
	return leaves(s, p, over, i)
}

func TestRemovals(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	removals := map[string]int{}
	for range 20000 {
		s, p := anyState(random)
		for name, both := range map[string][2]func(*State, *Plan) *Removal{
			"early": {(*State).removeEarly, earlyOf}, "recreate": {(*State).recreate, recreateOf}, "evict": {(*State).evict, evictOf},
		} {
			got, want := both[0](&s, &p), both[1](&s, &p)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s of %+v with counts %v of %v, %d unseated (-want +got):\n%s", name, s, p.Counts, p.Targets, p.Unseated, diff)
			}
			if got != nil {
				removals[name+" "+string(got.Reason)]++
			}
		}
	}
	for _, kind := range []string{"early recreate", "early evict", "recreate recreate", "evict evict"} {
		if removals[kind] < 150 {
			t.Errorf("%d removals of kind %q were compared", removals[kind], kind)
		}
	}
}
