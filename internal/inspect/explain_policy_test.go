package inspect

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// A name is explained as kubectl writes it, of a source as well as of a workload.
func TestExplainSources(t *testing.T) {
	distributor := func(name, kind, target string) *versprei.PodDistributor {
		return &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: kind, Name: target},
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
		}}
	}
	policy := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "fleet"}}
	policy.Spec.Mode = "Audit"
	policy.Spec.Pools = []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"p": "a"}}}
	i := newInspector(t, node, web(1, nil), pod("x", "0", 1, nil), distributor("web", "ReplicaSet", "web"), distributor("lost", "Deployment", "gone"),
		distributor("turns", "PodDistributor", "turns"), policy)
	for _, tc := range []struct {
		kind, name string
		want       []string
	}{
		{"replicaset.apps", "web", []string{"ReplicaSet ns/web", "1 pod: Pod ns/x"}},
		{"replicasets.v1.apps", "web", []string{"ReplicaSet ns/web"}},
		{"pd", "web", []string{"ReplicaSet ns/web", "1 pod: Pod ns/x"}},
		{"poddistributor.versprei.versprei.io", "lost", []string{"PodDistributor ns/lost", "Problem: its target apps/v1 Deployment gone does not exist", "It divides the pods of Deployment gone, which was not found."}},
		{"pd", "turns", []string{"PodDistributor ns/turns"}},
		{"spreadpolicies", "fleet", []string{"SpreadPolicy ns/fleet", "Its mode is Audit, and it divides 0 workload(s) with 0 pod(s)."}},
	} {
		e, err := i.ExplainWorkload(t.Context(), "ns", tc.kind, tc.name)
		if err != nil {
			t.Errorf("%s %s: %v", tc.kind, tc.name, err)
			continue
		}
		says(t, e, tc.want...)
	}
	for _, kind := range []string{"pd", "sp", "csp"} {
		if _, err := i.ExplainWorkload(t.Context(), "ns", kind, "none"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	e, err := newInspector(t, pod("orphan", "", 0, nil)).Explain(t.Context(), "ns", "orphan")
	if err != nil {
		t.Fatal(err)
	}
	says(t, e, "What controls it does not exist, so no strategy divides it.")
}
