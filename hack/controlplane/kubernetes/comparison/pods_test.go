package comparison

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
)

// asked is a pod to ask about.
type asked struct {
	pod *corev1.Pod
	// pin is what a seat in its cell has it ask for.
	pin     nodeset.Set
	volumes nodefit.Volumes
	// unknown is the filter that decides by what Judge does not know, if there is one.
	unknown map[string]bool
}

// ask returns a pod that has no node. Most have nothing special but one or two of all that the filters read, so that many pass.
func (w *world) ask(name string) asked {
	p := w.plain(name)
	a := asked{pod: &p, unknown: map[string]bool{}}
	a.pin = w.somePin()
	if p.Spec.NodeSelector = map[string]string{}; a.pin.Equalities() {
		maps.Copy(p.Spec.NodeSelector, a.pin.Labels)
	}
	w.sizes(&p)
	w.tolerations(&p)
	w.ports(&p)
	if w.often(22) {
		w.nodeAffinity(&p)
	}
	if !a.pin.Equalities() {
		w.pinByAffinity(&p, a.pin)
	}
	if w.often(25) {
		w.otherPods(&p)
	}
	if w.often(35) {
		w.spread(&p)
	}
	if w.often(30) {
		w.claims(&a)
	}
	if w.often(2) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: new("device")}}
		a.unknown[nodefit.ByDevice] = true
	}
	if w.often(2) {
		p.Spec.SchedulerName = "another"
		a.unknown[nodefit.ByScheduler] = true
	}
	return a
}

// somePin returns the nodes of a pool, or of a domain of it. One pool in four is what other nodes are not.
func (w *world) somePin() nodeset.Set {
	labels, expressions := map[string]string{}, []corev1.NodeSelectorRequirement(nil)
	is := func(key string, op corev1.NodeSelectorOperator, values ...string) {
		expressions = append(expressions, corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values})
	}
	switch {
	case w.often(25):
		pick(w.dice,
			func() { is(poolKey, corev1.NodeSelectorOpNotIn, "b") },
			func() { is(poolKey, corev1.NodeSelectorOpIn, "a", "c") },
			func() { is(poolKey, corev1.NodeSelectorOpExists); is("disk", corev1.NodeSelectorOpNotIn, "hdd") },
			func() { is("disk", corev1.NodeSelectorOpDoesNotExist) },
			func() { is("generation", corev1.NodeSelectorOpGt, "1") },
			func() { is("generation", corev1.NodeSelectorOpLt, "3"); is(poolKey, corev1.NodeSelectorOpExists) },
			func() { labels[poolKey] = "a"; is("disk", corev1.NodeSelectorOpDoesNotExist) },
		)()
	case w.often(85):
		labels[poolKey] = pick(w.dice, "a", "a", "a", "a", "b")
	default:
		return nodeset.Set{Labels: labels}
	}
	if w.often(15) {
		labels[corev1.LabelTopologyZone] = pick(w.dice, "z1", "z2")
	}
	set, err := nodeset.New(labels, expressions)
	if err != nil {
		panic(err) // none of them is contradictory
	}
	return set
}

// pinByAffinity has a pod ask for the nodes of a pool as a seat does.
func (w *world) pinByAffinity(p *corev1.Pod, pin nodeset.Set) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	*required = nodeset.Require(*required, pin.Requirements())
}

// sizes gives a pod requests, in one of the ways that there are.
func (w *world) sizes(p *corev1.Pod) {
	requests := func() corev1.ResourceList {
		out := corev1.ResourceList{}
		if w.often(85) {
			out[corev1.ResourceCPU] = resource.MustParse(pick(w.dice, "0", "1m", "50m", "100m", "100m", "500m", "999m", "1", "1900m", "4"))
		}
		if w.often(75) {
			out[corev1.ResourceMemory] = resource.MustParse(pick(w.dice, "0", "1", "64Mi", "100M", "100M", "1Gi", "1073741824500m", "3Gi", "8G"))
		}
		if w.often(15) {
			out[corev1.ResourceEphemeralStorage] = resource.MustParse(pick(w.dice, "1Gi", "2Gi"))
		}
		if w.often(6) {
			out[gpu] = resource.MustParse(pick(w.dice, "0", "1", "2"))
		}
		if w.often(3) {
			out[pages] = resource.MustParse(pick(w.dice, "2Mi", "128Mi"))
		}
		return out
	}
	p.Spec.Containers[0].Resources.Requests = requests()
	if w.often(10) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "i", Resources: corev1.ResourceRequirements{Requests: requests()}})
	}
	if w.often(10) {
		c := corev1.Container{Name: "first", Image: "i", Resources: corev1.ResourceRequirements{Requests: requests()}}
		if w.often(50) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = []corev1.Container{c}
	}
	if w.often(5) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	}
	if w.often(5) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick(w.dice, "1", "6"))}}
	}
}

func (w *world) ports(p *corev1.Pod) {
	if w.often(88) {
		return
	}
	port := corev1.ContainerPort{ContainerPort: 80, HostPort: pick(w.dice, int32(80), 81), HostIP: pick(w.dice, "", "0.0.0.0", "10.0.0.1", "::"), Protocol: pick(w.dice, corev1.ProtocolTCP, corev1.ProtocolUDP)}
	if n := len(p.Spec.InitContainers); n > 0 {
		p.Spec.InitContainers[0].Ports = append(p.Spec.InitContainers[0].Ports, port)
		return
	}
	p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, port)
}

func (w *world) tolerations(p *corev1.Pod) {
	if w.often(5) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		return
	}
	add := func(t corev1.Toleration) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
	if w.often(40) {
		add(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: pick(w.dice, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)})
	}
	if w.often(40) {
		add(corev1.Toleration{Key: "arch", Operator: pick(w.dice, "", corev1.TolerationOpEqual), Value: "arm64", Effect: pick(w.dice, "", corev1.TaintEffectNoSchedule)})
	}
	if w.often(20) {
		add(corev1.Toleration{Key: "arch", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(300)), Effect: corev1.TaintEffectNoExecute})
	}
	if w.often(10) {
		add(corev1.Toleration{Key: "level", Operator: pick(w.dice, corev1.TolerationOpEqual, corev1.TolerationOpGt, corev1.TolerationOpLt), Value: pick(w.dice, "1", "3"), Effect: corev1.TaintEffectNoSchedule})
	}
	if w.often(10) {
		add(corev1.Toleration{Key: pick(w.dice, corev1.TaintNodeUnschedulable, corev1.TaintNodeNotReady, corev1.TaintNodeMemoryPressure), Operator: corev1.TolerationOpExists})
	}
}

// term returns a term of node affinity. A few match nothing, because they are empty or do not parse.
func (w *world) term() (t corev1.NodeSelectorTerm) {
	if w.often(4) {
		return t
	}
	if w.often(8) {
		t.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: pick(w.dice, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{pick(w.dice, w.nodes...).Name}}}
		if w.often(50) {
			return t
		}
	}
	for range 1 + w.IntN(2) {
		key := pick(w.dice, corev1.LabelTopologyZone, "disk", "generation", poolKey, corev1.LabelHostname)
		values := map[string][]string{
			corev1.LabelTopologyZone: {"z1", "z2", "z3"}, "disk": {"ssd", "hdd"}, "generation": {"1", "2"}, poolKey: {"a", "b"}, corev1.LabelHostname: {"n0", "n1", "n2"},
		}[key]
		r := corev1.NodeSelectorRequirement{Key: key, Operator: pick(w.dice, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: some(w.dice, values...)}
		switch {
		case w.often(15):
			r.Operator, r.Values = pick(w.dice, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist), nil
		case key == "generation":
			r.Operator, r.Values = pick(w.dice, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt), []string{pick(w.dice, "1", "2", "3", "old")}
		}
		t.MatchExpressions = append(t.MatchExpressions, r)
	}
	return t
}

func (w *world) nodeAffinity(p *corev1.Pod) {
	required := &corev1.NodeSelector{}
	for range 1 + w.IntN(2) {
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, w.term())
	}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	if w.often(20) {
		p.Spec.NodeSelector["disk"] = pick(w.dice, "ssd", "hdd")
	}
}

// otherPods gives a pod affinity to other pods, or against them.
func (w *world) otherPods(p *corev1.Pod) {
	terms := []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w.dice, "web", "db")}},
		TopologyKey:   pick(w.dice, corev1.LabelHostname, corev1.LabelTopologyZone),
	}}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if w.often(60) {
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		return
	}
	p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
}

// spread gives a pod topology spread constraints, each over another key.
func (w *world) spread(p *corev1.Pod) {
	for _, key := range some(w.dice, corev1.LabelTopologyZone, corev1.LabelHostname, "disk") {
		c := corev1.TopologySpreadConstraint{
			TopologyKey: key, MaxSkew: int32(1 + w.IntN(2)), WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
		}
		if w.often(15) {
			c.WhenUnsatisfiable = corev1.ScheduleAnyway
		} else if w.often(60) {
			c.MinDomains = new(int32(1 + w.IntN(4)))
		}
		if w.often(40) {
			c.NodeAffinityPolicy = new(pick(w.dice, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
		}
		if w.often(40) {
			c.NodeTaintsPolicy = new(pick(w.dice, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
		}
		switch {
		case w.often(10): // not the pod itself
			c.LabelSelector = pick(w.dice, nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}})
		case w.often(15):
			c.MatchLabelKeys = []string{"version"}
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}
