package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// PoolLabel is on the nodes of one test, which repel every other pod. Its value is the test's namespace and the pool.
const PoolLabel = "shortage-test"

// PoolNode makes a node of a pool of the test's own, with room for so many pods of 1 CPU.
func (n *Tenant) PoolNode(t *testing.T, pool, name string, cpus int) *corev1.Node {
	t.Helper()
	name = strings.Join([]string{n.Namespace, pool, name}, "-")
	size := testkit.ResourceList(fmt.Sprintf("cpu=%d,memory=640Gi,pods=2000", cpus))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{PoolLabel: n.Namespace + "." + pool, corev1.LabelHostname: name},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: PoolLabel, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: size, Capacity: size},
	}
	Must(t, n.Create(t.Context(), node))
	t.Cleanup(func() { _ = Cluster.Client.Delete(context.Background(), node) })
	return node
}

// Pool is a pool of such nodes, of which other pools take the pods that have waited for 10 s.
func (n *Tenant) Pool(name string, weight int32) versprei.Pool {
	return versprei.Pool{
		Name: name, NodeLabel: map[string]versprei.LabelValue{PoolLabel: versprei.LabelValue(n.Namespace + "." + name)}, Weight: weight,
		Spill: &versprei.Spill{After: "10s"},
	}
}

// OneCPU makes a pod one of 1 CPU for such nodes.
func OneCPU(spec *corev1.PodSpec) {
	spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=1")
	spec.Tolerations = []corev1.Toleration{{Key: PoolLabel, Operator: corev1.TolerationOpExists}}
}

// Shortage makes a Deployment over two such pools, od (20) and spot (80), without creating it.
func (n *Tenant) Shortage(t *testing.T, name string, replicas int, change func(*versprei.PodDistributorSpec)) *appsv1.Deployment {
	t.Helper()
	d := n.Deployment(name, replicas, nil)
	OneCPU(&d.Spec.Template.Spec)
	pd := &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name},
		Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)},
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		},
	}
	if change != nil {
		change(&pd.Spec)
	}
	Must(t, n.Create(t.Context(), pd))
	return d
}

// InPools waits until an app has so many pods with a node in each pool, and no others.
func (n *Tenant) InPools(t *testing.T, app, want string) {
	t.Helper()
	have := ""
	defer func() {
		if have != want {
			t.Logf("%s has %s", app, have)
		}
	}()
	EventuallyWithin(t, 2*WaitTimeout, fmt.Sprintf("%s has %s", app, want), func() (bool, error) {
		var err error
		have, err = n.PoolCounts(t.Context(), app)
		return have == want, err
	})
}

// PoolCounts returns the pods of an app in each pool that have a node, and those that wait for one.
func (n *Tenant) PoolCounts(ctx context.Context, app string) (string, error) {
	pods, err := n.Pods(ctx, app)
	if err != nil {
		return "", err
	}
	n.note(app, pods)
	count := map[string]int{}
	for i := range pods {
		pool := pods[i].Labels[stowage.PoolLabel]
		if pods[i].Spec.NodeName == "" {
			pool += "(waits)"
		}
		count[pool]++
	}
	var out []string
	for _, pool := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%s=%d", pool, count[pool]))
	}
	return strings.Join(out, " "), nil
}

// note remembers pods that a look has shown.
func (n *Tenant) note(app string, pods []corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == nil {
		n.seen = map[types.UID]string{}
	}
	for i := range pods {
		n.seen[pods[i].UID] = app
	}
}

// Seen returns how many pods of an app [Tenant.PoolCounts], [Tenant.InPools] and [Tenant.Waiting] have ever seen.
func (n *Tenant) Seen(app string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range n.seen {
		if name == app {
			count++
		}
	}
	return count
}

// Waiting returns how many pods of an app in a pool have no node.
func (n *Tenant) Waiting(t *testing.T, app, pool string) (count int) {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	Must(t, err)
	n.note(app, pods)
	for i := range pods {
		if pods[i].Spec.NodeName == "" && pods[i].Labels[stowage.PoolLabel] == pool {
			count++
		}
	}
	return count
}

// WithNode returns the UIDs of the pods of an app that have a node.
func (n *Tenant) WithNode(t *testing.T, app string) map[types.UID]bool {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	Must(t, err)
	out := map[types.UID]bool{}
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			out[pods[i].UID] = true
		}
	}
	return out
}

// PoolState returns the PoolState of a workload, or nil.
func (n *Tenant) PoolState(ctx context.Context, workload types.UID) (*stowage.PoolState, error) {
	state := &stowage.PoolState{}
	err := n.Get(ctx, client.ObjectKey{Namespace: n.Namespace, Name: string(workload)}, state)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return state, err
}
