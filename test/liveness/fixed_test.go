package liveness

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Pods must run beside those of another workload. The nodes of a pool take nothing for a while: its pods wait, and no pool is unsuitable.
func TestAffinityToOtherPods(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{policy, podDistributor} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &source{kind: kind}, "Deployment", 20, func(sc *scene) {
				sc.everywhere(50, 50, "a")
				sc.cache()
				sc.cordon("spot", true)
			}, func(_ *scene, template *corev1.PodTemplateSpec) {
				template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}},
				}}}}
			})
			sc.outage("while the spot nodes take nothing", "od=10 waits=10")
			sc.cordon("spot", false)
			sc.becomes("once the nodes are free", "od=10 spot=10")
			sc.Revise(t, sc.web.object.(*appsv1.Deployment), "2")
			sc.becomes("after a rollout", "od=10 spot=10")
		})
	}
}

// cache runs a pod on each node of the scene. No source divides it.
func (sc *scene) cache() {
	d := sc.Deployment("cache", len(sc.nodes), nil)
	d.Spec.Template.Spec.NodeSelector = map[string]string{ownLabel: sc.Namespace}
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector,
	}}}}
	suite.Must(sc.t, sc.Create(sc.t.Context(), d))
	sc.Ready(sc.t, "cache", len(sc.nodes))
}

// cordon has the scheduler leave out the nodes of a pool, or not.
func (sc *scene) cordon(pool string, on bool) {
	for _, n := range sc.ofPool(pool) {
		patch(sc.t, sc.Tenant, n, `{"spec":{"unschedulable":%t}}`, on)
	}
}

// The only nodes of a zone have a taint, as those of another architecture have. The other zones take its pods, and the pools are exact.
func TestTaintedZone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		source
		kind string
		od   []corev1.Taint // of the node of zone c
	}{
		"a zone, without spill":        {source{kind: clusterPolicy}, "Deployment", []corev1.Taint{arm}},
		"a zone, with spill":           {source{kind: clusterPolicy, spill: true}, "Deployment", []corev1.Taint{arm}},
		"a zone, of a StatefulSet":     {source{kind: policy}, "StatefulSet", []corev1.Taint{arm}},
		"a cell, whose pool is usable": {source{kind: policy}, "Deployment", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.across = suite.Zones
			sc := play(t, &tc.source, tc.kind, 18, func(sc *scene) {
				sc.everywhere(1, 2, "a", "b")
				sc.node("od", "c", 40, tc.od...)
				sc.node("spot", "c", 40, arm)
			}, nil)
			sc.becomes("at rest", "od=6 spot=12")
		})
	}
}

// The same under a source whose author wrote the workload. He has said which pools there are, and not which nodes a zone has.
func TestTaintedZoneOfAuthor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		source
		kind string
	}{
		"a PodDistributor":              {source{kind: podDistributor}, "Deployment"},
		"a PodDistributor with spill":   {source{kind: podDistributor, spill: true}, "Deployment"},
		"a PodDistributor, StatefulSet": {source{kind: podDistributor}, "StatefulSet"},
		"annotations, spill":            {source{kind: annotations, spill: true}, "Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.across = suite.Zones
			sc := play(t, &tc.source, tc.kind, 12, func(sc *scene) {
				sc.everywhere(1, 1, "a", "b")
				sc.node("od", "c", 40, arm)
				sc.node("spot", "c", 40)
			}, nil)
			sc.becomes("at rest", "od=6 spot=6")
		})
	}
}

// The same where spill moves pods, too, and each node takes one of them. Pods do not try one zone after the other while another one has room.
func TestTaintedZoneAndFullOne(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind  string
		zones []string // of the nodes of od
	}{
		"a StatefulSet":                          {"StatefulSet", suite.Zones},
		"a Deployment":                           {"Deployment", suite.Zones},
		"a StatefulSet, and zones without nodes": {"StatefulSet", []string{"b", "b", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &source{kind: podDistributor, spill: true, across: suite.Zones}, tc.kind, 4, func(sc *scene) {
				sc.source.pools = two(sc.Tenant, 1, 4)
				for _, zone := range tc.zones {
					sc.node("od", zone, 8)
				}
				sc.node("spot", "a", 2, arm)
				sc.node("spot", "b", 4)
			}, func(_ *scene, template *corev1.PodTemplateSpec) {
				template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				}}}}
			})
			sc.becomes("at rest", "od=3 spot=1")
		})
	}
}

// The volume of all pods is in zone b. The node that a pool has there would never take them, and that of another pool does. It is of no use that the
// first pool has nodes in other zones.
func TestVolumeWhereNoNodeTakesPods(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		source
		kind   string
		cpus   int // of the node in zone b
		taints []corev1.Taint
	}{
		"a taint":                          {source{kind: policy}, "Deployment", 40, []corev1.Taint{arm}},
		"a taint, with spill":              {source{kind: clusterPolicy, spill: true}, "Deployment", 40, []corev1.Taint{arm}},
		"a taint, of a StatefulSet":        {source{kind: policy}, "StatefulSet", 40, []corev1.Taint{arm}},
		"a taint, with a PodDistributor":   {source{kind: podDistributor}, "StatefulSet", 40, []corev1.Taint{arm}},
		"too small":                        {source{kind: policy}, "Deployment", 1, nil},
		"too small, for a StatefulSet":     {source{kind: policy}, "StatefulSet", 1, nil},
		"too small, with across":           {source{kind: policy, across: suite.Zones}, "StatefulSet", 1, nil},
		"too small, with a PodDistributor": {source{kind: podDistributor}, "Deployment", 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &tc.source, tc.kind, 6, func(sc *scene) {
				sc.everywhere(1, 1, "a", "c")
				sc.node("od", "b", tc.cpus, tc.taints...)
				sc.node("spot", "b", 40)
			}, func(sc *scene, template *corev1.PodTemplateSpec) {
				template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=2")
				sc.claim(sc.web, "b")
			})
			sc.becomes("at rest", "spot=6")
			pod := sc.look().pods[0]
			suite.Must(t, sc.Delete(t.Context(), pod))
			sc.becomes("after a pod was deleted", "spot=6")
		})
	}
}

// A constraint asks for more domains than the nodes of a pool are in. Without a pin, all pods run. A pool whose pods could not is never due, for all
// sources. Where the pools are the domains, the division keeps the promise.
func TestMinDomains(t *testing.T) {
	t.Parallel()
	fewer := func(sc *scene) { // spot has nodes in two zones alone
		sc.everywhere(1, 3, "a", "b")
		sc.node("od", "c", 40)
	}
	zones := func(sc *scene) {
		for _, zone := range suite.Zones {
			sc.node(zone, zone, 40)
			sc.source.pools = append(sc.source.pools, pool{name: "in-" + zone, labels: ofZone(sc.Tenant, zone), weight: 1})
		}
	}
	few := []string{"od=12", "od=10 spot=2"} // two pods may have their nodes before the pool is known to be unsuitable
	for name, tc := range map[string]struct {
		source
		kind  string
		nodes func(*scene)
		want  []string
	}{
		"fewer zones, a policy":                          {source{kind: policy}, "Deployment", fewer, few},
		"fewer zones, a policy with spill":               {source{kind: clusterPolicy, spill: true}, "Deployment", fewer, few},
		"fewer zones, a policy for a StatefulSet":        {source{kind: policy}, "StatefulSet", fewer, few},
		"fewer zones, a PodDistributor":                  {source{kind: podDistributor}, "Deployment", fewer, few},
		"fewer zones, a PodDistributor with spill":       {source{kind: podDistributor, spill: true}, "Deployment", fewer, few},
		"fewer zones, a PodDistributor of a StatefulSet": {source{kind: podDistributor}, "StatefulSet", fewer, few},
		"fewer zones with across":                        {source{kind: podDistributor, across: suite.Zones, spill: true}, "Deployment", fewer, []string{"od=3 spot=9"}},
		"zones are the pools, a policy":                  {source{kind: policy}, "Deployment", zones, []string{"a=4 b=4 c=4"}},
		"zones are the pools, a StatefulSet":             {source{kind: podDistributor}, "StatefulSet", zones, []string{"a=4 b=4 c=4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &tc.source, tc.kind, 12, tc.nodes, func(_ *scene, template *corev1.PodTemplateSpec) {
				template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: new(int32(3)),
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				}}
			})
			sc.becomes("at rest", tc.want...)
		})
	}
}

// All nodes of a pool get a taint for a maintenance and are drained. The pods wait, as in an outage, and have their pool again when it is over.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{policy, clusterPolicy} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &source{kind: kind}, "Deployment", 14, func(sc *scene) { sc.everywhere(1, 1, "a", "b") }, nil)
			sc.becomes("before", "od=7 spot=7")
			setTaints(sc.world, sc.ofPool("spot"), maintenance)
			sc.drain(sc.ofPool("spot")...)
			sc.outage("in the maintenance", "od=7 waits=7")
			former := sc.running()
			setTaints(sc.world, sc.ofPool("spot"))
			sc.becomes("after the maintenance", "od=7 spot=7")
			sc.stayed("after the maintenance", former)
		})
	}
}

// One claim of all pods gets its volume for the first of them, while the others have other zones. All run where the volume is.
func TestOneClaim(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]source{
		"a policy":       {kind: policy, across: suite.Zones},
		"with spill":     {kind: clusterPolicy, across: suite.Zones, spill: true},
		"PodDistributor": {kind: podDistributor, across: suite.Zones},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := play(t, &s, "Deployment", 10, func(sc *scene) { sc.everywhere(1, 4, suite.Zones...) }, func(sc *scene, template *corev1.PodTemplateSpec) {
				sc.WithClaim(t, template, "data", suite.ClaimSpec(sc.Provisioner(t, corev1.LabelTopologyZone), corev1.ReadWriteMany))
			})
			sc.becomes("at rest", "od=2 spot=8")
		})
	}
}
