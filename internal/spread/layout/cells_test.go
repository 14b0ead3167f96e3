package layout_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// three returns pools a, b and c, of which a has the first pod, and b twice as many of the others as c.
func three(t *testing.T) *sequence.Strategy {
	t.Helper()
	s, err := sequence.New([]sequence.Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Base: 1},
		{Name: "b", Labels: map[string]string{"p": "b"}, Weight: 2},
		{Name: "c", Labels: map[string]string{"p": "c"}, Weight: 1},
	}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// even returns pools a and b, over the zones z0, z1 and z2.
func even(t *testing.T) *sequence.Strategy {
	t.Helper()
	s, err := sequence.Parse("p=a,weight=1:p=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Over(s, 1, 1, 1)
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// held returns one pod that is held in a pool, by its rank.
func held(rank int64, pool int) map[int64]sequence.Cell {
	return map[int64]sequence.Cell{rank: {Pool: pool}}
}

// What is known of a workload decides where its pods go: unsuitable pools, gaps, and nothing.
func TestTargets(t *testing.T) {
	t.Parallel()
	ordinals := &layout.Ordinals{}
	gaps := []sequence.Gap{{}, {From: 1, Count: sequence.All}, {}}
	for name, tc := range map[string]struct {
		of         layout.Workload
		elsewhere  layout.Elsewhere
		now, whole []int64
		follows    bool
	}{
		"nothing is known":                        {now: []int64{1, 4, 2}, follows: true},
		"b is not suitable":                       {of: layout.Workload{Unsuitable: []string{"", "no", ""}}, now: []int64{1, 0, 6}, follows: true},
		"no pool is suitable":                     {of: layout.Workload{Unsuitable: []string{"no", "no", "no"}}, now: []int64{1, 4, 2}, follows: true},
		"b has no room":                           {of: layout.Workload{Gaps: gaps}, now: []int64{1, 1, 5}, whole: []int64{1, 4, 2}, follows: true},
		"b has no room, for pods with ordinals":   {of: layout.Workload{Gaps: gaps, Ordinals: ordinals}, now: []int64{1, 4, 2}, follows: true},
		"b is not suitable, for pods with them":   {of: layout.Workload{Unsuitable: []string{"", "no", ""}, Ordinals: ordinals}, now: []int64{1, 0, 6}},
		"two pods are elsewhere":                  {elsewhere: layout.Elsewhere{Others: 2}, now: []int64{1, 3, 1}, follows: true},
		"more are elsewhere than there are":       {elsewhere: layout.Elsewhere{Others: 20}, now: []int64{0, 0, 0}, follows: true},
		"one with an ordinal is elsewhere":        {of: layout.Workload{Ordinals: ordinals}, elsewhere: layout.Elsewhere{Own: []sequence.Cell{{Pool: 1}, {Pool: 3}}}, now: []int64{1, 3, 2}, follows: true},
		"the one of a is, and a has no other":     {of: layout.Workload{Ordinals: ordinals}, elsewhere: layout.Elsewhere{Own: []sequence.Cell{{}, {}}}, now: []int64{0, 4, 2}, follows: true},
		"a volume holds a pod in c":               {of: layout.Workload{Ordinals: &layout.Ordinals{Held: held(1, 2)}}, now: []int64{0, 4, 3}},
		"one holds a pod that is not due":         {of: layout.Workload{Ordinals: &layout.Ordinals{First: 5, Held: held(99, 2)}}, now: []int64{1, 4, 2}},
		"one holds the last pod, b is unsuitable": {of: layout.Workload{Unsuitable: []string{"", "no", ""}, Ordinals: &layout.Ordinals{Held: held(7, 1)}}, now: []int64{1, 1, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := testkit.Layout(three(t), tc.of)
			diff(t, "targets", tc.now, l.Targets(7, tc.elsewhere))
			d := l.Divide(7, nil, tc.elsewhere)
			want := tc.whole
			if want == nil {
				want = tc.now
			}
			diff(t, "division", layout.Division{Replicas: 7, Pools: want}, d)
			if l.FollowsStrategy() != tc.follows {
				t.Errorf("follows %t", l.FollowsStrategy())
			}
		})
	}
}

func TestAnyElsewhere(t *testing.T) {
	t.Parallel()
	none, other, own := layout.Elsewhere{}, layout.Elsewhere{Others: 1}, layout.Elsewhere{Own: make([]sequence.Cell, 1)}
	if none.Any() || !other.Any() || !own.Any() {
		t.Errorf("any: %t, %t, %t", none.Any(), other.Any(), own.Any())
	}
}

// A pod with an ordinal of its own has the seat of the strategy, the one that its volume keeps, or the one to which it moved.
func TestOfOrdinal(t *testing.T) {
	t.Parallel()
	const moved = sequence.MovedOrdinals
	o := layout.Ordinals{First: 3, Moves: true, Moved: map[string]string{"4": "c", "5": "gone", "6": "a"}, Held: map[int64]sequence.Cell{4: {Pool: 2}, 6: {Pool: 1}}}
	l := testkit.Layout(three(t), layout.Workload{Ordinals: &o})
	if l.FirstOrdinal() != 3 || !l.Keeping() || testkit.Layout(three(t), layout.Workload{}).FirstOrdinal() != 0 {
		t.Errorf("first %d, keeping %t", l.FirstOrdinal(), l.Keeping())
	}
	seat := func(pool int, ordinal int64) sequence.Seat { return sequence.Seat{Pool: pool, Ordinal: ordinal} }
	own := func(rank int64) sequence.Seat { s, _ := three(t).Nth(rank); return s }
	for rank, want := range map[int64]sequence.Seat{
		1: own(1), 2: seat(2, moved+2), 3: own(3), 4: seat(2, moved+4), 6: seat(1, moved+6), 7: own(7), 8: own(8),
	} {
		if got, err := l.OfOrdinal(rank); err != nil || got != want {
			t.Errorf("pod %d has %v, %v, want %v", rank, got, err, want)
		}
	}
	more := l.Holding(held(5, 2), nil)
	if got, err := more.OfOrdinal(5); err != nil || got != seat(2, moved+5) || len(more.HeldPods()) != 3 || len(l.HeldPods()) != 2 {
		t.Errorf("another one that is held: %v, %v", got, err)
	}
	if plain := testkit.Layout(three(t), layout.Workload{}); plain.HeldPods() != nil || plain.Holding(held(1, 2), nil).HeldPods() == nil {
		t.Error("of a layout without any that is held")
	}
	o.Moves = false
	if got, err := testkit.Layout(three(t), layout.Workload{Ordinals: &o}).OfOrdinal(2); err != nil || got != own(2) {
		t.Errorf("where the policy lets none move, pod 2 has %v, %v", got, err)
	}
	if got, err := testkit.Layout(three(t), layout.Workload{}).OfOrdinal(2); err != nil || got != own(2) {
		t.Errorf("without ordinals: %v, %v", got, err)
	}
	// The pods of an unsuitable pool go to others, and all other pods keep their seats.
	displaced := testkit.Layout(three(t), layout.Workload{Unsuitable: []string{"", "no", ""}, Ordinals: &layout.Ordinals{}})
	for rank := int64(1); rank <= 9; rank++ {
		got, err := displaced.OfOrdinal(rank)
		if want := own(rank); want.Pool != 1 && got != want || want.Pool == 1 && (got.Pool != 2 || got.Ordinal != moved+rank) || err != nil {
			t.Errorf("pod %d has %v, %v, and was to have %v", rank, got, err, want)
		}
	}
}

// Records name a pool, or a domain of it.
func TestCellNames(t *testing.T) {
	t.Parallel()
	plain, over := testkit.Layout(three(t), layout.Workload{}), testkit.Layout(even(t), layout.Workload{Orders: &layout.Orders{}})
	for _, tc := range []struct {
		l    *layout.Layout
		at   sequence.Cell
		name string
	}{{plain, sequence.Cell{Pool: 2}, "c"}, {over, sequence.Cell{Pool: 1, Domain: 2}, "1/z2"}, {over, sequence.Cell{}, "0/z0"}} {
		if name := tc.l.CellName(tc.at); name != tc.name {
			t.Errorf("%v is %q, want %q", tc.at, name, tc.name)
		}
		if at, known := tc.l.CellOf(tc.name); !known || at != tc.at {
			t.Errorf("%q is %v, %t", tc.name, at, known)
		}
	}
	for _, name := range []string{"", "gone", "1", "1/z9", "9/z0"} {
		if at, known := over.CellOf(name); known {
			t.Errorf("%q is %v", name, at)
		}
	}
}

// Suits and Nowhere follow from what is known of pools.
func TestUnsuitable(t *testing.T) {
	t.Parallel()
	l := testkit.Layout(three(t), layout.Workload{Unsuitable: []string{"", "no", ""}})
	if !l.Suits(0) || l.Suits(1) || l.Nowhere() || l.AsWritten().Target(1, 7) != 4 || l.Whole().Target(1, 7) != 0 {
		t.Errorf("suits %t and %t, nowhere %t, as written %d, whole %d", l.Suits(0), l.Suits(1), l.Nowhere(), l.AsWritten().Target(1, 7), l.Whole().Target(1, 7))
	}
	diff(t, "unsuitable", []string{"", "no", ""}, l.Unsuitable())
	none := testkit.Layout(three(t), layout.Workload{Unsuitable: []string{"no", "no", "no"}})
	if none.Suits(0) || !none.Nowhere() {
		t.Error("a pool suits")
	}
	if all := testkit.Layout(three(t), layout.Workload{}); !all.Suits(1) || all.Nowhere() || all.Unsuitable() != nil {
		t.Error("no pool suits")
	}
}

// Seats have the domain of the workload's order, and its record where the pod moved or is kept.
func TestDomains(t *testing.T) {
	t.Parallel()
	orders := layout.Orders{Now: 1, Former: 2}
	o := layout.Ordinals{Moved: map[string]string{"1": "1/z2", "2": "1/z1"}, Held: map[int64]sequence.Cell{3: {Pool: 0}}}
	l := testkit.Layout(even(t), layout.Workload{Orders: &orders, Ordinals: &o})
	seat := sequence.Seat{Pool: 0, Ordinal: 1}
	if now, former := l.DomainOf(seat), l.FormerDomainOf(seat); now != l.Domains().Domain(0, 1) || former != l.Former().Domain(0, 1) || now == former {
		t.Errorf("now %d, formerly %d", now, former)
	}
	if l.Cell(seat) != (sequence.Cell{Pool: 0, Domain: l.DomainOf(seat)}) || l.Homes() != l.Domains().Homes {
		t.Errorf("the cell is %v", l.Cell(seat))
	}
	for rank, want := range map[int64]int{2: 2, 3: 0} {
		if got := l.DomainOf(sequence.Seat{Pool: 1, Ordinal: sequence.MovedOrdinals + rank}); got != want {
			t.Errorf("pod %d is in domain %d, want %d", rank, got, want)
		}
	}
	// Without domains, and without orders.
	for _, none := range []*layout.Layout{testkit.Layout(three(t), layout.Workload{}), testkit.Layout(even(t), layout.Workload{})} {
		if none.Domains() != nil || none.Former() != nil || none.Homes() != nil || none.DomainOf(seat) != 0 || none.Divide(7, nil, layout.Elsewhere{}).Domains.Now != nil {
			t.Error("a layout without domains has some")
		}
	}
}

// A pod with an ordinal of its own and volumes has its own cell; else one in its own pool; else one in the first pool that they reach.
func TestWithinOrdinal(t *testing.T) {
	t.Parallel()
	workload := layout.Workload{Orders: &layout.Orders{Now: 1, Former: 2}, Ordinals: &layout.Ordinals{}}
	l := testkit.Layout(even(t), workload)
	const rank = 1
	own, err := l.OfOrdinal(rank)
	if err != nil {
		t.Fatal(err)
	}
	now, former := l.DomainOf(own), l.FormerDomainOf(own)
	third, other := 3-now-former, 1-own.Pool
	moved := func(pool int) sequence.Seat { return sequence.Seat{Pool: pool, Ordinal: sequence.MovedOrdinals + rank} }
	at := func(pool int, domains ...int) (out []sequence.Cell) {
		for _, in := range domains {
			out = append(out, sequence.Cell{Pool: pool, Domain: in})
		}
		return out
	}
	for name, tc := range map[string]struct {
		reached    []sequence.Cell
		unsuitable []sequence.Cell
		seat       sequence.Seat
		domain     int
	}{
		"all":                     {reached: append(at(other, 0, 1, 2), at(own.Pool, 0, 1, 2)...), seat: own, domain: now},
		"not its own":             {reached: at(own.Pool, former, third), seat: own, domain: former},
		"another domain":          {reached: append(at(other, 0, 1, 2), at(own.Pool, third)...), seat: moved(own.Pool), domain: third},
		"another pool":            {reached: at(other, 2), seat: moved(other), domain: 2},
		"the first of two":        {reached: at(other, 1, 2), seat: moved(other), domain: 1},
		"no pod can run in that":  {reached: at(other, 1, 2), unsuitable: at(other, 1), seat: moved(other), domain: 2},
		"no pod can run anywhere": {reached: at(other, 1), unsuitable: at(other, 1), domain: -1},
		"none":                    {domain: -1},
	} {
		of, unsuitable := l, make([]string, l.Cells().Len())
		for _, in := range tc.unsuitable {
			unsuitable[l.Cells().Index(in)] = "no"
			workload.Unsuitable = unsuitable
			of = testkit.Layout(even(t), workload)
		}
		reached := [][]bool{make([]bool, 3), make([]bool, 3)}
		for _, in := range tc.reached {
			reached[in.Pool][in.Domain] = true
		}
		if seat, domain, ok := of.WithinOrdinal(rank, reached); ok != (tc.domain >= 0) || ok && (seat != tc.seat || domain != tc.domain) {
			t.Errorf("%s: %v in %d, %t; want %v in %d", name, seat, domain, ok, tc.seat, tc.domain)
		}
	}
	if l.Away(rank, sequence.Cell{Pool: own.Pool, Domain: now}) || l.Away(rank, sequence.Cell{Pool: own.Pool, Domain: former}) {
		t.Error("its own cell, or the former one, is another one")
	}
	if !l.Away(rank, sequence.Cell{Pool: own.Pool, Domain: third}) || !l.Away(rank, sequence.Cell{Pool: other, Domain: now}) {
		t.Error("another cell is its own")
	}
}

// Of a pool, some domains may be unsuitable. The others have all of its pods.
func TestUnsuitableDomain(t *testing.T) {
	t.Parallel()
	why := []string{"", "no", "", "", "", ""}
	for name, of := range map[string]layout.Workload{
		"any pods":             {Orders: &layout.Orders{}, Unsuitable: why},
		"pods with ordinals":   {Orders: &layout.Orders{}, Unsuitable: why, Ordinals: &layout.Ordinals{}},
		"beside a shortage":    {Orders: &layout.Orders{}, Unsuitable: why, Limits: [][]int64{{1, domain.Open, domain.Open}, {domain.Open, domain.Open, domain.Open}}},
		"with a pool for none": {Orders: &layout.Orders{}, Unsuitable: []string{"", "no", "", "no", "no", "no"}},
	} {
		l := testkit.Layout(even(t), of)
		d := l.Divide(12, nil, layout.Elsewhere{})
		if d.Domains.Now[0][1] != 0 || d.Domains.Former[0][1] != 0 || l.SuitsCell(sequence.Cell{Pool: 0, Domain: 1}) || !l.Suits(0) || l.Nowhere() {
			t.Errorf("%s: %v", name, d)
		}
		want := []int64{6, 6}
		if name == "with a pool for none" {
			want = []int64{12, 0}
		}
		diff(t, name, want, d.Pools)
		if limit := l.Domains().Limit(0, 0); (limit == 1) != (name == "beside a shortage") {
			t.Errorf("%s: the limit beside it is %d", name, limit)
		}
	}
}

// The targets of domains: of any pods, of pods with ordinals, of an Indexed Job, and of too many ordinals.
func TestDomainTargets(t *testing.T) {
	t.Parallel()
	orders := &layout.Orders{Now: 1, Former: 2}
	divide := func(of layout.Workload, n int64, indexed ...sequence.Seat) domain.Targets {
		of.Orders = orders
		return testkit.Layout(even(t), of).Divide(n, indexed, layout.Elsewhere{}).Domains
	}
	sum := func(in [][]int64) (n int64) {
		for _, domains := range in {
			for _, count := range domains {
				n += count
			}
		}
		return n
	}
	any, own := divide(layout.Workload{}, 8), divide(layout.Workload{Ordinals: &layout.Ordinals{}}, 8)
	if sum(any.Now) != 8 || sum(any.Former) != 8 || cmp.Equal(any.Now, any.Former) {
		t.Errorf("targets %v", any)
	}
	diff(t, "of pods with ordinals", any, own)
	diff(t, "a pod that moved", [][]int64{{0, 0, 0}, {0, 0, 1}}, divide(layout.Workload{Ordinals: &layout.Ordinals{Moves: true, Moved: map[string]string{"0": "1/z2"}}}, 1).Now)
	if got := divide(layout.Workload{}, 9, sequence.Seat{Pool: 1, Ordinal: 5}, sequence.Seat{Pool: 1, Ordinal: 6}); sum(got.Now) != 2 || sum(got.Now[:1]) != 0 {
		t.Errorf("of two indexes: %v", got)
	}
	indexed := testkit.Layout(even(t), layout.Workload{Orders: orders}).Divide(2, []sequence.Seat{{Pool: 1, Ordinal: 5}, {Pool: 1, Ordinal: 6}}, layout.Elsewhere{})
	diff(t, "the pools of two indexes", []int64{0, 2}, indexed.Pools)
	if got := divide(layout.Workload{Ordinals: &layout.Ordinals{}}, 10000); sum(got.Now) != 10000 {
		t.Errorf("of 10,000 ordinals: %d", sum(got.Now))
	}
	if got := divide(layout.Workload{Ordinals: &layout.Ordinals{}}, 10001); got.Now != nil {
		t.Error("so many ordinals are looked at one by one")
	}
	if got := divide(layout.Workload{}, 10001); sum(got.Now) != 10001 {
		t.Errorf("of any 10,001 pods: %d", sum(got.Now))
	}
	// Cells without room have no more than their limits; pods with ordinals do not look at them.
	limits := [][]int64{{0, domain.Open, domain.Open}, {domain.Open, domain.Open, domain.Open}}
	if got := divide(layout.Workload{Limits: limits}, 12); got.Now[0][0] != 0 || got.Former[0][0] != 0 || sum(got.Now) != 12 {
		t.Errorf("with a limit: %v", got)
	}
	if got := divide(layout.Workload{Limits: limits, Ordinals: &layout.Ordinals{}}, 12); got.Now[0][0] == 0 {
		t.Errorf("with a limit, of pods with ordinals: %v", got)
	}
}

// Volumes reach some pools and domains, and the layout within them gives seats nowhere else.
func TestWithin(t *testing.T) {
	t.Parallel()
	workload := layout.Workload{Orders: &layout.Orders{Now: 1, Former: 2}, Limits: [][]int64{{1, domain.Open, domain.Open}, {domain.Open, domain.Open, domain.Open}}}
	l := testkit.Layout(even(t), workload)
	reached, all := l.Reached(func(at sequence.Cell) bool {
		labels := l.NodesOf(at).Labels
		return labels["p"] == "a" && labels["zone"] != "z2"
	})
	diff(t, "reached", [][]bool{{true, true, false}, {false, false, false}}, reached)
	if all {
		t.Error("all are reached")
	}
	if _, all := l.Reached(func(sequence.Cell) bool { return true }); !all {
		t.Error("not all are reached")
	}
	within := l.Within(reached, nil)
	if within.Target(0, 6) != 6 || within.Target(1, 6) != 0 || within.Domains().Limit(0, 0) != 1 || within.Domains().Limit(0, 1) != domain.Open || within.Domains().Limit(0, 2) != 0 || within.Former().Limit(0, 2) != 0 {
		t.Errorf("targets %d and %d", within.Target(0, 6), within.Target(1, 6))
	}
	if l.Within([][]bool{{false, false, false}, {false, false, false}}, nil) != nil {
		t.Error("a layout without any place")
	}
	gaps := []sequence.Gap{{From: 2, Count: sequence.All}, {}, {}}
	short := testkit.Layout(three(t), layout.Workload{Gaps: gaps}).Within([][]bool{{true}, {true}, {false}}, nil)
	if short.Target(2, 9) != 0 || short.Target(0, 9)+short.Target(1, 9) != 9 {
		t.Errorf("targets %d, %d, %d", short.Target(0, 9), short.Target(1, 9), short.Target(2, 9))
	}
	// What is reached may be unsuitable, or have no room at all. Then it is no place.
	workload.Unsuitable = []string{"no", "no", "", "", "", ""}
	closed := testkit.Layout(even(t), workload)
	if got := closed.Within([][]bool{{true, true, false}, {true, false, false}}, nil); got == nil || got.Target(0, 6) != 0 || got.Target(1, 6) != 6 || got.Whole().Target(0, 6) != 0 {
		t.Errorf("a pool whose reached domains are unsuitable: %+v", got)
	}
	if closed.Within([][]bool{{true, true, false}, {false, false, false}}, nil) != nil {
		t.Error("only unsuitable domains are reached")
	}
	if testkit.Layout(three(t), layout.Workload{Unsuitable: []string{"no", "", ""}}).Within([][]bool{{true}, {false}, {false}}, nil) != nil {
		t.Error("only an unsuitable pool is reached")
	}
	full := testkit.Layout(even(t), layout.Workload{Orders: &layout.Orders{}, Limits: [][]int64{{0, 0, domain.Open}, {domain.Open, domain.Open, domain.Open}}})
	if got := full.Within([][]bool{{true, true, false}, {true, false, false}}, nil); got == nil || got.Target(0, 6) != 0 || got.Target(1, 6) != 6 {
		t.Errorf("a pool whose reached domains have no room: %+v", got)
	}
	if same := l.Within([][]bool{{true, true, true}, {true, true, true}}, nil); same.Strategy != l.Strategy {
		t.Error("where all is reached, another strategy is computed")
	}
}

// Strategies that follow from another one are computed once for each cause.
func TestMemo(t *testing.T) {
	t.Parallel()
	known := map[layout.Key]*sequence.Strategy{}
	memo := func(key layout.Key, compute func() *sequence.Strategy) *sequence.Strategy {
		if known[key] == nil {
			known[key] = compute()
		}
		return known[key]
	}
	written, err := layout.New(three(t))
	if err != nil {
		t.Fatal(err)
	}
	gaps := func(from int64) []sequence.Gap { return []sequence.Gap{{}, {From: from, Count: sequence.All}, {}} }
	for range 2 {
		for _, of := range []layout.Workload{
			{}, {Unsuitable: []string{"", "no", ""}}, {Unsuitable: []string{"no", "", ""}}, {Gaps: gaps(1)}, {Gaps: gaps(2)},
			{Unsuitable: []string{"", "no", ""}, Ordinals: &layout.Ordinals{}}, {Unsuitable: []string{"", "no", ""}, Gaps: gaps(1)},
		} {
			l, fresh := written.For(of, memo), written.For(of, nil)
			for i := range 3 {
				if l.Target(i, 20) != fresh.Target(i, 20) {
					t.Errorf("%+v: pool %d has the target %d, want %d", of, i, l.Target(i, 20), fresh.Target(i, 20))
				}
			}
		}
	}
	whats := map[string]int{}
	for key := range maps.Keys(known) {
		what, _, _ := strings.Cut(key.What, "[")
		whats[what]++
	}
	diff(t, "what is known", map[string]int{"without": 2, "displaced": 1, "": 3}, whats)
}

// What a source says is refused where its cells are too many, and its size is known.
func TestWritten(t *testing.T) {
	t.Parallel()
	over := func(pools, domains int) *sequence.Strategy {
		var of []sequence.Pool
		for i := range pools {
			of = append(of, sequence.Pool{Name: fmt.Sprint("p", i), Labels: map[string]string{"p": fmt.Sprint(i)}, Weight: 1})
		}
		s, err := sequence.New(of, sequence.EarlierWins)
		if err != nil {
			t.Fatal(err)
		}
		return testkit.Over(s, slices.Repeat([]int64{1}, domains)...)
	}
	if _, err := layout.New(over(32, 4)); err != nil {
		t.Errorf("128 cells are refused: %v", err)
	}
	if _, err := layout.New(over(26, 5)); err == nil || !strings.Contains(err.Error(), "26 pools over 5 domains; the most is 128") {
		t.Errorf("130 cells: %v", err)
	}
	plain, err := layout.New(three(t))
	if err != nil {
		t.Fatal(err)
	}
	s := three(t)
	if want := 5*s.Size() + 3*512; plain.Bytes() != want || layout.Bytes(s) != want || (*layout.Written)(nil).Bytes() != 0 {
		t.Errorf("%d bytes, want %d", plain.Bytes(), want)
	}
	if plain.OrdersOf("x", "y") != nil {
		t.Error("a strategy without domains has orders")
	}
	zones, err := layout.New(even(t))
	if err != nil {
		t.Fatal(err)
	}
	homes, err := domain.New(even(t), []int64{1, 1, 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := layout.Bytes(even(t)) + (5*homes.Size()+64*6)*6; zones.Bytes() != want {
		t.Errorf("%d bytes, want %d", zones.Bytes(), want)
	}
	of := zones.OrdersOf("ns/web", "uid")
	if of == nil || of.Now != domain.OrderOf([]int64{1, 1, 1}, "ns/web") || of.Former != domain.OrderOf([]int64{1, 1, 1}, "uid") {
		t.Errorf("orders %v", of)
	}
}
