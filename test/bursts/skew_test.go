package bursts

import (
	"flag"
	"fmt"
	"maps"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// previous is an older release of the program; make test-versions builds it.
var previous = flag.String("previous", "", "path of the stowage program of the previous release")

// fleet is replicas of this release and of the previous one.
func fleet(now, before int) controlplane.StowageOptions {
	// Both releases know these settings.
	o := controlplane.StowageOptions{Binary: suite.Binary, Replicas: now, Args: []string{"--repair-quiet=500ms", "--repair-resync=2s"}}
	for range before {
		o.Others = append(o.Others, *previous)
	}
	return o
}

// Replicas of the previous release and of this one share the ledgers, during an upgrade and during a downgrade.
func TestSkew(t *testing.T) {
	if *previous == "" {
		t.Skip("it needs the program of the previous release, which make test-versions builds")
	}
	suite.RestoreFleet(t)
	start := func(o controlplane.StowageOptions) {
		t.Helper()
		suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
	}
	s := suite.StrategyOf(t, suite.Documented)

	start(fleet(0, 3))
	n := suite.NewTenant(t)
	d := n.Deployment("web", 40, suite.Annotated(suite.Documented))
	suite.Must(t, n.Create(t.Context(), d))
	n.Spreads(t, "web", 40, s)

	t.Run("side by side", func(t *testing.T) {
		start(fleet(2, 1))
		for _, replicas := range []int{150, 300, 200} {
			n.Scale(t, d, replicas)
			n.Spreads(t, "web", replicas, s)
		}
	})
	t.Run("a policy", func(t *testing.T) {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "selected"}},
			Pools: []stowage.PolicyPool{
				{Name: "on-demand", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Base: 1, Weight: 50},
				{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 50},
			},
		}}
		suite.Must(t, n.Create(t.Context(), p))
		n.Follows(t, map[string]string{"app": "selected"}, p.UID, p.Generation)
		selected := n.Deployment("selected", 60, nil)
		suite.Must(t, n.Create(t.Context(), selected))
		compiled := policy.CompilePolicy(policy.FromSpreadPolicy(p))
		suite.Must(t, compiled.Err)
		n.Spreads(t, "selected", 60, compiled.Strategy)
		n.Scale(t, d, 250)
		n.Spreads(t, "web", 250, s)
		start(fleet(2, 0))
		n.Revise(t, selected, "2")
		n.RolledOut(t, selected)
		n.Spreads(t, "selected", 60, compiled.Strategy)
		suite.Must(t, n.Delete(t.Context(), p))
	})
	t.Run("downgrade", func(t *testing.T) {
		n.Scale(t, d, 400)
		start(fleet(0, 2))
		n.Spreads(t, "web", 400, s)
	})
	t.Run("upgrade", func(t *testing.T) {
		n.Scale(t, d, 500)
		start(fleet(2, 0))
		n.Spreads(t, "web", 500, s)
		n.CostsAgree(t, "web", s)
		n.Scale(t, d, 60)
		n.Spreads(t, "web", 60, s)
	})
}

// The previous release had the domains of a workload in the order of its UID. Nothing is evicted because this one has them in the order of its name, and
// the counts stay exact as the workload grows, shrinks and rolls out.
func TestSkewOfDomains(t *testing.T) {
	if *previous == "" {
		t.Skip("it needs the program of the previous release, which make test-versions builds")
	}
	suite.RestoreFleet(t)
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), fleet(0, 2)))
	n := suite.NewTenant(t)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range suite.Zones {
			n.ZoneNode(t, pool, zone, 640)
		}
	}
	evicts := func(spec *versprei.PodDistributorSpec) { spec.Rebalance = versprei.RebalanceEvict }

	// 1. Six Deployments and eight StatefulSets, as the previous release divides them. Four of these have volumes in zones.
	class := n.Provisioner(t, corev1.LabelTopologyZone)
	deployments := map[string]*appsv1.Deployment{}
	sizes := map[string]int{}
	for i := range 6 {
		name := fmt.Sprint("web-", i)
		sizes[name] = 4 + i
		deployments[name] = n.OverZones(t, name, sizes[name], evicts)
		suite.Must(t, n.Create(t.Context(), deployments[name]))
	}
	for i := range 8 {
		name := fmt.Sprint("db-", i)
		sizes[name] = 4 + i%4
		n.OverZones(t, name, 0, func(spec *versprei.PodDistributorSpec) { evicts(spec); spec.Target.Kind = "StatefulSet" })
		template := suite.PodTemplate(name)
		suite.OneCPU(&template.Spec)
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(sizes[name])), ServiceName: "none", PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template,
		}}
		if i >= 4 {
			set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: suite.ClaimSpec(class, corev1.ReadWriteOnce)}}
		}
		suite.Must(t, n.Create(t.Context(), set))
	}
	s := n.Distribution(t, "web-0")
	exact := func() {
		t.Helper()
		for name, size := range sizes {
			n.InCells(t, name, size, s, 1, 1.34)
		}
	}
	exact()
	before := map[string]map[types.UID]bool{}
	for name := range sizes {
		before[name] = n.WithNode(t, name)
	}

	// 2. For two minutes, this release evicts none of them.
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), fleet(2, 0)))
	begin := time.Now()
	suite.EventuallyEvery(t, time.Second, 3*time.Minute, "two minutes have passed", func() (bool, error) {
		for name, pods := range before {
			if now := n.WithNode(t, name); !maps.Equal(now, pods) {
				n.LogPods(t, name)
				t.Fatalf("%s had other pods before the upgrade", name)
			}
		}
		return time.Since(begin) > 2*time.Minute, nil
	})
	for name := range deployments {
		n.PositionsAgree(t, name, n.Distribution(t, name))
	}
	exact()

	// 3. Pods with volumes that restart come back to the zone of their volume, in the pool of their ordinal.
	cells := func(app string) map[string]string {
		pods, err := n.Pods(t.Context(), app)
		suite.Must(t, err)
		out := map[string]string{}
		for i := range pods {
			out[pods[i].Name] = pods[i].Labels[stowage.PoolLabel] + "/" + pods[i].Labels[stowage.DomainLabel]
		}
		return out
	}
	for i := 4; i < 8; i++ {
		name := fmt.Sprint("db-", i)
		was := cells(name)
		suite.Must(t, n.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(n.Namespace), client.MatchingLabels{"app": name}))
		n.InCells(t, name, sizes[name], s, 1, 1.34)
		if is := cells(name); !maps.Equal(was, is) {
			t.Errorf("the pods of %s were in %v, and are in %v", name, was, is)
		}
	}

	// 4. Deployments grow, shrink and roll out.
	for _, more := range []int{3, -5} {
		for name, d := range deployments {
			sizes[name] += more
			n.Scale(t, d, sizes[name])
		}
		exact()
	}
	for name, d := range deployments {
		n.Revise(t, d, "2")
		n.RolledOut(t, d)
		n.InCells(t, name, sizes[name], n.Distribution(t, name), 1, 1.34)
	}
}
