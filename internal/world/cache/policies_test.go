package cache

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// Policies are the same value until one of them changes. Those of one namespace do not change with those of another, and a write of a
// status changes nothing.
func TestPolicies(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	p := &c.policies
	of := func(namespace string) *world.Policies {
		got, err := c.Policies(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	named := func(namespace, name string, generation int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: generation}
	}
	clone := stowage.OwnerKind{Group: "apps.kruise.io", Kind: "CloneSet"}
	ref := world.Ref{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}
	a := &stowage.SpreadPolicy{ObjectMeta: named("ns", "a", 1), Spec: stowage.SpreadPolicySpec{Kinds: []stowage.OwnerKind{clone}}}
	b := &stowage.SpreadPolicy{ObjectMeta: named("other", "b", 1)}
	all := &stowage.ClusterSpreadPolicy{ObjectMeta: named("", "all", 1)}
	if of("ns") != nil || of("") != nil || p.names(ref) {
		t.Error("there are policies before there is one")
	}
	p.replace(nil, a)
	p.replace(nil, a) // the event may come twice
	p.replace(nil, all)
	was, cluster := of("ns"), of("")
	if len(was.Namespaced) != 1 || was.Namespaced[0] != a || len(cluster.Cluster) != 1 || !p.names(ref) {
		t.Errorf("the policies are %+v and %+v", was, cluster)
	}
	p.replace(nil, b)
	written := a.DeepCopy()
	written.Status.Workloads = 3
	p.replace(a, written)
	if of("ns") != was || of("") != cluster {
		t.Error("the policies change with those of another namespace, or with a status")
	}
	edited := a.DeepCopy()
	edited.Generation, edited.Spec.Kinds = 2, nil
	p.replace(written, edited)
	if now := of("ns"); now == was || len(now.Namespaced) != 1 || now.Namespaced[0] != edited || was.Namespaced[0] != a || p.names(ref) {
		t.Errorf("after an edit the policies are %+v, and those of before %+v", now, was)
	}
	if got := c.AllPolicies(); len(got.Namespaced) != 2 || len(got.Cluster) != 1 {
		t.Errorf("all policies are %+v", got)
	}
	p.replace(edited, nil)
	p.replace(all, nil)
	if of("ns") != nil || of("") != nil || of("other") == nil {
		t.Error("a policy that is gone is there")
	}
}

// Where the API server does not have the kinds, there are no policies, and nobody waits for them.
func TestPoliciesOfAnOlderCluster(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	if synced, _ := c.PoliciesSynced(); synced {
		t.Error("policies are known before anybody looked")
	}
	served, err := c.FollowPolicies(t.Context(), meta.NewDefaultRESTMapper(nil), nil)
	if served || err != nil {
		t.Errorf("the kinds are served: %t, %v", served, err)
	}
	if synced, served := c.PoliciesSynced(); !synced || served {
		t.Errorf("synced %t, served %t", synced, served)
	}
}
