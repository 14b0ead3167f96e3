package division

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/test/testkit"
)

func parse(t *testing.T, text string) *sequence.Strategy {
	t.Helper()
	s, err := sequence.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// in returns pods of a pool that run.
func in(pool string, n int) []Pod {
	pods := make([]Pod, n)
	for i := range pods {
		pods[i] = Pod{Pool: pool, Ready: true, OnNode: true, Age: time.Hour}
	}
	return pods
}

// addTargets adds the targets of so many pods.
func addTargets(d *Division, s *sequence.Strategy, replicas int64) {
	l := testkit.Layout(s, layout.Workload{})
	d.AddTargets(l, l.Divide(replicas, nil, layout.Elsewhere{}))
}

// The pods and targets of all owners add up, also where revisions name different pools.
func TestAdd(t *testing.T) {
	var d Division
	old, now := parse(t, "p=a,weight=1:p=b,weight=1"), parse(t, "p=a,weight=1:p=b,weight=1:p=c,weight=2")
	pods := append(in("0", 2), Pod{Pool: "1", Age: patience}, Pod{Pool: "1", Age: time.Second}, Pod{Pool: "gone"}, Pod{Pool: "0", OnNode: true, ForeignCost: true})
	if seated := d.AddPods(old, pods); seated != 5 {
		t.Errorf("%d pods have a seat", seated)
	}
	addTargets(&d, old, 6)
	if seated := d.AddPods(now, in("2", 1)); seated != 1 {
		t.Errorf("%d pods have a seat", seated)
	}
	addTargets(&d, now, 4)
	want := Division{Replicas: 10, Former: 1, ForeignCosts: 1, Pools: []Pool{
		{Name: "0", Labels: map[string]string{"p": "a"}, Share: 4, Target: 4, Current: 3, Ready: 2},
		{Name: "1", Labels: map[string]string{"p": "b"}, Share: 4, Target: 4, Current: 2, Pending: 2, Waiting: 1},
		{Name: "gone", Current: 1, Removed: true},
		{Name: "2", Labels: map[string]string{"p": "c"}, Share: 2, Target: 2, Current: 1, Ready: 1},
	}}
	for i := range want.Pools {
		want.Pools[i].Key = want.Pools[i].Name
	}
	if diff := cmp.Diff(want, d, cmpopts.IgnoreUnexported(Pool{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Pods that stand as a release before had the domains are as they should be. Other ones are compared with the domains as they are now.
func TestFormerOrder(t *testing.T) {
	s, err := parse(t, "p=a,weight=1").WithDomains(sequence.Across{Key: "zone", Domains: []sequence.Domain{{Value: "x", Weight: 1}, {Value: "y", Weight: 1}, {Value: "z", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	targets := domain.Targets{Now: [][]int64{{2, 1, 1}}, Former: [][]int64{{1, 2, 1}}}
	for _, tc := range []struct {
		current, want []int64
		surplus       int64
	}{
		{current: []int64{2, 1, 1}, want: []int64{2, 1, 1}},
		{current: []int64{1, 2, 1}, want: []int64{1, 2, 1}},
		{current: []int64{1, 1, 2}, want: []int64{2, 1, 1}, surplus: 1},
		{current: []int64{0, 3, 1}, want: []int64{2, 1, 1}, surplus: 2},
		{current: []int64{2, 2, 0}, want: []int64{2, 1, 1}, surplus: 1},
		{current: []int64{1, 1, 1}, want: []int64{1, 2, 1}},
		{current: []int64{2, 1, 0}, want: []int64{2, 1, 1}},
	} {
		var one, d Division
		var pods []Pod
		for i, n := range tc.current {
			for range n {
				pods = append(pods, Pod{Pool: "0", Domain: s.DomainName(i), OnNode: true})
			}
		}
		one.AddPods(s, pods)
		one.AddTargets(testkit.Layout(s, layout.Workload{}), layout.Division{Replicas: 4, Pools: []int64{4}, Domains: targets})
		d.Merge(&one)
		var got []int64
		for _, in := range d.Pools[0].Domains() {
			got = append(got, in.Target)
		}
		if d.DomainSurplus() != tc.surplus || !slices.Equal(got, tc.want) {
			t.Errorf("of %v, %d are too many, and %v should be there; want %d and %v", tc.current, d.DomainSurplus(), got, tc.surplus, tc.want)
		}
	}
}

// A pod counts in the pool of its seat if it is there. Where that is not known, it does.
func TestPlaces(t *testing.T) {
	at := func(pool string, place map[string]string) Pod { return Pod{Pool: pool, Ready: true, Place: place} }
	var d Division
	s := parse(t, "p=a,q=1,weight=1:p=b,weight=1")
	seated := d.AddPods(s, []Pod{
		at("0", map[string]string{"p": "a", "q": "1", "other": "x"}), at("0", map[string]string{"p": "a"}), at("0", map[string]string{}), at("0", nil),
		at("1", map[string]string{"p": "b"}), at("1", map[string]string{"p": "a"}),
	})
	if seated != 6 || d.Outside() != 3 || d.Pools[0].Current != 2 || d.Pools[0].Outside != 2 || d.Pools[1].Current != 1 || d.Pools[1].Outside != 1 {
		t.Errorf("%d have a seat, %d are outside: %+v", seated, d.Outside(), d.Pools)
	}
}

// A pool that one revision names is not removed, whichever revision is looked at first.
func TestRemovedPool(t *testing.T) {
	without, with := parse(t, "p=a,weight=1"), parse(t, "p=a,weight=1:p=b,weight=1")
	var d Division
	d.AddPods(without, in("1", 1))
	if pool := d.Pools[1]; !pool.Removed || d.Over() != nil || d.even() {
		t.Errorf("over %v, even %t: %+v", d.Over(), d.even(), pool)
	}
	d.AddPods(with, nil)
	if pool := d.Pools[1]; pool.Removed || pool.Labels["p"] != "b" {
		t.Errorf("%+v", pool)
	}
}

func TestCause(t *testing.T) {
	s := parse(t, "p=a,weight=1:p=b,weight=1")
	for name, tc := range map[string]struct {
		pods     []Pod
		replicas int64
		edit     func(*Division)
		want     Cause
	}{
		"as it should be":                          {pods: append(in("0", 1), in("1", 1)...), replicas: 2, want: Balanced},
		"a pod waits":                              {pods: append(in("0", 1), Pod{Pool: "1", Age: time.Hour}), replicas: 2, want: PodsWait},
		"a pod has waited for a moment":            {pods: append(in("0", 1), Pod{Pool: "1"}), replicas: 2, want: Progressing},
		"a pool has no room":                       {pods: in("0", 2), replicas: 2, edit: func(d *Division) { d.Shortages = make([]spill.Shortage, 1) }, want: Spilled},
		"a pod waits and a pool has no room":       {pods: append(in("0", 2), Pod{Pool: "1", Age: time.Hour}), replicas: 3, edit: func(d *Division) { d.Shortages = make([]spill.Shortage, 1) }, want: PodsWait},
		"a quota":                                  {pods: in("0", 1), replicas: 4, edit: func(d *Division) { d.Stuck, d.Moving = true, true }, want: NotReached},
		"pods come":                                {pods: in("0", 1), replicas: 4, edit: func(d *Division) { d.Moving = true }, want: Progressing},
		"too few in one and nobody knows why":      {pods: in("0", 1), replicas: 2, want: Progressing},
		"too many in one":                          {pods: in("0", 2), replicas: 2, want: OverTarget},
		"too many in one, and one without a seat":  {pods: in("0", 2), replicas: 3, edit: func(d *Division) { d.Unseated = 1 }, want: OverTarget},
		"a former pool":                            {pods: append(in("0", 1), Pod{Pool: "gone", OnNode: true}), replicas: 2, edit: func(d *Division) { d.Unseated = 1 }, want: FormerPools},
		"one is outside its pool":                  {pods: append(in("0", 1), Pod{Pool: "1", OnNode: true, Place: map[string]string{"p": "a"}}), replicas: 2, want: OutsidePool},
		"one is outside, and another one too many": {pods: append(in("0", 2), Pod{Pool: "1", OnNode: true, Place: map[string]string{"p": "a"}}), replicas: 3, want: OutsidePool},
		"one is outside, and pods come":            {pods: []Pod{{Pool: "1", OnNode: true, Place: map[string]string{"p": "a"}}}, replicas: 2, edit: func(d *Division) { d.Moving = true }, want: Progressing},
		"one without a seat":                       {pods: in("0", 1), replicas: 2, edit: func(d *Division) { d.Unseated = 1 }, want: WithoutSeat},
	} {
		t.Run(name, func(t *testing.T) {
			var d Division
			d.AddPods(s, tc.pods)
			addTargets(&d, s, tc.replicas)
			if tc.edit != nil {
				tc.edit(&d)
			}
			if got := d.Cause(); got != tc.want {
				t.Errorf("cause %d, want %d", got, tc.want)
			}
		})
	}
}
