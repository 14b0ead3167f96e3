package resources

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// vms waits until a node says that it has this many VMs, in capacity and in allocatable;
// "" is nothing.
func (n *tenant) vms(t *testing.T, node *corev1.Node, want string) {
	t.Helper()
	text := func(list corev1.ResourceList) string {
		if q, ok := list[stowage.DefaultVMResource]; ok {
			return q.String()
		}
		return ""
	}
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s has %s", node.Name, got)
		}
	}()
	eventually(t, fmt.Sprintf("%s has %q VMs", node.Name, want), func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(node), node)
		_, ours := node.Annotations[stowage.PeerPodsCapacityAnnotation]
		got = fmt.Sprintf("capacity %q, allocatable %q, ours %v", text(node.Status.Capacity), text(node.Status.Allocatable), ours)
		return text(node.Status.Capacity) == want && text(node.Status.Allocatable) == want && ours == (want != ""), err
	})
}

// peerPodsConfig sets the limit of all nodes; nil removes the ConfigMap.
func (n *tenant) peerPodsConfig(t *testing.T, data map[string]string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: "peer-pods-cm"}, Data: data}
	if data == nil {
		must(t, client.IgnoreNotFound(n.Delete(t.Context(), cm)))
		return
	}
	err := n.Create(t.Context(), cm)
	if apierrors.IsAlreadyExists(err) {
		err = n.Update(t.Context(), cm)
	}
	must(t, err)
}

// eventAbout waits until an event with a reason is about an object.
func eventAbout(t *testing.T, namespace, name string, reason stowage.EventReason) {
	t.Helper()
	eventually(t, "an event says so", func() (bool, error) {
		var list corev1.EventList
		err := cluster.Client.List(t.Context(), &list, client.InNamespace(namespace))
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == string(reason) && e.InvolvedObject.Name == name }), err
	})
}

// uses waits until the leader says that a node may have a number of VMs and has another.
func uses(t *testing.T, node *corev1.Node, capacity, used float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the metrics say that %v VMs of %v are used", used, capacity), func() (bool, error) {
		var has, may float64
		for _, r := range cluster.Controllers() {
			label := fmt.Sprintf("node=%q", node.Name)
			has += metric(t, r, "stowage_peerpods_vm_used", label)
			may += metric(t, r, "stowage_peerpods_vm_capacity", label)
		}
		return has == used && may == capacity, nil
	})
}

// Nodes say how many VMs they may have, and follow every change of that.
func TestPeerPodCapacity(t *testing.T) {
	n := newTenant(t)
	t.Cleanup(func() {
		_ = cluster.Client.Delete(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: "peer-pods-cm"}})
	})
	limit := func(text string) map[string]string { return map[string]string{stowage.PeerPodsLimitKey: text} }
	node := n.SizedNode(t, "a", "cpu=4")
	n.vms(t, node, "10")

	t.Run("the ConfigMap", func(t *testing.T) {
		n.peerPodsConfig(t, limit("7"))
		n.vms(t, node, "7")
		n.vms(t, n.SizedNode(t, "later", "cpu=4"), "7")
		n.peerPodsConfig(t, limit(" 12\n"))
		n.vms(t, node, "12")
	})
	for i, bad := range []string{"ten", "-1", "1e9", "1000000000", ""} {
		t.Run(fmt.Sprintf("a limit of %q", bad), func(t *testing.T) {
			n.peerPodsConfig(t, limit(bad))
			eventAbout(t, controlplane.StowageNamespace, "peer-pods-cm", stowage.EventInvalidLimit)
			eventually(t, "a metric says so", func() (bool, error) {
				sum := 0.0
				for _, r := range cluster.Controllers() {
					sum += metric(t, r, "stowage_peerpods_limit_invalid", "")
				}
				return sum == 1, nil
			})
			n.vms(t, n.SizedNode(t, fmt.Sprintf("while-%d", i), "cpu=4"), "12")
			n.vms(t, node, "12")
		})
	}
	t.Run("no ConfigMap", func(t *testing.T) {
		n.peerPodsConfig(t, map[string]string{"OTHER": "1"})
		n.vms(t, node, "10")
		n.peerPodsConfig(t, limit("3"))
		n.vms(t, node, "3")
		n.peerPodsConfig(t, nil)
		n.vms(t, node, "10")
	})
	t.Run("an annotation on the node", func(t *testing.T) {
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":"2"}}}`)
		n.vms(t, node, "2")
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":"many"}}}`)
		n.vms(t, node, "10")
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":"0"}}}`)
		n.vms(t, node, "")
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":null}}}`)
		n.vms(t, node, "10")
	})
	t.Run("a kubelet that starts", func(t *testing.T) {
		must(t, n.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"kata.peerpods.io/vm":"0"},"allocatable":{"kata.peerpods.io/vm":"0"}}}`))))
		n.vms(t, node, "10")
		must(t, n.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"kata.peerpods.io/vm":null},"allocatable":{"kata.peerpods.io/vm":null}}}`))))
		n.vms(t, node, "10")
	})
	t.Run("another client changes it", func(t *testing.T) {
		must(t, n.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"kata.peerpods.io/vm":"3"}}}`))))
		n.vms(t, node, "10")
		eventAbout(t, "default", node.Name, stowage.EventCapacityContested)
	})
	t.Run("more VMs than a new limit", func(t *testing.T) {
		busy := n.SizedNode(t, "busy", "cpu=4,memory=8Gi")
		n.vms(t, busy, "10")
		var pods []*corev1.Pod
		for i := range 3 {
			p := suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1", "cpu=1").Obj()
			p.Name = fmt.Sprintf("vm-%d", i)
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: busy.Name}
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			must(t, n.Create(t.Context(), p))
			pods = append(pods, p)
		}
		uses(t, busy, 10, 3)
		n.MergePatch(t, busy, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":"1"}}}`)
		n.vms(t, busy, "1")
		eventAbout(t, "default", busy.Name, stowage.EventOverCapacity)
		uses(t, busy, 1, 3)
		must(t, n.Delete(t.Context(), pods[0]))
		uses(t, busy, 1, 2) // the others stay
		for _, p := range pods[1:] {
			must(t, n.Delete(t.Context(), p))
		}
		uses(t, busy, 1, 0)
		must(t, n.Delete(t.Context(), busy))
		uses(t, busy, 0, 0)
	})
	t.Run("a node that stops matching", func(t *testing.T) {
		n.MergePatch(t, node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
		n.vms(t, node, "")
		n.MergePatch(t, node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":null}}}`)
		n.vms(t, node, "10")
	})
	t.Run("an amount of another client's", func(t *testing.T) {
		foreign := n.SizedNode(t, "foreign", "cpu=4,kata.peerpods.io/vm=3")
		eventAbout(t, "default", foreign.Name, stowage.EventForeignCapacity)
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
		if q := foreign.Status.Allocatable[stowage.DefaultVMResource]; q.Value() != 3 {
			t.Errorf("it has %s VMs", q.String())
		}
		n.MergePatch(t, foreign, `{"metadata":{"annotations":{"stowage.dev/peerpods-capacity":"take it"}}}`) // handed over
		n.vms(t, foreign, "10")
	})
	t.Run("the leader dies", func(t *testing.T) {
		suite.TwoControllers(t)
		cluster.Controllers()[0].Kill()
		n.peerPodsConfig(t, limit("6"))
		n.vms(t, node, "6")
		n.peerPodsConfig(t, limit("six"))
		for _, r := range cluster.Processes() {
			r.Kill()
		}
		must(t, cluster.StartStowage(t.Context(), fleet))
		// Nobody remembers the last good value but the nodes.
		n.vms(t, node, "6")
		waiting := n.SizedNode(t, "waiting", "cpu=4") // no default where there was a limit
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":"5"}}}`)
		n.vms(t, node, "5")
		n.vms(t, waiting, "")
		n.MergePatch(t, node, `{"metadata":{"annotations":{"stowage.dev/peerpods-limit":null}}}`)
		n.peerPodsConfig(t, limit("4"))
		n.vms(t, node, "4")
		n.vms(t, waiting, "4")
	})
}
