// Package compare puts Stowage beside what else divides a workload's pods over pools, on the same control plane: `make compare` prints the
// tables of docs/design/comparison.md. The others are what builds from Go modules: the scheduler's topology spread constraints, alone and
// with the descheduler. With five values of a node label, one of them on demand, they divide 20 to 80: that is how Karpenter's documents
// approximate a ratio.
package compare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(true, func(ctx context.Context) (int, error) {
		o := suite.Fleet
		o.Replicas = 3
		if err := suite.Cluster.StartStowage(ctx, o); err != nil {
			return 0, err
		}
		return m.Run(), nil
	}))
}

// contender is a way to divide pods 20 to 80.
type contender struct {
	name string
	// divide prepares a Deployment, and what belongs to it.
	divide func(*testing.T, *suite.Tenant, *appsv1.Deployment)
	// settle waits until it moves no pod that runs already; nil if it moves none.
	settle func(*testing.T)
}

// Labels of nodes: the pool, and one of five values. The first value is that of the nodes on demand.
const (
	poolLabel  = "compare.example.com/pool"
	fifthLabel = "compare.example.com/fifth"
)

var contenders = []contender{
	{name: "nothing", divide: func(*testing.T, *suite.Tenant, *appsv1.Deployment) {}},
	{name: "topology spread, ScheduleAnyway", divide: func(_ *testing.T, _ *suite.Tenant, d *appsv1.Deployment) { constrain(d, corev1.ScheduleAnyway) }},
	{name: "topology spread, DoNotSchedule", divide: func(_ *testing.T, _ *suite.Tenant, d *appsv1.Deployment) { constrain(d, corev1.DoNotSchedule) }},
	{name: "topology spread, DoNotSchedule, and descheduler", settle: descheduled, divide: func(t *testing.T, n *suite.Tenant, d *appsv1.Deployment) {
		constrain(d, corev1.DoNotSchedule)
		deschedule(t, n.Namespace)
	}},
	{name: "Stowage", divide: func(t *testing.T, n *suite.Tenant, d *appsv1.Deployment) {
		pool := func(name string, weight int32) versprei.Pool {
			return versprei.Pool{Name: name, NodeLabel: map[string]versprei.LabelValue{poolLabel: versprei.LabelValue(n.Namespace + "-" + name)}, Weight: weight, Spill: &versprei.Spill{After: "10s"}}
		}
		suite.Must(t, n.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: d.Name}, Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{pool("od", 20), pool("spot", 80)}, Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name},
		}}))
	}},
}

// constrain has the scheduler spread the pods of each revision over the five values.
func constrain(d *appsv1.Deployment, otherwise corev1.UnsatisfiableConstraintAction) {
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: fifthLabel, WhenUnsatisfiable: otherwise, LabelSelector: d.Spec.Selector, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
}

// deschedule runs the descheduler for a namespace until the test ends. It looks every five seconds, and not every five minutes, as it does
// by default.
func deschedule(t *testing.T, namespace string) {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	suite.Must(t, os.WriteFile(policy, fmt.Appendf(nil, `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: spread
  pluginConfig:
  - name: DefaultEvictor
    args: {evictSystemCriticalPods: false}
  - name: RemovePodsViolatingTopologySpreadConstraint
    args: {constraints: [DoNotSchedule], namespaces: {include: [%q]}}
  plugins: {balance: {enabled: [RemovePodsViolatingTopologySpreadConstraint]}}
`, namespace), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "bin", "descheduler"), "--kubeconfig", suite.Cluster.Kubeconfig,
		"--policy-config-file", policy, "--descheduling-interval", "5s", "--secure-port", "0", "-v", "1")
	log, err := os.Create(deschedulerLog())
	suite.Must(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	suite.Must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
	})
}

func deschedulerLog() string { return filepath.Join(suite.Cluster.Logs, "descheduler.log") }

// descheduled waits until the descheduler has twice looked at the pods as they are now, and evicted none.
func descheduled(t *testing.T) {
	t.Helper()
	looks := func() []string {
		log, err := os.ReadFile(deschedulerLog())
		suite.Must(t, err)
		return regexp.MustCompile(`totalEvicted=\d+`).FindAllString(string(log), -1)
	}
	const none = "totalEvicted=0"
	first := len(looks()) + 1 // one may be under way
	suite.EventuallyWithin(t, 3*time.Minute, "the descheduler evicts no pod in two looks", func() (bool, error) {
		all := looks()
		n := len(all)
		return n >= first+2 && all[n-1] == none && all[n-2] == none, nil
	})
}

// TestCompare takes each contender through a burst, scale-downs, a rollout, and an outage of a pool, and prints what it saw.
func TestCompare(t *testing.T) {
	head := []string{"", "500 ready, as a multiple of nothing", "500", "500→333", "→100", "→47", "of the 47, evicted and recreated", "rollout of 47", "no spot: run, wait", "spot again, rollout"}
	rows := []string{"| " + strings.Join(head, " | ") + " |", strings.Repeat("| --- ", len(head)) + "|"}
	first := time.Duration(0)
	for _, c := range contenders {
		t.Run(c.name, func(t *testing.T) {
			cells, took := measure(t, c)
			if first == 0 {
				first = took
			}
			rows = append(rows, fmt.Sprintf("| %s | %.2f | %s |", c.name, took.Seconds()/first.Seconds(), strings.Join(cells, " | ")))
		})
	}
	t.Logf("pods on demand, and by how many that is off:\n%s", strings.Join(rows, "\n"))
	if len(rows) != len(contenders)+2 {
		t.Errorf("the table has %d rows", len(rows))
	}
}

func measure(t *testing.T, c contender) (cells []string, burst time.Duration) {
	n := suite.NewTenant(t)
	room := testkit.ResourceList("cpu=1000,memory=1Ti,pods=2000")
	var spot []*corev1.Node
	for i := range 10 {
		pool := map[bool]string{true: "od", false: "spot"}[i%5 == 0]
		node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: room, Capacity: room}, ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("%s-%s-%d", n.Namespace, pool, i),
			Labels:      map[string]string{poolLabel: n.Namespace + "-" + pool, fifthLabel: fmt.Sprint(n.Namespace, "-", i%5), "compare": n.Namespace, corev1.LabelHostname: fmt.Sprintf("%s-%d", n.Namespace, i)},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		}}
		suite.Must(t, n.Create(t.Context(), node))
		t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), node) })
		if pool == "spot" {
			spot = append(spot, node)
		}
	}
	d := n.Deployment("web", 0, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	d.Spec.Template.Spec.NodeSelector = map[string]string{"compare": n.Namespace}
	c.divide(t, n, d)
	suite.Must(t, n.Create(t.Context(), d))

	settled := func(replicas int) string {
		t.Helper()
		n.Ready(t, "web", replicas)
		if c.settle != nil {
			c.settle(t)
			n.Ready(t, "web", replicas)
		}
		od, _ := count(t, n)
		off := od - float64(replicas)*0.2
		return fmt.Sprintf("%.0f (%+.1f)", od, off)
	}
	began := time.Now()
	n.Scale(t, d, 500)
	n.Ready(t, "web", 500)
	burst = time.Since(began)
	cells = append(cells, settled(500))
	before := map[types.UID]bool{}
	for _, p := range podsOf(t, n) {
		before[p.UID] = true
	}
	for _, replicas := range []int{333, 100, 47} {
		n.Scale(t, d, replicas)
		cells = append(cells, settled(replicas))
	}
	restarted := 0 // of those that are left; others may have been evicted and be gone again
	for _, p := range podsOf(t, n) {
		if !before[p.UID] {
			restarted++
		}
	}
	cells = append(cells, fmt.Sprint(restarted))
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	cells = append(cells, settled(47))

	// The pool spot is gone for a while: nobody may be scheduled there, and its pods end.
	cordon(t, n, spot, true)
	for _, p := range podsOf(t, n) {
		if strings.Contains(p.Spec.NodeName, "-spot-") {
			suite.Must(t, client.IgnoreNotFound(n.Delete(t.Context(), &p)))
		}
	}
	// A minute is six times as long as pods wait here until other pools take them; who waits for longer, waits.
	_ = wait.PollUntilContextTimeout(t.Context(), time.Second, time.Minute, false, func(context.Context) (bool, error) {
		pods := podsOf(t, n)
		run, waits := 0, 0
		for i := range pods {
			if podstatus.Ready(&pods[i]) {
				run++
			} else if pods[i].Spec.NodeName == "" {
				waits++
			}
		}
		return run >= 46 && run+waits == 47, nil // while Stowage tries the pool again, one may wait
	})
	run, waits := 0, 0
	for _, p := range podsOf(t, n) {
		if podstatus.Ready(&p) {
			run++
		} else {
			waits++
		}
	}
	cells = append(cells, fmt.Sprintf("%d, %d", run, waits))
	cordon(t, n, spot, false)
	suite.EventuallyWithin(t, 3*time.Minute, "all pods run again", func() (bool, error) {
		n.Revise(t, d, fmt.Sprint(time.Now().UnixNano()))
		err := wait.PollUntilContextTimeout(t.Context(), time.Second, 40*time.Second, true, func(ctx context.Context) (bool, error) {
			err := n.Get(ctx, client.ObjectKeyFromObject(d), d)
			return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 47 && d.Status.Replicas == 47 && d.Status.ReadyReplicas == 47, err
		})
		if err != nil {
			return false, nil //nolint:nilerr // another rollout
		}
		od, _ := count(t, n)
		return c.name != "Stowage" || od == 9, nil // its tries of the pool take a while
	})
	return append(cells, settled(47)), burst
}

func podsOf(t *testing.T, n *suite.Tenant) []corev1.Pod {
	t.Helper()
	pods, err := n.Pods(t.Context(), "web")
	suite.Must(t, err)
	return pods
}

// count returns how many pods run on demand, and how many on spot nodes.
func count(t *testing.T, n *suite.Tenant) (od, spot float64) {
	t.Helper()
	for _, p := range podsOf(t, n) {
		if strings.Contains(p.Spec.NodeName, "-od-") {
			od++
		} else if p.Spec.NodeName != "" {
			spot++
		}
	}
	return od, spot
}

func cordon(t *testing.T, n *suite.Tenant, nodes []*corev1.Node, yes bool) {
	t.Helper()
	for _, node := range nodes {
		suite.Must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes))))
	}
}
