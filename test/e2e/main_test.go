// Package e2e tests Stowage on a real control plane: what a user would notice.
package e2e

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// What the test packages share, under the names that the tests of this one use.
type tenant struct{ *suite.Tenant }

const (
	waitTimeout  = suite.WaitTimeout
	waitInterval = suite.WaitInterval

	documented = suite.Documented
	eightyOf   = suite.EightyTwenty
)

var (
	cluster *controlplane.Cluster
	repo    string
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

func newTenantIn(t *testing.T, ns *corev1.Namespace, labels ...string) *tenant {
	t.Helper()
	return &tenant{suite.NewTenantIn(t, ns, labels...)}
}

func TestMain(m *testing.M) {
	os.Exit(suite.RunAudited("e2e", func(ctx context.Context) (int, error) {
		cluster, repo, fleet = suite.Cluster, suite.Repo, suite.Fleet
		if err := claimOnce(ctx); err != nil {
			return 0, err
		}
		return m.Run(), nil
	}))
}
