package inspect

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Pods that still select the nodes of a pool, though no strategy divides them any more, are noted while they run, and a problem while they wait.
func TestPinsLeft(t *testing.T) {
	t.Parallel()
	bare := func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations = nil }
	waiting := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
	sign := func(origin ledger.Origin, id string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[stowage.ClaimAnnotation] = make(ledger.Key, ledger.KeySize).Sign(origin, id, ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: "0", Ordinal: 1})
		}
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		note    string // a part of the row's; "-" if there is no row
		problem finding.Reason
	}{
		"they run": {
			objects: []client.Object{web(3, bare), pod("x", "first", 1, nil), pod("y", "first", 2, nil), pod("z", "second", 1, nil)},
			note:    "no strategy divides these pods any more, and 3 of them still select the nodes of their pools: 2 in pool first, 1 in pool second; to have pods run anywhere again, roll out",
		},
		"one waits": {
			objects: []client.Object{web(2, bare), pod("x", "first", 1, nil), pod("y", "second", 1, waiting)},
			note:    "and 1 of them still select the nodes of their pools: 1 in pool first", problem: finding.SourceGone,
		},
		"all wait": {
			objects: []client.Object{web(1, bare), pod("y", "second", 1, waiting)}, note: "its pods wait for nodes of a pool, and no strategy divides them any more", problem: finding.SourceGone,
		},
		"a strategy divides them": {objects: []client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "1", 1, nil)}, note: ""},
		"they were adopted": {
			objects: []client.Object{web(1, bare), pod("x", "first", 1, func(p *corev1.Pod) {
				sign(ledger.OriginAdopted, "")(p)
				p.Spec.NodeSelector = map[string]string{"p": "a"}
			})}, note: "-",
		},
		"their template selects the nodes": {
			objects: []client.Object{web(1, func(rs *appsv1.ReplicaSet) {
				bare(rs)
				rs.Spec.Template.Spec.NodeSelector = map[string]string{"p": "a"}
			}), pod("x", "first", 1, nil)}, note: "-",
		},
		"they prefer their pool": {
			objects: []client.Object{web(1, bare), pod("x", "first", 1, func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{"of": "a-runtime-class"}
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100}}}}
			})}, note: "-",
		},
		"they select their pool, and prefer nodes for another reason": {
			objects: []client.Object{web(1, bare), pod("x", "first", 1, func(p *corev1.Pod) {
				sign(ledger.OriginClaimed, ledger.WithSource("id", "first", ledger.Source{Selector: "12345678"}))(p)
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100}}}}
			})}, note: "1 of them still select the nodes of their pools: 1 in pool first",
		},
		"a policy's pods select their pool, and prefer nodes for another reason": {
			objects: []client.Object{web(1, bare), pod("x", "first", 1, func(p *corev1.Pod) {
				sign(ledger.OriginClaimed, ledger.WithSource("id", "first@12345678", ledger.Source{UID: "policy", Generation: 1}))(p)
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}}}}
			})}, note: "1 of them still select the nodes of their pools: 1 in pool first",
		},
		"they require expressions": {
			objects: []client.Object{web(1, bare), pod("x", "first", 1, func(p *corev1.Pod) {
				p.Spec.NodeSelector = nil
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
			})}, note: "1 of them still select the nodes of their pools: 1 in pool first",
		},
		"they have no seat": {objects: []client.Object{web(1, bare), pod("x", "", 0, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "a"} })}, note: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tc.objects...)
			r, err := i.Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			if (len(r.Workloads) > 0) != (tc.note != "-") {
				t.Fatalf("the rows are %+v", r.Workloads)
			}
			if tc.note != "-" {
				if w := r.Workloads[0]; w.Kind != "ReplicaSet" || w.Name != "web" || !strings.Contains(w.Note, tc.note) || w.OK != (tc.problem == "") {
					t.Errorf("the row is %+v, want the note %q", w, tc.note)
				}
			}
			reasons := []finding.Reason{}
			for _, p := range r.Problems {
				reasons = append(reasons, p.Reason)
			}
			if tc.problem == "" && len(reasons) > 0 || tc.problem != "" && (len(reasons) != 1 || reasons[0] != tc.problem) {
				t.Errorf("the problems are %v, want %s", reasons, tc.problem)
			}
		})
	}
}

// Where policies of the cluster may not be read, one may divide the pods.
func TestPinsLeftOfHiddenPolicies(t *testing.T) {
	t.Parallel()
	x := pod("x", "first", 1, func(p *corev1.Pod) {
		p.Annotations[stowage.ClaimAnnotation] = make(ledger.Key, ledger.KeySize).Sign(ledger.OriginClaimed, ledger.WithSource("id", "first@12345678", ledger.Source{UID: "policy", Generation: 1}), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: "first@12345678", Ordinal: 1})
	})
	for hidden, rows := range map[bool]int{false: 1, true: 0} {
		i := newInspector(t, web(1, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations = nil }), x)
		if hidden {
			i.Client = refusing(i.Client, &stowage.ClusterSpreadPolicyList{})
		}
		r, err := i.Status(t.Context(), "ns")
		if err != nil || len(r.Workloads) != rows {
			t.Errorf("where policies are hidden (%t), the rows are %+v, %v", hidden, r, err)
			continue
		}
		if rows > 0 && !strings.Contains(r.Workloads[0].Note, ": 1 in pool first; ") {
			t.Errorf("the note is %q", r.Workloads[0].Note)
		}
	}
}

// Pods on nodes that do not exist any more count as pods, and not as ready ones. Where nodes may not be read, that is not known.
func TestPodsOnNodesThatAreGone(t *testing.T) {
	t.Parallel()
	there := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"p": "a"}}}
	for _, hidden := range []bool{false, true} {
		gone := func(p *corev1.Pod) { p.Spec.NodeName = nodeGone }
		i := newInspector(t, there.DeepCopy(), web(4, nil), pod("w", "0", 1, nil), pod("x", "1", 1, gone), pod("y", "0", 2, nil), pod("z", "1", 2, gone))
		if hidden {
			i.Client = refusing(i.Client, &corev1.NodeList{})
		}
		r, err := i.Status(t.Context(), "ns")
		if err != nil || len(r.Workloads) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		w := r.Workloads[0]
		ready, note := int64(0), "2 of 4 pods are on nodes that do not exist any more, and do not count as ready"
		if hidden {
			ready, note = 2, ""
		}
		if w.Pools[0].Ready != 2 || w.Pools[1].Ready != ready || w.Pools[1].Current != 2 || !strings.HasPrefix(w.Note, note) || w.OK != hidden || r.OK() != hidden {
			t.Errorf("where nodes are hidden (%t), the row is %+v", hidden, w)
		}
	}
}
