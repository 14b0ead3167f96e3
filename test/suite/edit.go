package suite

import (
	"context"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// Applied applies a file of the repository until the test ends.
func Applied(t *testing.T, file string) {
	t.Helper()
	objects, err := controlplane.ReadObjects(filepath.Join(Repo, file))
	Must(t, err)
	Must(t, Cluster.Apply(t.Context(), objects...))
	t.Cleanup(func() {
		for _, o := range objects {
			Must(t, client.IgnoreNotFound(Cluster.Client.Delete(context.Background(), o)))
		}
	})
}

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
