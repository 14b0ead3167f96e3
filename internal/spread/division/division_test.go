package division

import (
	gocmp "cmp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/observed"
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
	want := Division{Replicas: 10, Former: 1, Costs: Costs{Foreign: 1, Uneven: true}, Pools: []Pool{
		{Name: "0", Nodes: nodeset.Set{Labels: map[string]string{"p": "a"}}, Share: 4, Target: 4, Current: 3, Ready: 2},
		{Name: "1", Nodes: nodeset.Set{Labels: map[string]string{"p": "b"}}, Share: 4, Target: 4, Current: 2, Pending: 2, Waiting: 1},
		{Name: "gone", Current: 1, Removed: true},
		{Name: "2", Nodes: nodeset.Set{Labels: map[string]string{"p": "c"}}, Share: 2, Target: 2, Current: 1, Ready: 1},
	}}
	for i := range want.Pools {
		want.Pools[i].Key = want.Pools[i].Name
	}
	if diff := cmp.Diff(want, d, cmpopts.IgnoreUnexported(Pool{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod that says that it is ready, on a node that does not exist any more, is there and not ready.
func TestPodsOfGoneNodes(t *testing.T) {
	s := parse(t, "p=a,weight=1:p=b,weight=1")
	nodes := map[string]map[string]string{"a": {"p": "a"}, "unlabelled": nil}
	var pods []observed.Pod
	for _, node := range []string{"a", "gone", "gone", "unlabelled"} {
		p := observed.Pod{Node: node, Active: true, Ready: true}
		p.Pool = map[string]string{"a": "0"}[node]
		pods = append(pods, p)
	}
	for i := range pods {
		if pods[i].Pool == "" {
			pods[i].Pool = "1"
		}
	}
	starts := observed.Pod{Node: "gone", Active: true}
	starts.Pool = "0"
	pods = append(pods, starts) // its node may not be known yet
	v := View{Layout: testkit.Layout(s, layout.Workload{}), Nodes: func(name string) map[string]string { return nodes[name] }}
	for known, want := range map[bool][2]int64{true: {2, 2}, false: {0, 4}} {
		if v.Gone = nil; known {
			v.Gone = func(name string) bool { _, there := nodes[name]; return !there }
		}
		var d, all Division
		d.AddPods(s, v.Pods(pods))
		all.Merge(&d)
		ready := all.sum(func(p *Pool) int64 { return p.Ready })
		if all.Gone() != want[0] || ready != want[1] || all.sum(func(p *Pool) int64 { return p.Current }) != 5 {
			t.Errorf("where nodes are known (%t), %d are gone, and %d ready: %+v", known, all.Gone(), ready, all.Pools)
		}
		addTargets(&d, s, 5)
		d.Pools[0].Target, d.Pools[1].Target = 2, 3
		found := d.Findings(&Workload{Pods: 5})
		if d.Balanced() == known || (len(found) > 0 && found[0].Reason == finding.NodesGone) != known {
			t.Errorf("where nodes are known (%t), it is balanced: %t, and the findings are %+v", known, d.Balanced(), found)
		}
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

// The pods without a seat of all owners are counted, and those of them that choose their nodes themselves.
func TestMergeOfPodsWithoutSeat(t *testing.T) {
	var d Division
	for range 2 {
		d.Merge(&Division{Unseated: 3, Pinned: 2})
	}
	if d.Unseated != 6 || d.Pinned != 4 {
		t.Errorf("%d have no seat, and %d choose their nodes", d.Unseated, d.Pinned)
	}
}

// A pod counts in the pool of its seat if it is there. Where that is not known, it does.
func TestPlaces(t *testing.T) {
	at := func(pool string, node map[string]string) Pod { return Pod{Pool: pool, Ready: true, Node: node} }
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
	if pool := d.Pools[1]; !pool.Removed || d.Over() != nil || d.Even() {
		t.Errorf("over %v, even %t: %+v", d.Over(), d.Even(), pool)
	}
	d.AddPods(with, nil)
	if pool := d.Pools[1]; pool.Removed || pool.Nodes.Labels["p"] != "b" {
		t.Errorf("%+v", pool)
	}
}

// Pools that should have pods and take none are named: those without a node, with their labels, and those whose nodes are all cordoned.
func TestClosed(t *testing.T) {
	s := parse(t, "p=a,weight=1:p=b,weight=1:p=c,weight=1:p=d,weight=0")
	var d Division
	d.AddPods(s, append(in("0", 3), in("gone", 1)...))
	addTargets(&d, s, 3)
	none, cordoned := d.Closed(func(of nodeset.Set) nodefit.Nodes {
		return map[string]nodefit.Nodes{"a": nodefit.SomeNodes, "b": nodefit.NodesCordoned, "c": nodefit.NoNodes}[of.Labels["p"]]
	})
	if none != "2 (p=c)" || cordoned != "1" {
		t.Errorf("without nodes is %q, and cordoned is %q", none, cordoned)
	}
}

// Findings come in the order in which they matter: what has to end first, where pods are, and what else is to be known.
func TestFindings(t *testing.T) {
	s := parse(t, "p=a,weight=1:p=b,weight=1")
	outside := Pod{Pool: "1", OnNode: true, Ready: true, Node: map[string]string{"p": "a"}}
	short := func(d *Division, _ *Workload) { d.Shortages = make([]spill.Shortage, 1) }
	moving := func(d *Division, w *Workload) { d.Moving, w.Pods = true, 1 }
	unseated := func(n int64) func(*Division, *Workload) { return func(d *Division, _ *Workload) { d.Unseated = n } }
	for name, tc := range map[string]struct {
		pods     []Pod
		replicas int64
		kind     string // or a Deployment
		edit     func(*Division, *Workload)
		balanced bool
		want     []finding.Reason
	}{
		"as it should be":                         {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true},
		"a pod waits":                             {pods: append(in("0", 1), Pod{Pool: "1", Age: time.Hour}), replicas: 2, want: []finding.Reason{finding.PodsPending, finding.NotReady}},
		"a pod has waited for a moment":           {pods: append(in("0", 1), Pod{Pool: "1"}), replicas: 2, want: []finding.Reason{finding.NotReady}},
		"a pool has no room":                      {pods: in("0", 2), replicas: 2, edit: short, want: []finding.Reason{finding.PoolExhausted}},
		"a pod waits, and a pool has no room":     {pods: append(in("0", 2), Pod{Pool: "1", Ready: true, Age: time.Hour}), replicas: 3, edit: short, want: []finding.Reason{finding.PodsPending, finding.PoolExhausted}},
		"an owner does not reach its count":       {pods: in("0", 1), replicas: 4, edit: func(d *Division, w *Workload) { d.Stuck, w.Stuck = true, "it is stuck" }, want: []finding.Reason{finding.NotReached}},
		"a quota":                                 {pods: in("0", 2), replicas: 4, edit: func(_ *Division, w *Workload) { w.Refused, w.Pods = "a quota", 2 }, want: []finding.Reason{finding.PodsRefused}},
		"pods come":                               {pods: in("0", 2), replicas: 2, edit: moving, want: []finding.Reason{finding.Progressing}},
		"too few in one, and nobody knows why":    {pods: in("0", 1), replicas: 2},
		"too many in one":                         {pods: in("0", 2), replicas: 2, want: []finding.Reason{finding.OverTarget}},
		"too many in one, and one without a seat": {pods: in("0", 2), replicas: 3, edit: unseated(1), want: []finding.Reason{finding.OverTarget, finding.WithoutSeat}},
		"too many in one, and what keeps them there": {pods: in("0", 2), replicas: 2, edit: func(_ *Division, w *Workload) {
			w.Values.Evict = true
			w.Hindrances = []stowage.Hindrance{{Reason: stowage.HindranceNoRoom}, {Reason: stowage.HindrancePodHeld}}
		}, want: []finding.Reason{finding.NoRoomForRebalance, finding.PodHeld}},
		"what kept them there, and nobody evicts any more": {pods: in("0", 2), replicas: 2, edit: func(_ *Division, w *Workload) {
			w.Hindrances = []stowage.Hindrance{{Reason: stowage.HindranceEvictionRefused}}
		}, want: []finding.Reason{finding.OverTarget}},
		"a pool has more of a Job's pods that are left": {pods: in("0", 2), replicas: 2, kind: "Job", want: []finding.Reason{finding.JobUneven}},
		"updates are refused, and a pod has no seat": {pods: in("0", 1), replicas: 2, edit: func(d *Division, w *Workload) {
			d.Unseated, w.Hindrances = 1, []stowage.Hindrance{{Reason: stowage.HindranceUpdateRefused, Count: 1}}
		}, want: []finding.Reason{finding.UpdateRefused}},
		"updates are refused, and nobody evicts": {pods: in("0", 2), replicas: 2, edit: func(_ *Division, w *Workload) {
			w.Hindrances = []stowage.Hindrance{{Reason: stowage.HindranceUpdateRefused}}
		}, want: []finding.Reason{finding.UpdateRefused, finding.OverTarget}},
		"no later pod came through the webhook": {pods: in("0", 1), replicas: 3, edit: func(d *Division, w *Workload) {
			d.Unseated, w.Hindrances = 2, []stowage.Hindrance{{Reason: stowage.HindranceUnproven, Count: 2}}
		}, want: []finding.Reason{finding.WebhookNotProven}},
		"one crashes, and repair is off": {pods: in("0", 2), replicas: 2, edit: func(_ *Division, w *Workload) {
			w.Values.Evict, w.Values.RepairOff, w.Hindrances = true, true, []stowage.Hindrance{{Reason: stowage.HindranceNotReady}}
		}, want: []finding.Reason{finding.OverTarget}},
		"what kept pods of another pool": {pods: in("0", 2), replicas: 2, edit: func(_ *Division, w *Workload) {
			w.Values.Evict = true
			w.Hindrances = []stowage.Hindrance{{Reason: stowage.HindranceEvictionRefused, Pool: "1"}}
		}, want: []finding.Reason{finding.OverTarget}},
		"what kept them is over": {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(_ *Division, w *Workload) {
			w.Hindrances = []stowage.Hindrance{{Reason: stowage.HindranceNoRoom}}
		}},
		"a former pool":                             {pods: append(in("0", 1), Pod{Pool: "gone", OnNode: true, Ready: true}), replicas: 2, edit: unseated(2), want: []finding.Reason{finding.PoolRemoved, finding.WithoutSeat}},
		"one is outside its pool":                   {pods: append(in("0", 1), outside), replicas: 2, want: []finding.Reason{finding.OutsidePool}},
		"one is outside, as a soft revision may be": {pods: append(in("0", 1), outside), replicas: 2, edit: func(_ *Division, w *Workload) { w.Soft = "why" }, want: []finding.Reason{finding.PoolsPreferred}},
		"one is outside, and another too many":      {pods: append(in("0", 3), outside), replicas: 4, want: []finding.Reason{finding.OutsidePool, finding.OverTarget}},
		"every pool has its maximum":                {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(_ *Division, w *Workload) { w.Overflow = 1 }, want: []finding.Reason{finding.PoolsFull}},
		"a zone is not for them":                    {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(_ *Division, w *Workload) { w.Soft, w.Unsuitable = "why", []string{"b: why"} }, want: []finding.Reason{finding.PoolsPreferred, finding.PoolUnsuitable}},
		"a volume holds one":                        {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(d *Division, _ *Workload) { d.Held = 1 }, want: []finding.Reason{finding.HeldByVolume}},
		"costs of somebody else's":                  {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(d *Division, _ *Workload) { d.Costs = Costs{Foreign: 1} }, want: []finding.Reason{finding.ForeignCost}},
		"they break the division":                   {pods: append(in("0", 1), in("1", 1)...), replicas: 2, balanced: true, edit: func(d *Division, _ *Workload) { d.Costs = Costs{Foreign: 1, Uneven: true} }, want: []finding.Reason{finding.CostsUneven}},
		"no scale-down removes pods of a Job":       {pods: append(in("0", 1), in("1", 1)...), kind: "Job", replicas: 2, balanced: true, edit: func(d *Division, _ *Workload) { d.Costs = Costs{Foreign: 1, Uneven: true} }, want: []finding.Reason{finding.ForeignCost}},
	} {
		t.Run(name, func(t *testing.T) {
			var d Division
			d.AddPods(s, tc.pods)
			addTargets(&d, s, tc.replicas)
			w := &Workload{Namespace: "ns", Kind: gocmp.Or(tc.kind, "Deployment"), Name: "web", Pods: tc.replicas, Adopted: map[string]int64{"0": 1}, Staying: 2}
			if tc.edit != nil {
				tc.edit(&d, w)
			}
			var got []finding.Reason
			for _, f := range d.Findings(w) {
				got = append(got, f.Reason)
				if f.Object() != w.Kind+"/web" || f.Namespace != "ns" {
					t.Errorf("%s is about %s in %s", f.Reason, f.Object(), f.Namespace)
				}
				if f.Reason == finding.OverTarget && (f.Adopted != 1 || f.Pool != "0") || f.Reason == finding.WithoutSeat && f.Staying != 2 {
					t.Errorf("%+v", f)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if d.Balanced() != tc.balanced {
				t.Errorf("balanced %t", d.Balanced())
			}
		})
	}
}
