package comparison

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// now is when pods are judged.
var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const (
	poolKey  = "example.com/pool"
	ebsZone  = "topology.ebs.csi.aws.com/zone"
	gpu      = corev1.ResourceName("example.com/gpu")
	pages    = corev1.ResourceName("hugepages-2Mi")
	ours     = "default"
	youngest = 2 * time.Minute // a node of this age may still lack its devices
)

// dice are the source of all that is random. The same seed and number make the same world.
type dice struct{ *rand.Rand }

// often is true in so many of 100 cases.
func (d dice) often(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// some returns at least one of several.
func some[T any](d dice, of ...T) (out []T) {
	for _, x := range of {
		if d.often(40) {
			out = append(out, x)
		}
	}
	if len(out) == 0 {
		out = append(out, pick(d, of...))
	}
	return out
}

// world is a cluster, and the pods to ask about.
type world struct {
	dice
	nodes []corev1.Node
	// lasting are the nodes without what passes: cordons and taints of a node's life.
	lasting []corev1.Node
	there   []corev1.Pod
	asked   []asked
	// stored are volumes, claims, classes and namespaces.
	stored []runtime.Object
}

func newWorld(seed, number uint64) *world {
	w := &world{dice: dice{rand.New(rand.NewPCG(seed, number))}}
	for i := range 1 + w.IntN(6) {
		w.nodes = append(w.nodes, w.node(fmt.Sprint("n", i)))
	}
	for i := range w.nodes {
		w.lasting = append(w.lasting, *withoutWhatPasses(&w.nodes[i]))
	}
	w.stored = append(w.stored, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ours}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "others"}})
	w.stored = append(w.stored, classes()...)
	for i := range w.IntN(2 * len(w.nodes)) {
		w.there = append(w.there, w.running(fmt.Sprint("there-", i)))
	}
	for i := range 10 {
		w.asked = append(w.asked, w.ask(fmt.Sprint("asked-", i)))
	}
	return w
}

func (w *world) node(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)), Labels: map[string]string{corev1.LabelHostname: name}}}
	if w.often(95) {
		n.Labels[poolKey] = pick(w.dice, "a", "a", "a", "a", "b")
	}
	if w.often(90) {
		zone := pick(w.dice, "z1", "z2", "z3")
		n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelTopologyRegion] = zone, pick(w.dice, "r", "r", "r", "s")
		if w.often(60) {
			n.Labels[ebsZone] = zone
		}
	}
	if w.often(60) {
		n.Labels["disk"] = pick(w.dice, "ssd", "hdd")
	}
	if w.often(70) {
		n.Labels["generation"] = pick(w.dice, "1", "2", "3", "new")
	}
	if w.often(8) {
		n.CreationTimestamp = metav1.NewTime(now.Add(-youngest))
	}
	n.Status.Allocatable = w.allocatable()
	n.Status.Capacity = n.Status.Allocatable
	w.taints(&n)
	return n
}

func (w *world) allocatable() corev1.ResourceList {
	size := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(pick(w.dice, "1", "2", "3900m", "4", "4")),
		corev1.ResourceMemory: resource.MustParse(pick(w.dice, "1Gi", "4Gi", "7900Mi", "8G", "8G")),
		corev1.ResourcePods:   resource.MustParse(pick(w.dice, "1", "3", "10", "110", "110", "110")),
	}
	if w.often(80) {
		size[corev1.ResourceEphemeralStorage] = resource.MustParse(pick(w.dice, "1Gi", "20Gi"))
	}
	if w.often(40) {
		size[gpu] = resource.MustParse(pick(w.dice, "0", "1", "2"))
	}
	if w.often(20) {
		size[pages] = resource.MustParse(pick(w.dice, "0", "64Mi"))
	}
	return size
}

// The taints that say what a node is going through.
var passing = []string{
	corev1.TaintNodeMemoryPressure, "node.cloudprovider.kubernetes.io/uninitialized", "karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler",
	"DeletionCandidateOfClusterAutoscaler", "startup-taint.cluster-autoscaler.kubernetes.io/x", "node.cilium.io/agent-not-ready",
}

// taints gives a node taints, and the state that some of them come from.
func (w *world) taints(n *corev1.Node) {
	add := func(key, value string, effect corev1.TaintEffect) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
	ready := corev1.ConditionTrue
	if w.often(4) {
		ready = corev1.ConditionFalse
		add(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule)
		add(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoExecute)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	if w.often(8) {
		n.Spec.Unschedulable = true
		if w.often(80) { // the node controller adds it soon
			add(corev1.TaintNodeUnschedulable, "", corev1.TaintEffectNoSchedule)
		}
	}
	if w.often(6) {
		add(pick(w.dice, passing...), "", pick(w.dice, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute))
	}
	if w.often(9) {
		add("gpu", pick(w.dice, "", "yes"), corev1.TaintEffectNoSchedule)
	}
	if w.often(7) {
		add("arch", pick(w.dice, "arm64", "riscv"), pick(w.dice, corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule))
	}
	if w.often(6) {
		add("level", pick(w.dice, "1", "5"), corev1.TaintEffectNoSchedule)
	}
	if w.often(10) {
		add("rather-not", "", corev1.TaintEffectPreferNoSchedule)
	}
}

// withoutWhatPasses returns a node as it is when a cordon, its start and its removal are left out.
func withoutWhatPasses(n *corev1.Node) *corev1.Node {
	n = n.DeepCopy()
	n.Spec.Unschedulable = false
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/") || slices.Contains(passing, t.Key)
	})
	return n
}

// running returns a pod that has a node. Some have ended, some are about to, and some have more than fits.
func (w *world) running(name string) corev1.Pod {
	p := w.plain(name)
	p.Spec.NodeName, p.Status.Phase = pick(w.dice, w.nodes...).Name, corev1.PodRunning
	w.sizes(&p)
	w.ports(&p)
	if w.often(15) {
		w.otherPods(&p)
	}
	switch {
	case w.often(8):
		p.Status.Phase = pick(w.dice, corev1.PodSucceeded, corev1.PodFailed)
	case w.often(8):
		p.DeletionTimestamp = &metav1.Time{Time: now}
	case w.often(8): // its resize is not done yet
		c := &p.Spec.Containers[0]
		was := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick(w.dice, "50m", "1500m"))}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: c.Name, AllocatedResources: was, Resources: &corev1.ResourceRequirements{Requests: was}}}
	}
	return p
}

// plain returns a pod with a container that asks for nothing.
func (w *world) plain(name string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: name, UID: types.UID(name), Labels: map[string]string{"app": pick(w.dice, "web", "web", "db")}}}
	if w.often(50) {
		p.Labels["version"] = pick(w.dice, "1", "2")
	}
	if strings.HasPrefix(name, "there-") && w.often(10) {
		p.Namespace = "others"
	}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	return p
}

// objects returns all that the scheduler reads.
func (w *world) objects(nodes []corev1.Node, pods []corev1.Pod) []runtime.Object {
	out := slices.Clone(w.stored)
	for i := range nodes {
		out = append(out, &nodes[i])
	}
	for i := range pods {
		out = append(out, &pods[i])
	}
	return out
}
