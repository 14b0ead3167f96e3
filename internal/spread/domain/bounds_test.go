package domain

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

var (
	maxWeight = flag.Int64("weights", 2, "the largest weight of pools and domains that is tried")
	mostSeats = flag.Int64("seats", 60, "up to how many seats the distance from the shares is measured")
)

// bounds are how far, at most, domains and cells were from their shares. Domain is on the sequence, any at arbitrary counts of the pools.
type bounds struct{ domain, cell, any float64 }

func (b *bounds) add(c bounds) {
	b.domain, b.cell, b.any = max(b.domain, c.domain), max(b.cell, c.cell), max(b.any, c.any)
}

// measure returns the bounds over the first n seats, and checks that the tables agree with the walk.
func measure(t *testing.T, s *sequence.Strategy, weights []int64, order Order, n int64) (b bounds) {
	t.Helper()
	h, err := New(s, weights, order)
	if err != nil {
		t.Fatal(err)
	}
	sum, pools, domains := float64(h.sum), s.Len(), h.Len()
	cells, total, seats := make([]int64, pools*domains), make([]int64, domains), make([]int64, pools)
	above, below := make([]float64, pools*domains), make([]float64, pools*domains)
	for i := int64(1); i <= n; i++ {
		seat, err := s.SeatAt(i)
		if err != nil {
			break
		}
		home := h.Of(seat.Pool, seat.Ordinal)
		cells[seat.Pool*domains+home]++
		total[home]++
		seats[seat.Pool]++
		for d := range domains {
			at := seat.Pool*domains + d
			if got := h.Count(seat.Pool, d, seat.Ordinal); got != cells[at] {
				t.Fatalf("pool %d: %d of the first %d seats are in domain %d, counted %d", seat.Pool, cells[at], seat.Ordinal, d, got)
			}
			off := float64(cells[at]) - float64(seats[seat.Pool])*float64(h.weights[d])/sum
			above[at], below[at] = max(above[at], off), max(below[at], -off)
			b.cell = max(b.cell, off, -off)
			all := float64(total[d]) - float64(i)*float64(h.weights[d])/sum
			b.domain = max(b.domain, all, -all)
		}
		if got := h.Nth(seat.Pool, home, cells[seat.Pool*domains+home]); got != seat.Ordinal {
			t.Fatalf("pool %d, domain %d: the seat is %d, found %d", seat.Pool, home, seat.Ordinal, got)
		}
	}
	for d := range domains {
		var up, down float64
		for p := range pools {
			up, down = up+above[p*domains+d], down+below[p*domains+d]
		}
		b.any = max(b.any, up, down)
	}
	return b
}

// tuples calls use with all tuples of numbers from low to high.
func tuples(length int, low, high int64, use func([]int64)) {
	tuple := make([]int64, length)
	var fill func(i int)
	fill = func(i int) {
		if i == length {
			use(tuple)
			return
		}
		for v := low; v <= high; v++ {
			tuple[i] = v
			fill(i + 1)
		}
	}
	fill(0)
}

func strategyOf(t *testing.T, weights, bases []int64) *sequence.Strategy {
	t.Helper()
	var pools []sequence.Pool
	for i, w := range weights {
		pools = append(pools, sequence.Pool{Name: fmt.Sprint("p", i), Labels: map[string]string{"pool": fmt.Sprint(i)}, Weight: w, Base: bases[i]})
	}
	s, err := sequence.New(pools, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// promised are the bounds for weights up to 5 and bases up to 3, by the numbers of pools and domains. docs/design/domains.md has the table.
var promised = map[[2]int]bounds{
	{1, 1}: {0, 0, 0}, {2, 1}: {0, 0, 0}, {3, 1}: {0, 0, 0},
	{1, 2}: {1, 1, 1}, {2, 2}: {1, 1, 2}, {3, 2}: {1.5, 1, 3},
	{1, 3}: {1, 1, 1}, {2, 3}: {1.5, 1.5, 3}, {3, 3}: {2, 1.5, 4},
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, equal := range []bool{true, false} {
		for pools := 1; pools <= 3; pools++ {
			for domains := 1; domains <= 3; domains++ {
				var most bounds
				tuples(pools, 1, *maxWeight, func(weights []int64) {
					tuples(pools, 0, 3, func(bases []int64) {
						s := strategyOf(t, weights, bases)
						high := *maxWeight
						if equal {
							high = 1
						}
						tuples(domains, 1, high, func(of []int64) {
							for order := range Orders(domains) {
								most.add(measure(t, s, of, Order(order), *mostSeats))
							}
						})
					})
				})
				if limit := promised[[2]int{pools, domains}]; most.domain > limit.domain || most.cell > limit.cell || most.any > limit.any {
					t.Errorf("%d pools, %d domains: %+v is beyond %+v", pools, domains, most, limit)
				}
				fmt.Fprintf(&table, "| %v | %d | %d | %.2f | %.2f | %.2f |\n", equal, pools, domains, most.domain, most.cell, most.any)
			}
		}
	}
	t.Logf("\n| equal weights of domains | pools | domains | domain, on the sequence | cell | domain, at any counts |\n%s", table.String())
}

// TestProperties looks at strategies and domains of any kind.
func TestProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, properties)
}

// FuzzHomes looks for strategies and domains that break what is promised.
func FuzzHomes(f *testing.F) { f.Fuzz(rapid.MakeFuzz(properties)) }

func properties(t *rapid.T) {
	s, weights := anyStrategy(t), rapid.SliceOfN(rapid.Int64Range(1, 9), 1, 5).Draw(t, "domains")
	h, err := New(s, weights, Order(rapid.IntRange(0, Orders(len(weights))-1).Draw(t, "order")))
	if err != nil {
		t.Fatal(err)
	}
	if h.Size() > 2*maxSeats {
		t.Fatalf("%d seats are kept", h.Size())
	}
	for pool := range s.Len() {
		counts := make([]int64, h.Len())
		for o := int64(1); o <= 3*h.sum+400; o++ {
			home := h.Of(pool, o)
			counts[home]++
			for d, c := range counts {
				share := float64(o) * float64(h.weights[d]) / float64(h.sum)
				if got := h.Count(pool, d, o); got != c {
					t.Fatalf("pool %d: %d of the first %d are in domain %d, counted %d", pool, c, o, d, got)
				}
				if float64(c) >= share+1 || float64(c) <= share-float64(h.Len()) {
					t.Fatalf("pool %d: %d of the first %d are in domain %d, whose share is %.2f", pool, c, o, d, share)
				}
				if o%h.sum == 0 && float64(c) != share {
					t.Fatalf("pool %d: after %d seats domain %d has %d, and not its share %.2f", pool, o, d, c, share)
				}
			}
			if got := h.Nth(pool, home, counts[home]); got != o {
				t.Fatalf("pool %d, domain %d: seat %d is %d, found %d", pool, home, counts[home], o, got)
			}
		}
	}
}

// TestAssignmentProperties looks at seats while some cells have no room. No cell gets more than it has room for, while the pool has room.
func TestAssignmentProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, weights := anyStrategy(t), rapid.SliceOfN(rapid.Int64Range(1, 5), 1, 4).Draw(t, "domains")
		h, err := New(s, weights, 0)
		if err != nil {
			t.Fatal(err)
		}
		most := make([][]int64, s.Len())
		for pool := range most {
			most[pool] = rapid.SliceOfN(rapid.Int64Range(Open, 6), h.Len(), h.Len()).Draw(t, "most")
		}
		m := h.Assign(most)
		for pool := range s.Len() {
			counts, open := make([]int64, h.Len()), int64(0)
			for d, limit := range most[pool] {
				if limit == Open {
					open += h.weights[d]
				}
			}
			for o := int64(1); o <= 60; o++ {
				d := m.Domain(pool, o)
				counts[d]++
				if limit := most[pool][d]; limit != Open && counts[d] > limit && m.HasRoom(pool, o) {
					t.Fatalf("pool %d: seat %d is in domain %d, which has room for %d", pool, o, d, limit)
				}
				if home := h.Of(pool, o); open > 0 && most[pool][home] == Open && d != home {
					t.Fatalf("pool %d: seat %d is in domain %d, and not at home in %d", pool, o, d, home)
				}
				for i, c := range counts {
					if got := m.Given(pool, i, o); got != c {
						t.Fatalf("pool %d: %d of the first %d are in domain %d, counted %d", pool, c, o, i, got)
					}
				}
				if got, err := m.Seat(pool, d, counts[d]); err != nil || got != o {
					t.Fatalf("pool %d, domain %d: seat %d is %d, found %d (%v)", pool, d, counts[d], o, got, err)
				}
			}
			for d, limit := range most[pool] {
				if open == 0 || limit == Open {
					continue
				}
				if _, err := m.Seat(pool, d, limit+1); err == nil {
					t.Fatalf("pool %d: domain %d has a seat beyond its %d", pool, d, limit)
				}
			}
		}
	})
}

// anyStrategy returns a strategy of pools. The first has a weight, because one pool must.
func anyStrategy(t *rapid.T) *sequence.Strategy {
	var pools []sequence.Pool
	for i := range rapid.IntRange(1, 4).Draw(t, "pools") {
		low := int64(0)
		if i == 0 {
			low = 1
		}
		p := sequence.Pool{
			Name: fmt.Sprint("p", i), Labels: map[string]string{"pool": fmt.Sprint(i)},
			Weight: rapid.Int64Range(low, 12).Draw(t, "weight"), Base: rapid.Int64Range(0, 7).Draw(t, "base"),
		}
		if rapid.Bool().Draw(t, "limited") {
			p.Max = rapid.Int64Range(1, 40).Draw(t, "max")
		}
		pools = append(pools, p)
	}
	s, err := sequence.New(pools, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFleet looks at a fleet: small workloads do not all begin in the same domain.
func TestFleet(t *testing.T) {
	t.Parallel()
	s := strategyOf(t, []int64{20, 80}, []int64{1, 0})
	for _, weights := range [][]int64{{1, 1, 1}, {1, 1, 2}, {3, 1}} {
		counts, all := make([]float64, len(weights)), 0.
		for workload := range 300 {
			h, err := New(s, weights, OrderOf(weights, fmt.Sprintf("0f5c1a62-0000-4000-8000-%012d", workload)))
			if err != nil {
				t.Fatal(err)
			}
			for n := range int64(1 + workload%3) {
				seat, err := s.SeatAt(n + 1)
				if err != nil {
					t.Fatal(err)
				}
				counts[h.Of(seat.Pool, seat.Ordinal)]++
				all++
			}
		}
		sum := 0.
		for _, w := range weights {
			sum += float64(w)
		}
		for d, c := range counts {
			if share := all * float64(weights[d]) / sum; c < 0.9*share || c > 1.1*share {
				t.Errorf("weights %v: domain %d has %.0f pods of all workloads; its share is %.0f", weights, d, c, share)
			}
		}
	}
}

// TestTooLong tries strategies whose homes would take too much memory.
func TestTooLong(t *testing.T) {
	t.Parallel()
	for name, pools := range map[string][]sequence.Pool{
		"base":    {{Labels: map[string]string{"a": ""}, Base: 1 << 30, Weight: 1}, {Labels: map[string]string{"b": ""}, Weight: 1}},
		"maximum": {{Labels: map[string]string{"a": ""}, Max: 1 << 30, Weight: 1}, {Labels: map[string]string{"b": ""}, Weight: 1}},
		"weights": {{Labels: map[string]string{"a": ""}, Weight: 997}, {Labels: map[string]string{"b": ""}, Weight: 991}},
	} {
		s, err := sequence.New(pools, sequence.EarlierWins)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(s, []int64{97, 89}, 0); err == nil || !strings.Contains(err.Error(), "would repeat after") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var sink int

// BenchmarkDomain is the domain of a seat, beside the seat itself.
func BenchmarkDomain(b *testing.B) {
	s, err := sequence.New([]sequence.Pool{
		{Name: "on-demand", Labels: map[string]string{"type": "on-demand"}, Base: 1, Weight: 20},
		{Name: "spot", Labels: map[string]string{"type": "spot"}, Weight: 80},
	}, sequence.EarlierWins)
	if err != nil {
		b.Fatal(err)
	}
	h, err := New(s, []int64{1, 1, 1}, 0)
	if err != nil {
		b.Fatal(err)
	}
	open, closed := h.Assign(nil), h.Assign([][]int64{{Open, Open, Open}, {Open, 3, Open}})
	for name, use := range map[string]func(o int64){
		"Seat":       func(o int64) { seat, _ := s.SeatAt(o); sink += seat.Pool },
		"Home":       func(o int64) { sink += open.Domain(1, o) },
		"Substitute": func(o int64) { sink += closed.Domain(1, o) },
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				use(int64(i%500) + 1)
			}
		})
	}
	b.Run("New", func(b *testing.B) {
		for b.Loop() {
			if _, err := New(s, []int64{1, 1, 1}, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
