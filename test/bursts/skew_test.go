package bursts

import (
	"flag"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
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
	t.Run("a policy", func(t *testing.T) {
		// A release without policies gives no seat by one, and a pod of it is as any that bypassed the webhook.
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "selected"}},
			Pools: []stowage.PolicyPool{
				{Name: "on-demand", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Base: 1, Weight: 50},
				{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 50},
			},
		}}
		suite.Must(t, n.Create(t.Context(), p))
		selected := n.Deployment("selected", 60, nil)
		suite.Must(t, n.Create(t.Context(), selected))
		n.Ready(t, "selected", 60)
		n.Scale(t, d, 250)
		n.Spreads(t, "web", 250, s)
		start(fleet(2, 0))
		n.Follows(t, map[string]string{"app": "selected"}, p.UID, p.Generation)
		n.Revise(t, selected, "2")
		n.RolledOut(t, selected)
		compiled := policy.CompilePolicy(policy.FromSpreadPolicy(p))
		suite.Must(t, compiled.Err)
		n.Spreads(t, "selected", 60, compiled.Whole)
		suite.Must(t, n.Delete(t.Context(), p))
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
