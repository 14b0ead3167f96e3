package karpenter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A NodePool reaches its limit. The pods that wait move to the other pool, none that has a node or whose node is on the way
// does, and the division returns with a rollout once the limit is gone.
func TestNodePoolAtItsLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	t.Parallel()
	onDemand := pool{"limit-on-demand", "on-demand", "WhenEmpty", "c4"}
	spot := pool{"limit-spot", "spot", "WhenEmpty", "c4"}
	onDemand.create(t)
	spot.create(t)
	spot.limit(t, `{"cpu":"8"}`) // two nodes of 4 CPUs, with room for 7 pods each
	n := suite.NewTenant(t)
	text := fmt.Sprintf("%[1]s=%[2]s,weight=20:%[1]s=%[3]s,weight=80", poolLabel, onDemand.name, spot.name)
	annotations := suite.Annotated(text)
	annotations[stowage.SpillAnnotation] = "1h" // the limit takes the place of it
	d := requests(n.Deployment("web", 40, annotations), "500m", "1Gi")
	suite.Must(t, n.Create(t.Context(), d))

	n.InPools(t, "web", "0=26 1=14")
	if moved := n.Seen("web") - 40; moved != 18 { // 32 of 40 were to run in spot
		t.Errorf("%d pods were evicted for 18 that had no room", moved)
	}

	spot.limit(t, `null`)
	suite.EventuallyWithin(t, 3*time.Minute, "the pool is tried again, and the rollouts divide the pods by the strategy", func() (bool, error) {
		n.Revise(t, d, fmt.Sprint(time.Now().UnixNano()))
		n.RolledOut(t, d)
		have := ""
		suite.EventuallyWithin(t, time.Minute, "no pod waits for a node", func() (ready bool, err error) {
			have, err = n.PoolCounts(t.Context(), "web")
			return !strings.Contains(have, "waits"), err
		})
		return have == "0=8 1=32", nil
	})
}

// Nodes take longer than pods wait. None is evicted while its node is on the way.
func TestSlowNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	t.Parallel()
	p := pool{"slow-spot", "spot", "WhenEmpty", "c4"}
	other := pool{"slow-on-demand", "on-demand", "WhenEmpty", "c4"}
	other.create(t)
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), strings.NewReplacer("default", "slow", "1s", "40s").Replace(nodeClass)))
	p.createSlow(t)
	n := suite.NewTenant(t)
	annotations := suite.Annotated(fmt.Sprintf("%[1]s=%[2]s,weight=50:%[1]s=%[3]s,weight=50", poolLabel, other.name, p.name))
	annotations[stowage.SpillAnnotation] = "10s"
	suite.Must(t, n.Create(t.Context(), requests(n.Deployment("web", 10, annotations), "500m", "1Gi")))
	n.InPools(t, "web", "0=5 1=5")
	if moved := n.Seen("web") - 10; moved != 0 {
		t.Errorf("%d pods were evicted while their nodes were on the way", moved)
	}
}

// limit sets the limits of a NodePool.
func (p pool) limit(t *testing.T, limits string) {
	t.Helper()
	suite.Must(t, suite.Cluster.Client.Patch(t.Context(), p.object(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"limits":`+limits+`}}`))))
}

// createSlow creates a NodePool whose nodes take 40 s to register.
func (p pool) createSlow(t *testing.T) {
	t.Helper()
	p.create(t)
	suite.Must(t, suite.Cluster.Client.Patch(t.Context(), p.object(), client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"nodeClassRef":{"name":"slow"}}}}}`))))
}
