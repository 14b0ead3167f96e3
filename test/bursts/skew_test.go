package bursts

import (
	"flag"
	"testing"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// previous is an older release of the program; make test-versions builds it.
var previous = flag.String("previous", "", "path of the stowage program of the previous release")

// Replicas of the previous release and of this one share the ledgers, during an upgrade and during a downgrade.
func TestSkew(t *testing.T) {
	if *previous == "" {
		t.Skip("it needs the program of the previous release, which make test-versions builds")
	}
	suite.RestoreFleet(t)
	// Both releases know these settings.
	args := []string{"--repair-quiet=500ms", "--repair-resync=2s"}
	fleet := func(now, before int) controlplane.StowageOptions {
		o := controlplane.StowageOptions{Binary: suite.Binary, Replicas: now, Args: args}
		for range before {
			o.Others = append(o.Others, *previous)
		}
		return o
	}
	start := func(o controlplane.StowageOptions) {
		t.Helper()
		suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
	}
	s := suite.StrategyOf(t, suite.Documented)

	start(fleet(0, 3))
	n := suite.NewTenant(t)
	d := n.Deployment("web", 40, suite.Annotated(suite.Documented))
	suite.Must(t, n.Create(t.Context(), d))
	n.Spreads(t, "web", 40, s)

	t.Run("side by side", func(t *testing.T) {
		start(fleet(2, 1))
		for _, replicas := range []int{150, 300, 200} {
			n.Scale(t, d, replicas)
			n.Spreads(t, "web", replicas, s)
		}
	})
	t.Run("downgrade", func(t *testing.T) {
		n.Scale(t, d, 400)
		start(fleet(0, 2))
		n.Spreads(t, "web", 400, s)
	})
	t.Run("upgrade", func(t *testing.T) {
		n.Scale(t, d, 500)
		start(fleet(2, 0))
		n.Spreads(t, "web", 500, s)
		n.CostsAgree(t, "web", s)
		n.Scale(t, d, 60)
		n.Spreads(t, "web", 60, s)
	})
}
