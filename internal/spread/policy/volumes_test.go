package policy

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// inPool is a volume that the nodes of one pool reach, bound to a claim.
func inPool(claim, pool string) corev1.PersistentVolume {
	v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}},
	}}}}
	return v
}

// Volumes hold the pods of a StatefulSet one by one, and those of another owner all together. The others are divided around them.
func TestHolding(t *testing.T) {
	volumes := []corev1.PersistentVolume{inPool("a", "a"), inPool("b", "b"), inPool("far", "c")}
	for name, tc := range map[string]struct {
		kind    string
		claims  []string // of each pod, or ""
		pools   string   // of each pod
		targets []int64
		held    []int64 // ranks
	}{
		"no claims":                    {kind: "ReplicaSet", claims: []string{"", "", "", ""}, pools: "abab", targets: []int64{2, 2}},
		"one claim for all":            {kind: "ReplicaSet", claims: []string{"a", "a", "a", "a"}, pools: "aaaa", targets: []int64{4, 0}},
		"one that nothing reaches":     {kind: "ReplicaSet", claims: []string{"far", "far", "far", "far"}, pools: "abab", targets: []int64{2, 2}},
		"one that is not bound":        {kind: "ReplicaSet", claims: []string{"new", "new", "new", "new"}, pools: "abab", targets: []int64{2, 2}},
		"each in its own pool":         {kind: "StatefulSet", claims: []string{"b", "a", "b", "a"}, pools: "baba", targets: []int64{2, 2}},
		"the first is in another pool": {kind: "StatefulSet", claims: []string{"a", "a", "b", "a"}, pools: "aaba", targets: []int64{3, 1}, held: []int64{1}},
		"two are":                      {kind: "StatefulSet", claims: []string{"a", "b", "b", "a"}, pools: "abba", targets: []int64{2, 2}, held: []int64{1, 2}},
		"it could be in its own":       {kind: "StatefulSet", claims: []string{"b", "a", "b", "a"}, pools: "aaba", targets: []int64{2, 2}},
		"it runs without a volume":     {kind: "StatefulSet", claims: []string{"", "a", "b", "a"}, pools: "aaba", targets: []int64{2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: tc.kind, Name: "db", UID: "u"}, Namespace: "ns"}
			f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}, Volumes: volumes}), Settings{})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}})
			if err != nil {
				t.Fatal(err)
			}
			of := observed.Owner{Workload: w}
			for i, claim := range tc.claims {
				pod := observed.Pod{Namespace: "ns", Name: fmt.Sprint("db-", i), Seat: ledger.Seat{Pool: fmt.Sprint(int(tc.pools[i] - 'a'))}}
				if claim != "" {
					pod.Claims = []string{claim}
				}
				of.Pods = append(of.Pods, pod)
			}
			got := f.Holding(t.Context(), p, of, nil)
			if d := got.Divide(4, nil, layout.Elsewhere{}); !slices.Equal(d.Pools, tc.targets) || !slices.Equal(got.Targets(4, layout.Elsewhere{}), tc.targets) {
				t.Errorf("the targets are %v and %v, want %v", d.Pools, got.Targets(4, layout.Elsewhere{}), tc.targets)
			}
			var held []int64
			for rank := range got.HeldPods() {
				held = append(held, rank)
			}
			if slices.Sort(held); !slices.Equal(held, tc.held) {
				t.Errorf("held are %v, want %v", held, tc.held)
			}
		})
	}
}

// Pods without a seat lower the targets where no pool reaches their volumes.
func TestElsewhere(t *testing.T) {
	pod := func(name, claim string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		return p
	}
	for kind, want := range map[string]layout.Elsewhere{"ReplicaSet": {Others: 1}, "StatefulSet": {Own: []sequence.Cell{{Pool: 1}}}} {
		w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: kind, Name: "db", UID: "u"}, Namespace: "ns"}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}, Volumes: []corev1.PersistentVolume{inPool("a", "a"), inPool("far", "c")}}), Settings{})
		p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}})
		if err != nil {
			t.Fatal(err)
		}
		got := f.Elsewhere(t.Context(), p, observed.Owner{Workload: w}, []*corev1.Pod{pod("db-0", "far"), pod("db-1", "a"), pod("db-2", "new")}, nil)
		if got.Others != want.Others || !slices.Equal(got.Own, want.Own) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
}
