package cluster

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// When an annotation was written survives what the cache leaves out.
func TestAnnotatedAt(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return &metav1.Time{Time: time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)}
	}
	strategy := map[string]string{stowage.SpreadStrategyAnnotation: "p=a,weight=1"}
	owns := func(key string) *metav1.FieldsV1 {
		return metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:` + key + `":{}}},"f:spec":{"f:replicas":{}}}`)
	}
	for name, tc := range map[string]struct {
		annotations map[string]string
		fields      []metav1.ManagedFieldsEntry
		want        time.Time
	}{
		"no annotation": {nil, []metav1.ManagedFieldsEntry{{Time: at(1), FieldsV1: owns(stowage.SpreadStrategyAnnotation)}}, time.Time{}},
		"its writer": {strategy, []metav1.ManagedFieldsEntry{
			{Time: at(1), FieldsV1: owns(stowage.SpreadStrategyAnnotation)}, {Time: at(2), FieldsV1: owns("other")}, {Time: at(3), FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		}, at(1).Time},
		"the last of two": {strategy, []metav1.ManagedFieldsEntry{
			{Time: at(1), FieldsV1: owns(stowage.SpreadStrategyAnnotation)}, {Time: at(2), FieldsV1: owns(stowage.SpreadStrategyAnnotation)},
		}, at(2).Time},
		"not JSON": {strategy, []metav1.ManagedFieldsEntry{{Time: at(1), FieldsV1: metav1.NewFieldsV1(`"f:annotations"`)}, {Time: at(1)}, {FieldsV1: owns("x")}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations, ManagedFields: tc.fields, CreationTimestamp: *at(0)}}
			kept, err := keepReplicaSet(rs)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range []*appsv1.ReplicaSet{rs, kept.(*appsv1.ReplicaSet)} {
				if w := fromReplicaSet(o); !w.Annotated.Equal(tc.want) || !w.Created.Equal(at(0).Time) {
					t.Errorf("created at %s, annotated at %s, want %s", w.Created, w.Annotated, tc.want)
				}
			}
		})
	}
}
