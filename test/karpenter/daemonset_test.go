package karpenter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/test/suite"
)

// Karpenter plans with the newest pod of a DaemonSet for every instance type. The status and a metric compare that with
// the sizes on each class of nodes.
func TestPlannedSizes(t *testing.T) {
	t.Parallel()
	small := pool{"planned-small", "on-demand", "WhenEmpty", "c4"}
	large := pool{"planned-large", "on-demand", "WhenEmpty", "c16"}
	n := suite.NewTenant(t)
	template := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "planned"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10)), MemoryPercentage: new(int32(10))}}
	suite.Must(t, n.Create(t.Context(), template))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), template) })
	d := n.DaemonSet("agent", template.Name)
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: poolLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{small.name, large.name}},
		}}},
	}}}
	suite.Must(t, n.Create(t.Context(), d))
	for i, p := range []pool{small, large} {
		p.create(t)
		w := requests(n.Deployment(p.name, 1, nil), "1", "1Gi")
		w.Spec.Template.Spec.NodeSelector = map[string]string{poolLabel: p.name}
		suite.Must(t, n.Create(t.Context(), w))
		suite.Eventually(t, fmt.Sprintf("%d nodes have a sized pod", i+1), func() (bool, error) {
			pods, err := n.Pods(t.Context(), "agent")
			return len(pods) == i+1, err
		})
	}

	var plans []struct {
		NodeClass, PlannedCPU, CPU string
		OK                         bool
	}
	suite.Eventually(t, "the status compares both classes", func() (bool, error) {
		cmd := exec.CommandContext(t.Context(), suite.Binary, "status", "-n", n.Namespace, "-o", "json", "--kubeconfig", suite.Cluster.Kubeconfig)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			return false, nil // all is well until the second size is there
		}
		var report struct{ Plans json.RawMessage }
		if err := json.Unmarshal(out, &report); err != nil {
			return false, err
		}
		plans = nil
		_ = json.Unmarshal(report.Plans, &plans)
		return len(plans) == 2, nil
	})
	if plans[0].NodeClass != "c16" || plans[0].PlannedCPU != "1590m" || !plans[0].OK || plans[1].NodeClass != "c4" || plans[1].CPU != "390m" || plans[1].PlannedCPU != "1590m" || plans[1].OK {
		t.Errorf("the plans are %+v", plans)
	}
	suite.Eventually(t, "the leader reports the ratio", func() (bool, error) {
		sum := 0.0
		for _, r := range suite.Cluster.Controllers() {
			sum += suite.Metric(t, r, "stowage_daemonset_plan_ratio", `daemonset="agent",namespace="`+n.Namespace+`",node_class="c4",resource="cpu"`)
		}
		return 0.2 < sum && sum < 0.3, nil // 390m of 1590m
	})
}
