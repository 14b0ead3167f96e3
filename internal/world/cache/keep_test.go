package cache

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// keepOf returns the function that the cache calls with objects such as this one.
func keepOf(t *testing.T, object client.Object) func(any) (any, error) {
	t.Helper()
	for o, by := range Options(NewWatchedPolicies(), true).ByObject {
		if reflect.TypeOf(o) == reflect.TypeOf(object) && by.Transform != nil {
			return by.Transform
		}
	}
	return Options(NewWatchedPolicies(), true).DefaultTransform
}

// trusted are the kinds that only the administrators of a cluster write.
var trusted = []client.Object{&flexdaemonsets.FlexDaemonsetTemplate{}, &schedulingv1.PriorityClass{}, &corev1.LimitRange{}, &corev1.ResourceQuota{}}

// Whatever others write into an object, every replica keeps little of it. Each kind of the cache is tried, and one that is not known fails.
func TestCachesKeepLittle(t *testing.T) {
	const most = 4*(sequence.MaxText+1) + 24<<10 // two texts of a workload, two of its template, and what is short
	large, many := strings.Repeat("x", 200<<10), slices.Repeat([]string{strings.Repeat("v", 60)}, 10_000)
	m := metav1.ObjectMeta{
		Namespace: "ns", Name: "web", UID: "u", Annotations: map[string]string{"other": large},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: large, UID: "d", Controller: new(true)}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: large}},
	}
	for i, key := range []string{
		stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, stowage.SpreadStrategyAliasAnnotation, stowage.RebalanceAnnotation,
		stowage.RepairAnnotation, stowage.SpillAnnotation, stowage.AcrossAnnotation, flexdaemonsets.TemplateAnnotation, "deployment.kubernetes.io/revision",
		stowage.DeclaredResourcesAnnotation, stowage.OriginalResourcesAnnotation, stowage.ModeKey, stowage.PeerPodsLimitAnnotation, stowage.PeerPodsCapacityAnnotation,
	} {
		m.Annotations[key] = fmt.Sprint(i, large)
	}
	labelled, ordinals := m, map[string]string{}
	labelled.Labels = map[string]string{}
	for i := range 20_000 {
		labelled.Labels[fmt.Sprintf("%s-%d", many[0], i)], ordinals[fmt.Sprint(i)] = many[0], many[0]
	}
	template := corev1.PodTemplateSpec{ObjectMeta: m}
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: many}}}
	conditions := corev1.NodeStatus{Conditions: slices.Repeat([]corev1.NodeCondition{{Type: corev1.NodeReady + "x", Message: many[0]}}, 10_000)}
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpIn, Values: many}},
	}}}}
	objects := []client.Object{
		&metav1.PartialObjectMetadata{ObjectMeta: m},
		&appsv1.ReplicaSet{ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Template: template}},
		&appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{Template: template}},
		&appsv1.DaemonSet{ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Template: template, Selector: selector}},
		&versprei.PodDistributor{ObjectMeta: m},
		&corev1.Namespace{ObjectMeta: m},
		&corev1.Node{ObjectMeta: m, Status: conditions},
		&corev1.Node{ObjectMeta: labelled},
		&corev1.PersistentVolume{ObjectMeta: m, Spec: corev1.PersistentVolumeSpec{NodeAffinity: affinity}},
		&stowage.PoolState{ObjectMeta: m, Ordinals: ordinals},
	}
	for _, object := range objects {
		t.Run(fmt.Sprintf("%T", object), func(t *testing.T) {
			kept, err := keepOf(t, object)(object)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(kept)
			if err != nil || len(data) > most {
				t.Errorf("%d bytes are kept, want at most %d, %v", len(data), most, err)
			}
		})
	}
	for kind := range Options(NewWatchedPolicies(), true).ByObject {
		same := func(o client.Object) bool { return reflect.TypeOf(o) == reflect.TypeOf(kind) }
		if !slices.ContainsFunc(objects, same) && !slices.ContainsFunc(trusted, same) {
			t.Errorf("a large %T is not tried", kind)
		}
	}
}

// A strategy that is too long stays invalid when its end, here spaces, is cut off.
func TestPickLeavesLongStrategiesInvalid(t *testing.T) {
	text := "p=a,weight=1" + strings.Repeat(" ", 2*sequence.MaxText)
	kept := world.Pick(map[string]string{stowage.SpreadStrategyAnnotation: text}, stowage.SpreadStrategyAnnotation)[stowage.SpreadStrategyAnnotation]
	if len(kept) != sequence.MaxText+1 {
		t.Errorf("%d bytes are kept", len(kept))
	}
	if _, err := sequence.Parse(kept); err == nil {
		t.Error("it is valid now")
	}
}

// A ReplicaSet has its Deployment's annotations, and is kept with the Deployment's copy of them.
func TestEqualTextsAreKeptOnce(t *testing.T) {
	k := newKeeper()
	text := func() string { return "p=a,weight=1:" + strings.Repeat("p=b,weight=1:", 100) } // another copy each time
	deployment, err := k.workload(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{stowage.SpreadStrategyAnnotation: text()}}})
	if err != nil {
		t.Fatal(err)
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{stowage.SpreadStrategyAnnotation: text()}}}
	rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAnnotation: text()}
	set, err := k.workload(rs)
	if err != nil {
		t.Fatal(err)
	}
	of := func(annotations map[string]string) *byte {
		return unsafe.StringData(annotations[stowage.SpreadStrategyAnnotation])
	}
	want := of(deployment.(*metav1.PartialObjectMetadata).Annotations)
	if got := set.(*appsv1.ReplicaSet); of(got.Annotations) != want || of(got.Spec.Template.Annotations) != want {
		t.Error("the text is there more than once")
	}
}

// Each kind of the cache is of a feature.
func TestEveryKindIsOfAFeature(t *testing.T) {
	names := func(objects iter.Seq[client.Object]) []string {
		var out []string
		for o := range objects {
			out = append(out, fmt.Sprintf("%T %s", o, o.GetObjectKind().GroupVersionKind().Kind))
		}
		slices.Sort(out)
		return out
	}
	kinds := names(maps.Keys(Options(NewWatchedPolicies(), true).ByObject))
	if diff := cmp.Diff(kinds, names(maps.Keys(Features{}.watched()))); diff != "" {
		t.Errorf("kinds of the cache (-) and of features (+):\n%s", diff)
	}
	var unused []string
	for o, is := range (Features{Spread: true, Sizing: true, PeerPods: true, Capacity: true, Webhook: true, Controllers: true}).watched() {
		if !is {
			unused = append(unused, fmt.Sprintf("%T", o))
		}
	}
	if unused != nil {
		t.Errorf("no feature uses %v", unused)
	}
}
