// Package e2e tests Stowage on a real control plane: what a user would notice.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The cluster that all tests of this binary share. Tests have a namespace each;
// those that stop or break replicas do not run in parallel.
var (
	cluster *controlplane.Cluster
	repo    string
	binary  string
	fleet   controlplane.StowageOptions
)

const (
	waitTimeout  = 30 * time.Second
	waitInterval = 50 * time.Millisecond
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the cluster:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // tests cut requests off on purpose
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if repo, err = controlplane.RepositoryRoot(); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "stowage-e2e-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "stowage")
	if err := controlplane.BuildStowage(ctx, repo, binary); err != nil {
		return 0, err
	}
	if cluster, err = controlplane.Start(ctx, controlplane.Config{Root: repo, Dir: dir, Audit: true}); err != nil {
		return 0, err
	}
	defer cluster.Stop()
	if err := cluster.ApplyFiles(ctx, filepath.Join(repo, "hack", "controlplane", "nodes.yaml")); err != nil {
		return 0, err
	}
	for _, name := range []string{"kata-remote", "kata-other", "runc"} {
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: name}
		if name == "kata-remote" {
			class.Overhead = &nodev1.Overhead{PodFixed: testkit.ResourceList("cpu=250m,memory=120Mi")}
		}
		if err := cluster.Client.Create(ctx, class); err != nil {
			return 0, err
		}
	}
	fleet = controlplane.StowageOptions{
		Binary: binary, Replicas: 2,
		// Repairs come soon, so that tests do not wait for them.
		Args: []string{
			"--repair-quiet=500ms", "--repair-resync=2s", "--repair-backoff=1s", "--rebalance-cooldown=200ms", "--eviction-rate=20",
			"--resize-jitter=200ms", "--resize-backoff=1s", "--resize-rate=50",
		},
		Env: []string{"TARGET_RUNTIMECLASS=kata-remote, kata-other", "LOG_LEVEL=DEBUG", "BLOCKLISTED_NAMESPACE_LIST=blocked, blocked-too"},
	}
	if err := cluster.StartStowage(ctx, fleet); err != nil {
		return 0, err
	}
	if err := cluster.WaitForNodes(ctx, 9); err != nil {
		return 0, err
	}
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
}

// tenant is a namespace of a test's own and a client that notes warnings.
type tenant struct {
	client.Client
	namespace string
	config    *rest.Config
	warnings  controlplane.Warnings
}

// newTenant makes a namespace with the given labels, written as key=value.
func newTenant(t *testing.T, labels ...string) *tenant {
	t.Helper()
	return newTenantIn(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, labels...)
}

// newTenantIn makes the given namespace.
func newTenantIn(t *testing.T, ns *corev1.Namespace, labels ...string) *tenant {
	t.Helper()
	n := &tenant{config: rest.CopyConfig(cluster.Config)}
	n.config.WarningHandler = &n.warnings
	c, err := client.New(n.config, client.Options{Scheme: controlplane.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	n.Client = c
	ns.Labels = map[string]string{}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		ns.Labels[k] = v
	}
	must(t, c.Create(t.Context(), ns))
	n.namespace = ns.Name
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), ns) })
	eventually(t, "the namespace has its service account", func() (bool, error) {
		err := c.Get(t.Context(), n.key("default"), &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
	return n
}

func (n *tenant) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: n.namespace, Name: name}
}

// create creates a pod in the namespace and returns it as the API server has it.
func (n *tenant) create(t *testing.T, b *testkit.PodBuilder, opts ...client.CreateOption) *corev1.Pod {
	t.Helper()
	pod := b.Namespace(n.namespace).Obj()
	must(t, n.Create(t.Context(), pod, opts...))
	return pod
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition. An error that is no conflict ends the test.
func eventually(t *testing.T, what string, condition func() (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), waitInterval, waitTimeout, true, func(context.Context) (bool, error) {
		ok, err := condition()
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return ok, err
	})
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}
