package nodefit

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func node(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"pool": "b", "zone": "1"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Allocatable = list("4", "8Gi")
	n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("5")
	for _, f := range change {
		f(n)
	}
	return n
}

func pod(cpu, memory string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{}
	p.Spec.NodeName, p.Spec.NodeSelector = "n", map[string]string{"pool": "a"}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: list(cpu, memory)}}}
	for _, f := range change {
		f(&p)
	}
	return p
}

func TestCount(t *testing.T) {
	for name, tc := range map[string]struct {
		running []corev1.Pod
		pod     corev1.Pod
		want    int64
	}{
		"empty, by CPU":               {nil, pod("1", "1Gi"), 4},
		"empty, by memory":            {nil, pod("100m", "3Gi"), 2},
		"empty, by pods":              {nil, pod("1m", "1Mi"), 5},
		"requests nothing":            {nil, pod("0", "0"), 5},
		"beside others":               {[]corev1.Pod{pod("1500m", "1Gi"), pod("1", "1Gi")}, pod("1", "1Gi"), 1},
		"full":                        {[]corev1.Pod{pod("4", "1Gi")}, pod("1m", "1Mi"), 0},
		"more than there is":          {[]corev1.Pod{pod("6", "1Gi")}, pod("1m", "1Mi"), 0},
		"the others have ended":       {[]corev1.Pod{pod("4", "1Gi", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, pod("1", "1Gi"), 4},
		"the others run elsewhere":    {[]corev1.Pod{pod("4", "1Gi", func(p *corev1.Pod) { p.Spec.NodeName = "m" })}, pod("1", "1Gi"), 4},
		"a resource the node has not": {nil, pod("1", "1Gi", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["x/gpu"] = resource.MustParse("1") }), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Count(node(), tc.running, &tc.pod); got != tc.want {
				t.Errorf("%d pods; want %d", got, tc.want)
			}
		})
	}
}

// A count changes nothing, whatever form the quantities have, and a node without allocatable resources has no room.
func TestCountChangesNothing(t *testing.T) {
	n := node()
	n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("100000000000000000000000")
	before := n.DeepCopy()
	running, p := []corev1.Pod{pod("1", "50000000000000000000000")}, pod("1", "1Gi")
	if first, second := Count(n, running, &p), Count(n, running, &p); first != second {
		t.Errorf("%d pods, and then %d", first, second)
	}
	if !equality.Semantic.DeepEqual(before, n) {
		t.Errorf("the node has %v", n.Status.Allocatable)
	}
	bare := node(func(n *corev1.Node) { n.Status.Allocatable = nil })
	if got := Count(bare, running, &p); got != 0 {
		t.Errorf("%d pods on a node without allocatable resources", got)
	}
}

func TestAllows(t *testing.T) {
	s, err := sequence.Parse("pool=a,weight=1:pool=b,weight=1")
	if err != nil {
		t.Fatal(err)
	}
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
	}
	tolerant := []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}
	for name, tc := range map[string]struct {
		node        *corev1.Node
		pool        int
		tolerations []corev1.Toleration
		zone        string
		want        bool
	}{
		"its pool":           {node(), 1, nil, "", true},
		"another pool":       {node(), 0, nil, "", false},
		"another zone":       {node(), 1, nil, "2", false},
		"cordoned":           {node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), 1, nil, "", false},
		"not ready":          {node(func(n *corev1.Node) { n.Status.Conditions = nil }), 1, nil, "", false},
		"tainted":            {node(tainted), 1, nil, "", false},
		"the pool tolerates": {node(tainted), 1, tolerant, "", true},
		"a taint that prefers": {node(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), 1, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("1", "1Gi")
			if tc.zone != "" {
				p.Spec.NodeSelector["zone"] = tc.zone
			}
			before := maps.Clone(p.Spec.NodeSelector)
			if got := Allows(tc.node, placement.Successor(&p, s, tc.pool, -1, tc.tolerations, false)); got != tc.want {
				t.Errorf("allowed: %v", got)
			}
			if !maps.Equal(before, p.Spec.NodeSelector) {
				t.Error("the pod itself was changed")
			}
		})
	}
}

// Room is counted only for pods whose size, selectors and taints alone decide.
func TestCounted(t *testing.T) {
	terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}}
	spread := func(when corev1.UnsatisfiableConstraintAction) corev1.PodSpec {
		return corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: when}}}
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"nothing else":             {corev1.PodSpec{}, true},
		"a spread that may fail":   {spread(corev1.ScheduleAnyway), true},
		"a spread that must hold":  {spread(corev1.DoNotSchedule), false},
		"a device":                 {corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}, false},
		"affinity to other pods":   {corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}}, false},
		"anti-affinity":            {corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}}, false},
		"an init container's port": {corev1.PodSpec{InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}}, false},
		"a port of the pod's own":  {corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}}, true},
		"a port of the node's":     {corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}}, false},
	} {
		if got := Counted(&corev1.Pod{Spec: tc.spec}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
