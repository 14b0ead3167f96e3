package costs

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

func began() time.Time { return time.Unix(1e9, 0) }

// web is a pod of a ReplicaSet on a node.
func web(name, version string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(name), ResourceVersion: version, Labels: map[string]string{"app": "web"}, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
	}, Spec: corev1.PodSpec{NodeName: "node"}}
}

func seen(t *testing.T, p *pods, is *corev1.Pod) *pod {
	t.Helper()
	if err := p.Update(is); err != nil {
		t.Fatal(err)
	}
	if o := p.ownerOf[is.UID]; o != nil {
		return o.pods[is.UID]
	}
	return nil
}

func costs(cost, mark string) map[string]string {
	all := map[string]string{}
	for key, value := range map[string]string{corev1.PodDeletionCost: cost, stowage.ScaleDownCostAnnotation: mark} {
		if value != "" {
			all[key] = value
		}
	}
	return all
}

// Whose a cost is follows from the mark beside it.
func TestWhoseCost(t *testing.T) {
	for _, tt := range []struct {
		cost, mark string
		want       whose
		is         int32
		marked     bool
	}{
		{"", "", nobodys, 0, false},
		{"-3", "-3", ours, -3, true},
		{"-3", "", others, -3, false},
		{"-4", "-3", others, -4, true},
		{"", "-3", nobodys, 0, true},
		{"0", "0", others, 0, true},    // no layer
		{"10", "10", others, 10, true}, // Stowage writes none above 0
		{"x", "x", others, 0, true},
		{"99999999999", "99999999999", others, 2147483647, true},
	} {
		p := seen(t, newPods(began, func(types.UID) {}), web("a", "1", costs(tt.cost, tt.mark)))
		if p.whose != tt.want || p.cost != tt.is || p.marked != tt.marked {
			t.Errorf("cost %q and mark %q: %+v", tt.cost, tt.mark, p)
		}
	}
}

// Of the conditions of a pod only the one counts that says whether it is ready, and of the managers the one that wrote the cost.
func TestRecord(t *testing.T) {
	is := web("a", "1", costs("-3", ""))
	is.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		{Manager: "karpenter", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:controller.kubernetes.io/pod-deletion-cost":{}}}}`)},
		{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)},
	}
	is.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	slim, err := (&pods{}).Transformer()(is)
	if err != nil {
		t.Fatal(err)
	}
	for _, is := range []*corev1.Pod{is, slim.(*corev1.Pod)} {
		if p := seen(t, newPods(began, func(types.UID) {}), is); !p.ready || p.by != "karpenter" || p.node != "node" {
			t.Errorf("%+v", p)
		}
	}
}

// The watch may be behind what a write has answered.
func TestOldVersionsAreLeftOut(t *testing.T) {
	p := newPods(began, func(types.UID) {})
	seen(t, p, web("a", "9", nil))
	seen(t, p, web("a", "10", costs("-1", "-1")))
	if is := seen(t, p, web("a", "9", nil)); is.cost != -1 {
		t.Errorf("an old version took the place of a newer one: %+v", is)
	}
	if err := p.Replace([]any{web("a", "9", nil)}, "11"); err != nil || p.ownerOf["a"].pods["a"].cost != -1 {
		t.Errorf("an old list took the place of a newer version: %v", err)
	}
	if err := p.Replace(nil, "12"); err != nil || len(p.owners)+len(p.ownerOf) > 0 {
		t.Errorf("pods are left that are gone: %v, %v", p.owners, err)
	}
}

// A pod leaves when it ends, and when another owner takes it. A cost that is gone is noted.
func TestPodsLeave(t *testing.T) {
	undone := 0
	p := newPods(began, func(types.UID) { undone++ })
	seen(t, p, web("a", "1", costs("-1", "-1")))
	seen(t, p, web("a", "2", nil))
	if undone != 1 {
		t.Errorf("%d costs were noted as gone", undone)
	}
	taken := web("a", "3", nil)
	taken.OwnerReferences[0].UID = "other"
	seen(t, p, taken)
	if len(p.owners) != 1 || p.owners[ownerKey{"shop", "other"}] == nil {
		t.Errorf("the owners are %v", p.owners)
	}
	ends := web("a", "4", nil)
	ends.DeletionTimestamp = new(metav1.Now())
	if seen(t, p, ends) != nil || len(p.owners) != 0 {
		t.Errorf("the owners are %v", p.owners)
	}
	alone := web("b", "5", nil)
	alone.OwnerReferences = nil
	if seen(t, p, alone) != nil {
		t.Error("a pod without an owner is kept")
	}
}

// Of a pod that a tenant made as large as can be, next to nothing is kept.
func TestPodsKeepLittle(t *testing.T) {
	text := strings.Repeat("x", 100<<10)
	is := web("a", "1", map[string]string{"other": text, corev1.PodDeletionCost: text, stowage.ScaleDownCostAnnotation: text, stowage.ModeKey: text})
	is.Labels["other"] = text
	is.Spec.NodeSelector = map[string]string{"other": text}
	is.Status.Message = text
	is.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: text, FieldsV1: metav1.NewFieldsV1(`{"f:` + corev1.PodDeletionCost + `":{}}`)}}
	for i := range 100 {
		is.Spec.TopologySpreadConstraints = append(is.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{TopologyKey: fmt.Sprint(i, text)})
	}
	slim, err := (&pods{}).Transformer()(is)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := json.Marshal(slim); err != nil || len(data) > 8<<10 {
		t.Errorf("%d bytes are kept, %v", len(data), err)
	}
}

// An ordinary pod takes some 200 bytes, and its part of the maps.
func TestMemoryOfPods(t *testing.T) {
	const n = 20_000
	p := newPods(began, func(types.UID) {})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range n {
		seen(t, p, web(fmt.Sprintf("web-6d5f7c9b8-%05d", i), fmt.Sprint(100_000+i), nil))
		clear(p.changed)
	}
	each := (heap() - before) / n
	t.Logf("%d bytes a pod", each)
	if each > 450 {
		t.Errorf("a pod takes %d bytes", each)
	}
	runtime.KeepAlive(p)
}
