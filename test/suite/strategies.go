package suite

import (
	"testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// PoolsOf are two pools of the nodes of the test cluster.
func PoolsOf(base, onDemand, spot int32) []stowage.PolicyPool {
	return []stowage.PolicyPool{
		{Name: "on-demand", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Base: base, Weight: onDemand},
		{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: spot},
	}
}

// StrategyOfPolicy is what a policy says, as tests count it.
func StrategyOfPolicy(t *testing.T, s *policy.SpreadPolicy) *sequence.Strategy {
	t.Helper()
	p := policy.CompilePolicy(s)
	Must(t, p.Err)
	return p.Strategy
}
