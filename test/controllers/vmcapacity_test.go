package controllers

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
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
