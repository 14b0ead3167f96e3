package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
)

// pool is a NodePool of a test. Its nodes have the label pool, which is unique to the test.
type pool struct {
	name     string
	capacity string // on-demand or spot
	policy   string // of consolidation
	types    string // instance types, separated by commas
}

// poolLabel is the label that tells the nodes of a test's pools apart.
const poolLabel = "example.com/pool"

// create creates a NodePool until the test ends.
func (p pool) create(t *testing.T) {
	t.Helper()
	p.createWith(t, "100%")
}

// createWith also says how many of its nodes Karpenter may remove at a time.
func (p pool) createWith(t *testing.T, budget string) {
	t.Helper()
	manifest := fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    metadata: {labels: {%[2]s: %[1]s}}
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      expireAfter: Never
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [%[3]s]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [%[4]s]}
  disruption: {consolidationPolicy: %[5]s, consolidateAfter: 1s, budgets: [{nodes: "%[6]s"}]}
`, p.name, poolLabel, p.capacity, p.types, p.policy, budget)
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), manifest))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), p.object()) })
}

// object is the NodePool without its content.
func (p pool) object() *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion("karpenter.sh/v1")
	obj.SetKind("NodePool")
	obj.SetName(p.name)
	return obj
}

// nodes returns the nodes of the pool.
func (p pool) nodes(t *testing.T) []corev1.Node {
	t.Helper()
	var list corev1.NodeList
	suite.Must(t, suite.Cluster.Client.List(t.Context(), &list, client.MatchingLabels{poolLabel: p.name}))
	return list.Items
}

// consolidated returns how many nodes of the pool Karpenter has removed because they were empty or could be
// replaced by less.
func (p pool) consolidated(t *testing.T) int {
	t.Helper()
	sum := 0.0
	for _, reason := range []string{"empty", "underutilized"} {
		sum += suite.MetricAt(t, karpenter.MetricsURL, "karpenter_nodeclaims_disrupted_total", `nodepool="`+p.name+`"`, `reason="`+reason+`"`)
	}
	return int(sum)
}

// atRest waits until the pools have the same nodes for a while, and Karpenter removes none of them.
func atRest(t *testing.T, pools ...pool) {
	t.Helper()
	const still, limit = 12 * time.Second, 3 * time.Minute // Karpenter looks for nodes to remove every 10 s
	last, since := "", time.Now()
	suite.Must(t, wait.PollUntilContextTimeout(t.Context(), 500*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		var names []string
		for _, p := range pools {
			for _, node := range p.nodes(t) {
				disrupted := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "karpenter.sh/disrupted" })
				names = append(names, fmt.Sprint(node.Name, disrupted))
			}
		}
		slices.Sort(names)
		if now := strings.Join(names, " "); now != last || strings.Contains(now, "true") {
			last, since = now, time.Now()
		}
		return time.Since(since) > still, nil
	}))
}

// requests gives the pods of a Deployment a size.
func requests(d *appsv1.Deployment, cpu, memory string) *appsv1.Deployment {
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	return d
}
