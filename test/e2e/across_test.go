package e2e

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// Pools over zones: exact types and even zones at each size and after a rollout. The domain is under the proof of the seat. The short form of
// `make test-domains`.
func TestAcross(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, zone := range suite.Zones {
		n.ZoneNode(t, "od", zone, 1000)
		n.ZoneNode(t, "spot", zone, 1000)
	}
	d := n.OverZones(t, "web", 60, nil)
	s := n.Distribution(t, "web")
	must(t, n.Create(t.Context(), d))
	for _, replicas := range []int{60, 17, 4, 33} {
		n.Scale(t, d, replicas)
		n.InCells(t, "web", replicas, s, 0.67, 0.67)
	}
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.InCells(t, "web", 33, s, 0.67, 0.67)

	// Who edits the label gets no other domain.
	pod, _ := n.Highest(t, "web", "spot")
	other := suite.Zones[(slices.Index(suite.Zones, pod.Labels[stowage.DomainLabel])+1)%3]
	must(t, n.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"stowage.dev/domain":"`+other+`"}}}`))))
	n.InCells(t, "web", 33, s, 0.67, 0.67)

	// The views know the zones.
	eventually(t, "the status counts the zones", func() (bool, error) {
		pd := &versprei.PodDistributor{}
		err := n.Get(t.Context(), n.Key("web"), pd)
		return err == nil && len(pd.Status.Pools) == 2 && len(pd.Status.Pools[1].Domains) == 3 && !slices.ContainsFunc(pd.Status.Pools[1].Domains, func(in versprei.DomainStatus) bool {
			return in.Current != in.Desired || in.Current == 0
		}), err
	})
	if out, _, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace, "--all"}, suite.SpreadOnly...)...); exit != 0 || !strings.Contains(out, "DOMAINS") {
		t.Errorf("status is %d:\n%s", exit, out)
	}
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/"+pod.Name); !strings.Contains(out, ", in domain ") || !strings.Contains(out, "Domains of pool spot: ") {
		t.Errorf("explain says:\n%s", out)
	}
}
