package policy

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
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
			if diff := cmp.Diff(tc.targets, []int64{p.Strategy.Target(0, 20), p.Strategy.Target(1, 20)}); diff != "" {
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
				moved, err := p.SeatAt(6)
				if own, _ := p.Whole.SeatAt(6); err != nil || moved.Pool != 0 || own == moved || moved.Ordinal <= 20 {
					t.Errorf("ordinal 5 has %+v, %v", moved, err)
				}
				other, err := p.SeatAt(5)
				if own, _ := p.Whole.SeatAt(5); err != nil || other != own {
					t.Errorf("ordinal 4 has %+v, %v; its own is %+v", other, err, own)
				}
			}
		})
	}
}
