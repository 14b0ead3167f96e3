// Package controllers tests Stowage's controllers against a real API server, with a clock that the
// test moves. Nothing else is there that schedules pods, runs them or changes objects, so a test
// plays each of these and sees all that the controllers write.
//
// That the controllers do nothing is shown by reconciliations that ran and changed no object.
package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// All tests share an API server. Each runs a process of Stowage of its own in this program, with a clock of
// its own, so they do not run in parallel.
var (
	cluster *controlplane.Cluster
	account string // a kubeconfig with the rights of Stowage's ServiceAccount
	clock   *clocktesting.FakeClock
	key     ledger.Key
)

const (
	waitTimeout  = 2 * time.Minute
	waitInterval = 10 * time.Millisecond
)

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the API server:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	root, err := controlplane.RepositoryRoot()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "stowage-controllers-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if cluster, err = controlplane.Start(ctx, controlplane.Config{Root: root, Dir: dir, APIOnly: true}); err != nil {
		return 0, err
	}
	defer cluster.Stop()
	if err := install(ctx, root); err != nil {
		return 0, err
	}
	account = filepath.Join(dir, "stowage.kubeconfig")
	if err := cluster.WriteKubeconfig(account, "system:serviceaccount:"+controlplane.StowageNamespace+":stowage-controllers",
		"system:serviceaccounts", "system:serviceaccounts:"+controlplane.StowageNamespace); err != nil {
		return 0, err
	}

	if key, err = seats.SharedKey(ctx, cluster.Client, types.NamespacedName{Namespace: controlplane.StowageNamespace, Name: "stowage-seats"}); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// serve runs the controllers of Stowage until the test ends. Its controllers' time begins now.
func serve(t *testing.T, daemons string) {
	t.Helper()
	clock = clocktesting.NewFakeClock(time.Now())
	o := server.DefaultOptions()
	o.Kubeconfig, o.Controllers, o.LeaderElection, o.ShutdownDelay = account, true, false, 0
	o.MetricsAddress, o.HealthAddress = "0", "0"
	o.EvictionRate, o.VM.Capacity.DaemonNamespace = 100, daemons
	run(t, o, nil)
}

// run runs a process of Stowage until the test ends. More adds to its environment, if it is not nil.
func run(t *testing.T, o server.Options, more func(*server.Environment)) {
	t.Helper()
	env := server.Environment{Lookup: os.LookupEnv, Clock: clock, Time: clock, Metrics: prometheus.NewRegistry()}
	if more != nil {
		more(&env)
	}
	var level slog.LevelVar
	reloader := server.NewReloader(o, pflag.NewFlagSet("", pflag.ContinueOnError), &level, logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, reloader, env)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// install applies Stowage's kinds, its namespace, and a registration that no request gets through
// by: every pod bypasses the webhook.
func install(ctx context.Context, root string) error {
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil {
		return err
	}
	rights, err := filepath.Glob(filepath.Join(root, "config", "rbac", "[^k]*.yaml")) // all but the kustomization
	if err != nil {
		return err
	}
	if err := cluster.ApplyFiles(ctx, slices.Concat(files, []string{filepath.Join(root, "config", "manager", "namespace.yaml")}, rights)...); err != nil {
		return err
	}
	if err := cluster.AwaitKinds(ctx); err != nil {
		return err
	}
	registrations, err := controlplane.ReadObjects(filepath.Join(root, "config", "webhook", "manifests.yaml"))
	if err != nil {
		return err
	}
	for _, r := range registrations {
		hooks, _, err := unstructured.NestedSlice(r.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, hook := range hooks {
			hook.(map[string]any)["clientConfig"] = map[string]any{"url": "https://localhost:1/"}
		}
		if err := unstructured.SetNestedSlice(r.Object, hooks, "webhooks"); err != nil {
			return err
		}
	}
	return cluster.Apply(ctx, registrations...)
}

// tenant is a namespace of a test's own.
type tenant struct {
	client.Client
	namespace string
}

func newTenant(t *testing.T) *tenant {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, cluster.Client.Create(t.Context(), ns))
	serve(t, ns.Name)
	n := &tenant{Client: cluster.Client, namespace: ns.Name}
	must(t, n.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "default"}}))
	return n
}

// node makes a ready node with a label pool.
func (n *tenant) node(t *testing.T, pool, allocatable string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"pool": pool}}}
	must(t, n.Create(t.Context(), node))
	t.Cleanup(func() { _ = n.Delete(context.Background(), node) })
	before := node.DeepCopy()
	node.Status.Allocatable = testkit.ResourceList(allocatable)
	node.Status.Capacity = node.Status.Allocatable.DeepCopy()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(t, n.Status().Patch(t.Context(), node, client.MergeFrom(before))) // another controller writes nodes, too
	// The API server itself taints a node until a controller sees that it is ready.
	must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))))
	return node
}

// pod makes a pod of an owner, which runs and is ready if it has a node.
func (n *tenant) pod(t *testing.T, of client.Object, b *testkit.PodBuilder, node *corev1.Node) *corev1.Pod {
	t.Helper()
	p := b.Namespace(n.namespace).Obj()
	p.Name, p.GenerateName = "", of.GetName()+"-"
	gvk, err := n.GroupVersionKindFor(of)
	must(t, err)
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of, gvk)}
	p.Spec.TerminationGracePeriodSeconds = new(int64(0)) // no kubelet ends it
	if node != nil {
		p.Spec.NodeName = node.Name
	}
	must(t, n.Create(t.Context(), p))
	if node != nil {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Ready: true, Resources: c.Resources.DeepCopy()})
		}
		must(t, n.Status().Update(t.Context(), p))
	}
	return p
}

// replicaSet makes a ReplicaSet, of which the test makes the pods.
func (n *tenant) replicaSet(t *testing.T, replicas int32, annotations map[string]string) *appsv1.ReplicaSet {
	t.Helper()
	labels := map[string]string{"app": "web"}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "web", Annotations: annotations},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}, Spec: testkit.Pod("").Container("c", "", "").Obj().Spec},
		},
	}
	must(t, n.Create(t.Context(), rs))
	rs.Status.Replicas = replicas
	must(t, n.Status().Update(t.Context(), rs))
	return rs
}

// template is the pod of the ReplicaSet.
func template(rs *appsv1.ReplicaSet) *testkit.PodBuilder {
	b := testkit.Pod("").Container("c", "", "")
	for k, v := range rs.Spec.Template.Labels {
		b.Label(k, v)
	}
	for k, v := range rs.Spec.Template.Annotations {
		b.Annotation(k, v)
	}
	return b
}

// get reads an object again.
func (n *tenant) get(t *testing.T, obj client.Object) error {
	t.Helper()
	return n.Get(t.Context(), client.ObjectKeyFromObject(obj), obj)
}

// gone reports whether an object is there no more.
func (n *tenant) gone(t *testing.T, obj client.Object) bool {
	t.Helper()
	err := n.get(t, obj)
	if !apierrors.IsNotFound(err) {
		must(t, err)
	}
	return err != nil
}

// events counts the events with a reason about an object. An event that is repeated counts once.
func (n *tenant) events(t *testing.T, about client.Object, reason stowage.EventReason) int {
	t.Helper()
	var list corev1.EventList
	must(t, n.List(t.Context(), &list))
	count := 0
	for _, e := range list.Items {
		if e.Reason == string(reason) && e.InvolvedObject.UID == about.GetUID() {
			count++
		}
	}
	return count
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually lets the controllers' time pass, a second at a time, until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), waitInterval, waitTimeout, true, func(context.Context) (bool, error) {
		clock.Step(time.Second)
		return condition(), nil
	})
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// reconciliations counts what a controller has done so far, by the standard metric.
func reconciliations(t *testing.T, controller string) float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	must(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == controller {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// enough is how many reconciliations show that nothing more happens.
const enough = 30

// versions returns the versions of objects as they are now.
func (n *tenant) versions(t *testing.T, objects []client.Object) string {
	t.Helper()
	var out []string
	for _, o := range objects {
		must(t, n.get(t, o))
		out = append(out, o.GetName()+" "+o.GetResourceVersion())
	}
	return strings.Join(out, "\n")
}

// reconciles waits until a controller has reconciled often enough. Cause is called again and again, to
// cause reconciliations.
func reconciles(t *testing.T, controller string, cause func()) {
	t.Helper()
	first := reconciliations(t, controller)
	err := wait.PollUntilContextTimeout(t.Context(), waitInterval, waitTimeout, true, func(context.Context) (bool, error) {
		cause()
		return reconciliations(t, controller) >= first+enough, nil
	})
	if err != nil {
		t.Fatalf("%v reconciliations of %s: %v", reconciliations(t, controller)-first, controller, err)
	}
}

// unchanged checks that a controller's next reconciliations leave objects as they are.
func (n *tenant) unchanged(t *testing.T, controller string, cause func(), objects ...client.Object) {
	t.Helper()
	before := n.versions(t, objects)
	reconciles(t, controller, cause)
	if after := n.versions(t, objects); after != before {
		t.Errorf("objects were changed; they were\n%s\nand are\n%s", before, after)
	}
}

// comesToRest waits until a controller's reconciliations leave objects as they are.
func (n *tenant) comesToRest(t *testing.T, controller string, cause func(), objects ...client.Object) {
	t.Helper()
	for range 5 {
		before := n.versions(t, objects)
		reconciles(t, controller, cause)
		if n.versions(t, objects) == before {
			return
		}
	}
	t.Errorf("%s keeps changing\n%s", controller, n.versions(t, objects))
}

// pass returns a function that lets the controllers' time pass.
func pass(d time.Duration) func() { return func() { clock.Step(d) } }
