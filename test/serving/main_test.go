// Package serving tests what a process of Stowage does for all features on a real control plane: serving, certificates, rights, the registration, and what
// is shown of the cluster. Its tests stop replicas and change the registration, so they do not run in parallel.
package serving

import (
	"context"
	"os"
	"testing"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// What the test packages share, under the names that the tests of this one use.
type tenant struct{ *suite.Tenant }

const (
	documented = suite.Documented
	eightyOf   = suite.EightyTwenty
)

var (
	cluster *controlplane.Cluster
	repo    string
	binary  string
	fleet   controlplane.StowageOptions

	must             = suite.Must
	eventually       = suite.Eventually
	eventuallyWithin = suite.EventuallyWithin
	annotated        = suite.Annotated
	podTemplate      = suite.PodTemplate
	strategyOf       = suite.StrategyOf
	metric           = suite.Metric
	restoreFleet     = suite.RestoreFleet
)

func newTenant(t *testing.T, labels ...string) *tenant {
	t.Helper()
	return &tenant{suite.NewTenant(t, labels...)}
}

func TestMain(m *testing.M) {
	os.Exit(suite.RunAudited("serving", func(context.Context) (int, error) {
		cluster, repo, binary, fleet = suite.Cluster, suite.Repo, suite.Binary, suite.Fleet
		return m.Run(), nil
	}))
}
