package observed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

var key = ledger.Key("0123456789abcdef0123456789abcdef")

// signed returns a pod with a seat in pool 1 of a layout of two pools.
func signed(origin ledger.Origin, id string, ordinal string, seat ledger.Seat) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-1", UID: "p", CreationTimestamp: metav1.Unix(1000, 0), ResourceVersion: "17",
			Labels: map[string]string{stowage.PoolLabel: "1", stowage.SeatLabel: ordinal, stowage.DomainLabel: "z"},
			Annotations: map[string]string{
				corev1.PodDeletionCost:  "5",
				stowage.ClaimAnnotation: key.Sign(origin, id, ledger.Holder{Namespace: "ns", Owner: "rs"}, seat),
			},
		},
		Spec:   corev1.PodSpec{NodeSelector: map[string]string{"p": "b"}},
		Status: corev1.PodStatus{NominatedNodeName: "n", Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
	}
}

// Both sources say the same of a pod whose claim is genuine.
func TestSourcesAgree(t *testing.T) {
	t.Parallel()
	seat := ledger.Seat{Pool: "1", Ordinal: 3, Domain: "z"}
	for origin, id := range map[ledger.Origin]string{ledger.OriginClaimed: "id~5", ledger.OriginAdopted: "id", ledger.OriginOrdinal: "", ledger.OriginUnshared: "id"} {
		pod := signed(origin, id, "3", seat)
		carried, ok := ledger.SeatOf(key, "ns", "rs", pod.Labels, pod.Annotations)
		if !ok {
			t.Fatalf("%c: the claim is not genuine", origin)
		}
		verified := New(pod, "rs", carried)
		if diff := cmp.Diff(verified, Unverified(pod, "rs")); diff != "" {
			t.Errorf("%c (-verified +unverified):\n%s", origin, diff)
		}
		want := Pod{
			Namespace: "ns", Name: "web-1", UID: "p", Owner: "rs", Seat: seat, ID: id, Cost: "5", Created: 1000, Version: 17, Origin: origin,
			Active: true, Unschedulable: true, Nominated: true, Pins: &nodeset.Pins{Selector: map[string]string{"p": "b"}},
		}
		if diff := cmp.Diff(want, verified); diff != "" {
			t.Errorf("%c (-want +got):\n%s", origin, diff)
		}
		if !verified.Waiting() || verified.Age(time.Unix(1060, 0)) != time.Minute {
			t.Errorf("waiting %t, %s old", verified.Waiting(), verified.Age(time.Unix(1060, 0)))
		}
	}
	for name, change := range map[string]func(*Pod){
		"it has a node": func(p *Pod) { p.Node = "n" }, "it ends": func(p *Pod) { p.Active = false }, "nobody looked for a node": func(p *Pod) { p.Unschedulable = false },
	} {
		p := Unverified(signed(ledger.OriginClaimed, "id", "3", seat), "rs")
		if change(&p); p.Waiting() {
			t.Errorf("%s, and it waits", name)
		}
	}
}

// A pod that is being deleted, one with a node, and labels that name no seat.
func TestPodsAsTheyAre(t *testing.T) {
	t.Parallel()
	pod := signed(ledger.OriginClaimed, "id", "x", ledger.Seat{})
	pod.DeletionTimestamp, pod.Spec.NodeName = &metav1.Time{Time: time.Unix(1, 0)}, "node"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p := Unverified(pod, "rs")
	if p.Ordinal != 0 || p.Active || !p.Ending || !p.Ready || p.Node != "node" || p.Pins != nil {
		t.Errorf("%+v", p)
	}
	if pod.Status.Phase = corev1.PodSucceeded; Unverified(pod, "rs").Ending {
		t.Error("a pod that has ended is ending")
	}
	pod.Labels[stowage.SeatLabel] = "-2"
	if p := Unverified(pod, "rs"); p.Ordinal != 0 {
		t.Errorf("the ordinal is %d", p.Ordinal)
	}
	if p := Unverified(&corev1.Pod{}, ""); p.Origin != 0 || p.Pool != "" || p.ID != "" {
		t.Errorf("a pod without a claim: %+v", p)
	}
}

// Whatever a pod asks for, little of it is kept, and what is kept in part is not judged.
func TestLittleIsKept(t *testing.T) {
	t.Parallel()
	waiting := func(change func(*corev1.PodSpec)) Pod {
		pod := signed(ledger.OriginClaimed, "id", "3", ledger.Seat{Pool: "1", Ordinal: 3})
		change(&pod.Spec)
		return Unverified(pod, "rs")
	}
	long := strings.Repeat("x", 63)
	values := slices.Repeat([]string{long}, 10_000)
	affinity := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	for name, change := range map[string]func(*corev1.PodSpec){
		"values": func(s *corev1.PodSpec) {
			s.Affinity = affinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Values: values}}})
		},
		"fields": func(s *corev1.PodSpec) {
			s.Affinity = affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "k", Values: values}}})
		},
		"empty terms": func(s *corev1.PodSpec) { s.Affinity = affinity(make([]corev1.NodeSelectorTerm, 10_000)...) },
		"requirements": func(s *corev1.PodSpec) {
			s.Affinity = affinity(corev1.NodeSelectorTerm{MatchExpressions: make([]corev1.NodeSelectorRequirement, 10_000)})
		},
		"labels": func(s *corev1.PodSpec) {
			for i := range 10_000 {
				s.NodeSelector[fmt.Sprint(i)] = long
			}
		},
	} {
		if p := waiting(change); p.Pins != nil {
			t.Errorf("%s: %d bytes of pins are kept", name, p.Pins.Bytes())
		}
	}
	p := waiting(func(s *corev1.PodSpec) {
		s.NodeSelector = map[string]string{long: strings.Repeat("y", mostPins-63-64)}
		for i := range 1000 {
			s.Volumes = append(s.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint(i)}}})
		}
	})
	if p.Pins == nil || p.Pins.Bytes() != mostPins {
		t.Errorf("pins of %d bytes are not kept", mostPins)
	}
	if len(p.Claims) != MostClaims+1 {
		t.Errorf("%d claims are kept", len(p.Claims))
	}
}

func twoPools(t *testing.T) *layout.Layout {
	t.Helper()
	s, err := sequence.Parse("p=a,weight=1:p=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Layout(s, layout.Workload{})
}

func TestCostRank(t *testing.T) {
	t.Parallel()
	l := twoPools(t)
	own := sequence.DeletionCost(l.Whole().RankOrNone(sequence.Seat{Pool: 1, Ordinal: 3}))
	for name, tc := range map[string]struct {
		change func(*Pod)
		want   bool
		rank   int64
	}{
		"the cost of its seat":            {func(*Pod) {}, false, 5},
		"another cost":                    {func(p *Pod) { p.Cost = "5" }, true, 5},
		"a label that names no seat":      {func(p *Pod) { p.Cost, p.Ordinal = "5", 0 }, false, sequence.NoRank},
		"no cost":                         {func(p *Pod) { p.Cost, p.ID = "", "id~5" }, true, 5},
		"no cost, and Stowage wrote none": {func(p *Pod) { p.Cost = "" }, false, 5},
		"another cost, by its ordinal":    {func(p *Pod) { p.Cost, p.Origin = "5", ledger.OriginOrdinal }, false, sequence.NoRank},
		"another cost in an unknown pool": {func(p *Pod) { p.Cost, p.Pool = "5", "gone" }, false, sequence.NoRank},
		"the cost that its claim names":   {func(p *Pod) { p.Cost, p.ID = sequence.DeletionCost(9), "id~9" }, false, 9},
	} {
		p := Pod{Seat: ledger.Seat{Pool: "1", Ordinal: 3}, Cost: own, Origin: ledger.OriginClaimed}
		tc.change(&p)
		if rank, got := p.CostRank(l); got != tc.want || rank != tc.rank {
			t.Errorf("%s: rank %d, foreign %t", name, rank, got)
		}
	}
}

// Of the pods of an Indexed Job count those that are there and got their seat by index.
func TestIndexed(t *testing.T) {
	t.Parallel()
	o := Owner{Workload: &world.Workload{Ref: world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "j"}}, Pods: []Pod{
		{Seat: ledger.Seat{Pool: "1", Ordinal: 3}, Origin: ledger.OriginOrdinal, Active: true},
		{Seat: ledger.Seat{Pool: "0", Ordinal: 1}, Origin: ledger.OriginOrdinal},
		{Seat: ledger.Seat{Pool: "0"}, Origin: ledger.OriginOrdinal, Active: true}, // a label that names no seat
		{Seat: ledger.Seat{Pool: "0", Ordinal: 2}, Origin: ledger.OriginClaimed, Active: true},
		{Seat: ledger.Seat{Pool: "gone", Ordinal: 2}, Origin: ledger.OriginOrdinal, Active: true},
	}}
	want := []sequence.Seat{{Pool: 1, Ordinal: 3}}
	if diff := cmp.Diff(want, o.Indexed(twoPools(t))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if o.Kind = "StatefulSet"; o.Indexed(twoPools(t)) != nil {
		t.Error("the seats of a StatefulSet are listed")
	}
}

// Of a pod with a volume its shape is kept: the same from the whole pod and from what is kept of it, and nothing of one that would take much memory.
func TestShape(t *testing.T) {
	pod := func(claim string, keys int) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
		p.Spec.NodeSelector = map[string]string{"p": "a"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "arm64", Operator: corev1.TolerationOpExists}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}
		for i := range keys {
			p.Spec.NodeSelector[fmt.Sprint("key-", i)] = strings.Repeat("x", 60)
		}
		if claim != "" {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		}
		return p
	}
	of := func(p *corev1.Pod) *corev1.Pod {
		rec := New(p, "rs", ledger.Carried{})
		return rec.Shape()
	}
	whole := pod("data", 5)
	if diff := cmp.Diff(nodefit.Shape(whole), of(whole)); diff != "" {
		t.Errorf("the shape (-whole +kept):\n%s", diff)
	}
	if of(pod("", 0)) != nil || of(pod("data", 50)) != nil {
		t.Error("the shape of a pod without a volume is kept, or a large one")
	}
}
