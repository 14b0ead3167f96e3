package repair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

var start = time.Unix(1_000_000, 0)

func TestBudget(t *testing.T) {
	timing := DefaultTiming()
	uids := func(list ...string) map[types.UID]bool {
		out := map[types.UID]bool{}
		for _, u := range list {
			out[types.UID(u)] = true
		}
		return out
	}
	var b budget
	now := start
	step := func(what string, distance int64, claimed map[types.UID]bool, wantOK bool, wantWait time.Duration, wantVain bool) {
		t.Helper()
		ok, wait, vain := b.mayRemove(now, timing, observation{distance: distance, claimed: claimed})
		if ok != wantOK || wait != wantWait || vain != wantVain {
			t.Fatalf("%s: %t, wait %s, in vain %t", what, ok, wait, vain)
		}
	}
	step("the first", 3, uids("a"), true, 0, false)
	b.spend(now, timing.Cooldown, true, observation{distance: 3, claimed: uids("a")})
	step("at once after it, which won something", 2, uids("a", "b"), false, timing.Cooldown, false)
	now = now.Add(timing.Cooldown)
	step("after the cooldown, but no pod came through the webhook since", 2, uids("a"), false, timing.Resync, false)
	step("and then one did", 2, uids("a", "b"), true, 0, false)
	b.spend(now, timing.Cooldown, true, observation{distance: 2, claimed: uids("a", "b")})
	step("a removal in vain", 2, uids("a", "b", "c"), false, timing.Cooldown, true)
	step("is told once", 2, uids("a", "b", "c"), false, timing.Cooldown, false)
	for i := range 20 {
		now = now.Add(timing.MaxBackoff)
		step("after a long wait", 2, uids(fmt.Sprint(i)), true, 0, false)
		b.spend(now, timing.Cooldown, true, observation{distance: 2})
		_, wait, vain := b.mayRemove(now, timing, observation{distance: 2})
		if !vain || wait > timing.MaxBackoff {
			t.Fatalf("try %d waits %s, in vain %t", i, wait, vain)
		}
	}
	if b.backoff != timing.MaxBackoff {
		t.Errorf("the wait is %s in the end", b.backoff)
	}
	if got := (&budget{}).refuse(now, timing); got != timing.Backoff {
		t.Errorf("a refused eviction waits %s", got)
	}
}

// A pod that left its node for a pool whose room was not proven has won something once its successor has a node.
func TestBudgetWithoutProvenRoom(t *testing.T) {
	timing := DefaultTiming()
	for name, tc := range map[string]struct {
		proven, hasNode, inVain bool
	}{
		"proven, the successor waits":     {true, false, false},
		"not proven, the successor waits": {false, false, true},
		"not proven, the successor runs":  {false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b budget
			b.spend(start, timing.Cooldown, tc.proven, observation{distance: 2})
			if _, _, inVain := b.mayRemove(start, timing, observation{distance: 1, claimed: map[types.UID]bool{"successor": tc.hasNode}}); inVain != tc.inVain {
				t.Errorf("in vain: %t", inVain)
			}
		})
	}
}

// The next pod may go although the successor of the last one bypassed the webhook, once a pod of any workload has
// passed the webhook since.
func TestBudgetAfterABypass(t *testing.T) {
	timing := DefaultTiming()
	var b budget
	b.spend(start, timing.Cooldown, true, observation{distance: 2, date: start.Add(-time.Minute)}) // the leader's clock is ahead
	later := start.Add(time.Hour)
	if ok, _, _ := b.mayRemove(later, timing, observation{distance: 1, reached: start.Add(-time.Minute - time.Second)}); ok {
		t.Error("the next pod may go, though the webhook was not reached since")
	}
	if ok, _, _ := b.mayRemove(later, timing, observation{distance: 1, reached: start.Add(-time.Second)}); !ok {
		t.Error("the next pod may not go, though the webhook was reached since")
	}
}

// What is known of a workload is dropped some time after its last pod, and a refused eviction is remembered.
func TestForget(t *testing.T) {
	b := newBench(t)
	owner := (ledger.Owner{Namespace: "ns", UID: "o"}).Key()
	if wait := b.refused(owner); wait != b.Timing.Backoff {
		t.Errorf("a refused eviction waits %s", wait)
	}
	b.removed(owner, b.Timing.Cooldown, true, observation{distance: 1})
	b.forget(nil)
	if b.history[owner] == nil {
		t.Error("it is forgotten at once")
	}
	b.clock.Step(3 * b.Timing.MaxBackoff)
	b.forget(map[ledger.OwnerKey]bool{owner: true})
	if b.history[owner] == nil {
		t.Error("a workload with pods is forgotten")
	}
	b.forget(nil)
	if b.history[owner] != nil {
		t.Error("it is never forgotten")
	}
}

// A removal that won all there was to win is not taken for one in vain when the workload is off again.
func TestBudgetSeesBalance(t *testing.T) {
	timing := DefaultTiming()
	var b budget
	b.spend(start, timing.Cooldown, true, observation{distance: 1})
	if b.observe(timing, observation{}) {
		t.Error("balance is in vain")
	}
	if ok, _, inVain := b.mayRemove(start.Add(time.Hour), timing, observation{distance: 1, claimed: map[types.UID]bool{"later": true}}); !ok || inVain {
		t.Errorf("an hour later: %t, in vain %t", ok, inVain)
	}
}

// A new leader goes on with the wait that an earlier one has stored, whatever their clocks say.
func TestBudgetOfTheNextLeader(t *testing.T) {
	timing := DefaultTiming()
	for name, tc := range map[string]struct{ backoff, left, want time.Duration }{
		"nothing was in vain":          {},
		"some wait is left":            {time.Minute, 20 * time.Second, 20 * time.Second},
		"the cooldown is left":         {timing.Backoff, timing.Cooldown, timing.Cooldown},
		"the other clock was ahead":    {time.Minute, time.Hour, time.Minute},
		"somebody wrote a longer wait": {time.Hour, time.Hour, timing.MaxBackoff},
		"or a negative one":            {-time.Hour, -time.Hour, 0},
	} {
		var b budget
		b.restore(timing, tc.backoff, start.Add(tc.left), start)
		if _, wait, _ := b.mayRemove(start, timing, observation{distance: 1}); wait != tc.want {
			t.Errorf("%s: the next leader waits %s, want %s", name, wait, tc.want)
		}
	}
}

func TestMovements(t *testing.T) {
	const quiet = 2 * time.Second
	a, b := ledger.OwnerKey{Namespace: "ns", UID: "a"}, ledger.OwnerKey{Namespace: "ns", UID: "b"}
	m := newMovements()
	m.note(a, start)
	if m.look(a, start, quiet) || !m.look(b, start, quiet) {
		t.Error("a moves, and b does not")
	}
	if due := m.due(start.Add(time.Second), quiet); len(due) != 0 {
		t.Errorf("%v are due while they move", due)
	}
	if due := m.due(start.Add(quiet), quiet); len(due) != 1 || m.moving(a, start.Add(quiet), quiet) {
		t.Errorf("%v are due once they are quiet", due)
	}

	// One that never stops, a crash loop say, is looked at once a minute.
	looks := 0
	for s := range 300 {
		now := start.Add(time.Duration(s) * time.Second)
		m.note(b, now)
		for _, owner := range m.due(now, quiet) {
			m.note(owner, now) // the next pod ends
			if m.look(owner, now, quiet) {
				looks++
			}
			if m.look(owner, now, quiet) {
				t.Fatal("it is looked at twice for one minute of movement")
			}
		}
	}
	if looks < 4 || looks > 5 {
		t.Errorf("it was looked at %d times in five minutes", looks)
	}
	m.forget(b)
	if m.moving(b, start, quiet) {
		t.Error("it was not forgotten")
	}
}

// A cost that Stowage wrote is known as such although somebody has changed the pod's labels.
func TestFormerRank(t *testing.T) {
	s, err := sequence.Parse("p=a,weight=80:p=b,weight=20")
	if err != nil {
		t.Fatal(err)
	}
	p, key, owner := &policy.Policy{Layout: testkit.Layout(s, layout.Workload{})}, ledger.NewKey(), ledger.Owner{Namespace: "ns", UID: "rs"}
	const rank = 3
	seat, err := s.SeatAt(rank)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(id string, by ledger.Key) string {
		return by.Sign(ledger.OriginClaimed, id, ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal})
	}
	marked := ledger.WithCostRank("id", rank)
	for name, tc := range map[string]struct {
		claim, cost string
		want        int64
	}{
		"ours":                {sign(marked, key), sequence.DeletionCost(rank), rank},
		"a user's":            {sign(marked, key), "7", 0},
		"a forged claim":      {sign(marked, ledger.NewKey()), sequence.DeletionCost(rank), 0},
		"a forged rank":       {strings.Replace(sign(marked, key), "~3", "~4", 1), sequence.DeletionCost(4), 0},
		"a huge rank":         {sign(ledger.WithCostRank("id", 1<<62), key), "1", 0},
		"no claim":            {"", sequence.DeletionCost(rank), 0},
		"a claim without one": {sign("id", key), sequence.DeletionCost(rank), 0},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Annotations: map[string]string{stowage.ClaimAnnotation: tc.claim, corev1.PodDeletionCost: tc.cost}}}
		if got := formerRank(pod, owner, p, key); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// A cost is known for ours or for a user's also where the pod's pool is no more.
func TestCostOfForeignPods(t *testing.T) {
	s, err := sequence.Parse("p=a,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		id, cost string
		want     int64
	}{
		"ours":                                   {ledger.WithCostRank("id", 3), sequence.DeletionCost(3), 3},
		"a user's":                               {ledger.WithCostRank("id", 3), "7", 0},
		"a user's, as that of no rank":           {"id", "10000000", 0},
		"a user's, as the largest that there is": {"id", "2147483647", 0},
	} {
		var pod planner.Pod
		place(&pod, &policy.Policy{Layout: testkit.Layout(s, layout.Workload{})}, &observed.Pod{Seat: ledger.Seat{Pool: "gone", Ordinal: 1}, Origin: ledger.OriginClaimed, ID: tc.id, Cost: tc.cost})
		if !pod.Foreign || pod.Rank != tc.want {
			t.Errorf("%s: rank %d, foreign %t; want %d", name, pod.Rank, pod.Foreign, tc.want)
		}
	}
}

// Pods that waited before the policy came go once they have waited as long as others that move, and no others go with them.
func TestWaitedBeforeThePolicy(t *testing.T) {
	const after = time.Minute
	pod := func(pool int, waits time.Duration) planner.Pod {
		return planner.Pod{Seat: sequence.Seat{Pool: -1}, NodePool: pool, Ours: true, Created: time.Unix(99, 0), Waits: waits}
	}
	volume := pod(planner.NoNode, 2*after)
	volume.Volume = true
	pinned := pod(planner.NoNode, 2*after)
	pinned.Ours = false
	for name, tc := range map[string]struct {
		pods  []planner.Pod
		after time.Duration
		want  []bool // which are ours
		soon  time.Duration
		mode  stowage.Repair
	}{
		"they go":              {[]planner.Pod{pod(planner.NoNode, after), pod(planner.OtherNode, 0), pod(0, 0)}, after, []bool{true, false, true}, 0, stowage.RepairRecreate},
		"not yet":              {[]planner.Pod{pod(planner.NoNode, after-3*time.Second), pod(planner.NoNode, after-2*time.Second)}, after, []bool{false, false}, 2 * time.Second, stowage.RepairAdopt},
		"some of them":         {[]planner.Pod{pod(planner.NoNode, after-time.Second), pod(planner.NoNode, after)}, after, []bool{false, true}, time.Second, stowage.RepairRecreate},
		"no pool has spill":    {[]planner.Pod{pod(planner.NoNode, after)}, 0, []bool{false}, 0, stowage.RepairAdopt},
		"not looked at yet":    {[]planner.Pod{pod(planner.NoNode, 0)}, after, []bool{false}, 0, stowage.RepairAdopt},
		"with a volume":        {[]planner.Pod{volume}, after, []bool{false}, 0, stowage.RepairAdopt},
		"they choose one node": {[]planner.Pod{pinned}, after, []bool{false}, 0, stowage.RepairAdopt},
	} {
		s := &planner.State{Pods: tc.pods, Mode: stowage.RepairAdopt}
		soon := leaveEarlier(s, time.Time{}, tc.after)
		var got []bool
		for i := range s.Pods {
			got = append(got, s.Pods[i].Ours)
		}
		if !slices.Equal(got, tc.want) || soon != tc.soon || s.Mode != tc.mode {
			t.Errorf("%s: ours are %v in mode %s, again after %s", name, got, s.Mode, soon)
		}
	}
}

// To create a policy evicts nothing: pods that were there stay, unless they run in a pool or the policy asks for eviction.
func TestLeaveEarlier(t *testing.T) {
	first := time.Unix(100, 0)
	pods := func() []planner.Pod {
		var out []planner.Pod
		for _, pool := range []int{planner.NoNode, planner.OtherNode, 0} {
			for _, created := range []int64{99, 100, 101} { // before the first pod of the policy, at that time, and after it
				out = append(out, planner.Pod{Seat: sequence.Seat{Pool: -1}, NodePool: pool, Ours: true, Created: time.Unix(created, 0)})
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		repair stowage.Repair
		evict  bool
		first  time.Time
		want   [9]bool // which are ours: waiting, outside and in a pool
		mode   stowage.Repair
	}{
		"Adopt":                    {stowage.RepairAdopt, false, first, [9]bool{false, false, false, false, false, true, true, true, true}, stowage.RepairAdopt},
		"Recreate":                 {stowage.RepairRecreate, false, first, [9]bool{false, false, true, false, false, true, true, true, true}, stowage.RepairRecreate},
		"Recreate, before any pod": {stowage.RepairRecreate, false, time.Time{}, [9]bool{false, false, false, false, false, false, true, true, true}, stowage.RepairRecreate},
		"Adopt, with eviction":     {stowage.RepairAdopt, true, first, [9]bool{false, false, false, true, true, true, true, true, true}, stowage.RepairRecreate},
		"Recreate, with eviction":  {stowage.RepairRecreate, true, first, [9]bool{false, false, true, true, true, true, true, true, true}, stowage.RepairRecreate},
		"Off, which does nothing":  {stowage.RepairOff, true, first, [9]bool{false, false, false, true, true, true, true, true, true}, stowage.RepairOff},
	} {
		s := &planner.State{Pods: pods(), Mode: tc.repair, Evict: tc.evict}
		leaveEarlier(s, tc.first, 0)
		var got [9]bool
		for i := range s.Pods {
			got[i] = s.Pods[i].Ours
		}
		if got != tc.want || s.Mode != tc.mode {
			t.Errorf("%s: ours are %v in mode %s, want %v", name, got, s.Mode, tc.want)
		}
	}
}

// An event says why pods had no seat, with their numbers.
func TestWhyUnseated(t *testing.T) {
	since := start
	state := &planner.State{Pods: []planner.Pod{
		{Foreign: true, Full: true}, {Full: true, Volume: true}, {Created: since.Add(-time.Second), Volume: true}, {Created: since, BeforePolicy: true}, {Created: since, Volume: true}, {Created: since}, {Created: since},
	}}
	var moves []planner.Move
	for i := range state.Pods {
		moves = append(moves, planner.Move{Pod: i})
	}
	p := &policy.Policy{Origin: policy.Origin{Source: "policy p"}}
	for _, tc := range []struct {
		since time.Time
		want  string
	}{
		{since, "1 created before the policy p, 1 created before every replica knew the policy p, 1 with a seat in a pool that the strategy no longer has, or in none of its domains, 1 created while every pool had its maximum, 3 created while the webhook was not reached, or left them alone as it does where a volume is elsewhere"},
		{time.Time{}, "1 created before every replica knew the policy p, 1 with a seat in a pool that the strategy no longer has, or in none of its domains, 1 created while every pool had its maximum, 4 created before the policy p, or while the webhook was not reached or left them alone as it does where a volume is elsewhere"},
	} {
		if got := whyUnseated(moves, state, p, tc.since); got != tc.want {
			t.Errorf("it says %q, want %q", got, tc.want)
		}
	}
}

// A pod that was created a moment before a SpreadPolicy is not left alone while nobody uses it.
func TestLeaveEarlierButGoEarly(t *testing.T) {
	pod := planner.Pod{Seat: sequence.Seat{Pool: -1}, NodePool: planner.NoNode, Ours: true, BeforePolicy: true, Created: time.Unix(99, 0)}
	for name, tc := range map[string]struct {
		evictEarly, ready bool
		want              bool
	}{
		"of a SpreadPolicy":        {evictEarly: true, want: true},
		"that is ready":            {evictEarly: true, ready: true},
		"of a ClusterSpreadPolicy": {},
	} {
		p := pod
		p.Ready = tc.ready
		s := &planner.State{Pods: []planner.Pod{p}, Mode: stowage.RepairAdopt, EvictEarly: tc.evictEarly}
		leaveEarlier(s, time.Time{}, 0)
		if s.Pods[0].Ours != tc.want {
			t.Errorf("a pod %s is ours: %t", name, s.Pods[0].Ours)
		}
	}
}
