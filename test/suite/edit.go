package suite

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MergePatch merges a patch into an object.
func (n *Tenant) MergePatch(t *testing.T, obj client.Object, patch string) {
	t.Helper()
	Must(t, n.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// TwoControllers has another process take over when the leader dies.
func TwoControllers(t *testing.T) {
	t.Helper()
	o := Fleet
	o.Controllers = 2
	Must(t, Cluster.StartStowage(t.Context(), o))
	RestoreFleet(t)
}
