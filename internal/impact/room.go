package impact

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodeset"
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
	unknown bool                 // how many more nodes are needed is not known

	added, removed []*corev1.Node // by the change itself
	vmCapacity     int64
}

// nodeRoom is a node, and what is free of it.
type nodeRoom struct {
	*corev1.Node
	free     corev1.ResourceList
	daemons  []*pod // of DaemonSets, and static pods
	was, now int    // pods of others
}

func newEstimator(before, after *preview.Inputs, l *live, vmResource string, prices *Prices) *estimator {
	e := &estimator{byName: map[string]*nodeRoom{}, makers: l.makers, prices: prices, waiting: map[*plan]int64{}, needs: map[*plan]int64{}, pools: map[string]*Estimate{}}
	there := map[string]bool{}
	for i := range before.Objects.Nodes {
		there[before.Objects.Nodes[i].Name] = true
	}
	for i := range after.Objects.Nodes {
		n := &nodeRoom{Node: &after.Objects.Nodes[i], free: after.Objects.Nodes[i].Status.Allocatable.DeepCopy()}
		if n.free == nil {
			n.free = corev1.ResourceList{}
		}
		vms := n.Status.Allocatable[corev1.ResourceName(vmResource)]
		e.vmCapacity += vms.Value()
		e.nodes = append(e.nodes, n)
		e.byName[n.Name] = n
		if !there[n.Name] {
			e.added = append(e.added, n.Node)
		}
	}
	for i := range before.Objects.Nodes {
		if n := &before.Objects.Nodes[i]; e.byName[n.Name] == nil {
			e.removed = append(e.removed, n)
		}
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
	// 1. Pods that stay.
	for _, p := range stay {
		n := e.byName[p.Node]
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
			if n := e.byName[pod.Node]; n != nil {
				n.was++
			}
		}
	}
	kept := map[*plan]map[cell]int64{}
	for _, p := range plans {
		kept[p] = e.keep(p)
	}
	// 2. Pods that go elsewhere, the largest first.
	for _, p := range slices.SortedStableFunc(slices.Values(plans), func(a, b *plan) int { return cmp.Compare(b.size(), a.size()) }) {
		e.placeOthers(p, kept[p])
	}
}

// size is the CPU that a pod of the workload requests, in thousandths.
func (p *plan) size() (most int64) {
	if p.is == nil {
		return 0
	}
	for _, g := range p.is.groups() {
		if g.shape != nil {
			requests := requestsOf(g.shape)
			most = max(most, requests.Cpu().MilliValue())
		}
	}
	return most
}

// groups are the pods of each cell, and those without a seat, which count as outside.
func (d *decided) groups() map[cell]*group {
	out := maps.Clone(d.cells)
	out[cell{pool: outside}] = &d.without
	return out
}

// keep takes the room of the pods that may stay where they are, and returns how many those are.
func (e *estimator) keep(p *plan) map[cell]int64 {
	kept := map[cell]int64{}
	if p.is == nil {
		return kept
	}
	order := make([]int, len(p.pods))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(e.pods(p.pods[b].Node), e.pods(p.pods[a].Node)) })
	groups := p.is.groups()
	for _, i := range order {
		pod, at := p.pods[i], p.place[i]
		n := e.byName[pod.Node]
		if n == nil || at.pool >= 0 && p.is.misplaced(pod, at) {
			continue
		}
		if groups[at] == nil || kept[at] >= groups[at].count || !p.is.divides() {
			at = cell{pool: outside} // one without a seat may run anywhere
		}
		g := groups[at]
		if kept[at] >= g.count {
			continue
		}
		requests := pod.requests
		if g.shape != nil {
			requests = requestsOf(g.shape)
		}
		if larger(requests, pod.requests) && roomFor(ready(n.Node), n.free, g.shape) == 0 {
			continue
		}
		kept[at]++
		take(n.free, requests, 1)
		n.now++
	}
	return kept
}

// misplaced reports whether the pod of a StatefulSet is to be in another cell than it is.
func (d *decided) misplaced(pod *pod, at cell) bool {
	return d.ordinals != nil && d.divides() && d.ordinalsCell(pod.ordinal) != at
}

// larger reports whether some pods request more of anything than others.
func larger(requests, than corev1.ResourceList) bool {
	for name, q := range requests {
		if q.Cmp(than[name]) > 0 {
			return true
		}
	}
	return false
}

// pods is how many pods run on a node now.
func (e *estimator) pods(node string) int {
	if n := e.byName[node]; n != nil {
		return n.was
	}
	return 0
}

// placeOthers finds nodes for the pods of a workload that do not stay where they are.
func (e *estimator) placeOthers(p *plan, kept map[cell]int64) {
	if p.is == nil {
		return
	}
	groups := p.is.groups()
	for _, at := range slices.SortedFunc(maps.Keys(groups), func(a, b cell) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.domain, b.domain)) }) {
		g := groups[at]
		more := g.count - kept[at]
		if more <= 0 || g.shape == nil {
			continue
		}
		if at.pool < 0 {
			e.placeIn(p, nodeset.Set{}, nodeset.Set{}, g.shape, more, more)
			continue
		}
		room := more
		if limit, closed := p.is.closed[at.pool]; closed && slices.Contains(p.is.noSpill, p.strategy.Pool(at.pool).Name) {
			room = max(0, min(more, limit-kept[at]))
		}
		where := p.is.policy.Whole().Nodes(at.pool, at.domain)
		if p.is.policy.Preferred {
			where = nodeset.Set{}
		}
		e.placeIn(p, p.strategy.Nodes(at.pool, -1), where, g.shape, more, room)
	}
}

// placeIn finds nodes of a set for some pods of a pool, but for no more than there is said to be room for.
func (e *estimator) placeIn(p *plan, pool, where nodeset.Set, shape *corev1.Pod, pods, room int64) {
	requests := requestsOf(shape)
	closed := pods - room
	fill := func(n *nodeRoom) {
		if fits := min(room, roomFor(n.Node, n.free, shape)); fits > 0 {
			take(n.free, requests, fits)
			n.now += int(fits)
			room -= fits
		}
	}
	nodes := e.nodesWith(where)
	for _, n := range slices.SortedStableFunc(slices.Values(nodes), func(a, b *nodeRoom) int { return cmp.Compare(b.now, a.now) }) {
		if room == 0 {
			break
		}
		fill(n)
	}
	needs := room + closed
	if needs == 0 {
		return
	}
	made := closed == 0 && slices.ContainsFunc(e.makers, func(m karpenter.NodePool) bool { return m.Takes(where, &shape.Spec) })
	of := e.estimate(pool)
	of.PodsWithoutRoom += needs
	of.Autoscaled = of.Autoscaled || made
	e.needs[p] += needs
	if !made {
		e.waiting[p] += needs
	}
	// Nodes to come are like most of those that there are.
	for _, n := range e.lacking {
		if where.Has(n.Labels) {
			fill(n)
		}
	}
	like := mostCommon(nodes, func(n *nodeRoom) bool { return roomFor(ready(n.Node), n.empty(), shape) > 0 })
	for like != nil && room > 0 {
		n := &nodeRoom{Node: ready(like.Node), free: like.empty()}
		fill(n)
		e.lacking = append(e.lacking, n)
		of.NodesLacking++
		of.Shape = shapeOf(like.Node)
	}
	e.unknown = e.unknown || room > 0
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

func (e *estimator) estimate(pool nodeset.Set) *Estimate {
	name := pool.String()
	if e.pools[name] == nil {
		e.pools[name] = &Estimate{}
	}
	return e.pools[name]
}

// of returns what is estimated of a pool.
func (e *estimator) of(pool nodeset.Set) Estimate {
	out := *e.estimate(pool)
	out.NodesFreed = e.freed(pool)
	return out
}

// freed returns how many nodes of a set are freed.
func (e *estimator) freed(pool nodeset.Set) (count int64) {
	for _, n := range e.nodesWith(pool) {
		if n.freed() {
			count++
		}
	}
	return count
}

// freed reports whether only pods of DaemonSets are left on a node that has others now.
func (n *nodeRoom) freed() bool { return n.was > 0 && n.now == 0 }

// nodesWith returns the nodes of a set.
func (e *estimator) nodesWith(where nodeset.Set) (nodes []*nodeRoom) {
	for _, n := range e.nodes {
		if where.Has(n.Labels) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}
