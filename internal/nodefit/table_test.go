package nodefit

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// now is when pods are judged.
var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func taint(keys ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, key := range keys {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func capacity(name corev1.ResourceName, q string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Status.Capacity == nil {
			n.Status.Capacity = corev1.ResourceList{}
		}
		n.Status.Capacity[name] = resource.MustParse(q)
	}
}

func allocatable(name corev1.ResourceName, q string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(q) }
}

func named(name string) func(*corev1.Node) { return func(n *corev1.Node) { n.Name = name } }

// seated returns a pod with a seat in pool b.
func seated(change ...func(*corev1.Pod)) *corev1.Pod {
	p := pod("3", "1Gi", append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.NodeSelector, p.Labels = "", map[string]string{"pool": "b"}, map[string]string{"app": "web"}
	}}, change...)...)
	return &p
}

func cpu(q string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(q)
	}
}

// spread adds a topology spread constraint.
func spread(key string, minDomains int32, change ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
	c := corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: &minDomains}
	c.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for _, f := range change {
		f(&c)
	}
	return func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c) }
}

func hostPort(port int32, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port, HostIP: ip}}
	}
}

func requires(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func tolerates(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

// A cell takes a pod, has no room for it, or can never take it. The verdict names the filter.
func TestJudge(t *testing.T) {
	t.Parallel()
	besideOthers := func(p *corev1.Pod) {
		terms := []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, TopologyKey: "zone"}}
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	}
	gpu := func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["x/gpu"] = resource.MustParse("1") }
	made := func(ago time.Duration) func(*corev1.Node) {
		return func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
	}
	in := func(zones ...string) (nodes []corev1.Node) {
		for _, zone := range zones {
			nodes = append(nodes, *node(named(zone), label("zone", zone)))
		}
		return nodes
	}
	one := func(change ...func(*corev1.Node)) []corev1.Node { return []corev1.Node{*node(change...)} }
	zonal := Volumes{Terms: [][]corev1.NodeSelectorTerm{terms("zone=2")}}
	pool := nodeset.Set{Labels: map[string]string{"pool": "b"}}
	inZone := nodeset.Set{Labels: map[string]string{"pool": "b", "zone": "1"}}
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		volumes Volumes
		cell    Cell
		want    Verdict
		filter  string
	}{
		"an empty node, and its pods are not known": {seated(), Volumes{}, Cell{Nodes: one()}, Full, ""},
		"an empty node":                             {seated(), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{}}, Takes, ""},
		"a full node":                               {seated(), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("2", "1Gi")}}, Full, ""},
		"one of two has room":                       {seated(), Volumes{}, Cell{Nodes: []corev1.Node{*node(), *node(named("m"))}, Pods: []corev1.Pod{pod("2", "1Gi")}}, Takes, ""},
		"no node":                                   {seated(), Volumes{}, Cell{}, Full, ""},
		"a cordon":                                  {seated(), Volumes{}, Cell{Nodes: one(func(n *corev1.Node) { n.Spec.Unschedulable = true }), Pods: []corev1.Pod{}}, Full, ""},
		"a cordon, as the taint of one":             {seated(), Volumes{}, Cell{Nodes: one(taint(corev1.TaintNodeUnschedulable))}, Full, ""},
		"Karpenter removes it":                      {seated(), Volumes{}, Cell{Nodes: one(taint("karpenter.sh/disrupted"))}, Full, ""},
		"a node that starts":                        {seated(), Volumes{}, Cell{Nodes: one(taint("node.cilium.io/agent-not-ready"))}, Full, ""},
		"a taint":                                   {seated(), Volumes{}, Cell{Nodes: one(taint("gpu"))}, Never, ByTaint},
		"a taint, where pods ran":                   {seated(), Volumes{}, Cell{Nodes: one(taint("gpu")), Proven: Ran}, Full, ""},
		"a taint, and one may be made":              {seated(), Volumes{}, Cell{Nodes: one(taint("gpu")), Growing: true}, Full, ""},
		"a selector":                                {seated(func(p *corev1.Pod) { p.Spec.NodeSelector["zone"] = "2" }), Volumes{}, Cell{Nodes: one()}, Never, ByAffinity},
		"a node's name":                             {seated(func(p *corev1.Pod) { p.Spec.NodeName = "m" }), Volumes{}, Cell{Nodes: one()}, Never, ByAffinity},
		"its own name":                              {seated(func(p *corev1.Pod) { p.Spec.NodeName = "n" }), Volumes{}, Cell{Nodes: one()}, Full, ""},
		"another cell's node":                       {seated(), Volumes{}, Cell{Nodes: one(label("pool", "a"))}, Never, ByAffinity},
		"a selector, and one may be made":           {seated(func(p *corev1.Pod) { p.Spec.NodeSelector["zone"] = "2" }), Volumes{}, Cell{Nodes: one(), Growing: true}, Full, ""},
		"the cell's labels contradict it":           {seated(func(p *corev1.Pod) { p.Spec.NodeSelector["zone"] = "2" }), Volumes{}, Cell{Set: inZone, Growing: true}, Never, ByAffinity},
		"they contradict one of its terms":          {seated(requires(terms("zone=2", "zone=1")...)), Volumes{}, Cell{Set: inZone}, Full, ""},
		"they contradict each of its terms":         {seated(requires(terms("zone=2", "!zone=1")...)), Volumes{}, Cell{Set: inZone}, Never, ByAffinity},
		"its terms are empty":                       {seated(requires(corev1.NodeSelectorTerm{})), Volumes{}, Cell{Set: inZone}, Never, ByAffinity},
		"it is too large":                           {seated(cpu("5")), Volumes{}, Cell{Nodes: one()}, Never, BySize},
		"it is too large, where pods ran":           {seated(cpu("5")), Volumes{}, Cell{Nodes: one(), Proven: Ran}, Never, BySize},
		"it is too large, where such pods ran":      {seated(cpu("5")), Volumes{}, Cell{Nodes: one(), Proven: RanAlike}, Full, ""},
		"labels that went":                          {seated(requires(terms("feature=x")...)), Volumes{}, Cell{Nodes: one(), Proven: Ran}, Never, ByAffinity},
		"labels that went, where such pods ran":     {seated(requires(terms("feature=x")...)), Volumes{}, Cell{Nodes: one(), Proven: RanAlike}, Full, ""},
		"they ran there, and a volume is elsewhere": {seated(), zonal, Cell{Nodes: one(), Proven: RanAlike}, Never, ByVolume},
		"a device plugin that starts again":         {seated(gpu), Volumes{}, Cell{Nodes: one(made(startsFor), capacity("x/gpu", "4"), allocatable("x/gpu", "0"))}, Full, ""},
		"that, and more than its capacity":          {seated(gpu), Volumes{}, Cell{Nodes: one(made(startsFor), capacity("x/gpu", "0"))}, Never, BySize},
		"less is allocatable than capacity":         {seated(cpu("3.9")), Volumes{}, Cell{Nodes: one(capacity("cpu", "4"), allocatable("cpu", "3.5"))}, Never, BySize},
		"a device that no node has":                 {seated(gpu), Volumes{}, Cell{Nodes: one(made(startsFor))}, Never, BySize},
		"a device that a new node has not yet":      {seated(gpu), Volumes{}, Cell{Nodes: one(made(startsFor - 1))}, Full, ""},
		"too large for a new node":                  {seated(cpu("5")), Volumes{}, Cell{Nodes: one(made(0))}, Never, BySize},
		"its volume is in another zone":             {seated(), zonal, Cell{Nodes: one()}, Never, ByVolume},
		"its volume is here":                        {seated(), zonal, Cell{Nodes: in("2"), Pods: []corev1.Pod{}}, Takes, ""},
		"its volume may be here, without node":      {seated(), zonal, Cell{Set: pool}, Full, ""},
		"its volume is not, without a node":         {seated(), zonal, Cell{Set: inZone}, Never, ByVolume},
		"a volume of a node that is gone":           {seated(), Volumes{Terms: [][]corev1.NodeSelectorTerm{terms("kubernetes.io/hostname=x")}}, Cell{Set: pool}, Never, ByVolume},
		"a volume that is not known":                {seated(), Volumes{Unknown: true}, Cell{Nodes: one()}, Unknown, ByVolume},
		"that, and a taint":                         {seated(), Volumes{Unknown: true}, Cell{Nodes: one(taint("gpu"))}, Never, ByTaint},
		"that, without a node":                      {seated(), Volumes{Unknown: true}, Cell{}, Unknown, ByVolume},
		"a claim of a device":                       {seated(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }), Volumes{}, Cell{Nodes: one()}, Unknown, ByDevice},
		"another scheduler":                         {seated(func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }), Volumes{}, Cell{Nodes: one()}, Unknown, ByScheduler},
		"the default scheduler, by name":            {seated(func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName }), Volumes{}, Cell{Nodes: one()}, Full, ""},
		"it must run beside other pods":             {seated(besideOthers), Volumes{}, Cell{Nodes: one()}, Full, ""},
		"too few domains":                           {seated(spread("zone", 3)), Volumes{}, Cell{Nodes: in("1", "2")}, Never, BySpread},
		"too few domains with room":                 {seated(spread("zone", 3)), Volumes{}, Cell{Nodes: in("1", "2"), Pods: []corev1.Pod{}}, Never, BySpread},
		"as many domains as it asks for":            {seated(spread("zone", 2)), Volumes{}, Cell{Nodes: in("1", "2")}, Full, ""},
		"a domain has two nodes":                    {seated(spread("zone", 2)), Volumes{}, Cell{Nodes: in("1", "1")}, Never, BySpread},
		"nodes may be made in others":               {seated(spread("zone", 3)), Volumes{}, Cell{Nodes: in("1"), Growing: true}, Full, ""},
		"no node yet in any domain":                 {seated(spread("zone", 3)), Volumes{}, Cell{}, Full, ""},
		"it counts all nodes": {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) {
			c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
		})), Volumes{},
			Cell{Nodes: in("1")}, Full, ""},
		"it only wishes":                   {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"it asks for no number":            {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) { c.MinDomains = nil })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"a domain of tainted nodes counts": {seated(spread("zone", 2)), Volumes{}, Cell{Nodes: append(in("1"), *node(label("zone", "2"), taint("gpu")))}, Full, ""},
		"it counts no tainted nodes": {seated(spread("zone", 2, func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) })), Volumes{},
			Cell{Nodes: append(in("1"), *node(label("zone", "2"), taint("gpu")))}, Never, BySpread},
		"a node in maintenance counts": {seated(spread("zone", 2, func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) })), Volumes{},
			Cell{Nodes: append(in("1"), *node(label("zone", "2"), taint(corev1.TaintNodeUnschedulable)))}, Full, ""},
		"a constraint over other pods": {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector.MatchLabels["app"] = "db" })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"a constraint over no pods":    {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = nil })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"a constraint over all pods":   {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = &metav1.LabelSelector{} })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"over all of its version": {seated(spread("zone", 3, func(c *corev1.TopologySpreadConstraint) {
			c.LabelSelector, c.MatchLabelKeys = &metav1.LabelSelector{}, []string{"app"}
		})), Volumes{}, Cell{Nodes: in("1")}, Never, BySpread},
		"a key that no node has":                     {seated(spread("rack", 1, func(c *corev1.TopologySpreadConstraint) { c.MinDomains = nil })), Volumes{}, Cell{Nodes: in("1")}, Never, BySpread},
		"it only wishes for a key":                   {seated(spread("rack", 1, func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway })), Volumes{}, Cell{Nodes: in("1")}, Full, ""},
		"a domain counts if it has all keys":         {seated(spread("zone", 2), spread("rack", 1)), Volumes{}, Cell{Nodes: append(in("1"), *node(label("zone", "2"), label("rack", "r")))}, Never, BySpread},
		"it tolerates a cordon":                      {seated(tolerates(corev1.TaintNodeUnschedulable)), Volumes{}, Cell{Nodes: one(func(n *corev1.Node) { n.Spec.Unschedulable = true }), Pods: []corev1.Pod{}}, Takes, ""},
		"it tolerates a node that is not ready":      {seated(tolerates(corev1.TaintNodeNotReady)), Volumes{}, Cell{Nodes: one(taint(corev1.TaintNodeNotReady), func(n *corev1.Node) { n.Status.Conditions = nil }), Pods: []corev1.Pod{}}, Takes, ""},
		"nodes that it does not select do not count": {seated(spread("zone", 2)), Volumes{}, Cell{Nodes: append(in("1"), *node(label("zone", "2"), label("pool", "a")))}, Never, BySpread},
		"a host port that is free":                   {seated(hostPort(80, "")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(81, ""))}}, Takes, ""},
		"a host port that is taken":                  {seated(hostPort(80, "")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, "10.0.0.1"))}}, Full, ""},
		"taken for all addresses":                    {seated(hostPort(80, "10.0.0.1")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, anyIP))}}, Full, ""},
		"taken at another address":                   {seated(hostPort(80, "10.0.0.1")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, "10.0.0.2"))}}, Takes, ""},
		"taken on another node":                      {seated(hostPort(80, "")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, ""), func(p *corev1.Pod) { p.Spec.NodeName = "m" })}}, Takes, ""},
		"taken by a pod that has ended":              {seated(hostPort(80, "")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}}, Takes, ""},
		"taken for another protocol":                 {seated(hostPort(80, "")), Volumes{}, Cell{Nodes: one(), Pods: []corev1.Pod{pod("0", "0", hostPort(80, ""), func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP })}}, Takes, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.cell.Now = now
			for what, p := range map[string]*corev1.Pod{"the pod": tc.pod, "its shape": Shape(tc.pod)} {
				if what == "its shape" && tc.pod.Spec.NodeName != "" {
					continue
				}
				got := Judge(p, tc.volumes, &tc.cell)
				if got.Verdict != tc.want || got.Filter != tc.filter || (got.Why != "") != (tc.want >= Unknown) {
					t.Errorf("%s: %+v, want %v by %q", what, got, tc.want, tc.filter)
				}
			}
		})
	}
}

// Of several reasons the most frequent one is said, and of as many the first by its text.
func TestJudgeSaysTheMostFrequentReason(t *testing.T) {
	t.Parallel()
	large := seated(cpu("5"))
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		want  string
	}{
		"two are too small, one is tainted": {[]corev1.Node{*node(taint("gpu")), *node(), *node()}, BySize},
		"two are tainted, one is too small": {[]corev1.Node{*node(), *node(taint("gpu")), *node(taint("gpu"))}, ByTaint},
		"one of each":                       {[]corev1.Node{*node(), *node(taint("gpu"))}, BySize},
	} {
		if got := Judge(large, Volumes{}, &Cell{Nodes: tc.nodes}); got.Filter != tc.want || got.Verdict != Never {
			t.Errorf("%s: %+v, want %s", name, got, tc.want)
		}
	}
}

// cells returns a cluster of nodes in so many cells, as [Judge] gets them.
func cells(nodes, of int) []Cell {
	out := make([]Cell, of)
	for i := range nodes {
		at := &out[i%of]
		at.Set = nodeset.Set{Labels: map[string]string{"pool": "b", "cell": strconv.Itoa(i % of)}}
		at.Nodes = append(at.Nodes, *node(named(strconv.Itoa(i)), label("cell", strconv.Itoa(i%of)), taint("gpu")))
	}
	return out
}

// Judges one pod for 5,000 nodes in 128 cells. No node takes the pod, and its taint is what refuses it.
func BenchmarkJudge(b *testing.B) {
	all := cells(5000, 128)
	p := seated(spread("zone", 2), requires(terms("zone=1,2", "arch=arm")...))
	b.ReportAllocs()
	for b.Loop() {
		for i := range all {
			if got := Judge(p, Volumes{Terms: [][]corev1.NodeSelectorTerm{terms("zone=1")}}, &all[i]); got.Verdict != Never {
				b.Fatal(got)
			}
		}
	}
}
