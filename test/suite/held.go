package suite

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// Swap gives the pools od and spot of a PodDistributor the weights 80 and 20.
func (n *Tenant) Swap(t *testing.T, name string) {
	t.Helper()
	Must(t, n.Patch(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}, client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/distribution/0/weight","value":80},{"op":"replace","path":"/spec/distribution/1/weight","value":20}]`))))
}

// Evicts has a PodDistributor evict pods from pools with too many.
func Evicts(spec *versprei.PodDistributorSpec) { spec.Rebalance = versprei.RebalanceEvict }

// InPoolsOf is a strategy in annotations over the pools od and spot of a test.
func (n *Tenant) InPoolsOf(rebalance bool) map[string]string {
	var pools []string
	for _, pool := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		for k, v := range pool.NodeLabel {
			pools = append(pools, fmt.Sprintf("%s=%s,weight=%d", k, v, pool.Weight))
		}
	}
	out := Annotated(strings.Join(pools, ":"))
	if rebalance {
		out[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	}
	return out
}
