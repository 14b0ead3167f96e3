package cache

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// Each answer that the API server gave is remembered for its time, and asked for again after that.
func TestRemember(t *testing.T) {
	gone := func(what string) error { return apierrors.NewNotFound(schema.GroupResource{Resource: what}, "x") }
	custom := func(kind string) world.Ref {
		return world.Ref{APIVersion: "example.com/v1", Kind: kind, Name: "x", UID: "u"}
	}
	workload := func(ref world.Ref) func(context.Context, *Cache) (bool, error) {
		return func(ctx context.Context, c *Cache) (bool, error) {
			w, err := c.Workload(ctx, "ns", ref)
			return w != nil, err
		}
	}
	for name, tc := range map[string]struct {
		answer error // nil: the object is there
		ask    func(context.Context, *Cache) (found bool, err error)
		found  bool
		reads  int // for one question
		ttl    time.Duration
	}{
		"a workload of a kind that is not watched": {nil, workload(custom("Gang")), true, 2, unwatchedTTL},
		"that there is none of its UID":            {gone("gangs"), workload(custom("Gang")), false, 2, unwatchedTTL},
		"a kind that may not be read": {
			apierrors.NewForbidden(schema.GroupResource{Resource: "gangs"}, "x", nil), workload(custom("Gang")), false, 2, unreadableTTL,
		},
		"a kind that is not served": {&meta.NoKindMatchError{}, workload(custom("Gang")), false, 1, unservedTTL},
		"that there is no ReplicaSet of a UID": {
			gone("replicasets"), workload(world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "u"}), false, 1, absentTTL,
		},
		"that there is no template of a name": {gone("flexdaemonsettemplates"), func(ctx context.Context, c *Cache) (bool, error) {
			t, err := c.Template(ctx, "x")
			return t != nil, err
		}, false, 1, missingTTL},
	} {
		t.Run(name, func(t *testing.T) {
			clock, reads := clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 0
			scheme := fake.NewClientBuilder().Build().Scheme()
			if err := flexdaemonsets.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			watched := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}).Build()
			server := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
					reads++
					obj.SetNamespace(key.Namespace)
					obj.SetName(key.Name)
					obj.SetUID("u")
					return tc.answer
				},
			}).Build()
			c := New(watched, server, clock, ForAdmission())
			ask := func() {
				t.Helper()
				if found, err := tc.ask(t.Context(), c); found != tc.found || err != nil {
					t.Fatalf("found %t, %v", found, err)
				}
			}
			ask()
			if reads != tc.reads {
				t.Errorf("%d reads, want %d", reads, tc.reads)
			}
			ask()
			clock.SetTime(clock.Now().Add(tc.ttl - time.Millisecond))
			ask()
			if reads != tc.reads {
				t.Errorf("%d reads while it is remembered, want %d", reads, tc.reads)
			}
			clock.SetTime(clock.Now().Add(2 * time.Millisecond))
			if ask(); reads == tc.reads {
				t.Errorf("it is remembered for more than %s", tc.ttl)
			}
		})
	}
}

// That a kind is served holds for its time, so that each new name of it costs one read and not two.
func TestRememberServedKind(t *testing.T) {
	clock, reads := clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 0
	server := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			reads++
			obj.SetUID("u")
			return nil
		},
	}).Build()
	c := New(fake.NewClientBuilder().Build(), server, clock, ForAdmission())
	for _, step := range []struct {
		name  string
		after time.Duration
		reads int
	}{{"a", 0, 2}, {"b", 0, 3}, {"c", servedTTL - time.Millisecond, 4}, {"d", 2 * time.Millisecond, 6}} {
		clock.SetTime(clock.Now().Add(step.after))
		if w, err := c.Workload(t.Context(), "ns", world.Ref{APIVersion: "example.com/v1", Kind: "Gang", Name: step.name, UID: "u"}); w == nil || err != nil {
			t.Fatalf("%s: %v, %v", step.name, w, err)
		}
		if reads != step.reads {
			t.Errorf("%s: %d reads, want %d", step.name, reads, step.reads)
		}
	}
}

// Workloads whose controllers are of more kinds than may be looked up do not fail for ever, when these kinds are not served.
func TestManyKindsThatAreNotServed(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	server := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return &meta.NoKindMatchError{}
		},
	}).Build()
	c := New(fake.NewClientBuilder().Build(), server, clock, ForAdmission())
	pass := func() (failed int) {
		for i := range 300 {
			if _, err := c.Workload(t.Context(), "ns", world.Ref{APIVersion: fmt.Sprintf("ex%d.com/v1", i), Kind: "Gang", Name: "x", UID: "u"}); err != nil {
				failed++
			}
		}
		return failed
	}
	if pass() == 0 {
		t.Error("all kinds are looked up at once")
	}
	for range 1800 {
		clock.SetTime(clock.Now().Add(time.Second))
		pass()
	}
	for range 60 {
		clock.SetTime(clock.Now().Add(time.Second))
		if failed := pass(); failed > 0 {
			t.Fatalf("%d of 300 workloads fail after half an hour", failed)
		}
	}
}

// A kind that a policy names is noticed within a minute after it is installed, however long it was missing. Hundreds of such kinds cost no more than the
// first looks at kinds may.
func TestNamedKindsAreNoticed(t *testing.T) {
	clock, looks, installed := clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 0, false
	server := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			looks++
			if obj.GetObjectKind().GroupVersionKind().Group == "ex0.com" && installed {
				obj.SetUID("u")
				return nil
			}
			return &meta.NoKindMatchError{}
		},
	}).Build()
	c := New(fake.NewClientBuilder().Build(), server, clock, ForAdmission())
	found := func(i int) bool {
		w, err := c.Workload(t.Context(), "ns", world.Ref{APIVersion: fmt.Sprintf("ex%d.com/v1", i), Kind: "Gang", Name: "x", UID: "u"})
		return w != nil && err == nil
	}
	within := func() time.Duration {
		installed = true
		for begin := clock.Now(); ; clock.SetTime(clock.Now().Add(time.Second)) {
			if took := clock.Now().Sub(begin); found(0) || took > time.Hour {
				return took
			}
		}
	}
	for range 3600 { // nobody names it, so it is looked for less and less often
		clock.SetTime(clock.Now().Add(time.Second))
		found(0)
	}
	for i := range 300 {
		c.policies.replace(nil, &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: stowage.ClusterSpreadPolicySpec{
			SpreadPolicySpec: stowage.SpreadPolicySpec{Kinds: []stowage.OwnerKind{{Group: fmt.Sprintf("ex%d.com", i), Kind: "Gang"}}},
		}})
	}
	if took := within(); took > time.Minute {
		t.Errorf("it is noticed after %s", took)
	}
	looks = 0
	for range 600 {
		clock.SetTime(clock.Now().Add(time.Second))
		for i := range 300 {
			found(i)
		}
	}
	if limits := ForAdmission(); float64(looks) > limits.KindBurst+601*limits.KindRate+15 { // 15 are reads of the object that there is
		t.Errorf("in ten minutes there are %d looks at 300 kinds", looks)
	}
}

// A kind that may not be read is asked for rarely, and a grant is noticed within a minute. A Role grants a kind in one namespace; its refusal in another
// namespace does not matter there.
func TestUnreadableByNamespace(t *testing.T) {
	clock, reads, granted := clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 0, map[string]bool{"granted": true}
	server := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			if reads++; !granted[key.Namespace] {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "gangs"}, "x", nil)
			}
			obj.SetUID("u")
			return nil
		},
	}).Build()
	c := New(fake.NewClientBuilder().Build(), server, clock, ForAdmission())
	ref := world.Ref{APIVersion: "example.com/v1", Kind: "Gang", Name: "x", UID: "u"}
	for _, namespace := range []string{"other", "granted"} {
		want := namespace == "granted"
		if w, err := c.Workload(t.Context(), namespace, ref); (w != nil) != want || err != nil || c.MayRead(namespace, ref) != want {
			t.Errorf("in namespace %s, there is %v, %v", namespace, w, err)
		}
	}

	found := func() bool {
		clock.SetTime(clock.Now().Add(time.Second))
		w, err := c.Workload(t.Context(), "other", ref)
		return w != nil && err == nil
	}
	for reads = 0; clock.Now().Before(time.Unix(600, 0)); {
		found()
	}
	if reads > 20 || reads < 10 {
		t.Errorf("it is read %d times in ten minutes", reads)
	}
	granted["other"] = true
	for begin := clock.Now(); !found(); {
		if clock.Now().Sub(begin) > time.Minute {
			t.Fatal("a grant is not noticed within a minute")
		}
	}
}
