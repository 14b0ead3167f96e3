// Package situations tests what users meet, on a real control plane: what status, explain, conditions and events say then.
package situations

import (
	"context"
	"os"
	"testing"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// What the test packages share, under the names that the tests of this one use.
type tenant struct{ *suite.Tenant }

const documented = suite.Documented

var (
	cluster *controlplane.Cluster

	must       = suite.Must
	eventually = suite.Eventually
	annotated  = suite.Annotated
)

func newTenant(t *testing.T, labels ...string) *tenant {
	t.Helper()
	return &tenant{suite.NewTenant(t, labels...)}
}

func TestMain(m *testing.M) {
	os.Exit(suite.RunAudited("situations", func(context.Context) (int, error) {
		cluster = suite.Cluster
		return m.Run(), nil
	}))
}
