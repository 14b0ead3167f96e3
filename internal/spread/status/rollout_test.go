package status

import (
	"context"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/finding"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What a rollout does to a target is read once for each generation of it, and so is which pools take no pods. A target that cannot be read is as one whose
// rollout creates all pods again.
func TestOfRollout(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	in := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"}
	paused := &appsv1.Deployment{ObjectMeta: in}
	paused.Spec.Paused = true
	onDelete := &appsv1.StatefulSet{ObjectMeta: in}
	onDelete.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	parted := &appsv1.StatefulSet{ObjectMeta: in}
	parted.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(3))}
	for name, tc := range map[string]struct {
		kind   string
		object client.Object
		forbid bool
		want   finding.Values
		remedy string
		reads  int
	}{
		"a Deployment":                            {kind: "Deployment", object: &appsv1.Deployment{ObjectMeta: in}, reads: 1, remedy: "then roll out (kubectl -n ns rollout restart deployment/web)"},
		"a Deployment that is paused":             {kind: "Deployment", object: paused, want: finding.Values{Rollout: finding.Rollout{Paused: true}}, reads: 1, remedy: "then resume the Deployment (kubectl -n ns rollout resume deployment/web), and roll out"},
		"a StatefulSet":                           {kind: "StatefulSet", object: &appsv1.StatefulSet{ObjectMeta: in}, remedy: "then roll out (kubectl -n ns rollout restart statefulset/web)"},
		"one that replaces pods that are deleted": {kind: "StatefulSet", object: onDelete, want: finding.Values{Rollout: finding.Rollout{OnDelete: true}}, reads: 0, remedy: "then delete its pods one after the other, because its update strategy is OnDelete"},
		"one with a partition": {kind: "StatefulSet", object: parted, want: finding.Values{Rollout: finding.Rollout{Partition: 3}}, reads: 0,
			remedy: "then set the partition of the StatefulSet to 0, because with 3 a rollout leaves pods with lower ordinals as they are, and roll out (kubectl -n ns rollout restart statefulset/web)"},
		"one that may not be read": {kind: "Deployment", object: paused, forbid: true, reads: 3, remedy: "then roll out (kubectl -n ns rollout restart deployment/web)"},
		"one that is gone":         {kind: "Deployment", remedy: "then roll out (kubectl -n ns rollout restart deployment/web)"},
		"a ReplicaSet":             {kind: "ReplicaSet", remedy: "then roll out: have its pods created again"},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			objects := []client.Object{
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"p": "a"}}},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"p": "b"}}, Spec: corev1.NodeSpec{Unschedulable: true}},
			}
			if tc.object != nil {
				objects = append(objects, tc.object.DeepCopyObject().(client.Object))
			}
			cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			uncached := interceptor.NewClient(cached, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if reads++; tc.forbid {
					return errors.New("no")
				}
				return c.Get(ctx, key, o, opts...)
			}})
			r := (&Controller{Cached: cached, Uncached: uncached}).NewRun()
			s, err := sequence.Parse("p=a,weight=1:p=b,weight=1:p=c,weight=1")
			if err != nil {
				t.Fatal(err)
			}
			var d divisions.Division
			d.AddPods(s, nil)
			d.AddTargets(testkit.Layout(s, layout.Workload{}), layout.Division{Replicas: 3, Pools: []int64{1, 1, 1}})
			target := world.Object{Namespace: "ns", Ref: world.Ref{APIVersion: "apps/v1", Kind: tc.kind, Name: "web"}}
			want := tc.want
			want.NoNodes, want.Cordoned = "2 (p=c)", "1"
			f := finding.Finding{Reason: finding.OutsidePool, Namespace: "ns", Kind: tc.kind, Name: "web"}
			for range 3 {
				f.Values = finding.Values{}
				if r.ofRollout(t.Context(), target, &d)(&f.Values); f.Values != want {
					t.Errorf("it is %+v, want %+v", f.Values, want)
				}
			}
			if remedy := f.Remedy(); !strings.HasSuffix(remedy, tc.remedy) {
				t.Errorf("the remedy is %q, want %q", remedy, tc.remedy)
			}
			if reads != tc.reads {
				t.Errorf("%d reads, want %d", reads, tc.reads)
			}
			if tc.kind != "Deployment" || tc.object == nil || tc.forbid {
				return
			}
			changed := tc.object.DeepCopyObject().(*appsv1.Deployment)
			if err := cached.Get(t.Context(), client.ObjectKeyFromObject(changed), changed); err != nil {
				t.Fatal(err)
			}
			changed.Spec.Paused, changed.Generation = !changed.Spec.Paused, changed.Generation+1 // as the API server counts
			if err := cached.Update(t.Context(), changed); err != nil {
				t.Fatal(err)
			}
			if r.ofRollout(t.Context(), target, &d)(&f.Values); f.Paused != changed.Spec.Paused {
				t.Errorf("after a change, paused is %t", f.Paused)
			}
		})
	}
}

// What a policy whose pool has no node says of its pods depends on whether they have to run there.
func TestNodesFound(t *testing.T) {
	for preferred, want := range map[bool]string{false: "no node has the labels of pool spot (p=spot); its pods wait for one", true: "no node has the labels of pool spot (p=spot); its pods run elsewhere, as enforcement Preferred allows"} {
		p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("p")}}
		p.Spec.Pools = []stowage.PolicyPool{{Name: "od", NodeSelector: map[string]versprei.LabelValue{"p": "od"}}, {Name: "spot", NodeSelector: map[string]versprei.LabelValue{"p": "spot"}}}
		is := p.DeepCopy()
		of := policy.FromClusterSpreadPolicy(p)
		newTally(of, policy.Compiled{Rules: policy.Rules{Preferred: preferred}}, p, is, &is.Status, &p.Spec).describe([]corev1.Node{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"p": "od"}}}})
		if c := meta.FindStatusCondition(is.Status.Conditions, stowage.ConditionNodesFound); c == nil || c.Status != metav1.ConditionFalse || c.Message != want {
			t.Errorf("Preferred %t: the condition is %+v, want %q", preferred, c, want)
		}
	}
}
