package owners

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// The annotations of a template are those of the owner where the cache has them, and else those of one of its pods.
func TestOwners(t *testing.T) {
	on := map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1", stowage.SpillAnnotation: "1m"}
	named := func(apiVersion, kind string) world.Ref {
		return world.Ref{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "u"}
	}
	for name, tc := range map[string]struct {
		workload *world.Workload
		owner    world.Ref
		noPod    bool
		want     bool
		reads    int
	}{
		"the cache has the template": {
			owner: named("apps/v1", "ReplicaSet"), workload: &world.Workload{Ref: named("apps/v1", "ReplicaSet"), Namespace: "ns", TemplateAnnotations: on}, want: true,
		},
		"the cache has a template without annotations": {
			owner: named("apps/v1", "ReplicaSet"), workload: &world.Workload{Ref: named("apps/v1", "ReplicaSet"), Namespace: "ns"},
		},
		"the kind is not watched": {
			owner: named("apps.kruise.io/v1alpha1", "CloneSet"), workload: &world.Workload{Ref: named("apps.kruise.io/v1alpha1", "CloneSet"), Namespace: "ns"}, want: true, reads: 1,
		},
		"a kind without pods":    {owner: named("apps.kruise.io/v1alpha1", "CloneSet"), noPod: true},
		"a Job's are not looked": {owner: named("batch/v1", "Job")},
	} {
		t.Run(name, func(t *testing.T) {
			clock, reads := clocktesting.NewFakePassiveClock(time.Now()), 0 //nolint:forbidigo // where the clock begins is no matter
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Annotations: on}}
			c := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
					reads++
					return c.Get(ctx, key, obj, o...)
				},
			}).Build()
			static := manifests.New(world.Objects{Workloads: []*world.Workload{{Ref: tc.owner, Namespace: "ns"}}})
			podOf := func(string, types.UID) string { return map[bool]string{false: "web-1"}[tc.noPod] }
			owners := New(policy.NewFinder(static, policy.Settings{}), podOf, c, clock)
			for range 3 {
				p, err := owners.FindFor(t.Context(), "ns", tc.owner, tc.workload)
				if err != nil || (p != nil) != tc.want || p != nil && p.Spill == nil {
					t.Fatalf("the policy is %+v, %v", p, err)
				}
			}
			clock.SetTime(clock.Now().Add(templateTTL / 2))
			if _, err := owners.FindFor(t.Context(), "ns", tc.owner, tc.workload); err != nil || reads != tc.reads {
				t.Errorf("pods were read %d times, %v; want %d", reads, err, tc.reads)
			}
			clock.SetTime(clock.Now().Add(templateTTL))
			if _, err := owners.FindFor(t.Context(), "ns", tc.owner, tc.workload); err != nil || reads != 2*tc.reads {
				t.Errorf("pods were read %d times, %v, after they were forgotten; want %d", reads, err, 2*tc.reads)
			}
		})
	}
}

// An owner of another namespace with the same UID is another owner.
func TestOwnersOfTwoNamespaces(t *testing.T) {
	owner := world.Ref{APIVersion: "example.com/v1", Kind: "Gang", Name: "web", UID: "u"}
	pod := func(namespace string, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-1", Annotations: annotations}}
	}
	c := fake.NewClientBuilder().WithObjects(pod("tenant", map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1"}), pod("victim", nil)).Build()
	static := manifests.New(world.Objects{Workloads: []*world.Workload{{Ref: owner, Namespace: "tenant"}, {Ref: owner, Namespace: "victim"}}})
	owners := New(policy.NewFinder(static, policy.Settings{}), func(string, types.UID) string { return "web-1" }, c, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	for _, namespace := range []string{"tenant", "victim"} {
		p, err := owners.FindFor(t.Context(), namespace, owner, nil)
		if err != nil || (p != nil) != (namespace == "tenant") {
			t.Errorf("%s: %+v, %v", namespace, p, err)
		}
	}
}
