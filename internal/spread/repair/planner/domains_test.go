package planner

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// over returns a state over three domains, and no pods. The second order is the one of a release before.
func over(t *testing.T, text string, order, former domain.Order) State {
	t.Helper()
	s := testkit.Over(strategy(text), 1, 1, 1)
	return State{
		Layout:  testkit.Layout(s, layout.Workload{Orders: &layout.Orders{Now: order, Former: former}}),
		Settled: true, Mode: stowage.RepairRecreate, Evict: true, Available: slices.Repeat([]bool{true}, s.Len()),
	}
}

// check is the brute force beside a planner's lists.
type check struct {
	*testing.T
	s *State
}

// counts are the pods with a seat in each cell.
func (c check) counts() map[sequence.Cell]int64 {
	out := map[sequence.Cell]int64{}
	for _, pod := range c.s.Pods {
		if pod.Seat.Pool >= 0 {
			out[sequence.Cell{Pool: pod.Seat.Pool, Domain: pod.Domain}]++
		}
	}
	return out
}

// inPool returns how many pods have a seat in a pool.
func (c check) inPool(pool int) (n int64) {
	for _, p := range c.s.Pods {
		if p.Seat.Pool == pool {
			n++
		}
	}
	return n
}

// surplus is how many pods a cell has too many, counted seat by seat. It has none where its pool stands as the former order has it.
func (c check) surplus(pool, in int) int64 {
	counts := c.counts()
	beyond := func(a *domain.Assignment, in int) int64 {
		n := int64(0)
		for o := int64(1); o <= c.inPool(pool); o++ {
			if a.Domain(pool, o) == in {
				n++
			}
		}
		return max(0, counts[sequence.Cell{Pool: pool, Domain: in}]-n)
	}
	sum := int64(0)
	for in := range c.s.Layout.Domains().Len() {
		sum += beyond(c.s.Layout.Former(), in)
	}
	if sum == 0 {
		return 0
	}
	return beyond(c.s.Layout.Domains(), in)
}

// free is the lowest ordinal of a pool that no pod has, in a domain or, if that is -1, in any.
func (c check) free(pool, in, without int) int64 {
	for o := int64(1); ; o++ {
		taken := slices.ContainsFunc(c.s.Pods, func(p Pod) bool { return p.Seat.Pool == pool && p.Seat.Ordinal == o })
		if without >= 0 && c.s.Pods[without].Seat == (sequence.Seat{Pool: pool, Ordinal: o}) {
			taken = false
		}
		if !taken && (in < 0 || c.s.Layout.Domains().Domain(pool, o) == in) {
			return o
		}
	}
}

func (c check) adopts(moves []Move) {
	c.Helper()
	for _, m := range moves {
		pod := &c.s.Pods[m.Pod]
		want := sequence.Seat{Pool: pod.NodePool, Ordinal: c.free(pod.NodePool, pod.NodeDomain, -1)}
		position := c.inPool(pod.NodePool) + 1
		rank := c.s.Layout.RankOrNone(sequence.Seat{Pool: pod.NodePool, Ordinal: position})
		if m.Seat != want || m.Domain != pod.NodeDomain || m.Rank != rank || m.Position != 0 && m.Position != position || (m.Position == 0) != (position == want.Ordinal) {
			c.Fatalf("the pod %+v is adopted by %+v; want seat %v, position %d, rank %d", pod, m, want, position, rank)
		}
		pod.Seat, pod.Domain, pod.Position, pod.Rank = m.Seat, m.Domain, m.Position, m.Rank
	}
}

// numbered checks the seats once nothing is left to number: the k pods of a cell have its first k ordinals, and costs follow positions.
func (c check) numbered() {
	c.Helper()
	for pool := range c.s.Layout.Len() {
		var have []Pod
		want := map[int64]bool{}
		for in := range c.s.Layout.Domains().Len() {
			for o, left := int64(1), c.counts()[sequence.Cell{Pool: pool, Domain: in}]; left > 0; o++ {
				if c.s.Layout.Domains().Domain(pool, o) == in {
					want[o], left = true, left-1
				}
			}
		}
		for _, pod := range c.s.Pods {
			if pod.Seat.Pool == pool {
				have = append(have, pod)
			}
		}
		slices.SortFunc(have, func(a, b Pod) int { return int(a.Seat.Ordinal - b.Seat.Ordinal) })
		for k, pod := range have {
			position := int64(k + 1)
			if !want[pod.Seat.Ordinal] || c.s.Layout.Domains().Domain(pool, pod.Seat.Ordinal) != pod.Domain {
				c.Fatalf("pool %d has the ordinals %v, want %v", pool, have, slices.Sorted(maps.Keys(want)))
			}
			delete(want, pod.Seat.Ordinal)
			if pod.Position != positionOf(pod.Seat.Ordinal, position) || pod.Rank != 0 && pod.Rank != c.s.Layout.RankOrNone(sequence.Seat{Pool: pool, Ordinal: position}) {
				c.Fatalf("the pod %+v is the %d. of pool %d", pod, position, pool)
			}
		}
	}
}

// leaves returns the pod that is to leave its domain, and which one its successor goes to, or -1. All pools have what they should have.
func (c check) leaves() (pod, to int) {
	for pool := range c.s.Layout.Len() {
		last := -1
		for i, p := range c.s.Pods {
			late := last < 0 || p.Seat.Ordinal > c.s.Pods[last].Seat.Ordinal
			if p.Seat.Pool == pool && p.Held == "" && p.Seat.Ordinal > c.inPool(pool) && c.surplus(pool, p.Domain) > 0 && late {
				last = i
			}
		}
		if last < 0 || !c.s.Available[pool] {
			continue
		}
		if in := c.s.Layout.Domains().Domain(pool, c.free(pool, -1, last)); in != c.s.Pods[last].Domain {
			return last, in
		}
	}
	return -1, 0
}

// without shows the pods of a state but one to a strategy.
type without struct {
	check
	pod int
}

func (w without) Count(pool int) int64 {
	n := w.inPool(pool)
	if w.s.Pods[w.pod].Seat.Pool == pool {
		n--
	}
	return n
}

func (w without) LowestFree(pool int) int64 { return w.free(pool, -1, w.pod) }

// next checks the seat of the successor of each pod.
func (c check) next() {
	c.Helper()
	for i := range c.s.Pods {
		want, failed := c.s.Layout.Next(without{c, i})
		in := 0
		if failed == nil && c.s.Layout.Domains() != nil {
			in = c.s.Layout.Domains().Domain(want.Pool, want.Ordinal)
		}
		if got, domain, err := c.s.Next(i); got != want || domain != in || (err == nil) != (failed == nil) {
			c.Fatalf("the successor of %+v gets %v in %d (%v), want %v in %d", c.s.Pods[i], got, domain, err, want, in)
		}
	}
}

// Without domains, and where all pools have their maxima, a successor gets the seat that is free, or none.
func TestNext(t *testing.T) {
	for _, s := range []State{
		{Layout: plain(strategy("p=a,weight=1:p=b,weight=1")), Pods: []Pod{seated(0, 1), seated(1, 1), seated(1, 3), unseated(0, 0)}},
		{Layout: plain(limited(1, 2)), Pods: []Pod{seated(0, 1), seated(1, 2), seated(1, 1)}},
		{Layout: plain(limited(1, 1)), Pods: []Pod{seated(0, 1), seated(1, 1), unseated(NoNode, 0)}},
	} {
		check{t, &s}.next()
	}
	full := State{Layout: plain(limited(1)), Pods: []Pod{seated(0, 1), unseated(NoNode, 0)}}
	if _, _, err := full.Next(1); err == nil {
		t.Error("a pod beyond the maximum gets a seat")
	}
}

// What an order of a release before allows is no slack: a division that neither order has is put right.
func TestFormerOrderIsNoSlack(t *testing.T) {
	t.Parallel()
	s := over(t, "p=a,weight=1", 0, 1)
	for k, in := range []int{0, 1, 0, 1} { // as after an outage of the third domain
		pod := seated(0, s.Layout.Domains().Nth(0, in, int64(k/2+1)))
		pod.Domain, pod.Running, pod.Position = in, true, positionOf(pod.Seat.Ordinal, int64(k+1))
		s.Pods = append(s.Pods, pod)
	}
	s.Replicas = 4
	if p := Make(s); p.DomainSurplus != 1 || p.Remove == nil || p.Remove.Domain != 2 {
		t.Errorf("of 2, 2 and 0, %d are too many, and %+v is removed", p.DomainSurplus, p.Remove)
	}
}

// Whatever pods there are in whichever domains, plans end. Then no domain has more than each order gives it, unless its pods are held.
func TestPlansEndInDomains(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	texts := []string{"p=a,weight=1:p=b,weight=1", "p=a,base=2,weight=1:p=b,weight=3", "p=a,weight=1"}
	left, kept, stays := 0, 0, 0
	for range 3000 {
		s := over(t, texts[random.IntN(len(texts))], domain.Order(random.IntN(6)), domain.Order(random.IntN(6)))
		c := check{t, &s}
		if random.IntN(10) == 0 {
			s.Available[0] = false
		}
		for i := range 1 + random.IntN(12) {
			pod := seated(random.IntN(s.Layout.Len()), int64(1+random.IntN(9)))
			pod.Name, pod.Created = fmt.Sprint(i), begin.Add(time.Duration(random.IntN(3))*time.Second)
			pod.Domain = s.Layout.Domains().Domain(pod.Seat.Pool, pod.Seat.Ordinal)
			pod.Running = true
			switch random.IntN(4) {
			case 0:
				pod.Domain = random.IntN(3)
			case 1:
				pod.NodeDomain, pod.Seat.Pool = random.IntN(3), -1
			}
			if random.IntN(3) == 0 {
				pod.Rank = int64(1 + random.IntN(9))
			}
			if random.IntN(6) == 0 {
				pod.Held = "its volume"
			}
			s.Pods = append(s.Pods, pod)
		}
		s.Replicas = int64(len(s.Pods))
		for round := 0; ; round++ {
			if round > 100 {
				t.Fatalf("the plans do not end: %+v", s.Pods)
			}
			surplus := int64(0)
			for pool := range s.Layout.Len() {
				for in := range s.Layout.Domains().Len() {
					surplus += c.surplus(pool, in)
				}
			}
			p := Make(s)
			if p.DomainSurplus != surplus {
				t.Fatalf("%d pods are in a domain that has too many, planned %d: %+v", surplus, p.DomainSurplus, s.Pods)
			}
			c.adopts(p.Adopt)
			for _, m := range p.Renumber {
				pod := &s.Pods[m.Pod]
				if m.Domain != pod.Domain {
					t.Fatalf("the pod %+v is numbered in domain %d", pod, m.Domain)
				}
				if pod.Seat, pod.Position = m.Seat, m.Position; pod.Rank != 0 {
					pod.Rank = m.Rank
				}
			}
			if len(p.Adopt) > 0 {
				continue
			}
			c.numbered()
			c.next()
			if len(p.Renumber) > 0 {
				continue
			}
			if p.Balanced() {
				pod, to := c.leaves()
				if got := p.Remove; pod < 0 != (got == nil) || got != nil && (got.Pod != pod || got.Domain != to || got.To != s.Pods[pod].Seat.Pool || got.Reason != Misplaced || !got.NeedsRoom) {
					t.Fatalf("%+v is removed; want pod %d and its successor in domain %d: %+v", got, pod, to, s.Pods)
				}
			}
			if p.Remove == nil {
				if surplus > 0 {
					kept++
				} else {
					stays++
				}
				break
			}
			if left++; s.Pods[p.Remove.Pod].Held != "" {
				t.Fatal("a pod that is held is removed")
			}
			gone := p.Remove.Pod
			next := seated(p.Remove.To, c.free(p.Remove.To, -1, gone))
			if next.Domain = s.Layout.Domains().Domain(next.Seat.Pool, next.Seat.Ordinal); next.Domain != p.Remove.Domain {
				t.Fatalf("the successor gets domain %d, planned %d", next.Domain, p.Remove.Domain)
			}
			next.Running = true
			s.Pods = append(slices.Delete(s.Pods, gone, gone+1), next)
		}
	}
	if left < 500 || kept < 20 || stays < 500 {
		t.Errorf("%d evictions were seen, %d workloads with a surplus that stays, and %d with two orders", left, kept, stays)
	}
}

// A pod with an ordinal of its own stays in the domain that a release before gave it, unless that has too many pods. One in a third domain goes.
func TestOrdinalsOfTheFormerOrder(t *testing.T) {
	t.Parallel()
	by := func(former domain.Order, domains ...int) State {
		s := over(t, "p=a,weight=1", 0, former) // 0 1 2 0 and, before, by the order 1, 1 2 0 1
		for i, in := range domains {
			pod := seated(0, int64(i+1))
			pod.OwnRank, pod.Domain, pod.Running = int64(i+1), in, true
			s.Pods = append(s.Pods, pod)
		}
		s.Replicas = int64(len(domains))
		return s
	}
	ordinals := func(domains ...int) State { return by(1, domains...) }
	volume := func(s State) State { s.Pods[0].Volume = true; return s }
	full := func(s State) State { s.NoRoom = []sequence.Cell{{}}; return s }
	for name, tc := range map[string]struct {
		state State
		leave []int // the pods that are to leave their domain; the first one goes now
		stays bool  // it does not
	}{
		"as the order is":                        {state: ordinals(0, 1, 2, 0)},
		"as the order was":                       {state: ordinals(1, 2, 0, 1)},
		"as no order is":                         {state: by(0, 1, 2, 0, 1), leave: []int{0, 1, 2, 3}},
		"a part of each, and even":               {state: ordinals(0, 2, 0, 1)},
		"a part of each, and too many in one":    {state: ordinals(0, 1, 0, 1), leave: []int{3}},
		"in a domain of no order":                {state: ordinals(2, 1, 2, 0), leave: []int{0}},
		"and its volume may be there":            {state: volume(ordinals(2, 1, 2, 0)), leave: []int{0}, stays: true},
		"and its own domain is known as full":    {state: full(ordinals(2, 1, 2, 0)), leave: []int{0}, stays: true},
		"too many where the former order has it": {state: ordinals(1, 1, 2, 1), leave: []int{0, 3}},
	} {
		p := Make(tc.state)
		if goes := len(tc.leave) > 0 && !tc.stays; goes != (p.Remove != nil) || goes && *p.Remove != (Removal{Pod: tc.leave[0], Reason: Misplaced, NeedsRoom: true}) {
			t.Errorf("%s: the removal is %+v", name, p.Remove)
		}
		if p.DomainSurplus != 0 {
			t.Errorf("%s: %d pods are in a domain with too many", name, p.DomainSurplus)
		}
		for i := range tc.state.Pods {
			if got := tc.state.Misplaced(&p, &tc.state.Pods[i]); got != slices.Contains(tc.leave, i) {
				t.Errorf("%s: pod %d would go: %t", name, i, got)
			}
		}
	}
}
