package serving

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// A process lists and watches each kind once: each watch costs the API server, and memory. A further one fails this test. Only the
// controllers watch more: pods with a seat, and twice peer pods; and ConfigMaps of our namespace and of the Cluster Autoscaler's. They
// list the pods of each node once, to learn how many VMs it may have.
func TestWatches(t *testing.T) {
	restoreFleet(t)
	o := fleet
	o.Replicas, o.Controllers = 1, 1
	begin := time.Now()
	must(t, cluster.StartStowage(t.Context(), o))
	eventually(t, "the new controllers lead", func() (bool, error) {
		var lease coordinationv1.Lease
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: controlplane.StowageNamespace, Name: server.LeaderLease}, &lease)
		return err == nil && lease.Spec.AcquireTime != nil && lease.Spec.AcquireTime.After(begin), err
	})
	var nodes corev1.NodeList
	must(t, cluster.Client.List(t.Context(), &nodes))
	end := time.Now()
	cluster.StopStowage() // the watches come into the log then

	type request struct{ account, verb, resource string }
	got := map[request]int{}
	resources := func(account string) (n int) {
		for r := range got {
			if r.account == account && r.verb == "watch" {
				n++
			}
		}
		return n
	}
	before := -1
	eventually(t, "the watches are in the audit log, and no more come", func() (bool, error) {
		events, err := cluster.Audit()
		same := len(events) == before
		before = len(events)
		clear(got)
		for _, e := range events {
			if (e.Verb == "watch" || e.Verb == "list") && e.RequestReceived.After(begin) && e.RequestReceived.Before(end) {
				got[request{e.Account(), e.Verb, e.ObjectRef.Resource}]++
			}
		}
		return same && resources(controlplane.Accounts[0]) >= 20 && resources(controlplane.Accounts[1]) >= 15, err
	})
	controllers := controlplane.Accounts[1]
	most := map[request]int{
		{controllers, "watch", "pods"}: 3, {controllers, "watch", "configmaps"}: 2, {controllers, "list", "configmaps"}: 2,
		{controllers, "list", "pods"}: 3 + len(nodes.Items), // servers before 1.34 are asked for a list before each watch
	}
	for r, n := range got {
		if n > max(1, most[r]) {
			t.Errorf("%s sends %d requests to %s %s, want at most %d", r.account, n, r.verb, r.resource, max(1, most[r]))
		}
	}
}
