package repair

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The revisions of a workload are one series, which is gone when all of them are as they should be.
func TestDistanceOfAWorkload(t *testing.T) {
	b := newBench(t)
	p := &policy.Policy{Root: &world.Workload{Ref: world.Ref{Kind: "Deployment", Name: "web"}}}
	old, next := ledger.Owner{Namespace: "ns", Kind: "ReplicaSet", Name: "web-1", UID: "1"}, ledger.Owner{Namespace: "ns", Kind: "ReplicaSet", Name: "web-2", UID: "2"}
	value := func() float64 {
		if testutil.CollectAndCount(b.Metrics.distance) == 0 {
			return 0
		}
		return testutil.ToFloat64(b.Metrics.distance) // panics if there are several
	}
	for n, step := range []struct {
		owner ledger.Owner
		pods  int64
		want  float64
	}{{old, 3, 3}, {next, 2, 5}, {old, 1, 3}, {next, 0, 1}, {old, 0, 0}, {next, 4, 4}} {
		b.report(step.owner, p, step.pods, 0)
		if got := value(); got != step.want {
			t.Errorf("step %d: %v pods, want %v", n, got, step.want)
		}
	}
	b.forget(map[ledger.OwnerKey]bool{old.Key(): true})
	if got := value(); got != 0 {
		t.Errorf("%v pods of a workload that is gone", got)
	}
}

// A Job whose pods have ended in one pool is not off its target, unless pods have no seat.
func TestDistanceOfAJob(t *testing.T) {
	plan := &planner.Plan{Counts: []int64{3, 0}, Targets: []int64{1, 2}}
	for _, tc := range []struct {
		kind, group string
		unseated    int
		want        float64
	}{{"Job", "batch/v1", 0, 0}, {"Job", "batch/v1", 2, 2}, {"ReplicaSet", "apps/v1", 0, 2}, {"ReplicaSet", "apps/v1", 2, 4}} {
		b := newBench(t)
		plan.Unseated = tc.unseated
		r := &turn{owner: ledger.Owner{Namespace: "ns", APIVersion: tc.group, Kind: tc.kind, Name: "x", UID: "x"}}
		b.reportPlan(r, plan, 0)
		got := 0.0
		if testutil.CollectAndCount(b.Metrics.distance) > 0 {
			got = testutil.ToFloat64(b.Metrics.distance)
		}
		if got != tc.want {
			t.Errorf("%s with %d pods without a seat: %v, want %v", tc.kind, tc.unseated, got, tc.want)
		}
	}
}

// A deletion cost that somebody removed is counted until it is there again.
func TestForeignCosts(t *testing.T) {
	y := seated("y", "0", 1)
	delete(y.Annotations, corev1.PodDeletionCost)
	y.Annotations[stowage.ClaimAnnotation] = key.Sign(ledger.OriginClaimed, ledger.WithCostRank("y", 2), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: "0", Ordinal: 1})
	b := newBench(t, append(workload(2), seated("x", "1", 1), y)...)
	b.clock.Step(b.Timing.Quiet)
	for _, want := range []float64{1, 0} {
		if _, err := b.reconcile(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		if got := testkit.Sample(t, b.Metrics.foreignCosts, map[string]string{"pool": "0"}); got != want {
			t.Errorf("%v pods, want %v", got, want)
		}
		b.see(t)
		b.clock.Step(b.Timing.Quiet)
	}
}
