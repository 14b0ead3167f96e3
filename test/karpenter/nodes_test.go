package karpenter

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
  disruption: {consolidationPolicy: %[5]s, consolidateAfter: 1s, budgets: [{nodes: "100%%"}]}
`, p.name, poolLabel, p.capacity, p.types, p.policy)
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), manifest))
	t.Cleanup(func() {
		obj := &unstructured.Unstructured{}
		obj.SetAPIVersion("karpenter.sh/v1")
		obj.SetKind("NodePool")
		obj.SetName(p.name)
		_ = suite.Cluster.Client.Delete(context.Background(), obj)
	})
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
	return karpenterMetric(t, "karpenter_nodeclaims_disrupted_total", `nodepool="`+p.name+`"`, `reason="(empty|underutilized)"`)
}

// karpenterMetric returns the sum of a metric's samples whose labels match all expressions.
func karpenterMetric(t *testing.T, name string, labels ...string) int {
	t.Helper()
	resp, err := http.Get(karpenter.MetricsURL)
	suite.Must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	suite.Must(t, err)
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{([^}]*)\} (\S+)$`).FindAllStringSubmatch(string(body), -1) {
		if slices.ContainsFunc(labels, func(l string) bool { return !regexp.MustCompile(l).MatchString(m[1]) }) {
			continue
		}
		v, err := strconv.ParseFloat(m[2], 64)
		suite.Must(t, err)
		sum += v
	}
	return int(sum)
}

// atRest waits until the pools have the same nodes for a while, and Karpenter removes none of them.
func atRest(t *testing.T, pools ...pool) {
	t.Helper()
	const still, limit = 12 * time.Second, 3 * time.Minute // Karpenter looks for nodes to remove every 10 s
	last, since, begin := "", time.Now(), time.Now()
	for {
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
		if time.Since(since) > still {
			return
		}
		if time.Since(begin) > limit {
			t.Fatalf("the nodes of %v change for %s", pools, limit)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// requests gives the pods of a Deployment a size.
func requests(d *appsv1.Deployment, cpu, memory string) *appsv1.Deployment {
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	return d
}
