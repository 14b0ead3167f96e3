package status

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// A policy in Audit counts the pods that would change their pool, and those that would change their domain within it.
func TestAuditCountsDomains(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range []string{"a", "b", "c"} {
			c.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool + "-" + zone, Labels: map[string]string{"p": pool, "zone": zone}}})
		}
	}
	c.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "else"}})
	built := c.Build()
	spec := stowage.SpreadPolicySpec{Mode: stowage.PolicyAudit, Pools: []stowage.PolicyPool{
		{Name: "od", NodeSelector: map[string]versprei.LabelValue{"p": "od"}, Base: 3},
		{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"p": "spot"}, Weight: 1},
	}}
	zones := &versprei.Across{TopologyKey: "zone", Domains: []versprei.Domain{{Value: "a", Weight: 1}, {Value: "b", Weight: 1}, {Value: "c", Weight: 1}}}
	type want struct{ inPlace, inOtherPool, inOtherDomain, outside int32 }
	cases := map[string]struct {
		across *versprei.Across
		nodes  map[string]int32
		want   want
	}{
		"without domains":                        {nil, map[string]int32{"od-a": 3}, want{inPlace: 3}},
		"each in its domain":                     {zones, map[string]int32{"od-a": 1, "od-b": 1, "od-c": 1}, want{inPlace: 3}},
		"one in a domain that has another":       {zones, map[string]int32{"od-a": 2, "od-b": 1}, want{inPlace: 2, inOtherDomain: 1}},
		"all in one domain":                      {zones, map[string]int32{"od-c": 3}, want{inPlace: 1, inOtherDomain: 2}},
		"those of another pool are counted once": {zones, map[string]int32{"spot-a": 1, "spot-b": 1, "spot-c": 1}, want{inOtherPool: 3}},
		"a pool has too many, of one domain":     {zones, map[string]int32{"od-a": 4, "od-b": 1, "spot-c": 1}, want{inPlace: 3, inOtherPool: 2, inOtherDomain: 1}},
		"on a node of no pool":                   {zones, map[string]int32{"od-a": 1, "od-b": 1, "else": 1}, want{inPlace: 2, outside: 1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			reader := worldcache.New(built, built, clock, worldcache.ForAdmission())
			r := &policyRun{
				Policies: &Policies{Controller: &Controller{Clock: clock, World: reader, Find: owners.New(policy.NewFinder(reader, policy.Settings{}), nil, built, clock)}},
				audits:   map[ledger.OwnerKey]*audit{}, due: map[ledger.OwnerKey]*world.Workload{},
			}
			p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: spec}
			p.Spec.Across = tc.across
			of := policy.FromSpreadPolicy(p)
			compiled := policy.CompilePolicy(of)
			if compiled.Err != nil {
				t.Fatal(compiled.Err)
			}
			counted := newTally(of, compiled, p, p, &p.Status, &p.Spec)
			w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u"}, Namespace: "ns"}
			r.audits[seats.OwnerOf(w).Key()] = &audit{at: clock.Now(), nodes: tc.nodes}
			if err := r.auditFor(t.Context(), counted, w, world.Chain{Refs: []world.Ref{w.Ref}}, world.Object{}); err != nil {
				t.Fatal(err)
			}
			a := counted.audit
			if got := (want{a.InPlace, a.InOtherPool, a.InOtherDomain, a.Outside}); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if sum := a.InPlace + a.InOtherPool + a.InOtherDomain + a.Outside + a.Waiting; sum != a.Pods {
				t.Errorf("%d pods are counted of %d", sum, a.Pods)
			}
		})
	}
}

// The workload that was looked at longest ago is next, so that each has its turn, however many there are.
func TestEachWorkloadIsAuditedInTurn(t *testing.T) {
	const workloads = 5000
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	r := &policyRun{Policies: &Policies{Controller: &Controller{Clock: now}}, looked: map[ledger.OwnerKey]time.Time{}}
	looked := map[types.UID]int{}
	for round := range 3 {
		r.due = map[ledger.OwnerKey]*world.Workload{} // counted anew, every five seconds
		for i := range workloads {
			w := &world.Workload{Ref: world.Ref{Kind: "ReplicaSet", UID: types.UID(fmt.Sprint(i))}, Namespace: "ns"}
			r.due[seats.OwnerOf(w).Key()] = w
		}
		for range workloads / 2 {
			now.Step(auditEvery)
			looked[r.nextDue().UID]++ // whatever comes of the look
		}
		if want := min(workloads, (round+1)*workloads/2); len(looked) != want {
			t.Errorf("after round %d, %d workloads were looked at, want %d", round, len(looked), want)
		}
	}
	if (&policyRun{}).nextDue() != nil {
		t.Error("there is a workload to look at where none is due")
	}
}
