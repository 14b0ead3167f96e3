package shortage

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// volumesIn has a bound volume in a zone for every claim.
type volumesIn struct {
	world.Snapshot
	zone string
}

func (w volumesIn) Volumes(_ context.Context, namespace string, claims []string) (out []corev1.PersistentVolume, _ bool, _ error) {
	for _, claim := range claims {
		v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{w.zone}}},
		}}}}
		out = append(out, v)
	}
	return out, true, nil
}

// A pod of a StatefulSet whose volume is bound moves only if no node of its cell takes it and pods of the StatefulSet have not run where its volume
// is. It comes back from another cell, in which it waits, once a node of its own takes it.
func TestStrandedPods(t *testing.T) {
	const waits = 2 // of db-0 to db-3; its own pool is b, as that of db-0
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoSchedule}}
	}
	seatIn := func(pod *corev1.Pod, pool string, ordinal int64) {
		seat := ledger.Seat{Pool: pool, Ordinal: ordinal}
		pod.Labels = map[string]string{stowage.PoolLabel: pool, stowage.SeatLabel: strconv.FormatInt(ordinal, 10)}
		pod.Annotations = map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginOrdinal, "", ledger.Holder{Namespace: "ns", Owner: "set"}, seat)}
		pod.Spec.NodeSelector = map[string]string{"p": map[string]string{"0": "a", "1": "b"}[pool]}
	}
	moved := func(pod *corev1.Pod) { seatIn(pod, "0", sequence.MovedOrdinals+waits+1) }
	for name, tc := range map[string]struct {
		nodes   func(*corev1.Node) // of pool b
		pod     func(*corev1.Pod)  // that waits
		sibling string             // the node of db-0
		gone    bool
	}{
		"its pool has no room":               {},
		"its pool's node has a taint":        {nodes: taint, gone: true},
		"and a sibling runs there":           {nodes: taint, sibling: "node-b"},
		"it waits in another pool":           {pod: moved, gone: true},
		"and its own pool's node is tainted": {pod: moved, nodes: taint},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}
			set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set", Annotations: annotations}}
			set.Spec.Replicas, set.Status.Replicas = new(int32(4)), 4
			objects := []client.Object{set, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}
			for _, n := range []*corev1.Node{node("a"), node("b")} {
				if n.Labels["zone"] = "1"; n.Labels["p"] == "b" && tc.nodes != nil {
					tc.nodes(n)
				}
				objects = append(objects, n)
			}
			for i := range 4 {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: fmt.Sprint("db-", i), UID: types.UID(fmt.Sprint("db-", i)), CreationTimestamp: metav1.NewTime(start),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: new(true)}},
				}}
				seatIn(pod, []string{"1", "0"}[i%2], int64(i/2+1))
				pod.Spec.Containers = []corev1.Container{{Name: "c"}}
				pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("data-db-", i)}}}}
				if pod.Spec.NodeName = "another"; i == 0 && tc.sibling != "" {
					pod.Spec.NodeName = tc.sibling
				}
				if i == waits {
					pod.Spec.NodeName = ""
					pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
					if tc.pod != nil {
						tc.pod(pod)
					}
				}
				objects = append(objects, pod)
			}
			b := newBench(t, objects...)
			known(t, b)
			b.Policies = owners.New(policy.NewFinder(volumesIn{b.World, "1"}, policy.Settings{}), b.Seats.Pods().NameOf, b.Uncached, b.clock)
			db := world.Object{Namespace: "ns", Ref: world.Ref{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set"}}
			for range 60 {
				b.clock.Step(time.Second)
				b.see(t)
				if _, err := b.reconcile(t.Context(), db); err != nil {
					t.Fatal(err)
				}
			}
			if want := []string{"db-2"}; tc.gone && !slices.Equal(b.evicted, want) || !tc.gone && len(b.evicted) > 0 {
				t.Errorf("%v are recreated; db-2 is to be: %t", b.evicted, tc.gone)
			}
		})
	}
}

// Each look checks other pods of each revision, until all have had their turn.
func TestStrandedPodsTakeTurns(t *testing.T) {
	const of = 250
	seen, revisions := map[types.UID]bool{}, [2][]observed.Pod{}
	for r := range revisions {
		for i := range of {
			revisions[r] = append(revisions[r], observed.Pod{UID: types.UID(fmt.Sprint(r, "-", i)), Claims: []string{"c"}, Active: true, Unschedulable: true, Origin: ledger.OriginClaimed})
		}
	}
	for look := range 3 {
		for _, pods := range revisions {
			some, others := withVolumes(pods, look)
			if len(some) != mostStranded || len(some)+len(others) != of {
				t.Fatalf("a look checks %d pods, and leaves %d", len(some), len(others))
			}
			for i := range some {
				seen[some[i].UID] = true
			}
		}
	}
	if len(seen) != len(revisions)*of {
		t.Errorf("after three looks, %d of %d pods were checked", len(seen), len(revisions)*of)
	}
}
