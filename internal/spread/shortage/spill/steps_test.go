package spill

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Each step of a pool, with all that it writes.
func TestSteps(t *testing.T) {
	s, now := twoPools(t, 1, 1), time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	timing := tries.Timing{First: time.Minute, Last: 5 * time.Minute, Forget: 30 * time.Minute}
	const after, long, short = time.Minute, time.Minute, time.Second
	since, later := now.Add(-time.Hour), now.Add(time.Hour)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	one := intstr.FromInt32(1)
	for name, tc := range map[string]struct {
		before   Pool
		placed   int
		waits    []time.Duration
		misfits  int
		hard     bool
		room     int64
		replicas int64
		rule     Rule
		want     Pool
	}{
		"nothing is known of it": {placed: 4, replicas: 8, want: Pool{Phase: Available}},
		"it is closed": {
			before: Pool{Phase: Available, Epoch: 2, Since: since, Tries: 3, Next: later}, placed: 4, waits: []time.Duration{long}, replicas: 10,
			want: Pool{Phase: Exhausted, Epoch: 3, Since: now, Max: 4, Next: now.Add(time.Minute), Waited: now},
		},
		"it is closed, and one pod may go": {
			before: Pool{Phase: Available}, placed: 3, waits: []time.Duration{long, long}, replicas: 10, rule: Rule{After: after, MaxSpill: &one},
			want: Pool{Phase: Exhausted, Epoch: 1, Since: now, Max: 3, LeftOut: s.SeatsToLeaveOut(0, 10, 4), Next: now.Add(time.Minute), Waited: now},
		},
		"a pod has waited for too short a time":        {before: Pool{Phase: Available}, placed: 4, waits: []time.Duration{short}, replicas: 10, want: Pool{Phase: Available, Waited: now}},
		"but nobody can make nodes":                    {before: Pool{Phase: Available}, placed: 4, waits: []time.Duration{short}, hard: true, replicas: 10, want: Pool{Phase: Exhausted, Epoch: 1, Since: now, Max: 4, Next: now.Add(time.Minute), Waited: now}},
		"nobody can, and no pod has waited yet":        {before: Pool{Phase: Available}, placed: 4, waits: []time.Duration{0}, hard: true, replicas: 10, want: Pool{Phase: Available, Waited: now}},
		"the pod would fit on no node":                 {before: Pool{Phase: Available}, placed: 4, misfits: 3, replicas: 10, want: Pool{Phase: Available}},
		"no rule any more":                             {before: Pool{Phase: Exhausted, Epoch: 2, Max: 4, Next: later, Waited: now}, placed: 4, replicas: 10, rule: Rule{MaxSpill: &one}, want: Pool{Phase: Available, Epoch: 2, Since: now}},
		"a rule of next to no time":                    {before: Pool{Phase: Exhausted, Epoch: 2, Max: 4, Next: later, Waited: now}, placed: 4, replicas: 10, rule: Rule{After: 1}, want: Pool{Phase: Exhausted, Epoch: 2, Max: 4, Next: later, Waited: now}},
		"closed, and more pods have a node":            {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(after)}, placed: 5, replicas: 10, want: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 5, Next: later, Waited: ago(after)}},
		"closed, and fewer have":                       {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(after)}, placed: 2, replicas: 10, want: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(after)}},
		"the next try is due":                          {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Tries: 1, Next: now, Early: true, Waited: ago(after)}, placed: 3, replicas: 10, want: Pool{Phase: Probing, Epoch: 2, Since: now, Max: 4, Step: 1, Tries: 1, Next: now, Waited: ago(after)}},
		"room comes before it is due":                  {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 4, Next: later, Waited: ago(after)}, placed: 4, room: 3, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: now, Max: 7, Step: 3, Next: later, Early: true, Waited: ago(after)}},
		"room for fewer than its maximum":              {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 4, Next: later, Waited: ago(after)}, placed: 2, room: 1, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: now, Max: 5, Step: 1, Next: later, Early: true, Waited: ago(after)}},
		"room comes once more":                         {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 4, Next: later, Early: true, Waited: ago(after)}, placed: 4, room: 3, replicas: 20, want: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 4, Next: later, Early: true, Waited: ago(after)}},
		"closed anew, and its tries go on":             {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 4, Tries: 1, Next: later, Waited: ago(after)}, placed: 3, waits: []time.Duration{long}, replicas: 20, want: Pool{Phase: Exhausted, Epoch: 3, Since: now, Max: 3, Tries: 1, Next: later, Waited: now}},
		"the try has its node":                         {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 5, Step: 1, Waited: ago(after)}, placed: 5, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 7, Step: 2, Waited: ago(after)}},
		"and so has another pod":                       {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 5, Step: 1, Waited: ago(after)}, placed: 6, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 8, Step: 2, Waited: ago(after)}},
		"room for more than the try":                   {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}, placed: 4, room: 3, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 7, Step: 3, Early: true, Waited: ago(after)}},
		"room for the try":                             {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}, placed: 4, room: 2, replicas: 20, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}},
		"the first try was in vain":                    {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 2, Waited: ago(after)}, placed: 4, waits: []time.Duration{long, long}, replicas: 20, want: Pool{Phase: Exhausted, Epoch: 3, Since: now, Max: 4, Tries: 1, Next: now.Add(2 * time.Minute), Waited: now}},
		"the third one was":                            {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 2, Tries: 2, Waited: ago(after)}, placed: 4, waits: []time.Duration{long, long}, replicas: 20, want: Pool{Phase: Exhausted, Epoch: 3, Since: now, Max: 4, Tries: 3, Next: now.Add(5 * time.Minute), Waited: now}},
		"one of the try has a node, and another waits": {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 2, Waited: ago(after)}, placed: 5, waits: []time.Duration{short}, replicas: 10, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 2, Waited: now}},
		"one of the try has a node, and none lacks":    {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 2, Tries: 2, Waited: ago(after)}, placed: 5, replicas: 10, want: Pool{Phase: Available, Epoch: 2, Since: now}},
		"one has, and one lacks":                       {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 5, Step: 2, Waited: ago(after)}, placed: 4, replicas: 10, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 5, Step: 2, Waited: ago(after)}},
		"none of the try has, and one lacks":           {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}, placed: 5, replicas: 12, want: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}},
		"none of the try has, and none lacks":          {before: Pool{Phase: Probing, Epoch: 2, Since: since, Max: 6, Step: 1, Waited: ago(after)}, placed: 5, replicas: 10, want: Pool{Phase: Available, Epoch: 2, Since: now}},
		"nothing has waited for half an hour":          {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(30 * time.Minute)}, placed: 3, replicas: 10, want: Pool{Phase: Available, Epoch: 2, Since: now}},
		"for almost half an hour":                      {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(30*time.Minute - 1)}, placed: 3, replicas: 10, want: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(30*time.Minute - 1)}},
		"for longer, and nobody can make nodes":        {before: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: ago(time.Hour)}, placed: 3, hard: true, replicas: 10, want: Pool{Phase: Exhausted, Epoch: 2, Since: since, Max: 3, Next: later, Waited: now}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.rule == (Rule{}) {
				tc.rule.After = after
			}
			v := View{Now: now, Layout: plain(s), Rules: []Rule{tc.rule, {}}, Hard: []bool{tc.hard, false}, Room: []int64{tc.room, 0}, Replicas: tc.replicas}
			add := func(p Pod) {
				p.Seat.Ordinal = int64(len(v.Pods)) + 1
				v.Pods = append(v.Pods, p)
			}
			for range tc.placed {
				add(Pod{Node: true})
			}
			for _, d := range tc.waits {
				add(Pod{Waits: d})
			}
			for range tc.misfits {
				add(Pod{Waits: long, Misfit: true})
			}
			if diff := cmp.Diff(tc.want, Next(v, []Pool{tc.before, {Phase: Available}}, timing)[0]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(tries.Timing{First: time.Minute, Last: 30 * time.Minute, Forget: 30 * time.Minute}, tries.Default()); diff != "" {
		t.Errorf("the default times (-want +got):\n%s", diff)
	}
}

// A limit that is no number leaves out all seats, and so does one beyond the pool's maximum. A percentage is rounded up.
func TestLimits(t *testing.T) {
	s, err := sequence.New([]sequence.Pool{
		{Name: "a", Labels: map[string]string{"p": "a"}, Weight: 1}, {Name: "b", Labels: map[string]string{"p": "b"}, Weight: 1, Max: 5},
	}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	for text, maximum := range map[string]int64{"many": 1, "80%": 3} {
		limit := intstr.FromString(text)
		if got := (Rule{MaxSpill: &limit}).LeftOut(s, 1, maximum, 10); got != 0 {
			t.Errorf("with maxSpill %s of a pool that has %d of its 5 pods, %d seats are left out, not all", text, maximum, got)
		}
	}
	two := twoPools(t, 1, 1)
	limit := intstr.FromString("10%")
	gap := []Pool{{}, {Phase: Exhausted, Epoch: 1, Max: 0, LeftOut: Rule{MaxSpill: &limit}.LeftOut(two, 1, 0, 30)}}
	if got := two.Without(Gaps(gap)).Target(1, 30); got != 13 {
		t.Errorf("a tenth of 15 pods may move, and the pool keeps %d, want 13", got)
	}
}

// An available pool alone needs no record, and one that never lacked room has none.
func TestRecordsThatAreNotKept(t *testing.T) {
	s, at := twoPools(t, 1, 1), time.Date(2026, 1, 1, 10, 2, 3, 0, time.UTC)
	if rooms := ToPoolRooms([]Pool{{Phase: Available, Epoch: 3, Since: at}, {Phase: Available}}, s); rooms != nil {
		t.Errorf("while all pools are available, %+v is written", rooms)
	}
	rooms := ToPoolRooms([]Pool{{Phase: Available, Since: at}, {Phase: Exhausted, Epoch: 1, Since: at}}, s)
	if len(rooms) != 1 || rooms[0].Name != "b" || rooms[0].Phase != stowage.PoolExhausted {
		t.Errorf("%+v is written", rooms)
	}
}

// Where ordinals are to be that have no place in their own pool.
func TestOrdinalsOfThree(t *testing.T) {
	pool := func(name string) sequence.Pool {
		return sequence.Pool{Name: name, Labels: map[string]string{"p": name}, Weight: 1}
	}
	s, err := sequence.New([]sequence.Pool{pool("a"), pool("b"), pool("c")}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	const a, b, c = 0, 1, 2 // ordinals 0, 3, 6 are a's, 1, 4, 7 b's, and 2, 5, 8 c's
	waits := func(p *Pod) { p.Node, p.Waits = false, time.Minute }
	runs := func(in int) func(*Pod) { return func(p *Pod) { p.Seat.Pool = in } }
	for name, tc := range map[string]struct {
		b        Pool
		replicas int64
		pods     map[int]func(*Pod)
		unnamed  int // the pod has no ordinal
		now      map[int64]int
		want     map[int64]int
	}{
		"two wait in vain: the highest goes first, each to the pool that lacks most": {
			b: Pool{Phase: Exhausted, Max: 1}, replicas: 9, pods: map[int]func(*Pod){4: waits, 7: waits}, want: map[int64]int{7: a, 4: c},
		},
		"a pod without an ordinal stays, and so do those after it": {
			b: Pool{Phase: Exhausted, Max: 1}, replicas: 9, pods: map[int]func(*Pod){4: waits, 7: waits}, unnamed: 7, want: map[int64]int{},
		},
		"one is to be elsewhere, and is not there yet": {
			b: Pool{Phase: Exhausted, Max: 2}, replicas: 9, pods: map[int]func(*Pod){7: waits}, now: map[int64]int{7: c}, want: map[int64]int{7: c},
		},
		"as many stay as seats are left out": {
			b: Pool{Phase: Exhausted, Max: 1, LeftOut: 1}, replicas: 9, pods: map[int]func(*Pod){4: runs(a), 7: runs(c)}, now: map[int64]int{4: a, 7: c}, want: map[int64]int{7: c},
		},
		"its maximum is more than its share": {
			b: Pool{Phase: Exhausted, Max: 5}, replicas: 9, pods: map[int]func(*Pod){4: runs(a), 7: runs(c)}, now: map[int64]int{4: a, 7: c}, want: map[int64]int{},
		},
		"nobody asks for the ordinal any more": {
			b: Pool{Phase: Exhausted, Max: 1}, replicas: 7, pods: map[int]func(*Pod){4: runs(a), 7: runs(c)}, now: map[int64]int{4: a, 7: c}, want: map[int64]int{4: a},
		},
		"it is noted at home": {
			b: Pool{Phase: Exhausted, Max: 3}, replicas: 9, now: map[int64]int{4: b}, want: map[int64]int{},
		},
		"it runs elsewhere, and nobody noted that": {
			b: Pool{Phase: Exhausted, Max: 2}, replicas: 9, pods: map[int]func(*Pod){7: runs(c)}, want: map[int64]int{7: c},
		},
		"one with a node at home returns before a lower one": {
			b: Pool{Phase: Exhausted, Max: 2}, replicas: 9, pods: map[int]func(*Pod){4: runs(a)}, now: map[int64]int{4: a, 7: c}, want: map[int64]int{4: a},
		},
		"one that waits at home does not": {
			b: Pool{Phase: Probing, Max: 2, Step: 1}, replicas: 9, pods: map[int]func(*Pod){4: runs(a), 7: waits}, now: map[int64]int{4: a, 7: c}, want: map[int64]int{7: c},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []Pod
			var ordinals []int64
			for i := range 9 {
				p := Pod{Seat: sequence.Seat{Pool: i % 3}, Rank: int64(i) + 1, Node: true}
				if change := tc.pods[i]; change != nil {
					change(&p)
				}
				ordinal := int64(i)
				if tc.unnamed == i && i > 0 {
					ordinal = -1
				}
				pods, ordinals = append(pods, p), append(ordinals, ordinal)
			}
			got := Ordinals(View{Layout: plain(s)}, []Pool{{Phase: Available}, tc.b, {Phase: Available}}, pods, ordinals, tc.replicas, tc.now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ordinals elsewhere (-want +got):\n%s", diff)
			}
		})
	}
}
