package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A namespace that is paused has no pod changed or evicted: pods that wait for a pool without room are not spilled, pods that bypassed the webhook get no seat, and
// no deletion cost is written. New pods get their seats, in a rollout, too. A new leader keeps to it, and afterwards all is done.
func TestPause(t *testing.T) {
	n := suite.NewTenant(t)
	n.PoolNode(t, "od", "1", 100)
	n.PoolNode(t, "spot", "1", 4)
	stowageOf := func(args ...string) string {
		t.Helper()
		out, errs, exit := suite.CLI(t, suite.Cluster, args...)
		if exit != 0 && args[0] != "status" {
			t.Fatalf("%v: exit %d: %s", args, exit, errs)
		}
		return out
	}
	if out := stowageOf("pause", "-n", n.Namespace); !strings.Contains(out, "namespace "+n.Namespace+" is paused") {
		t.Errorf("pause says %q", out)
	}
	if out := stowageOf("status", "-n", n.Namespace); !strings.HasPrefix(out, "PAUSED: ") {
		t.Errorf("status says %s", out)
	}

	// 1. A pool without room, and a workload whose scale-downs would be kept.
	d := n.Shortage(t, "web", 10, nil)
	suite.Must(t, n.Create(t.Context(), d))
	spec := stowage.ScaleDownPolicySpec{Mode: stowage.PolicyEnforce, TopologyKeys: []string{corev1.LabelHostname}}
	of := stowage.Selector{MatchLabels: map[string]versprei.LabelValue{corev1.LabelMetadataName: versprei.LabelValue(n.Namespace)}}
	everywhere := &stowage.ClusterScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}, Spec: stowage.ClusterScaleDownPolicySpec{NamespaceSelector: of, ScaleDownPolicySpec: spec}}
	suite.Must(t, n.Create(t.Context(), everywhere))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), everywhere) })
	spec.Mode = stowage.PolicyAudit
	here := &stowage.ScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "here"}, Spec: spec}
	suite.Must(t, n.Create(t.Context(), here))
	plain := n.Deployment("plain", 3, nil)
	suite.Must(t, n.Create(t.Context(), plain))
	n.Ready(t, "plain", 3)
	var before []string
	suite.Eventually(t, "all new pods have their seats", func() (bool, error) {
		all, unseated := n.UIDs(t, "web")
		before = all
		return len(all) == 10 && unseated == 0, nil
	})

	// 2. A new leader, and time in which pods would be spilled. The waiting pods are those of the beginning afterwards.
	leader := suite.Cluster.Controllers()[0]
	leader.Kill()
	suite.Must(t, suite.Cluster.Restart(t.Context(), leader))
	until := time.Now().Add(25 * time.Second) // pods are spilled after 10 s
	suite.Eventually(t, "the time is over", func() (bool, error) { return time.Now().After(until), nil })
	after, _ := n.UIDs(t, "web")
	if !slices.Equal(before, after) {
		t.Error("pods were replaced while the namespace was paused")
	}
	for _, p := range n.Ready(t, "plain", 3) {
		if p.Annotations[corev1.PodDeletionCost] != "" {
			t.Errorf("pod %s got the cost %s", p.Name, p.Annotations[corev1.PodDeletionCost])
		}
	}
	n.Revise(t, plain, "2")
	n.RolledOut(t, plain)

	// 3. It goes on. Both policies are counted.
	stowageOf("resume", "-n", n.Namespace)
	n.Ready(t, "web", 10)
	suite.Eventually(t, "costs are written", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "plain")
		return len(pods) == 3 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Annotations[stowage.ScaleDownCostAnnotation] == "" }), err
	})
	suite.Eventually(t, "both policies are counted", func() (bool, error) {
		err := errors.Join(n.Get(t.Context(), client.ObjectKeyFromObject(here), here), n.Get(t.Context(), client.ObjectKeyFromObject(everywhere), everywhere))
		return here.Status.Shadowed > 0 && everywhere.Status.Written == 3, err
	})
}
