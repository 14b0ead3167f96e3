package spill

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// plain is the layout of a strategy for a workload that nothing is known of.
func plain(s *sequence.Strategy) *layout.Layout { return testkit.Layout(s, layout.Workload{}) }

// twoPools returns a strategy over two pools.
func twoPools(t *testing.T, first, second int64) *sequence.Strategy {
	t.Helper()
	s, err := sequence.New([]sequence.Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Weight: first}, {Name: "b", Labels: map[string]string{"p": "b"}, Weight: second},
	}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A rule with a limit leaves out so many seats that other pools take that part of the pods, for as many pods as there are or
// will be.
func TestLeftOut(t *testing.T) {
	s := twoPools(t, 20, 80)
	const spot = 1
	for name, tc := range map[string]struct {
		limit  intstr.IntOrString
		placed int64 // pods of spot that have a node
		n      int64 // when spot is exhausted
		later  int64
		want   int64 // pods that spot keeps later, with a node or without
	}{
		"half of 24":                        {intstr.FromString("50%"), 10, 30, 30, 12},
		"all of 24":                         {intstr.FromString("100%"), 0, 30, 30, 0},
		"five":                              {intstr.FromInt32(5), 10, 30, 30, 19},
		"more than wait":                    {intstr.FromInt32(20), 10, 30, 30, 10},
		"more than wait, of which 20 later": {intstr.FromInt32(20), 10, 30, 100, 61}, // one less moves, by rounding
		"one of one":                        {intstr.FromString("1%"), 0, 1, 2, 1},
		"pods that come later wait":         {intstr.FromInt32(5), 10, 30, 100, 75},
	} {
		t.Run(name, func(t *testing.T) {
			pools := make([]Pool, 2)
			pools[spot] = Pool{Phase: Exhausted, Epoch: 1, Max: tc.placed, LeftOut: Rule{MaxSpill: &tc.limit}.LeftOut(s, spot, tc.placed, tc.n)}
			if got := s.Without(Gaps(pools)).Target(spot, tc.later); got != tc.want {
				t.Errorf("with %d seats left out spot keeps %d of %d, not %d", pools[spot].LeftOut, got, tc.later, tc.want)
			}
		})
	}
	if got := (Rule{}).LeftOut(s, spot, 1, 10); got != 0 {
		t.Errorf("without a limit %d seats are left out, not all", got)
	}
}

// A pool that is tried is available once a pod of the try has a node and its maximum does not bind.
func TestAvailableAgain(t *testing.T) {
	var three []sequence.Pool
	for _, name := range []string{"a", "b", "c"} {
		three = append(three, sequence.Pool{Name: name, Labels: map[string]string{"p": name}, Weight: 1})
	}
	s, err := sequence.New(three, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		replicas, placed, most, step int64 // of pool b, while c has no room at all
		quiet                        time.Duration
		want                         Phase
		others                       Phase // of c, if it is another one
		waits                        bool  // a pod of pool a does
	}{
		"it is full with pods of another pool":              {12, 5, 6, 1, 0, Probing, "", false},
		"a pod of the try has a node, and none lacks":       {12, 6, 6, 1, 0, Available, "", false},
		"a pod of the try has a node, and more are to come": {12, 5, 5, 1, 0, Probing, "", false},
		"the workload was scaled down":                      {6, 3, 6, 1, 0, Probing, "", false},
		"nothing has waited for half an hour":               {12, 5, 6, 1, 30 * time.Minute, Available, "", false},
		"the pods that it took have left":                   {12, 4, 9, 1, 0, Available, Available, false},
		"but another pool is still tried":                   {12, 4, 9, 1, 0, Probing, Probing, false},
		"but it lacks one of its own":                       {12, 3, 9, 1, 0, Probing, Available, false},
		"but a pod of another pool waits":                   {12, 4, 9, 1, 0, Probing, Available, true},
		"it has what is due, and no pod waits":              {12, 4, 5, 1, 0, Available, Available, false},
		"nothing is due, and it had no room for any":        {2, 0, 1, 1, 0, Probing, Available, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := View{Now: now, Layout: plain(s), Rules: []Rule{{After: time.Minute}, {After: time.Minute}, {After: time.Minute}}, Replicas: tc.replicas, Hard: make([]bool, 3), Room: make([]int64, 3)}
			for i := range tc.replicas {
				pod := Pod{Node: true}
				if i < tc.placed {
					pod.Seat.Pool = 1
				}
				v.Pods = append(v.Pods, pod)
			}
			v.Pods[tc.replicas-1].Node = !tc.waits
			if tc.others == "" {
				tc.others = Exhausted
			}
			pools := []Pool{
				{Phase: Available},
				{Phase: Probing, Epoch: 1, Max: tc.most, Step: tc.step, Waited: now.Add(-tc.quiet)},
				{Phase: tc.others, Epoch: 1, Next: now.Add(time.Hour), Waited: now},
			}
			if got := Next(v, pools, tries.Default())[1].Phase; got != tc.want {
				t.Errorf("pool b is %s, want %s", got, tc.want)
			}
		})
	}
}

// Two pools that got full with the surge of a rollout, and have what is due since, do not wait for each other.
func TestAvailableTogether(t *testing.T) {
	s, now := twoPools(t, 1, 1), time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	for surplus, want := range map[int64]Phase{0: Available, 1: Probing} { // without a node for it, one pool lacks a pod
		v := View{Now: now, Layout: plain(s), Rules: []Rule{{After: time.Minute}, {After: time.Minute}}, Replicas: 8 + 2*surplus, Hard: make([]bool, 2), Room: make([]int64, 2)}
		for i := range 8 {
			v.Pods = append(v.Pods, Pod{Node: true, Seat: sequence.Seat{Pool: i % 2}})
		}
		tried := Pool{Phase: Probing, Epoch: 1, Max: 5, Step: 1, Waited: now.Add(-time.Minute)}
		for pool, got := range Next(v, []Pool{tried, tried}, tries.Default()) {
			if got.Phase != want {
				t.Errorf("pool %d is %s, want %s", pool, got.Phase, want)
			}
		}
	}
}

// The ordinals that return are the try of their pool, the lowest first, and stay elsewhere again when it was in vain.
func TestOrdinals(t *testing.T) {
	s := twoPools(t, 1, 1) // the even ordinals are a's, the odd ones b's
	const a, b = 0, 1
	moved, home := Pod{Seat: sequence.Seat{Pool: a}, Node: true}, Pod{Seat: sequence.Seat{Pool: b}, Node: true}
	waits := Pod{Seat: sequence.Seat{Pool: b}, Waits: time.Minute}
	both := map[int64]int{3: a, 5: a}
	for name, tc := range map[string]struct {
		third, fifth Pod
		now          map[int64]int
		pool         Pool // b
		want         map[int64]int
	}{
		"without room they stay":                       {moved, moved, both, Pool{Phase: Exhausted, Max: 1}, both},
		"the lowest is the try":                        {moved, moved, both, Pool{Phase: Probing, Max: 2, Step: 1}, map[int64]int{5: a}},
		"there is room for both":                       {moved, moved, both, Pool{Phase: Probing, Max: 3, Step: 2}, map[int64]int{}},
		"the try waits":                                {waits, moved, map[int64]int{5: a}, Pool{Phase: Probing, Max: 2, Step: 1}, map[int64]int{5: a}},
		"the try was in vain":                          {waits, moved, map[int64]int{5: a}, Pool{Phase: Exhausted, Max: 1}, both},
		"the try ended before the pod restarted":       {moved, moved, map[int64]int{5: a}, Pool{Phase: Exhausted, Max: 1}, both},
		"one got its node at home before it was moved": {moved, home, both, Pool{Phase: Exhausted, Max: 2}, map[int64]int{3: a}},
		"their pool is available":                      {moved, moved, both, Pool{Phase: Available}, map[int64]int{}},
		"the one that was evicted is still ending":     {Pod{}, moved, map[int64]int{3: a}, Pool{Phase: Probing, Max: 3, Step: 2}, map[int64]int{3: a}},
	} {
		t.Run(name, func(t *testing.T) {
			pods, ordinals := make([]Pod, 6), make([]int64, 6)
			for i := range pods {
				pods[i] = Pod{Seat: sequence.Seat{Pool: i % 2}, Node: true}
			}
			pods[3], pods[5] = tc.third, tc.fifth
			for i := range pods {
				pods[i].Rank, ordinals[i] = int64(i)+1, int64(i)
			}
			if tc.third == (Pod{}) {
				pods, ordinals = slices.Delete(pods, 3, 4), slices.Delete(ordinals, 3, 4)
			}
			got := Ordinals(View{Layout: plain(s)}, []Pool{{Phase: Available}, tc.pool}, pods, ordinals, 6, tc.now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ordinals elsewhere (-want +got):\n%s", diff)
			}
		})
	}
}

// The pods of an OrderedReady StatefulSet come one by one. The first that waits elsewhere is the try of its pool, though the others do not exist yet.
func TestOrdinalsThatDoNotExistYet(t *testing.T) {
	s := twoPools(t, 1, 1) // the even ordinals are a's, the odd ones b's
	const a, b = 0, 1
	for name, tc := range map[string]struct {
		there map[int64]int // the pools of pods, by their ordinal
		now   map[int64]int
		pool  Pool // b
		want  map[int64]int
	}{
		"the first one is the try":               {map[int64]int{0: a, 1: a}, map[int64]int{1: a}, Pool{Phase: Probing, Max: 1, Step: 1}, map[int64]int{}},
		"without room it stays":                  {map[int64]int{0: a, 1: a}, map[int64]int{1: a}, Pool{Phase: Exhausted}, map[int64]int{1: a}},
		"one before it restarts, and is the try": {map[int64]int{0: a, 3: a}, map[int64]int{3: a}, Pool{Phase: Probing, Max: 1, Step: 1}, map[int64]int{3: a}},
		"there is room for both":                 {map[int64]int{0: a, 3: a}, map[int64]int{3: a}, Pool{Phase: Probing, Max: 2, Step: 1}, map[int64]int{}},
		"another is at home":                     {map[int64]int{0: a, 1: a, 3: b}, map[int64]int{1: a}, Pool{Phase: Probing, Max: 1, Step: 1}, map[int64]int{1: a}},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []Pod
			ordinals := slices.Sorted(maps.Keys(tc.there))
			for _, n := range ordinals {
				pods = append(pods, Pod{Seat: sequence.Seat{Pool: tc.there[n]}, Rank: n + 1, Node: true})
			}
			got := Ordinals(View{Layout: plain(s)}, []Pool{{Phase: Available}, tc.pool}, pods, ordinals, 6, tc.now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ordinals elsewhere (-want +got):\n%s", diff)
			}
		})
	}
}

// A cell in which no pod of the workload can run is no place for one that is away.
func TestOrdinalsLeaveUnsuitablePools(t *testing.T) {
	s := twoPools(t, 1, 1)
	pods := []Pod{{Seat: sequence.Seat{Pool: 0}, Rank: 1, Node: true}, {Seat: sequence.Seat{Pool: 0}, Rank: 2, Waits: time.Minute}}
	got := Ordinals(View{Layout: plain(s)}, []Pool{{Phase: Unsuitable}, {Phase: Exhausted}}, pods, []int64{0, 1}, 2, map[int64]int{1: 0})
	if len(got) > 0 {
		t.Errorf("elsewhere are %v", got)
	}
}

// While a pool is tried, nodes that come later raise its maximum again, but not while pods wait in vain.
func TestMoreNodesCome(t *testing.T) {
	for waiting, want := range map[int]Pool{0: {Phase: Probing, Max: 25}, 3: {Phase: Exhausted, Max: 5}} {
		v := View{Now: time.Unix(1000, 0), Layout: plain(twoPools(t, 20, 80)), Rules: []Rule{{After: time.Minute}, {After: time.Minute}}, Replicas: 30, Hard: make([]bool, 2), Room: []int64{0, 20}}
		for i := range 5 + waiting {
			p := Pod{Seat: sequence.Seat{Pool: 1}, Node: i < 5}
			if !p.Node {
				p.Waits = time.Minute
			}
			v.Pods = append(v.Pods, p)
		}
		got := Next(v, []Pool{{Phase: Available}, {Phase: Probing, Epoch: 1, Max: 10, Step: 5, Early: true, Waited: v.Now}}, tries.Default())[1]
		if got.Phase != want.Phase || got.Max != want.Max {
			t.Errorf("with %d pods that wait the pool is %s with %d, want %s with %d", waiting, got.Phase, got.Max, want.Phase, want.Max)
		}
	}
}

// A pool is closed by what waits for it: three pods, or all of fewer. Once closed, it is closed anew only if a pod below its
// maximum is gone and the successor finds no room.
func TestNext(t *testing.T) {
	s, now := twoPools(t, 1, 1), time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	const after, long, short = time.Minute, 2 * time.Minute, time.Second
	closed := func(maximum int64) Pool {
		return Pool{Phase: Exhausted, Epoch: 1, Since: now.Add(-after), Max: maximum, Next: now.Add(time.Hour), Waited: now}
	}
	for name, tc := range map[string]struct {
		before Pool
		placed int
		waits  []time.Duration
		want   string // phase, maximum and epoch
	}{
		"the only pod that waits has waited long":   {Pool{}, 4, []time.Duration{long}, "Exhausted 4 1"},
		"both pods that wait have":                  {Pool{}, 4, []time.Duration{long, long}, "Exhausted 4 1"},
		"two of three have":                         {Pool{}, 4, []time.Duration{long, long, short}, "Available 0 0"},
		"three of three have":                       {Pool{}, 4, []time.Duration{long, long, long}, "Exhausted 4 1"},
		"two of nine have":                          {Pool{}, 4, []time.Duration{long, long, short, short, short, short, short, short, short}, "Available 0 0"},
		"three of nine have":                        {Pool{}, 4, []time.Duration{long, long, long, short, short, short, short, short, short}, "Exhausted 4 1"},
		"a pod above the maximum waits":             {closed(3), 3, []time.Duration{long}, "Exhausted 3 1"},
		"the successor of one below it waits":       {closed(3), 2, []time.Duration{long}, "Exhausted 2 2"},
		"that successor has not waited long enough": {closed(3), 2, []time.Duration{short}, "Exhausted 3 1"},
		"one of four successors has":                {closed(6), 2, []time.Duration{long, short, short, short}, "Exhausted 6 1"},
	} {
		t.Run(name, func(t *testing.T) {
			v := View{Now: now, Layout: plain(s), Rules: []Rule{{After: after}, {}}, Hard: make([]bool, 2), Room: make([]int64, 2), Replicas: int64(tc.placed + len(tc.waits))}
			for i := range tc.placed {
				v.Pods = append(v.Pods, Pod{Seat: sequence.Seat{Ordinal: int64(i) + 1}, Node: true})
			}
			for i, d := range tc.waits {
				v.Pods = append(v.Pods, Pod{Seat: sequence.Seat{Ordinal: int64(tc.placed+i) + 1}, Waits: d})
			}
			p := Next(v, []Pool{tc.before, {Phase: Available}}, tries.Default())[0]
			if got := fmt.Sprint(p.Phase, " ", p.Max, " ", p.Epoch); got != tc.want {
				t.Errorf("the pool is %q, want %q", got, tc.want)
			}
		})
	}
}

// No more pods move than the other pools take, and those of the highest ranks move.
func TestMoves(t *testing.T) {
	pool := func(name string, limit int64) sequence.Pool {
		return sequence.Pool{Name: name, Labels: map[string]string{"p": name}, Weight: 1, Max: limit}
	}
	closed := Pool{Phase: Exhausted, Epoch: 1, Max: 1}
	for name, tc := range map[string]struct {
		pools           []sequence.Pool
		states          []Pool
		placed, waiting []int // pods of each pool; a pool's pods follow those of the one before
		replicas        int64
		want            []int
	}{
		"the other pool takes all":                 {[]sequence.Pool{pool("a", 0), pool("b", 0)}, []Pool{closed, {}}, []int{1, 1}, []int{3, 0}, 5, []int{3, 2, 1}},
		"it takes one before its maximum":          {[]sequence.Pool{pool("a", 0), pool("b", 2)}, []Pool{closed, {}}, []int{1, 1}, []int{3, 0}, 5, []int{3}},
		"two pools share what the third takes":     {[]sequence.Pool{pool("a", 0), pool("b", 2), pool("c", 0)}, []Pool{closed, {}, closed}, []int{1, 1, 1}, []int{2, 0, 2}, 7, []int{2}},
		"one place is for a pod yet to be created": {[]sequence.Pool{pool("a", 0), pool("b", 2)}, []Pool{closed, {}}, []int{1, 0}, []int{3, 0}, 5, []int{3}},
		"pods with a node stay":                    {[]sequence.Pool{pool("a", 0), pool("b", 0)}, []Pool{closed, {}}, []int{4, 1}, []int{0, 0}, 5, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := sequence.New(tc.pools, sequence.EarlierWins)
			if err != nil {
				t.Fatal(err)
			}
			var pods []Pod
			for i := range tc.pools {
				for j := range tc.placed[i] + tc.waiting[i] {
					p := Pod{Seat: sequence.Seat{Pool: i, Ordinal: int64(j) + 1}, Rank: int64(len(pods)) + 1, Node: j < tc.placed[i]}
					if !p.Node {
						p.Waits = time.Minute
					}
					pods = append(pods, p)
				}
			}
			if diff := cmp.Diff(tc.want, Moves(s.Without(Gaps(tc.states)), nil, tc.states, pods, tc.replicas)); diff != "" {
				t.Errorf("the pods that move (-want +got):\n%s", diff)
			}
		})
	}
}
