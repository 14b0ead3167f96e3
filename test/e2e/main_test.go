// Package e2e tests Stowage on a real control plane: what a user would notice.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What the test packages share, under the names that the tests of this one use.
type tenant struct{ *suite.Tenant }

const (
	waitTimeout  = suite.WaitTimeout
	waitInterval = suite.WaitInterval

	documented = suite.Documented
	eightyOf   = suite.EightyTwenty
	oneToThree = suite.OneToThree
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

func newTenantIn(t *testing.T, ns *corev1.Namespace, labels ...string) *tenant {
	t.Helper()
	return &tenant{suite.NewTenantIn(t, ns, labels...)}
}

func TestMain(m *testing.M) {
	os.Exit(suite.Run(true, func(ctx context.Context) (int, error) {
		cluster, repo, binary, fleet = suite.Cluster, suite.Repo, suite.Binary, suite.Fleet
		if err := claimOnce(ctx); err != nil {
			return 0, err
		}
		code := m.Run()
		// Only the whole suite uses every permission.
		asked := func(name string) bool { return flag.Lookup("test."+name).Value.String() != "" }
		if code == 0 && !asked("run") && !asked("skip") && !asked("list") {
			cluster.StopStowage() // a watch is in the audit log when it has ended
			if err := usesEveryPermission(); err != nil {
				fmt.Fprintln(os.Stderr, "--- FAIL: permissions\n", err)
				return 1, nil
			}
		}
		return code, nil
	}))
}

// create creates a pod in the namespace and returns it as the API server has it.
func (n *tenant) create(t *testing.T, b *testkit.PodBuilder, opts ...client.CreateOption) *corev1.Pod {
	t.Helper()
	pod := b.Namespace(n.Namespace).Obj()
	must(t, n.Create(t.Context(), pod, opts...))
	return pod
}
