package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// strategy divides pods evenly over the two nodes, each of which is a pool.
const strategy = "pool=node-a,weight=1:pool=node-b,weight=1"

// helm runs Helm against the cluster.
func helm(t *testing.T, args ...string) {
	t.Helper()
	home := t.TempDir()
	cmd := cluster.Nodes[0].NetworkCommand(t.Context(), filepath.Join(repo, "bin", "tools", "helm"), args...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// chart are the arguments with which Helm installs this tree, from an image that both nodes have.
func chart(verb string, settings ...string) []string {
	args := []string{
		verb, "stowage", "charts/stowage", "--namespace", controlplane.StowageNamespace, "--wait", "--timeout", "2m",
		"--set", "image.repository=docker.io/library/stowage", "--set", "image.tag=dev", "--set", "image.pullPolicy=Never",
		"--set", "settings.resize-jitter=200ms", "--set", "settings.resize-backoff=1s", "--set", "settings.repair-quiet=500ms", "--set", "settings.repair-resync=2s",
		"--set", "settings.rebalance-cooldown=500ms", "--set", "settings.eviction-rate=10",
	}
	if verb == "install" {
		args = append(args, "--create-namespace")
	}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	return args
}

// importStowage builds the image of this tree and loads it into both nodes.
func importStowage(t *testing.T) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "stowage.tar")
	suite.Must(t, controlplane.BuildImage(t.Context(), repo, archive, "stowage:dev")) // a node reaches no module proxy
	for _, n := range cluster.Nodes {
		suite.Must(t, cluster.ImportImages(t.Context(), n, archive))
	}
}

// failedOpen returns how often the API server has gone on without an answer of Stowage.
func failedOpen(t *testing.T) int {
	t.Helper()
	n, err := cluster.Metric(t.Context(), "apiserver_admission_webhook_fail_open_count", "stowage")
	suite.Must(t, err)
	return int(n)
}

// load creates pods that never run, some 20 a second.
type load struct {
	n    *suite.Tenant
	d    *appsv1.Deployment
	stop context.CancelFunc
	done sync.WaitGroup
	pods int
}

func startLoad(t *testing.T, n *suite.Tenant, name string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{n: n, stop: cancel, d: n.Deployment(name, 0, suite.Annotated(strategy))}
	l.d.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	suite.Must(t, n.Create(ctx, l.d))
	l.done.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			scaled := l.d.DeepCopy()
			if n.Patch(ctx, scaled, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, l.pods+1))) == nil {
				l.pods++
			}
		}
	})
	t.Cleanup(cancel)
	return l
}

// grows waits until there are so many pods more.
func (l *load) grows(t *testing.T, by int) {
	t.Helper()
	before := -1
	suite.Eventually(t, fmt.Sprintf("%d more pods are created", by), func() (bool, error) {
		pods, err := l.n.Pods(t.Context(), l.d.Name)
		if before < 0 {
			before = len(pods)
		}
		return len(pods) >= before+by, err
	})
}

// end stops the load and returns its pods once all are there.
func (l *load) end(t *testing.T) []corev1.Pod {
	t.Helper()
	l.stop()
	l.done.Wait()
	suite.Must(t, l.n.Get(t.Context(), client.ObjectKeyFromObject(l.d), l.d)) // the last change may have been cut off
	want := int(*l.d.Spec.Replicas)
	var pods []corev1.Pod
	suite.Eventually(t, fmt.Sprintf("%s has %d pods", l.d.Name, want), func() (bool, error) {
		var err error
		pods, err = l.n.Pods(t.Context(), l.d.Name)
		return len(pods) == want, err
	})
	return pods
}

// allSeated reports pods without a seat, and seats that two pods hold.
func allSeated(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	held := map[string]string{}
	for i := range pods {
		p := &pods[i]
		seat := p.Labels[stowage.PoolLabel] + "/" + p.Labels[stowage.SeatLabel]
		if p.Labels[stowage.SeatLabel] == "" {
			t.Errorf("pod %s has no seat", p.Name)
		} else if other, taken := held[seat]; taken {
			t.Errorf("pods %s and %s hold the seat %s", p.Name, other, seat)
		}
		held[seat] = p.Name
	}
}

// holding lets the containers of a template run on a real node, each with some memory in use.
func holding(template *corev1.PodTemplateSpec, bytes int) {
	c := &template.Spec.Containers[0]
	c.Image, c.ImagePullPolicy, c.Args = toolImage, corev1.PullNever, []string{"hold", strconv.Itoa(bytes)}
}

// nodeOf returns the node that a pod is on.
func nodeOf(pod *corev1.Pod) *Node {
	for _, n := range cluster.Nodes {
		if n.Name == pod.Spec.NodeName {
			return n
		}
	}
	return nil
}

// unified reports whether this machine has cgroup v2.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// running is a container that runs, and its pod.
type running struct {
	pod    *corev1.Pod
	status *corev1.ContainerStatus
}

// firstOf returns the first container of a pod.
func firstOf(pod *corev1.Pod) running { return running{pod, &pod.Status.ContainerStatuses[0]} }

// cgroupFile reads a file in the container's cgroup. On cgroup v2 the controller does not matter.
func (r running) cgroupFile(controller, file string) (string, error) {
	_, id, _ := strings.Cut(r.status.ContainerID, "://")
	if unified() {
		controller = ""
	}
	var content []byte
	_ = filepath.WalkDir(filepath.Join("/sys/fs/cgroup", controller, nodeOf(r.pod).CgroupRoot), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == id {
			content, _ = os.ReadFile(filepath.Join(path, file))
			return filepath.SkipAll
		}
		return nil
	})
	if content == nil {
		return "", fmt.Errorf("container %s of pod %s has no %s", id, r.pod.Name, file)
	}
	return string(bytes.TrimSpace(content)), nil
}

// cgroupNumber reads a number; one that stands for no limit is -1.
func (r running) cgroupNumber(controller, file string) (int64, error) {
	text, err := r.cgroupFile(controller, file)
	v, parse := strconv.ParseInt(text, 10, 64)
	if parse != nil || v > 1<<60 {
		v = -1
	}
	return v, err
}

// inForce returns the limits of the container: CPU in thousandths and memory in bytes. A limit that is not set
// is -1.
func (r running) inForce() (cpu, memory int64, err error) {
	if unified() {
		text, err := r.cgroupFile("", "cpu.max")
		if err != nil {
			return 0, 0, err
		}
		var quota, period int64 = -1, 1
		_, _ = fmt.Sscan(text, &quota, &period) // "max" stays -1
		memory, err := r.cgroupNumber("", "memory.max")
		return share(quota, period), memory, err
	}
	quota, err := r.cgroupNumber("cpu", "cpu.cfs_quota_us")
	if err != nil {
		return 0, 0, err
	}
	period, err := r.cgroupNumber("cpu", "cpu.cfs_period_us")
	if err != nil {
		return 0, 0, err
	}
	memory, err = r.cgroupNumber("memory", "memory.limit_in_bytes")
	return share(quota, period), memory, err
}

// inUse returns the memory that the container uses.
func (r running) inUse() (int64, error) {
	if unified() {
		return r.cgroupNumber("", "memory.current")
	}
	return r.cgroupNumber("memory", "memory.usage_in_bytes")
}

func share(quota, period int64) int64 {
	if quota < 0 {
		return -1
	}
	return quota * 1000 / period
}

// logStowage writes the logs of Stowage's replicas, and all events, beside the logs of the nodes.
func logStowage(t *testing.T) {
	var events corev1.EventList
	_ = cluster.Client.List(t.Context(), &events)
	var lines strings.Builder
	for _, e := range events.Items {
		fmt.Fprintln(&lines, e.CreationTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	_ = os.WriteFile(filepath.Join(cluster.Logs, "events.log"), []byte(lines.String()), 0o644)
	var pods corev1.PodList
	_ = cluster.Client.List(t.Context(), &pods, client.InNamespace(controlplane.StowageNamespace))
	for _, p := range pods.Items {
		text, err := cluster.Clientset.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			t.Logf("the log of %s: %v", p.Name, err)
		}
		_ = os.WriteFile(filepath.Join(cluster.Logs, p.Name+".log"), text, 0o644)
	}
}
