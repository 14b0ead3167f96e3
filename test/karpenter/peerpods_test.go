package karpenter

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/test/suite"
)

// A NodeOverlay tells Karpenter how many VMs its nodes will have, so that it makes nodes for peer pods.
func TestPeerPods(t *testing.T) {
	t.Parallel()
	p := pool{"peer-pods", "on-demand", "WhenEmpty", "c4"}
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), `
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: peer-pods}
spec:
  requirements: [{key: `+poolLabel+`, operator: In, values: [peer-pods]}]
  capacity: {kata.peerpods.io/vm: "10"}
`))
	p.create(t)
	n := suite.NewTenant(t)
	const pods = 25
	d := requests(n.Deployment("vm", pods, nil), "2", "4Gi")
	class := "kata-remote"
	d.Spec.Template.Spec.RuntimeClassName = &class
	d.Spec.Template.Spec.NodeSelector = map[string]string{poolLabel: p.name}
	suite.Must(t, n.Create(t.Context(), d))
	n.Ready(t, "vm", pods)
	nodes := p.nodes(t)
	if len(nodes) > 4 {
		t.Errorf("%d nodes for %d peer pods, ten to a node", len(nodes), pods)
	}
	for _, node := range nodes {
		if vms := node.Status.Allocatable[corev1.ResourceName("kata.peerpods.io/vm")]; vms.Cmp(resource.MustParse("10")) != 0 {
			t.Errorf("node %s advertises %s VMs", node.Name, vms.String())
		}
	}
}
