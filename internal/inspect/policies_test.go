package inspect

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// The note of a policy does not promise pods that choose their nodes themselves a seat at the next rollout.
func TestPolicyNoteOfPodsWithoutSeat(t *testing.T) {
	for name, tc := range map[string]struct {
		without, choose int32
		want            string
	}{
		"all have a seat":                 {0, 0, ""},
		"some have none":                  {2, 0, "2 pod(s) have no seat until the next rollout"},
		"some choose their nodes":         {0, 5, "5 pod(s) have no seat, because they choose their nodes themselves"},
		"some have none, and some choose": {1, 2, "1 pod(s) have no seat until the next rollout; 2 pod(s) have no seat, because they choose their nodes themselves"},
	} {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Pools: []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
		}}
		p.Status = stowage.SpreadPolicyStatus{Workloads: 1, Pods: 5, WithoutSeat: tc.without, ChooseNodes: tc.choose}
		s, r := &snapshot{}, &Report{}
		s.policyReport(policy.FromSpreadPolicy(p), &p.Status, r)
		if got := r.Policies[0].Note; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
