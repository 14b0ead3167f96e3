// Package resources tests the sizes of pods on a real control plane: DaemonSets sized by their node, resized pods, and peer pods.
package resources

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
)

var (
	cluster *controlplane.Cluster
	repo    string
	binary  string
	fleet   controlplane.StowageOptions

	must        = suite.Must
	eventually  = suite.Eventually
	annotated   = suite.Annotated
	podTemplate = suite.PodTemplate
	metric      = suite.Metric
)

func newTenant(t *testing.T, labels ...string) *tenant {
	t.Helper()
	return &tenant{suite.NewTenant(t, labels...)}
}

func TestMain(m *testing.M) {
	os.Exit(suite.RunAudited("resources", func(context.Context) (int, error) {
		cluster, repo, binary, fleet = suite.Cluster, suite.Repo, suite.Binary, suite.Fleet
		return m.Run(), nil
	}))
}
