package liveness

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Labels of nodes: which namespace they are for, by which pods select them, and by which pools do. A pod that selects by a label of
// a pool would get no seat.
const (
	ownLabel  = "liveness"
	poolLabel = "liveness-pool"
	poolsOwn  = "liveness-pools"
)

// The taints of random nodes.
var (
	arm = corev1.Taint{Key: "arm64", Effect: corev1.TaintEffectNoSchedule}
	gpu = corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}
)

func tolerates(taint corev1.Taint) corev1.Toleration {
	return corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpExists}
}

// addNode makes a node for the pods of a namespace, in a pool and a zone.
func addNode(t *testing.T, n *suite.Tenant, pool, zone, name string, cpus int, taints ...corev1.Taint) *corev1.Node {
	t.Helper()
	name = fmt.Sprintf("%s-%s-%s-%s", n.Namespace, pool, zone, name)
	size := testkit.ResourceList(fmt.Sprintf("cpu=%d,memory=64Gi,pods=110", cpus))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels: map[string]string{
				ownLabel: n.Namespace, poolsOwn: n.Namespace, poolLabel: n.Namespace + "." + pool, corev1.LabelHostname: name, corev1.LabelTopologyZone: zone,
			},
		},
		Spec:   corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Allocatable: size, Capacity: size},
	}
	suite.Must(t, n.Create(t.Context(), node))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), node) })
	return node
}

// ofPool are the labels of a pool.
func ofPool(n *suite.Tenant, pool string) map[string]string {
	return map[string]string{poolLabel: n.Namespace + "." + pool}
}

// ofZone are the labels of a pool that is a zone.
func ofZone(n *suite.Tenant, zone string) map[string]string {
	return map[string]string{poolsOwn: n.Namespace, corev1.LabelTopologyZone: zone}
}
