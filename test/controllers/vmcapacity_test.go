package controllers

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// vms returns what a node advertises, or "".
func (n *tenant) vms(t *testing.T, node *corev1.Node) string {
	t.Helper()
	must(t, n.get(t, node))
	if q, ok := node.Status.Capacity[stowage.DefaultVMResource]; ok {
		return q.String()
	}
	return ""
}

// advertise sets what a node advertises, as a kubelet or another client does.
func (n *tenant) advertise(t *testing.T, node *corev1.Node, amount int) {
	t.Helper()
	entry := fmt.Sprintf(`{%q:"%d"}`, stowage.DefaultVMResource, amount)
	must(t, n.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"capacity":%s,"allocatable":%[1]s}}`, entry))))
}

// Another client that keeps changing a node's amount of VMs is answered less and less often, and
// with one event.
func TestContestedCapacity(t *testing.T) {
	n := newTenant(t)
	node := n.node(t, "a", "cpu=4")
	restored := func() bool { return n.vms(t, node) == "10" }
	eventually(t, "the node advertises VMs", restored)

	n.advertise(t, node, 0) // a kubelet that starts
	eventually(t, "the amount is put back", restored)
	if got := n.events(t, node, stowage.EventCapacityContested); got != 0 {
		t.Errorf("a kubelet that starts makes %d events", got)
	}
	var waits []time.Duration
	for range 6 {
		n.advertise(t, node, 3)
		before := clock.Now()
		eventually(t, "the amount is put back", restored)
		waits = append(waits, clock.Since(before))
	}
	// It is the seventh time, so it comes 8 s after the one before.
	if waits[5] < 6*time.Second {
		t.Errorf("another client's changes were undone after %v", waits)
	}
	eventually(t, "an event says so", func() bool { return n.events(t, node, stowage.EventCapacityContested) > 0 })
	if got := n.events(t, node, stowage.EventCapacityContested); got != 1 {
		t.Errorf("%d events", got)
	}
}

// daemon stands in for cloud-api-adaptor on one node: it adds the amount as it starts, with its name in an
// annotation, and as it stops removes the amount if that name is still there (pkg/adaptor/k8sops/node.go there).
type daemon struct {
	*tenant
	node *corev1.Node
	pod  *corev1.Pod
	name string
}

const daemonOwner = "kata.peerpods.io/caa-owner"

func (d *daemon) starts(t *testing.T, name string) {
	t.Helper()
	d.name = name
	must(t, d.Patch(t.Context(), d.node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, daemonOwner, name))))
	must(t, d.Status().Patch(t.Context(), d.node, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/status/capacity/kata.peerpods.io~1vm","value":"10"}]`))))
	d.ready(t, corev1.ConditionTrue)
}

func (d *daemon) stops(t *testing.T) {
	t.Helper()
	must(t, d.get(t, d.node))
	if _, there := d.node.Status.Capacity[stowage.DefaultVMResource]; there && d.node.Annotations[daemonOwner] == d.name {
		must(t, client.IgnoreNotFound(d.Status().Patch(t.Context(), d.node, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/status/capacity/kata.peerpods.io~1vm"}]`)))))
	}
	d.ready(t, corev1.ConditionFalse)
}

func (d *daemon) ready(t *testing.T, status corev1.ConditionStatus) {
	t.Helper()
	must(t, d.get(t, d.pod))
	d.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	must(t, d.Status().Update(t.Context(), d.pod))
}

// Where a daemon makes the VMs, a node advertises them while its daemon is Ready, whatever the daemon itself
// writes, and nobody is told of it 20 times.
func TestCapacityFollowsTheDaemon(t *testing.T) {
	n := newTenant(t)
	node, other := n.node(t, "a", "cpu=4"), n.node(t, "b", "cpu=4")
	eventually(t, "the nodes advertise VMs", func() bool { return n.vms(t, node) == "10" && n.vms(t, other) == "10" })
	must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"7"}}}`, stowage.PeerPodsLimitAnnotation))))

	labels := map[string]string{"app": "cloud-api-adaptor"}
	spec := testkit.Pod("").Container("c", "", "").Obj().Spec
	spec.HostNetwork = true
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "cloud-api-adaptor"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
	// One of a tenant's namespace, which nobody has named, takes no VM from any node.
	forged := set.DeepCopy()
	forged.Namespace = metav1.NamespaceDefault
	must(t, n.Create(t.Context(), forged))
	t.Cleanup(func() { _ = n.Delete(context.Background(), forged) })
	forged.Status.CurrentNumberScheduled = 1
	must(t, n.Status().Update(t.Context(), forged))
	must(t, n.Create(t.Context(), set))
	t.Cleanup(func() { _ = n.Delete(context.Background(), set) })
	d := &daemon{tenant: n, node: node, pod: n.pod(t, set, testkit.Pod("").Label("app", "cloud-api-adaptor").Container("c", "", ""), node)}
	set.Status.CurrentNumberScheduled = 1
	must(t, n.Status().Update(t.Context(), set))
	eventually(t, "a node without the daemon advertises nothing", func() bool { return n.vms(t, other) == "" })

	for i := range 20 {
		d.starts(t, fmt.Sprint("pod-", i))
		eventually(t, "a node whose daemon is Ready advertises its VMs", func() bool { return n.vms(t, node) == "7" })
		d.stops(t)
		eventually(t, "a node whose daemon is not Ready advertises nothing", func() bool { return n.vms(t, node) == "" })
	}
	for _, reason := range []stowage.EventReason{stowage.EventForeignCapacity, stowage.EventCapacityContested, stowage.EventOverCapacity} {
		if got := n.events(t, node, reason); got > 1 {
			t.Errorf("%d events %s", got, reason)
		}
	}

	must(t, n.Delete(t.Context(), set)) // the forged one is still there
	eventually(t, "without the DaemonSet every node advertises VMs", func() bool { return n.vms(t, node) == "7" && n.vms(t, other) == "10" })
}
