// Package suite is what the test packages share that run on a control plane: the cluster with Stowage in it, a
// namespace for each test, workloads with a strategy, and whether their pods are divided as it demands.
package suite

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/apisupport"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The cluster that all tests of a binary share. Tests have a namespace each; those that stop or break replicas
// do not run in parallel.
var (
	Cluster *controlplane.Cluster
	Repo    string
	// Binary is the program under test, and Fleet how its replicas run.
	Binary string
	Fleet  controlplane.StowageOptions
	// ReviewTimeout is for how many seconds the API server waits for a webhook. With the default of an installation, 5, pods bypass the webhooks where
	// other programs take the processors. Suites that show what happens then set it before [Run].
	ReviewTimeout int64 = 20
	// Server is what the API server is able to do.
	Server apisupport.Server
)

// NeedsResize skips a test where the API server does not resize running pods.
func NeedsResize(t *testing.T) {
	t.Helper()
	if !Server.Resize {
		t.Skip("LACKS: in-place resizing (pods/resize)")
	}
}

// How long tests wait for a condition, and how often they look. The wait is for a machine with other work: no test measures time by it.
const (
	WaitTimeout  = 2 * time.Minute
	WaitInterval = 100 * time.Millisecond
	// ViewInterval is for `stowage status` and the like, which read a whole namespace.
	ViewInterval = 400 * time.Millisecond
)

// NeedsVersion skips a test that needs something of a later Kubernetes, such as 1.34.
func NeedsVersion(t *testing.T, version, what string) {
	t.Helper()
	if !AtLeast(version) {
		t.Skipf("LACKS: %s (since %s)", what, version)
	}
}

// AtLeast reports whether the API server is of a version or a later one.
func AtLeast(version string) bool {
	return utilversion.MustParseGeneric(Server.Version).AtLeast(utilversion.MustParseGeneric(version))
}

// Run builds Stowage, starts the cluster with nodes and two replicas, and runs the tests in it. With audit,
// the API server logs its requests. It returns the exit status.
func Run(audit bool, test func(ctx context.Context) (int, error)) int {
	code, err := run(audit, test)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the cluster:", err)
		return 1
	}
	return code
}

func run(audit bool, test func(ctx context.Context) (int, error)) (int, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // tests cut requests off on purpose
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	if Repo, err = controlplane.RepositoryRoot(); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "stowage-e2e-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	Binary = filepath.Join(dir, "stowage")
	if err := controlplane.BuildStowage(ctx, Repo, Binary); err != nil {
		return 0, err
	}
	if Cluster, err = controlplane.Start(ctx, controlplane.Config{Root: Repo, Dir: dir, Audit: audit, NoSchedulerEvents: true}); err != nil {
		return 0, err
	}
	defer Cluster.Stop()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		Cluster.Stop()
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()
	if Server, err = apisupport.Discover(Cluster.Clientset.Discovery()); err != nil {
		return 0, err
	}
	if err := Cluster.ApplyFiles(ctx, filepath.Join(Repo, "hack", "nodes", "pools.yaml")); err != nil {
		return 0, err
	}
	for _, name := range []string{"kata-remote", "kata-other", TypedClass, "runc"} {
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: name}
		if name == "kata-remote" {
			class.Overhead = &nodev1.Overhead{PodFixed: testkit.ResourceList("cpu=250m,memory=120Mi")}
		}
		if err := Cluster.Client.Create(ctx, class); err != nil {
			return 0, err
		}
	}
	Fleet = controlplane.StowageOptions{
		Binary: Binary, Replicas: 2, Controllers: 1,
		Timeout: ReviewTimeout,
		// Repairs come soon, so that tests do not wait for them.
		Args: []string{
			"--repair-quiet=500ms", "--repair-resync=2s", "--repair-backoff=1s", "--rebalance-cooldown=200ms", "--eviction-rate=20",
			"--cluster-autoscaler-node-groups=" + NodeGroup + "-*=" + NodeGroup + "=spot", "--probe-interval=3s", "--probe-max-interval=12s", "--resize-jitter=200ms", "--resize-backoff=1s", "--resize-rate=50", "--peerpods-try-interval=5s", "--peerpods-try-max-interval=20s",
		},
		Env: []string{"TARGET_RUNTIMECLASS=kata-remote, kata-other, " + TypedClass, "LOG_LEVEL=DEBUG", "BLOCKLISTED_NAMESPACE_LIST=blocked, blocked-too"},
	}
	if err := Cluster.ApplyFiles(ctx, filepath.Join(Repo, "config", "clusterautoscaler", "role.yaml")); err != nil {
		return 0, err
	}
	if err := Cluster.StartStowage(ctx, Fleet); err != nil {
		return 0, err
	}
	if err := Cluster.WaitForNodes(ctx, 9); err != nil {
		return 0, err
	}
	return test(ctx)
}

// TypedClass is the RuntimeClass of peer pods whose types of VMs a VMCatalog of a test lists.
const TypedClass = "kata-typed"

// NodeGroup begins the names of the node groups of a cluster autoscaler, which a test plays. Their nodes have the label
// NodeGroup=spot.
const NodeGroup = "e2e-node-group"

// Tenant is a namespace of a test's own and a client that notes warnings.
type Tenant struct {
	client.Client
	Namespace string
	Config    *rest.Config
	Warnings  controlplane.Warnings

	mu   sync.Mutex
	seen map[types.UID]string // pods that looks have shown, by their app
}

// NewTenant makes a namespace with the given labels, written as key=value.
func NewTenant(t *testing.T, labels ...string) *Tenant {
	t.Helper()
	return NewTenantIn(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, labels...)
}

// NewTenantIn makes the given namespace.
func NewTenantIn(t *testing.T, ns *corev1.Namespace, labels ...string) *Tenant {
	t.Helper()
	n := &Tenant{Config: rest.CopyConfig(Cluster.Config)}
	n.Config.WarningHandler = &n.Warnings
	c, err := client.New(n.Config, client.Options{Scheme: controlplane.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	n.Client = c
	ns.Labels = map[string]string{}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		ns.Labels[k] = v
	}
	Must(t, c.Create(t.Context(), ns))
	n.Namespace = ns.Name
	t.Cleanup(n.clear)
	Eventually(t, "the namespace has its service account", func() (bool, error) {
		err := c.Get(t.Context(), n.Key("default"), &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
	return n
}

// clear removes what makes pods, and the pods that nothing makes. The namespace stays: to delete one costs the API server some 150 requests, a third
// of what a test costs it.
func (n *Tenant) clear() {
	for _, o := range []client.Object{
		&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.ReplicaSet{}, &batchv1.CronJob{}, &batchv1.Job{}, &corev1.ReplicationController{},
		&versprei.PodDistributor{}, &stowage.SpreadPolicy{}, &stowage.ScaleDownPolicy{}, &corev1.Pod{},
	} {
		// Pods go at once: the garbage collector and kwok have nothing to ask for.
		_ = Cluster.Client.DeleteAllOf(context.Background(), o, client.InNamespace(n.Namespace), client.PropagationPolicy(metav1.DeletePropagationBackground), client.GracePeriodSeconds(0))
	}
}

// Key names an object of the namespace.
func (n *Tenant) Key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: n.Namespace, Name: name}
}

// Must ends the test if there is an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits for a condition. An error that is no conflict ends the test.
func Eventually(t *testing.T, what string, condition func() (bool, error)) {
	t.Helper()
	EventuallyWithin(t, WaitTimeout, what, condition)
}

// EventuallyWithin is Eventually with a deadline of its own.
func EventuallyWithin(t *testing.T, deadline time.Duration, what string, condition func() (bool, error)) {
	t.Helper()
	EventuallyEvery(t, WaitInterval, deadline, what, condition)
}

// EventuallyEvery is EventuallyWithin for a condition that is expensive to ask.
func EventuallyEvery(t *testing.T, interval, deadline time.Duration, what string, condition func() (bool, error)) {
	t.Helper()
	if err := Poll(t.Context(), interval, deadline, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// Poll asks for a condition until it holds, an error that is no conflict comes, or time is up. It asks after the interval, and then less and less
// often, up to a fifth as often: what takes seconds is not known much later, and tests that wait leave the processors to others.
func Poll(ctx context.Context, interval, deadline time.Duration, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	waits := wait.Backoff{Duration: interval, Factor: 1.2, Steps: 9, Cap: 5 * interval}
	return waits.DelayFunc().Until(ctx, true, false, func(context.Context) (bool, error) {
		ok, err := condition()
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return ok, err
	})
}

// Metric reads the sum of a metric's samples whose labels contain a text.
func Metric(t *testing.T, r *controlplane.Replica, name, labels string) float64 {
	t.Helper()
	return MetricAt(t, r.MetricsURL, name, labels)
}

// MetricAt does the same for any program, and for labels that contain each of some texts.
func MetricAt(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	var expressions []string
	for _, text := range labels {
		expressions = append(expressions, regexp.QuoteMeta(text))
	}
	sum, err := controlplane.MetricAt(url, name, expressions...)
	Must(t, err)
	return sum
}

// RestoreFleet gives the next test a fresh set of replicas.
func RestoreFleet(t *testing.T) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := Cluster.StartStowage(ctx, Fleet); err != nil {
			t.Errorf("restore the replicas: %v", err)
		}
	})
}
