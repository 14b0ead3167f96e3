package e2e

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A constraint that asks for three zones would let one pod of each zone run, because the pin of each pod leaves one zone eligible. All of
// them run, and the division is exact: of a PodDistributor for a Deployment and a StatefulSet, of a policy, and where zones are the pools.
func TestMinDomains(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range suite.Zones {
			n.ZoneNode(t, pool, zone, 50)
		}
	}
	constrain := func(template *corev1.PodTemplateSpec) {
		template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, MinDomains: new(int32(3)), TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: template.Labels},
		}}
	}
	of := func(name string, od, spot []int64) {
		t.Helper()
		replicas := 0
		for _, in := range slices.Concat(od, spot) {
			replicas += int(in)
		}
		eventuallyWithin(t, 2*suite.WaitTimeout, "all pods of "+name+" run where they are due", func() (bool, error) {
			cells, err := n.CellsOf(t.Context(), name, replicas)
			return err == nil && slices.Equal(cells["od"], od) && slices.Equal(cells["spot"], spot), nil
		})
	}

	// 1. A Deployment and a StatefulSet with a PodDistributor.
	d := n.OverZones(t, "web", 12, nil)
	constrain(&d.Spec.Template)
	must(t, n.Create(t.Context(), d))
	n.OverZones(t, "db", 12, func(spec *versprei.PodDistributorSpec) { spec.Target.Kind = "StatefulSet" })
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(12)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, suite.PodTemplate("db")
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	suite.OneCPU(&set.Spec.Template.Spec)
	constrain(&set.Spec.Template)
	must(t, n.Create(t.Context(), set))

	// 2. A policy.
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "fleet"}}, Across: suite.Across(),
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	p.Spec.Pools[0].Base = 1
	must(t, n.Create(t.Context(), p))
	n.Follows(t, map[string]string{"app": "fleet"}, p.UID, p.Generation)
	fleet := n.Deployment("fleet", 12, nil)
	suite.OneCPU(&fleet.Spec.Template.Spec)
	constrain(&fleet.Spec.Template)
	must(t, n.Create(t.Context(), fleet))

	// 3. Zones are the pools.
	zones := n.Shortage(t, "zones", 9, func(spec *versprei.PodDistributorSpec) {
		spec.Distribution = nil
		for _, zone := range suite.Zones {
			pool := n.Pool("od", 1)
			pool.Name, pool.NodeLabel[corev1.LabelTopologyZone] = zone, versprei.LabelValue(zone)
			spec.Distribution = append(spec.Distribution, pool)
		}
	})
	constrain(&zones.Spec.Template)
	must(t, n.Create(t.Context(), zones))

	for _, name := range []string{"web", "db", "fleet"} {
		of(name, []int64{1, 1, 1}, []int64{3, 3, 3})
	}
	n.InPools(t, "zones", "a=3 b=3 c=3")
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for i := range pods {
		if got := pods[i].Annotations[stowage.MinDomainsAnnotation]; got != corev1.LabelTopologyZone+"=3" || pods[i].Spec.TopologySpreadConstraints[0].MinDomains != nil {
			t.Errorf("pod %s keeps %q, and has %v", pods[i].Name, got, pods[i].Spec.TopologySpreadConstraints[0].MinDomains)
		}
	}

	// 4. It scales and rolls out.
	n.Scale(t, d, 24)
	n.Ready(t, "web", 24)
	must(t, n.Get(t.Context(), n.Key("web"), d))
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	if cells, err := n.CellsOf(t.Context(), "web", 24); err != nil || cells["od"][0]+cells["od"][1]+cells["od"][2] != n.Distribution(t, "web").Target(0, 24) {
		t.Errorf("after a rollout, the pods are in %v: %v", cells, err)
	}
}
