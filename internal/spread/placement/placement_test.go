package placement

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func strategy(t *testing.T, text string) *sequence.Strategy {
	t.Helper()
	s, err := sequence.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func owned(apiVersion, kind string) *podpatch.Pod {
	return &podpatch.Pod{Metadata: podpatch.Metadata{OwnerReferences: []podpatch.Owner{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "uid", Controller: true}}}}
}

func required(terms ...corev1.NodeSelectorTerm) *podpatch.Affinity {
	return &podpatch.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func TestPinned(t *testing.T) {
	s := strategy(t, "p=a,zone=1,weight=1:p=b,weight=1")
	for name, tc := range map[string]struct {
		spec podpatch.Spec
		own  nodeset.Set
		want string
	}{
		"nothing":                               {},
		"another label":                         {spec: podpatch.Spec{NodeSelector: map[string]string{"disk": "ssd"}}},
		"a pool's label":                        {spec: podpatch.Spec{NodeSelector: map[string]string{"p": "c"}}, want: "node label p"},
		"a label of another pool":               {spec: podpatch.Spec{NodeSelector: map[string]string{"zone": "1"}}, want: "node label zone"},
		"what an earlier pass wrote":            {spec: podpatch.Spec{NodeSelector: map[string]string{"p": "b"}}, own: nodeset.Set{Labels: map[string]string{"p": "b"}}},
		"what an earlier pass wrote, and since": {spec: podpatch.Spec{NodeSelector: map[string]string{"p": "a"}}, own: nodeset.Set{Labels: map[string]string{"p": "b"}}, want: "node label p"},
		"a node":                                {spec: podpatch.Spec{NodeName: "n"}, want: "spec.nodeName"},
		"an affinity": {spec: podpatch.Spec{Affinity: required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Exists"}}})},
			want: "node label zone"},
		"an affinity for other labels": {spec: podpatch.Spec{Affinity: required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: "Exists"}}})}},
		"a node's name": {spec: podpatch.Spec{Affinity: required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: "In", Values: []string{"n"}}}})},
			want: "a node's name"},
	} {
		key, pinned := Pinned(&podpatch.Pod{Spec: tc.spec}, s, tc.own)
		if key != tc.want || pinned != (tc.want != "") {
			t.Errorf("%s: %q, %t", name, key, pinned)
		}
	}
}

func TestOwnRank(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   *podpatch.Pod
		edit  func(*podpatch.Metadata)
		first int64
		rank  int64
		has   bool
	}{
		"no owner":                    {pod: &podpatch.Pod{}},
		"a ReplicaSet's":              {pod: owned("apps/v1", "ReplicaSet")},
		"a StatefulSet's, by label":   {pod: owned("apps/v1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Labels = map[string]string{"apps.kubernetes.io/pod-index": "4"} }, rank: 5, has: true},
		"by name":                     {pod: owned("apps/v1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Name = "web-2" }, rank: 3, has: true},
		"ordinals that start later":   {pod: owned("apps/v1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Name = "web-12" }, first: 10, rank: 3, has: true},
		"an ordinal before the first": {pod: owned("apps/v1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Name = "web-2" }, first: 10, rank: -7},
		"a name without an ordinal":   {pod: owned("apps/v1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Name = "web" }, rank: 1},
		"an indexed Job's": {pod: owned("batch/v1", "Job"), edit: func(m *podpatch.Metadata) {
			m.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": "0"}
		}, rank: 1, has: true},
		"a Job's without an index": {pod: owned("batch/v1", "Job"), rank: 1},
		"another StatefulSet's":    {pod: owned("apps.kruise.io/v1beta1", "StatefulSet"), edit: func(m *podpatch.Metadata) { m.Name = "web-2" }},
	} {
		if tc.edit != nil {
			tc.edit(&tc.pod.Metadata)
		}
		if rank, has := OwnRank(tc.pod, tc.first); has != tc.has || has && rank != tc.rank {
			t.Errorf("%s: %d, %t", name, rank, has)
		}
	}
}

// A seat that is written and taken out again leaves the pod as it was, and writing it twice is
// writing it once.
func TestApplyAndWithdraw(t *testing.T) {
	s := strategy(t, "p=a,zone=1,base=1,weight=1:p=b,weight=1")
	toleration := corev1.Toleration{Key: "spot", Operator: "Exists"}
	before := func() *podpatch.Pod {
		p := owned("apps/v1", "ReplicaSet")
		p.Metadata.Labels = map[string]string{"app": "web"}
		p.Metadata.Annotations = map[string]string{"note": "x"}
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		return p
	}
	for name, tc := range map[string]struct {
		seat     Seat
		selector map[string]string
		cost     bool
		gone     bool // whether taking it out restores the pod
	}{
		"required":              {Seat{Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Strategy: s, Claim: "c"}, map[string]string{"disk": "ssd", "p": "a", "zone": "1"}, true, true},
		"the second pool":       {Seat{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Strategy: s, Claim: "c"}, map[string]string{"disk": "ssd", "p": "b"}, true, true},
		"an ordinal of its own": {Seat{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Strategy: s, Claim: "c", OwnOrdinal: true}, map[string]string{"disk": "ssd", "p": "b"}, false, true},
		"of a PodDistributor":   {Seat{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Strategy: s, Claim: "c", Distributed: true, Tolerations: []corev1.Toleration{toleration}}, map[string]string{"disk": "ssd", "p": "b"}, true, false},
		"preferred":             {Seat{Seat: sequence.Seat{Pool: 0, Ordinal: 2}, Strategy: s, Claim: "c", Preferred: true}, map[string]string{"disk": "ssd"}, true, false},
		"beyond the sequence":   {Seat{Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Strategy: strategy(t, "p=a,base=1:p=b,weight=1"), Claim: "c"}, map[string]string{"disk": "ssd", "p": "a"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := before()
			tc.seat.Apply(pod)
			if !maps.Equal(pod.Spec.NodeSelector, tc.selector) {
				t.Errorf("node selector %v", pod.Spec.NodeSelector)
			}
			if _, has := pod.Metadata.Annotations[corev1.PodDeletionCost]; has != tc.cost {
				t.Errorf("it has a deletion cost: %t", has)
			}
			once := pod.Clone()
			tc.seat.Apply(pod)
			if diff := cmp.Diff(once, pod); diff != "" {
				t.Errorf("a second time changes (-once +twice):\n%s", diff)
			}
			tc.seat.Withdraw(pod, nil)
			Strip(pod)
			want := before()
			if !tc.gone { // tolerations and preferences hold it nowhere
				want.Spec.Tolerations, want.Spec.Affinity = pod.Spec.Tolerations, pod.Spec.Affinity
			}
			if diff := cmp.Diff(want, pod); diff != "" {
				t.Errorf("taken out (-want +got):\n%s", diff)
			}
		})
	}
}

// A user's cost stays, whatever it is, and also beside a seat that is not in the sequence.
func TestUsersCostStays(t *testing.T) {
	s := strategy(t, "p=a,base=1:p=b,weight=1")
	for _, cost := range []string{"7", "10000000", "2147483647"} {
		for _, ordinal := range []int64{1, 2} { // the second is beyond the base
			pod := owned("apps/v1", "ReplicaSet")
			pod.SetAnnotation(corev1.PodDeletionCost, cost)
			seat := Seat{Seat: sequence.Seat{Ordinal: ordinal}, Strategy: s, Claim: "c"}
			seat.Apply(pod)
			seat.Withdraw(pod, nil)
			if got := pod.Metadata.Annotations[corev1.PodDeletionCost]; got != cost {
				t.Errorf("seat %d: the user's cost %s is %q now", ordinal, cost, got)
			}
		}
	}
}

func TestOtherPool(t *testing.T) {
	s := strategy(t, "p=a,zone=1,weight=1:p=b,zone=1,weight=1")
	seat := Seat{Seat: sequence.Seat{Pool: 0, Ordinal: 1}, Strategy: s}
	for name, tc := range map[string]struct {
		selector map[string]string
		other    bool
	}{
		"its own pool":           {map[string]string{"p": "a", "zone": "1"}, false},
		"another pool":           {map[string]string{"p": "b", "zone": "1"}, true},
		"a part of another pool": {map[string]string{"p": "b"}, false},
		"no pool":                {nil, false},
	} {
		pod := &podpatch.Pod{Spec: podpatch.Spec{NodeSelector: maps.Clone(tc.selector)}}
		other := seat.OtherPool(pod)
		if (other != nil) != tc.other {
			t.Errorf("%s: %v", name, other)
		}
		if other != nil {
			seat.Withdraw(pod, other)
			if pod.Spec.NodeSelector["zone"] != "1" {
				t.Error("a label that the other pool shares was taken out")
			}
		}
	}
}

func TestAsCreated(t *testing.T) {
	s := strategy(t, "p=a,weight=1")
	pod := owned("apps/v1", "ReplicaSet")
	pod.Spec.NodeName = "chosen-by-the-scheduler"
	pod.Spec.NodeSelector = map[string]string{"p": "a", "disk": "ssd"}
	if got := AsCreated(pod, s, ""); got.Spec.NodeName != "" || got.Spec.NodeSelector["p"] != "a" {
		t.Errorf("a pod that Stowage did not touch: %+v", got.Spec)
	}
	if got := AsCreated(pod, s, "of-the-template"); got.Spec.NodeName != "of-the-template" {
		t.Errorf("a pod whose template names a node: %+v", got.Spec)
	}
	pod.SetLabel(stowage.PoolLabel, "0")
	if got := AsCreated(pod, s, ""); len(got.Spec.NodeSelector) != 1 || got.Spec.NodeSelector["disk"] != "ssd" {
		t.Errorf("a pod with a seat: %+v", got.Spec)
	}
	if pod.Spec.NodeSelector["p"] != "a" || pod.Spec.NodeName == "" {
		t.Error("the pod itself was changed")
	}
}
