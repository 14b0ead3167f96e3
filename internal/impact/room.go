package impact

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/preview"
)

// estimator estimates on which nodes pods run after the next rollout. It counts room as repair does (package nodefit): by selectors,
// taints and size. Pods that may stay on their nodes do, those on the fullest nodes first. The others fill the fullest nodes that have room.
type estimator struct {
	nodes   []*nodeRoom
	byName  map[string]*nodeRoom
	makers  []karpenter.NodePool
	prices  *Prices
	waiting map[*plan]int64      // pods for which nothing is known to make nodes
	needs   map[*plan]int64      // pods for which no present node has room
	pools   map[string]*Estimate // by labels
	lacking []*nodeRoom          // nodes to come

	vmCapacity int64
}

// nodeRoom is a node, and what is free of it.
type nodeRoom struct {
	*corev1.Node
	free     corev1.ResourceList
	daemons  []*pod // of DaemonSets, and static pods
	was, now int    // pods of others
}

func newEstimator(in *preview.Inputs, l *live, vmResource string, prices *Prices) *estimator {
	e := &estimator{byName: map[string]*nodeRoom{}, makers: l.makers, prices: prices, waiting: map[*plan]int64{}, needs: map[*plan]int64{}, pools: map[string]*Estimate{}}
	for i := range in.Objects.Nodes {
		n := &nodeRoom{Node: &in.Objects.Nodes[i], free: in.Objects.Nodes[i].Status.Allocatable.DeepCopy()}
		if n.free == nil {
			n.free = corev1.ResourceList{}
		}
		vms := n.Status.Allocatable[corev1.ResourceName(vmResource)]
		e.vmCapacity += vms.Value()
		e.nodes = append(e.nodes, n)
		e.byName[n.Name] = n
	}
	return e
}

// onePod is the entry of a node's resources for the number of its pods.
var onePod = resource.MustParse("1")

// take takes what some pods request from what is free.
func take(free, requests corev1.ResourceList, pods int64) {
	for name, q := range requests {
		left := free[name]
		part := q.DeepCopy()
		part.Mul(pods)
		left.Sub(part)
		free[name] = left
	}
	if left, ok := free[corev1.ResourcePods]; ok {
		count := onePod.DeepCopy()
		count.Mul(pods)
		left.Sub(count)
		free[corev1.ResourcePods] = left
	}
}

// place finds nodes for the pods of some workloads beside those that stay.
func (e *estimator) place(plans []*plan, stay []*pod) {
	// 1. Who stays.
	for _, p := range stay {
		n := e.byName[p.node]
		if n == nil {
			continue
		}
		take(n.free, p.requests, 1)
		if p.daemon {
			n.daemons = append(n.daemons, p)
		} else {
			n.was, n.now = n.was+1, n.now+1
		}
	}
	for _, p := range plans {
		for _, pod := range p.pods {
			if n := e.byName[pod.node]; n != nil {
				n.was++
			}
		}
	}
	for _, p := range plans {
		e.keep(p)
	}
	// 2. Who goes elsewhere, the largest first.
	slices.SortStableFunc(plans, func(a, b *plan) int { return cmp.Compare(b.size(), a.size()) })
	for _, p := range plans {
		if p.is == nil || p.strategy == nil || p.is.seats == nil {
			continue
		}
		for i, then := range p.is.seats {
			if more := then - p.kept(i); more > 0 {
				e.placeIn(p, p.strategy.Pool(i).Labels, p.is.shapes[i], more)
			}
		}
	}
	for _, n := range e.lacking {
		n.now = 1
	}
}

// size is the CPU that a pod of the workload requests.
func (p *plan) size() int64 {
	if p.is == nil {
		return 0
	}
	for _, shape := range p.is.shapes {
		if shape != nil {
			requests := resourcehelper.PodRequests(shape, resourcehelper.PodResourcesOptions{})
			return requests.Cpu().MilliValue()
		}
	}
	return 0
}

// kept returns how many pods stay in a pool.
func (p *plan) kept(pool int) int64 { return min(p.Pools[pool].Now, p.Pools[pool].Then) }

// keep takes the room of the pods that may stay where they are.
func (e *estimator) keep(p *plan) {
	if p.is == nil {
		return
	}
	stays := func(pod *pod, requests corev1.ResourceList) {
		if n := e.byName[pod.node]; n != nil {
			take(n.free, requests, 1)
			n.now++
		}
	}
	if p.strategy == nil || p.is.seats == nil {
		for i, pod := range p.pods {
			if int64(i) < p.Replicas {
				stays(pod, pod.requests)
			}
		}
		return
	}
	for i := range p.is.seats {
		var here []*pod
		for n, at := range p.place {
			if at == i {
				here = append(here, p.pods[n])
			}
		}
		slices.SortStableFunc(here, func(a, b *pod) int { return cmp.Compare(e.pods(b.node), e.pods(a.node)) })
		for _, pod := range here[:p.kept(i)] {
			stays(pod, resourcehelper.PodRequests(p.is.shapes[i], resourcehelper.PodResourcesOptions{}))
		}
	}
}

// pods is how many pods run on a node now.
func (e *estimator) pods(node string) int {
	if n := e.byName[node]; n != nil {
		return n.was
	}
	return 0
}

// placeIn finds nodes of a pool for some pods.
func (e *estimator) placeIn(p *plan, pool map[string]string, shape *corev1.Pod, pods int64) {
	selector, requests := labels.SelectorFromSet(pool), resourcehelper.PodRequests(shape, resourcehelper.PodResourcesOptions{})
	fill := func(n *nodeRoom) {
		if room := min(pods, roomFor(n.Node, n.free, shape)); room > 0 {
			take(n.free, requests, room)
			n.now += int(room)
			pods -= room
		}
	}
	var nodes []*nodeRoom
	for _, n := range e.nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			nodes = append(nodes, n)
		}
	}
	fullest := slices.Clone(nodes)
	slices.SortStableFunc(fullest, func(a, b *nodeRoom) int { return cmp.Compare(b.now, a.now) })
	for _, n := range fullest {
		if pods == 0 {
			return
		}
		fill(n)
	}
	if pods == 0 {
		return
	}
	made := slices.ContainsFunc(e.makers, func(m karpenter.NodePool) bool { return m.Takes(pool, &shape.Spec) })
	of := e.estimate(pool)
	of.PodsWithoutRoom += pods
	of.Autoscaled = of.Autoscaled || made
	e.needs[p] += pods
	if !made {
		e.waiting[p] += pods
	}
	// Nodes to come are like most of those that there are.
	for _, n := range e.lacking {
		if selector.Matches(labels.Set(n.Labels)) {
			fill(n)
		}
	}
	like := mostCommon(nodes, func(n *nodeRoom) bool { return roomFor(ready(n.Node), n.empty(), shape) > 0 })
	for like != nil && pods > 0 {
		n := &nodeRoom{Node: ready(like.Node), free: like.empty()}
		fill(n)
		e.lacking = append(e.lacking, n)
		of.NodesLacking++
		of.Shape = shapeOf(like.Node)
	}
}

// empty returns what would be free of a node on which only the pods of DaemonSets run.
func (n *nodeRoom) empty() corev1.ResourceList {
	free := n.Status.Allocatable.DeepCopy()
	for _, p := range n.daemons {
		take(free, p.requests, 1)
	}
	return free
}

// ready returns a node that takes pods.
func ready(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{ObjectMeta: n.ObjectMeta, Status: n.Status}
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable && t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable {
			out.Spec.Taints = append(out.Spec.Taints, t)
		}
	}
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return out
}

// mostCommon returns a node of the most common shape for which something holds, or nil.
func mostCommon(nodes []*nodeRoom, holds func(*nodeRoom) bool) *nodeRoom {
	count := map[string]int{}
	var best *nodeRoom
	for _, n := range nodes {
		shape := shapeOf(n.Node)
		if count[shape]++; (best == nil || count[shape] > count[shapeOf(best.Node)]) && holds(n) {
			best = n
		}
	}
	return best
}

// shapeOf names the shape of a node.
func shapeOf(n *corev1.Node) string {
	size := fmt.Sprintf("%s CPU, %s", n.Status.Allocatable.Cpu(), bytesText(*n.Status.Allocatable.Memory()))
	if kind := n.Labels[corev1.LabelInstanceTypeStable]; kind != "" {
		return kind + " (" + size + ")"
	}
	return size
}

func (e *estimator) estimate(pool map[string]string) *Estimate {
	name := labels.Set(pool).String()
	if e.pools[name] == nil {
		e.pools[name] = &Estimate{}
	}
	return e.pools[name]
}

// of returns what is estimated of a pool.
func (e *estimator) of(pool map[string]string) Estimate {
	out := *e.estimate(pool)
	out.NodesFreed = e.freed(pool)
	return out
}

// freed returns how many nodes with some labels are freed.
func (e *estimator) freed(pool map[string]string) (count int64) {
	selector := labels.SelectorFromSet(pool)
	for _, n := range e.nodes {
		if n.freed() && selector.Matches(labels.Set(n.Labels)) {
			count++
		}
	}
	return count
}

// freed reports whether only pods of DaemonSets are left on a node that has others now.
func (n *nodeRoom) freed() bool { return n.was > 0 && n.now == 0 }

// nodesOf returns how many nodes a pool has.
func (e *estimator) nodesOf(pool map[string]string) (count int) {
	selector := labels.SelectorFromSet(pool)
	for _, n := range e.nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			count++
		}
	}
	return count
}
