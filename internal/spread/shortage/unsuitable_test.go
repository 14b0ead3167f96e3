package shortage

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// withPolicies is a cluster with policies, which no informer shows here.
type withPolicies struct {
	world.Snapshot
	cluster *world.Policies
}

func (w withPolicies) Policies(_ context.Context, namespace string) (*world.Policies, error) {
	if namespace != "" {
		return nil, nil
	}
	return w.cluster, nil
}

// ofPolicy is a ReplicaSet of six pods under a policy with the pools a and b. One half has a seat in each: those of pool a run, and those of
// pool b wait. Where every node is tainted, all wait.
func ofPolicy(t *testing.T, change ...func(*corev1.Node)) (*bench, *stowage.ClusterSpreadPolicy) {
	t.Helper()
	p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p", Generation: 1}}
	p.Spec.Mode = stowage.PolicyEnforce
	for _, pool := range []string{"a", "b"} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: pool, NodeSelector: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
	}
	objects, runs := shortage(0), false
	for _, o := range objects {
		o.SetAnnotations(nil)
		switch o := o.(type) {
		case *corev1.Node:
			for _, f := range change {
				f(o)
			}
			runs = runs || len(o.Spec.Taints) == 0
		case *corev1.Pod:
			name := o.Spec.NodeSelector["p"]
			key, ordinal := ledger.PolicyPool(name, map[string]string{"p": name}), o.Labels[stowage.SeatLabel]
			seat := ledger.Seat{Pool: key}
			_, _ = fmt.Sscan(ordinal, &seat.Ordinal)
			o.Labels[stowage.PoolLabel] = name
			o.Annotations = map[string]string{stowage.ClaimAnnotation: signed(o.Name, seat)}
			if !runs {
				o.Spec.NodeName = ""
				o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			}
		}
	}
	b := newBench(t, objects...)
	snapshot := withPolicies{Snapshot: b.World, cluster: &world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{p}}}
	b.Policies = owners.New(policy.NewFinder(snapshot, policy.Settings{}), b.Seats.Pods().NameOf, b.Uncached, b.clock)
	return b, p
}

func signed(id string, seat ledger.Seat) string {
	return key.Sign(ledger.OriginClaimed, ledger.WithSource(id, seat.Pool, ledger.Source{UID: "p", Generation: 1}), ledger.Holder{Namespace: "ns", Owner: "rs"}, seat)
}

func tainted(n *corev1.Node) {
	if n.Labels["p"] == "b" {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}
}

// unsuitable returns the pools that are stored as unsuitable.
func (b *bench) unsuitablePools(t *testing.T) (out string) {
	t.Helper()
	var states stowage.PoolStateList
	if err := b.Uncached.List(t.Context(), &states); err != nil {
		t.Fatal(err)
	}
	for _, s := range states.Items {
		for _, u := range s.Unsuitable {
			out += u.Name + ": " + u.Why
		}
	}
	return out
}

// Pods that wait in a pool whose nodes could not take them move after a while, whatever the other pools have. The record goes once a node
// could take them.
func TestUnsuitablePool(t *testing.T) {
	b, _ := ofPolicy(t, tainted)
	b.pass(t, 14)
	if got := b.unsuitablePools(t); got != "" || len(b.evicted) != 0 {
		t.Fatalf("after 14 s: %q, and %v are gone", got, b.evicted)
	}
	b.pass(t, 4)
	if got := b.unsuitablePools(t); got != "b: the pods do not tolerate the taint gpu:NoSchedule" || len(b.evicted) != 3 {
		t.Fatalf("after 18 s: %q, and %v are gone", got, b.evicted)
	}
	if got := b.noticed(); got != "PoolUnsuitable" {
		t.Errorf("the events are %q", got)
	}
	node := &corev1.Node{}
	if err := b.Uncached.Get(t.Context(), types.NamespacedName{Name: "node-b"}, node); err != nil {
		t.Fatal(err)
	}
	was := node.DeepCopy()
	node.Spec.Taints = nil
	if err := b.Uncached.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.clock.Step(time.Second)
	b.Room.NodeChanged(was, node)
	b.pass(t, 7)
	if got := b.unsuitablePools(t); got != "" {
		t.Errorf("once a node takes such pods: %q", got)
	}
	if got := b.noticed(); got != "PoolSuitable" {
		t.Errorf("the events are %q", got)
	}
}

// A pool with a node for the pods is not unsuitable, however long pods wait there for room.
func TestPoolWithoutRoomIsSuitable(t *testing.T) {
	b, _ := ofPolicy(t)
	b.pass(t, 200)
	if got := b.unsuitablePools(t); got != "" || len(b.evicted) != 0 {
		t.Errorf("%q, and %v are gone", got, b.evicted)
	}
}

// An edit of the policy is looked at, and not what was found before it. Here it gives the toleration.
func TestEditOfAPolicyWithAnUnsuitablePool(t *testing.T) {
	b, p := ofPolicy(t, tainted)
	b.pass(t, 18)
	edited := p.DeepCopy()
	edited.Generation = 2
	edited.Spec.Pools[1].Tolerations = []versprei.Toleration{{Key: "gpu", Operator: "Exists"}}
	snapshot := withPolicies{Snapshot: b.World, cluster: &world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{edited}}}
	b.Policies = owners.New(policy.NewFinder(snapshot, policy.Settings{}), b.Seats.Pods().NameOf, b.Uncached, b.clock)
	b.pass(t, 2)
	if got := b.unsuitablePools(t); got != "" {
		t.Errorf("after the edit: %q", got)
	}
}

// A pool in which no pod can run is not asked about the room in other pools: where none suits, all pods go, and get no seat.
func TestNoPoolSuits(t *testing.T) {
	b, _ := ofPolicy(t, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	b.pass(t, 20)
	if len(b.evicted) != 6 {
		t.Errorf("%v of six pods are gone", b.evicted)
	}
	if found, err := b.Policies.FindFor(t.Context(), "ns", web.Ref, nil); err != nil || found != nil {
		t.Errorf("the policy divides the pods: %v, %v", found, err)
	}
	b.pass(t, 20)
	if got := b.unsuitablePools(t); got == "" {
		t.Error("the record is gone, and the next pods are tried again")
	}
}

// An API server with the kind of an older version does not store the answer. It is not asked to again for some minutes.
func TestUnsuitablePoolIsNotStored(t *testing.T) {
	b, _ := ofPolicy(t, tainted)
	b.prunes = true
	b.pass(t, 100)
	if b.created != 1 || len(b.evicted) != 0 || b.noticed() != "" {
		t.Errorf("%d PoolStates were written, and %v are gone", b.created, b.evicted)
	}
}
