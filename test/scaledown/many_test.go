package scaledown

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

var manyPods = flag.Int("pods", 600, "pods of TestManyPods, 20 of each workload and on each node")

// TestManyPods has more pods than kube-scheduler and kwok would start here in an hour, so it starts etcd and kube-apiserver alone, and plays the others.
func TestManyPods(t *testing.T) {
	const each, namespaces = 20, 10
	workloads := *manyPods / each
	ctx, cluster := t.Context(), apiServer(t)
	suite.Must(t, cluster.StartStowage(ctx, controlplane.StowageOptions{Binary: suite.Binary, Controllers: 1, WithoutWebhook: true}))
	leader := cluster.Controllers()[0]
	process := func(when string) {
		t.Logf("%s: %.0f MB resident, %.1f s of CPU, %.0f requests", when, suite.Metric(t, leader, "process_resident_memory_bytes", "")/1e6,
			suite.Metric(t, leader, "process_cpu_seconds_total", ""), suite.Metric(t, leader, "rest_client_requests_total", ""))
	}

	// 1. Nodes in three zones, and ready pods on them.
	many := rest.CopyConfig(cluster.Config)
	many.ContentType, many.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	c, err := kubernetes.NewForConfig(many)
	suite.Must(t, err)
	for i := range namespaces {
		name := fmt.Sprintf("many-%d", i)
		_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		suite.Must(t, err)
		_, err = c.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		suite.Must(t, err)
	}
	inParallel(t, workloads, func(i int) error {
		_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i), Labels: map[string]string{zone: string(rune('a' + i%3)), host: node(i)}}}, metav1.CreateOptions{})
		return err
	})
	began := time.Now()
	inParallel(t, workloads, func(i int) error {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("many-%d", i%namespaces), Name: fmt.Sprintf("w-%d", i)}}
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": rs.Name}}
		rs.Spec.Template.Labels = rs.Spec.Selector.MatchLabels
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
		constrain(&rs.Spec.Template.Spec, rs.Spec.Selector, corev1.ScheduleAnyway, zone)
		rs, err := c.AppsV1().ReplicaSets(rs.Namespace).Create(ctx, rs, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		for k := range each {
			if err := runPod(ctx, c, rs, k, node((i+k*151)%workloads)); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("%d pods of %d workloads on %d nodes, made within %.0f s", workloads*each, workloads, workloads, time.Since(began).Seconds())
	process("without a policy")

	// 2. One policy for all.
	all := &stowage.ClusterScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	all.Spec.Mode = stowage.PolicyEnforce
	suite.Must(t, cluster.Client.Create(ctx, all))
	began = time.Now()
	settled := func() (bool, error) {
		err := cluster.Client.Get(ctx, client.ObjectKeyFromObject(all), all)
		return int(all.Status.Written) == workloads*each, err
	}
	suite.EventuallyEvery(t, time.Second, time.Minute+time.Duration(workloads*each/20)*time.Second, "all pods are written", settled)
	written := suite.Metric(t, leader, "stowage_scaledown_writes_total", `outcome="written"`)
	process(fmt.Sprintf("%.0f writes, %.0f s after the policy", written, time.Since(began).Seconds()))
	if int(written) != workloads*each {
		t.Errorf("%.0f writes for %d pods, status %+v", written, workloads*each, all.Status)
	}

	// 3. Another leader writes nothing again, and the next pod soon.
	leader.Kill()
	suite.Must(t, cluster.Restart(ctx, leader))
	rs, err := c.AppsV1().ReplicaSets("many-0").Get(ctx, "w-0", metav1.GetOptions{})
	suite.Must(t, err)
	began = time.Now()
	suite.Must(t, runPod(ctx, c, rs, each, node(0)))
	suite.Eventually(t, "the new pod is written", func() (bool, error) {
		p, err := c.CoreV1().Pods(rs.Namespace).Get(ctx, fmt.Sprintf("%s-%d", rs.Name, each), metav1.GetOptions{})
		return err == nil && p.Annotations[stowage.ScaleDownCostAnnotation] != "", err
	})
	process(fmt.Sprintf("a pod made as a new leader started was written after %.1f s", time.Since(began).Seconds()))
	if n := suite.Metric(t, leader, "stowage_scaledown_writes_total", `outcome="written"`); n != 1 {
		t.Errorf("the new leader wrote %.0f pods, not one", n)
	}
}

// apiServer starts etcd and kube-apiserver for one test.
func apiServer(t *testing.T) *controlplane.Cluster {
	t.Helper()
	cluster, err := controlplane.Start(t.Context(), controlplane.Config{Root: suite.Repo, Dir: filepath.Join(t.TempDir(), "plane"), APIOnly: true})
	suite.Must(t, err)
	t.Cleanup(cluster.Stop)
	return cluster
}

func node(i int) string { return fmt.Sprintf("n-%d", i) }

func inParallel(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	suite.Must(t, g.Wait())
}

// runPod makes a pod of a ReplicaSet that is ready on a node.
func runPod(ctx context.Context, c kubernetes.Interface, rs *appsv1.ReplicaSet, k int, node string) error {
	p := &corev1.Pod{ObjectMeta: rs.Spec.Template.ObjectMeta, Spec: rs.Spec.Template.Spec}
	p.Name, p.OwnerReferences = fmt.Sprintf("%s-%d", rs.Name, k), []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	p.Spec.NodeName = node
	if _, err := c.CoreV1().Pods(rs.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.CoreV1().Pods(rs.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
	return err
}
