package shortages

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// 200 peer pods, whose cheapest type cannot be made any more; three replicas; and the leader is killed while pods move. All pods run, on the next
// cheapest type, and none that runs is touched.
func TestTypeThatCannotBeMade(t *testing.T) {
	suite.RestoreFleet(t)
	o := suite.Fleet
	o.Replicas, o.Controllers = 3, 2
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
	n := suite.NewTenant(t)
	node := n.PoolNode(t, "vms", "0", 1000)
	suite.Must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+stowage.PeerPodsLimitAnnotation+`":"300"}}}`))))
	a := suite.NewAdaptor(t, 2*time.Second)
	vmType := func(name, price string) stowage.VMType {
		return stowage.VMType{Name: name, VCPUs: 2, Memory: resource.MustParse("4Gi"), PricePerHour: price}
	}
	catalog := &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: "shortages"}, Spec: stowage.VMCatalogSpec{
		RuntimeClasses: []string{suite.TypedClass}, FailAfter: "30s", Types: []stowage.VMType{vmType("dear", "0.3"), vmType("cheap", "0.1"), vmType("middle", "0.2")},
	}}
	suite.Must(t, n.Create(t.Context(), catalog))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), catalog) })
	suite.Eventually(t, "the catalog holds", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(catalog), catalog)
		return catalog.Status.ObservedGeneration > 0, err
	})
	deploy := func(name string, replicas int) *appsv1.Deployment {
		d := n.Deployment(name, replicas, nil)
		spec := &d.Spec.Template.Spec
		spec.RuntimeClassName, spec.NodeName, spec.NodeSelector = new(suite.TypedClass), "", map[string]string{corev1.LabelHostname: node.Name}
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		spec.Containers[0].Resources.Limits = testkit.ResourceList("cpu=1,memory=2Gi")
		a.Own(&d.Spec.Template)
		suite.Must(t, n.Create(t.Context(), d))
		return d
	}
	deploy("runs", 20)
	running := map[types.UID]bool{}
	for _, p := range n.Ready(t, "runs", 20) {
		running[p.UID] = true
	}
	a.Refuse("cheap", true)
	deploy("web", 200)
	suite.EventuallyWithin(t, 2*time.Minute, "pods begin to move", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		moved := 0
		for i := range pods {
			if pods[i].Annotations[stowage.MachineTypeAnnotation] == "middle" {
				moved++
			}
		}
		return moved > 20 && moved < 180, err
	})
	victim := suite.Cluster.Controllers()[0]
	for _, r := range suite.Cluster.Controllers() {
		if suite.Metric(t, r, "stowage_peerpods_types_closed", "") > 0 {
			victim = r
		}
	}
	victim.Kill()
	begin := time.Now()
	suite.EventuallyWithin(t, 4*time.Minute, "all pods run", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		ready := 0
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning {
				ready++
			}
		}
		return len(pods) == 200 && ready == 200, err
	})
	t.Logf("all pods run %.0f s after the leader was killed; VMs made: %v", time.Since(begin).Seconds(), a.Made())
	for _, p := range n.Ready(t, "runs", 20) {
		if !running[p.UID] {
			t.Error("a pod that ran was replaced")
		}
	}
	if made := a.Made(); made["cheap"] != 20 || made["middle"] != 200 || made["dear"] != 0 {
		t.Errorf("VMs made are %v; want 20 of cheap, from before, and 200 of middle", made)
	}
	suite.Eventually(t, "the status counts them", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(catalog), catalog)
		return catalog.Status.VMs == 220 && catalog.Status.PricePerHour == "42" && fmt.Sprint(len(catalog.Status.Closed)) == "1", err
	})
	suite.Must(t, suite.Cluster.Restart(t.Context(), victim))
}
