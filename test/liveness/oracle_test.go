package liveness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
)

// How long a wait may last that ends by itself: the backstop's 30 s, or spill's 10 s with its tries, and the rates of both. A world in which pods
// wait is watched for longer than the backstop's 30 s once its change is made, and for a while before: a pod that is trapped is seen at once.
const (
	patience = 75 * time.Second
	watched  = 35 * time.Second
	glimpsed = 10 * time.Second
	quiet    = 3 * time.Second
)

// trapped is a pod that waits though a node would take it without its pin, and its cell is no reason.
type trapped struct {
	pod   *corev1.Pod
	cell  cell
	why   string // what its cell is
	nodes []string
}

// verdict is what the oracle says of a pod's own cell: it is full where why is "".
type verdict struct {
	why    string
	author bool // selector, taint or size: one who wrote the pools himself contradicts himself
}

// rest waits until the world is at rest, and fails if pods are trapped. It watches waiting pods for a while.
func (w *world) rest(when string, watch time.Duration) {
	w.t.Helper()
	var last string
	var s *situation
	still, first := time.Now(), map[string]time.Time{}
	suite.EventuallyEvery(w.t, time.Second, 8*time.Minute, "the world is at rest", func() (bool, error) {
		s = w.look()
		if now := s.places(); now != last {
			last, still = now, time.Now()
		}
		found, err := w.judge(s)
		if err != nil {
			return false, err
		}
		// One that waits for a moment is no finding, and its successor may be trapped as it was.
		seen := map[string]time.Time{}
		for _, f := range found {
			key := f.pod.Labels["app"] + " " + f.cell.String()
			seen[key] = time.Now()
			if since, ok := first[key]; ok {
				seen[key] = since
			}
			if time.Since(seen[key]) > patience {
				w.fail(when, s, f)
			}
		}
		first = seen
		least := w.since.Add(quiet)
		if len(s.waiting()) > 0 {
			least = w.since.Add(watch)
		}
		return len(found) == 0 && time.Since(still) > quiet && time.Now().After(least), nil
	})
	w.pods, w.waiting = len(s.pods), len(s.waiting())
}

// fail ends the seed with all that is needed to see why.
func (w *world) fail(when string, s *situation, f trapped) {
	w.t.Helper()
	w.t.Logf("%s\n%s%s", w.describe(), w.report(s), yamlOf(f.pod))
	w.t.Fatalf("seed %d, %s: pod %s of %s waits in its cell %s, and %s would take it without its pin; the cell is %s",
		w.seed, when, f.pod.Name, f.pod.Labels["app"], f.cell, strings.Join(f.nodes, ", "), f.why)
}

// judge returns the pods that are trapped.
func (w *world) judge(s *situation) (out []trapped, err error) {
	w.reasons = map[string]int{}
	waiting := slices.DeleteFunc(s.waiting(), func(p *corev1.Pod) bool {
		_, pinned := cellOf(p)
		return !pinned || len(p.Spec.SchedulingGates) > 0 || w.of(p) == nil
	})
	if len(waiting) == 0 {
		return nil, nil
	}
	var free []*corev1.Pod
	for _, p := range waiting {
		free = append(free, unpinned(p, &w.of(p).template))
	}
	passes, err := filters(s.all(), free)
	if err != nil {
		return nil, err
	}
	for i, p := range waiting {
		f := trapped{pod: p, nodes: passing(passes[i])}
		f.cell, _ = cellOf(p)
		if len(f.nodes) == 0 {
			w.reasons["would wait without a pin"]++
			continue
		}
		v, err := w.verdict(s, p)
		if err != nil {
			return nil, err
		}
		if f.why = v.why; f.why == "" {
			f.why = "full, and its source has spill"
			f.nodes = w.whereSpillGoes(s, p, f.nodes)
		}
		if len(f.nodes) > 0 && !w.allowed(s, p, v) {
			out = append(out, f)
			continue
		}
		if v.why == "" {
			w.reasons["have a full cell"]++
		} else {
			w.reasons["are their author's, or a Job's"]++
		}
	}
	return out, nil
}

// of returns the workload of a pod.
func (w *world) of(p *corev1.Pod) *workload {
	i := slices.IndexFunc(w.workloads, func(of *workload) bool { return of.name == p.Labels["app"] })
	if i < 0 {
		return nil
	}
	return w.workloads[i]
}

// unpinned returns the pod as it would be without our pin: with the selector, the tolerations and minDomains of its template.
func unpinned(p *corev1.Pod, template *corev1.PodTemplateSpec) *corev1.Pod {
	p = p.DeepCopy()
	p.Spec.NodeSelector, p.Spec.Affinity = template.Spec.NodeSelector, template.Spec.Affinity
	p.Spec.Tolerations = slices.DeleteFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return !strings.HasPrefix(t.Key, "node.kubernetes.io/") && !slices.Contains(template.Spec.Tolerations, t)
	})
	for i := range p.Spec.TopologySpreadConstraints {
		p.Spec.TopologySpreadConstraints[i].MinDomains = template.Spec.TopologySpreadConstraints[i].MinDomains
	}
	return p
}

// passing returns the nodes that nothing refuses, in order.
func passing(of map[string]refusal) (out []string) {
	for _, node := range slices.Sorted(maps.Keys(of)) {
		if of[node] == (refusal{}) {
			out = append(out, node)
		}
	}
	return out
}

// allowed reports whether a pod may wait with a verdict on its cell.
func (w *world) allowed(s *situation, p *corev1.Pod, v verdict) bool {
	of := w.of(p)
	job := of.kind == "Job" && !of.rule // whose pods nobody may evict
	if v.why != "" {
		return job || v.author && w.source.knows()
	}
	young := time.Since(p.CreationTimestamp.Time) < 30*time.Second // spill's timer, and the way there
	return !w.source.spill || young || job || of.kind == "Job" && slices.Contains(of.traits, "indexed") || w.bound(s, p)
}

// bound reports whether a pod has a claim that has its volume, for spill moves none.
func (w *world) bound(s *situation, p *corev1.Pod) bool {
	return slices.ContainsFunc(podstatus.VolumeClaims(&p.Spec), func(name string) bool {
		return slices.ContainsFunc(s.volumes, func(o runtime.Object) bool {
			c, ok := o.(*corev1.PersistentVolumeClaim)
			return ok && c.Namespace == p.Namespace && c.Name == name && c.Spec.VolumeName != ""
		})
	})
}

// whereSpillGoes returns those of some nodes that are in another cell of the source. Others are not for spill.
func (w *world) whereSpillGoes(s *situation, p *corev1.Pod, names []string) (out []string) {
	c, _ := cellOf(p)
	own, _ := w.source.labelsOf(c)
	for _, n := range s.nodes {
		if slices.Contains(names, n.Name) && w.source.other(n, own) {
			out = append(out, n.Name)
		}
	}
	return out
}

// Some node of a cell must pass these filters when it is empty. What the other filters refuse may change by itself.
var (
	byAuthor  = []string{"NodeName", "NodeAffinity", "TaintToleration", "NodeResourcesFit"}
	byVolumes = []string{"VolumeBinding", "VolumeZone"}
)

// verdict says what the cell of a pod is for it.
func (w *world) verdict(s *situation, p *corev1.Pod) (verdict, error) {
	c, _ := cellOf(p)
	own, ok := w.source.labelsOf(c)
	if !ok {
		return verdict{why: "a cell that the source does not have"}, nil
	}
	var objects []runtime.Object
	var nodes []*corev1.Node
	for _, n := range s.nodes {
		if in(n, own) {
			n = empty(n, w.evidence[p.Labels["app"]][c])
			nodes, objects = append(nodes, n), append(objects, n)
		}
	}
	if len(nodes) == 0 {
		if contradicts(p, own) {
			return verdict{"without nodes, and none could be as the pod selects", true}, nil
		}
		return verdict{}, nil
	}
	if key, has, least := fewDomains(p, nodes); least > 0 {
		return verdict{why: fmt.Sprintf("never for it: its nodes have %d of %d values of %s", has, least, key)}, nil
	}
	objects = append(objects, s.volumes...)
	byA, err := filters(objects, []*corev1.Pod{p}, byAuthor...)
	if err != nil {
		return verdict{}, err
	}
	byV, err := filters(objects, []*corev1.Pod{p}, byVolumes...)
	if err != nil {
		return verdict{}, err
	}
	takes := passing(byA[0])
	switch {
	case len(takes) == 0:
		others, err := w.takenInOtherZones(s, p, c)
		return verdict{fmt.Sprintf("never for it: %v", byA[0]), !others}, err
	case !slices.ContainsFunc(takes, func(n string) bool { return slices.Contains(passing(byV[0]), n) }):
		return verdict{why: fmt.Sprintf("never for it: %v", byV[0])}, nil
	}
	return verdict{}, nil
}

// takenInOtherZones reports whether the pod's pool has, in another zone, a node that its author meant. An author says which pools there are, and not
// which nodes each of their zones has.
func (w *world) takenInOtherZones(s *situation, p *corev1.Pod, c cell) (bool, error) {
	for _, zone := range w.source.across {
		own, _ := w.source.labelsOf(cell{c.pool, zone})
		var objects []runtime.Object
		for _, n := range s.nodes {
			if in(n, own) {
				objects = append(objects, empty(n, w.evidence[p.Labels["app"]][c]))
			}
		}
		if c.zone == zone || len(objects) == 0 {
			continue
		}
		there := p.DeepCopy() // with the pin of the other zone
		there.Spec.NodeSelector, there.Spec.Affinity = w.of(p).template.Spec.NodeSelector, w.of(p).template.Spec.Affinity
		passes, err := filters(objects, []*corev1.Pod{there}, byAuthor...)
		if err != nil || len(passing(passes[0])) > 0 {
			return true, err
		}
	}
	return false, nil
}

// empty returns a node without what passes: a cordon, and taints of Kubernetes. With evidence, no taint counts.
func empty(n *corev1.Node, evidence bool) *corev1.Node {
	n = n.DeepCopy()
	n.Spec.Unschedulable = false
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return evidence || strings.HasPrefix(t.Key, "node.kubernetes.io/") })
	return n
}

// fewDomains returns a constraint's key whose values on the nodes that a pod selects are fewer than its minDomains, or zeros.
func fewDomains(p *corev1.Pod, nodes []*corev1.Node) (key string, has, least int32) {
	selects := nodeaffinity.GetRequiredNodeAffinity(p)
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.MinDomains == nil || c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		found := map[string]bool{}
		for _, n := range nodes {
			if ok, _ := selects.Match(n); ok && n.Labels[c.TopologyKey] != "" {
				found[n.Labels[c.TopologyKey]] = true
			}
		}
		if int32(len(found)) < *c.MinDomains {
			return c.TopologyKey, int32(len(found)), *c.MinDomains
		}
	}
	return "", 0, 0
}

// contradicts reports whether no node with the labels of a cell could be one that a pod's affinity requires.
func contradicts(p *corev1.Pod, own map[string]string) bool {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	return !slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			value, fixed := own[r.Key]
			return fixed && (r.Operator == corev1.NodeSelectorOpIn && !slices.Contains(r.Values, value) ||
				r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, value) || r.Operator == corev1.NodeSelectorOpDoesNotExist)
		})
	})
}
