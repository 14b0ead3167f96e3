package impact

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

var large = flag.Bool("large", false, "run TestLarge")

// TestLarge prints the time and the memory that a look at a large cluster takes, beside those of kubectl for a list of the same pods and
// nodes.
func TestLarge(t *testing.T) {
	if !*large {
		t.Skip("it takes some minutes; make test-impact runs it")
	}
	const nodes, apps, replicas = 500, 100, 50
	n := suite.NewTenant(t, "team=large")
	room := testkit.ResourceList("cpu=16,memory=64Gi,pods=110")
	for i := range nodes {
		pool := []string{"od", "spot", "other"}[i%3]
		node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: room, Capacity: room}, ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("large-%d", i), Labels: map[string]string{"pool": "large-" + pool, "cluster": "large", corev1.LabelTopologyZone: string("abc"[i/3%3])},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		}}
		suite.Must(t, n.Create(t.Context(), node))
		t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), node) })
	}
	for i := range apps {
		d := n.Deployment(fmt.Sprintf("app-%d", i), replicas, nil)
		d.Spec.Template.Spec.NodeSelector = map[string]string{"cluster": "large"}
		d.Spec.Template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=500m,memory=1Gi")
		suite.Must(t, n.Create(t.Context(), d))
	}
	suite.EventuallyEvery(t, time.Second, 10*time.Minute, "all pods have a node", func() (bool, error) {
		count := 0
		var pods corev1.PodList
		err := n.List(t.Context(), &pods, client.InNamespace(n.Namespace))
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName != "" {
				count++
			}
		}
		return count == apps*replicas, err
	})
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	suite.Must(t, os.WriteFile(policy, []byte(`apiVersion: stowage.dev/v1alpha1
kind: ClusterSpreadPolicy
metadata: {name: large}
spec:
  mode: Enforce
  namespaceSelector: {matchLabels: {team: large}}
  selector: {}
  across: {topologyKey: topology.kubernetes.io/zone, domains: [{value: a}, {value: b}, {value: c}]}
  pools:
  - {name: od, nodeSelector: {pool: large-od}, base: 1, weight: 20}
  - {name: spot, nodeSelector: {pool: large-spot}, weight: 80}
`), 0o600))
	measure := func(name string, args ...string) time.Duration {
		var took time.Duration
		for range 3 { // the first look fills caches of the API server
			cmd := exec.CommandContext(t.Context(), name, append(args, "--kubeconfig", suite.Cluster.Kubeconfig)...)
			began := time.Now()
			err := cmd.Run()
			took = time.Since(began)
			if exit := (&exec.ExitError{}); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 3) {
				t.Fatal(name, args, err)
			}
			usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			t.Logf("%s %s: %.1f s, %.1f s of processor, %d MiB at most", filepath.Base(name), args[0], took.Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), usage.Maxrss/1024)
		}
		return took
	}
	list := measure(filepath.Join(suite.Repo, "bin", "kubectl"), "get", "pods,nodes", "-A", "-o", "json")
	look := measure(suite.Binary, "impact", "-f", policy, "-o", "json", "--all")
	t.Logf("%d pods on %d nodes: impact takes %.1f times as long as kubectl get", apps*replicas, nodes, look.Seconds()/list.Seconds())
}
