package suite

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// UIDs returns the pods of an app by name, and which of them have no seat.
func (n *Tenant) UIDs(t *testing.T, app string) (all []string, unseated int) {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	Must(t, err)
	for i := range pods {
		all = append(all, string(pods[i].UID))
		if pods[i].Labels[stowage.SeatLabel] == "" {
			unseated++
		}
	}
	slices.Sort(all)
	return all, unseated
}

// LateSpreadPolicy creates a SpreadPolicy for the pods of an app.
func (n *Tenant) LateSpreadPolicy(t *testing.T, app string, pools []stowage.PolicyPool) *stowage.SpreadPolicy {
	t.Helper()
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "late-" + app}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": versprei.LabelValue(app)}}, Pools: pools,
	}}
	Must(t, n.Create(t.Context(), p))
	return p
}
