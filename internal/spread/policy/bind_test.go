package policy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// revisions is a cluster in which a workload has another revision.
type revisions struct {
	*manifests.Snapshot
	others []*world.Workload
}

func (r revisions) PodOwners(context.Context, string, world.Ref) ([]*world.Workload, error) {
	return r.others, nil
}

// The seats of a pool without room are left out, for all kinds of workloads that ask for it.
func TestFindDuringAShortage(t *testing.T) {
	const text = "p=a,weight=1:p=b,weight=1"
	annotations := func(spill string) map[string]string {
		return map[string]string{stowage.SpreadStrategyAliasAnnotation: text, stowage.SpillAnnotation: spill}
	}
	state := stowage.PoolState{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root"},
		Pools:      []stowage.PoolRoom{{Name: "0", NodeLabel: map[string]string{"p": "a"}, Phase: stowage.PoolExhausted, Epoch: 1, Max: 3}},
		Ordinals:   map[string]string{"5": "0"},
	}
	for name, tc := range map[string]struct {
		spill, kind string
		held        int64 // by another revision
		targets     []int64
		rules       []spill.Rule
		warnings    int
	}{
		"asked for":                     {spill: "1m", kind: "Deployment", targets: []int64{3, 17}, rules: []spill.Rule{{After: time.Minute}, {After: time.Minute}}},
		"another revision holds some":   {spill: "1m", kind: "Deployment", held: 2, targets: []int64{1, 19}, rules: []spill.Rule{{After: time.Minute}, {After: time.Minute}}},
		"another revision holds all":    {spill: "1m", kind: "Deployment", held: 5, targets: []int64{0, 20}, rules: []spill.Rule{{After: time.Minute}, {After: time.Minute}}},
		"too short, which is warned of": {spill: "1s", kind: "Deployment", targets: []int64{10, 10}, warnings: 1},
		"no duration":                   {spill: "soon", kind: "Deployment", targets: []int64{10, 10}, warnings: 1},
		"a StatefulSet keeps its seats": {spill: "1m", kind: "StatefulSet", targets: []int64{10, 10}, rules: []spill.Rule{{After: time.Minute}, {After: time.Minute}}},
	} {
		t.Run(name, func(t *testing.T) {
			up := ref(tc.kind, "web")
			up.UID = "root"
			workloads := []*world.Workload{{Ref: up, Namespace: "ns", Annotations: annotations(tc.spill)}}
			owner := up
			if tc.kind == "Deployment" {
				owner = ref("ReplicaSet", "web-1")
				workloads = append(workloads, &world.Workload{Ref: owner, Namespace: "ns", Controller: &up})
			}
			f := NewFinder(revisions{manifests.New(world.Objects{Workloads: workloads, PoolStates: []stowage.PoolState{state}}), []*world.Workload{{Ref: world.Ref{UID: "other"}, Replicas: 4}}}, Settings{Held: func(owner *world.Workload, pool string) int64 {
				if owner.UID == "other" && owner.Replicas == 4 && pool == "0" {
					return tc.held
				}
				return 0
			}})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: owner})
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			if diff := cmp.Diff(tc.targets, []int64{p.Target(0, 20), p.Target(1, 20)}); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.rules, p.Spill); diff != "" {
				t.Errorf("spill (-want +got):\n%s", diff)
			}
			if len(p.Warnings) != tc.warnings {
				t.Errorf("warnings %q", p.Warnings)
			}
			again, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: owner})
			if err != nil || again.Strategy != p.Strategy {
				t.Errorf("the second time there is another strategy, %v", err)
			}
			if tc.kind == "StatefulSet" {
				moved, err := p.OfOrdinal(6)
				if own, _ := p.Whole().SeatAt(6); err != nil || moved.Pool != 0 || own == moved || moved.Ordinal <= 20 {
					t.Errorf("ordinal 5 has %+v, %v", moved, err)
				}
				other, err := p.OfOrdinal(5)
				if own, _ := p.Whole().SeatAt(5); err != nil || other != own {
					t.Errorf("ordinal 4 has %+v, %v; its own is %+v", other, err, own)
				}
			}
		})
	}
}

// Pools in which no pod of a workload can run have no seat for it, beside those without room. Without a pool that suits it, no policy
// divides the workload. Other sources name their workload, and are what they are.
func TestFindWithUnsuitablePools(t *testing.T) {
	stored := func(pools ...string) (out []stowage.UnsuitablePool) {
		for _, pool := range pools {
			out = append(out, stowage.UnsuitablePool{Name: pool, NodeLabel: map[string]string{"type": pool}, Why: "no " + pool})
		}
		return out
	}
	exhausted := []stowage.PoolRoom{{Name: "on-demand", NodeLabel: map[string]string{"type": "on-demand"}, Phase: stowage.PoolExhausted, Epoch: 1, Max: 3}}
	spilling := func(s *stowage.SpreadPolicySpec) { s.Pools[0].Spill = &versprei.Spill{After: "1m"} }
	for name, tc := range map[string]struct {
		state      stowage.PoolState
		template   map[string]string
		change     []func(*stowage.SpreadPolicySpec)
		whole, now []int64 // of 12 pods; nil is no policy
	}{
		"all suit":                    {whole: []int64{4, 8}, now: []int64{4, 8}},
		"one does not":                {state: stowage.PoolState{Unsuitable: stored("spot")}, whole: []int64{12, 0}, now: []int64{12, 0}},
		"a pool that is gone":         {state: stowage.PoolState{Unsuitable: stored("arm")}, whole: []int64{4, 8}, now: []int64{4, 8}},
		"none does":                   {state: stowage.PoolState{Unsuitable: stored("spot", "on-demand")}},
		"the other one has no room":   {state: stowage.PoolState{Unsuitable: stored("spot"), Pools: exhausted}, change: []func(*stowage.SpreadPolicySpec){spilling}, whole: []int64{12, 0}, now: []int64{3, 0}},
		"annotations name their pods": {state: stowage.PoolState{Unsuitable: stored("spot")}, template: map[string]string{stowage.SpreadStrategyAliasAnnotation: "type=on-demand,weight=1:type=spot,weight=2"}, whole: []int64{4, 8}, now: []int64{4, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			workloads := replicaSet(nil, nil)
			workloads[0].UID, workloads[1].Controller.UID = "root", "root"
			tc.state.Namespace, tc.state.Name = "ns", "root"
			o := world.Objects{Workloads: workloads, PoolStates: []stowage.PoolState{tc.state}}
			o.Policies.Cluster = append(o.Policies.Cluster, clusterPolicy("p", 0, tc.change...))
			p, _ := find(t, o, tc.template)
			if p == nil || tc.whole == nil {
				if p != nil || tc.whole != nil {
					t.Fatalf("the policy is %+v", p)
				}
				return
			}
			for i := range tc.whole {
				if whole, now := p.Whole().Target(i, 12), p.Target(i, 12); whole != tc.whole[i] || now != tc.now[i] {
					t.Errorf("pool %d has %d pods, and %d now", i, whole, now)
				}
			}
		})
	}
}

// A StatefulSet's pods with a seat in an unsuitable pool get one in another pool. All others keep theirs, whichever pools are suitable.
func TestOwnSeatsWithUnsuitablePools(t *testing.T) {
	of := ref("StatefulSet", "db")
	of.UID = "root"
	p := clusterPolicy("p", 0, func(s *stowage.SpreadPolicySpec) {
		s.Kinds = []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}}
		s.Pools = append(s.Pools, stowage.PolicyPool{Name: "arm", NodeSelector: map[string]versprei.LabelValue{"type": "arm"}, Weight: 50})
	})
	whole := CompilePolicy(FromClusterSpreadPolicy(p))
	for _, unsuitable := range [][]string{{"spot"}, {"on-demand"}, {"arm", "spot"}} {
		state := stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root"}}
		for _, pool := range unsuitable {
			state.Unsuitable = append(state.Unsuitable, stowage.UnsuitablePool{Name: pool, NodeLabel: map[string]string{"type": pool}, Why: "no"})
		}
		o := world.Objects{Workloads: []*world.Workload{{Ref: of, Namespace: "ns", Labelled: true}}, PoolStates: []stowage.PoolState{state}}
		o.Policies.Cluster = append(o.Policies.Cluster, p)
		found, err := NewFinder(manifests.New(o), Settings{}).Find(t.Context(), Pod{Namespace: "ns", Owner: of})
		if err != nil || found == nil {
			t.Fatalf("the policy is %+v, %v", found, err)
		}
		have, seen := make([]int64, 3), map[sequence.Seat]bool{}
		for n := int64(1); n <= 60; n++ {
			own, _ := whole.SeatAt(n)
			seat, err := found.OfOrdinal(n)
			if err != nil || seen[seat] || slices.Contains(unsuitable, whole.Pool(seat.Pool).Name) {
				t.Fatalf("without %v, pod %d has the seat %v, %v", unsuitable, n, seat, err)
			}
			if !slices.Contains(unsuitable, whole.Pool(own.Pool).Name) && seat != own {
				t.Fatalf("without %v, pod %d has the seat %v and not its own, %v", unsuitable, n, seat, own)
			}
			seen[seat] = true
			have[seat.Pool]++
			if got := found.Divide(n, nil, layout.Elsewhere{}); !slices.Equal(got.Pools, have) {
				t.Fatalf("without %v, the targets of %d are %v, and the pods have %v", unsuitable, n, got, have)
			}
			for i := range have { // as near to the shares as two sequences, one after the other, can be
				if off := float64(have[i]) - found.Whole().Share(i, n); off < -2 || off > 2 {
					t.Fatalf("without %v, pool %d has %d of %d, where its share is %.1f", unsuitable, i, have[i], n, found.Whole().Share(i, n))
				}
			}
		}
	}
}
