package impact

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// mostPods is how many pods of one workload are looked at. Whoever may write a workload chooses its replica count.
const mostPods = 5000

// outlook is what the webhook would decide about the next pods of each workload.
type outlook struct {
	in *preview.Inputs
	of map[key]*decided
}

// cell is a pool of a strategy, and one of its domains. The domain is 0 without domains.
type cell struct{ pool, domain int }

// group is some pods that are alike: how many, and one of them as it would be created.
type group struct {
	count int64
	shape *corev1.Pod
}

func (g *group) add(pod *corev1.Pod) {
	if g.count++; g.shape == nil {
		g.shape = pod
	}
}

// decided is what the webhook would decide about all pods of a workload, were they created anew.
type decided struct {
	workload *preview.Workload
	policy   *policy.Policy // nil is none; otherwise it selects the workload, and divides it if there are seats
	replicas int64          // pods that there would be
	cells    map[cell]*group
	without  group // pods without a seat
	// ordinals are the cells of the pods of a StatefulSet, in the order of their ordinals.
	ordinals  []cell
	held      int64  // pods that have another seat because of their volumes
	leftAlone string // why no pod gets a seat though there is a policy
	vms       int64
	vm        preview.VM
	vmTypes   map[string]int64               // how many VMs of each type
	vmPrice   int64                          // of all of its VMs in an hour, in millionths
	offer     *catalog.Offer                 // what a VMCatalog has for its pods; nil if none is for their RuntimeClass
	sizes     map[string]corev1.ResourceList // of a DaemonSet's pods, by node
	failed    error                          // why its pods cannot be made
	// closed are the pools without room by the change, with how many of the workload's pods they may have. NoSpill are those whose
	// other pods wait.
	closed  map[int]int64
	noSpill []string
}

// laidOut reports whether there is a policy, and it lays out pools.
func laidOut(p *policy.Policy) bool { return p != nil && p.Layout != nil }

// divides reports whether some pods get a seat.
func (d *decided) divides() bool { return d != nil && len(d.cells) > 0 }

// look makes the webhook's decisions over inputs, which it completes with what the leader would record.
func (o *Options) look(ctx context.Context, l *live, in *preview.Inputs, exhausted map[string]int64) (*outlook, []string, error) {
	settings := o.Settings
	settings.Reaches = l.reaches(in)
	out := &outlook{in: in, of: map[key]*decided{}}

	// 1. Pools in which pods cannot run, as the leader finds out once pods wait there.
	if err := recordUnsuitable(ctx, preview.New(in, settings), in, l, o.Clock.Now()); err != nil {
		return nil, nil, err
	}
	p := preview.New(in, settings)
	var warnings []string
	if len(exhausted) > 0 {
		var err error
		if warnings, err = p.Exhaust(ctx, exhausted, -1); err != nil {
			return nil, nil, err
		}
	}

	// 2. Every pod, as if all were created anew.
	for i := range in.Workloads {
		w := &in.Workloads[i]
		found, err := p.Policy(ctx, w)
		if err != nil {
			return nil, nil, err
		}
		d := &decided{workload: w, policy: found, cells: map[cell]*group{}, closed: map[int]int64{}}
		if laidOut(found) {
			d.close(exhausted)
		}
		out.of[keyOf(w)] = d
	}
	told, err := p.AdmitEach(ctx, preview.Visit{
		Replicas: -1,
		Most: func(w *preview.Workload) int {
			if w.Kind == "DaemonSet" {
				return len(in.Objects.Nodes)
			}
			return mostPods
		},
		Use: func(a *preview.Admitted) { out.of[keyOf(a.Workload)].count(a, settings.PeerPodConfig.VMResource) },
		Failed: func(w *preview.Workload, err error) {
			d := out.of[keyOf(w)]
			d.failed, d.replicas = err, w.Replicas()
			if d.replicas > mostPods {
				d.failed = fmt.Errorf("it asks for more than %d pods", mostPods)
			}
		},
	})
	return out, append(warnings, told...), err
}

// close notes which pools have no room by the change.
func (d *decided) close(exhausted map[string]int64) {
	whole := d.policy.Whole()
	for i := range whole.Len() {
		limit, closed := exhausted[whole.Pool(i).Name]
		some := closed
		if across := whole.Across(); across != nil {
			for _, in := range across.Domains {
				_, one := exhausted[whole.Pool(i).Name+"/"+in.Value]
				some = some || one
			}
		}
		if closed {
			d.closed[i] = limit
		}
		if some && (d.policy.Spill == nil || d.policy.Spill[i].After == 0) {
			d.noSpill = append(d.noSpill, whole.Pool(i).Name)
		}
	}
}

// count counts one pod.
func (d *decided) count(a *preview.Admitted, vmResource string) {
	d.replicas++
	vm, vms := a.VM(vmResource)
	if d.vms += vms; vms > 0 {
		d.vm, d.offer = vm, a.Offer
		if vm.Type != "" {
			if d.vmTypes == nil {
				d.vmTypes = map[string]int64{}
			}
			d.vmTypes[vm.Type] += vms
		}
		d.vmPrice += vm.PricePerHour.Micros * vms
	}
	if node, requests, ok := a.Size(); ok {
		if d.sizes == nil {
			d.sizes = map[string]corev1.ResourceList{}
		}
		d.sizes[node] = requests
	}
	at, seated := d.cellOf(a.Pod)
	if !seated {
		d.without.add(a.Pod)
		if d.leftAlone == "" {
			d.leftAlone = a.WhyNoSeat()
		}
	} else {
		if d.cells[at] == nil {
			d.cells[at] = &group{}
		}
		d.cells[at].add(a.Pod)
		if d.isHeld(a.Pod) {
			d.held++
		}
	}
	if d.workload.Kind == "StatefulSet" {
		if !seated {
			at.pool = nowhere
		}
		d.ordinals = append(d.ordinals, at)
	}
}

// isHeld reports whether a volume gives a pod another seat than it would have.
func (d *decided) isHeld(pod *corev1.Pod) bool {
	rank := ordinalOf(pod.Name) - d.policy.FirstOrdinal() + 1
	if d.workload.Kind != "StatefulSet" || rank < 1 {
		return false
	}
	own, err := d.policy.OfOrdinal(rank)
	return err == nil && strconv.FormatInt(own.Ordinal, 10) != pod.Labels[stowage.SeatLabel]
}

// cellOf returns where the seat of a pod is, if it has one.
func (d *decided) cellOf(pod *corev1.Pod) (at cell, seated bool) {
	name, ok := pod.Labels[stowage.PoolLabel]
	if !ok || pod.Labels[stowage.SeatLabel] == "" || !laidOut(d.policy) {
		return cell{}, false
	}
	pool, known := d.policy.PoolNamed(name)
	domain, named := d.policy.Whole().DomainNamed(pod.Labels[stowage.DomainLabel])
	return cell{pool, domain}, known && named
}

// cellName names a cell by its nodes.
func (d *decided) cellName(at cell) string {
	if at.pool < 0 {
		return ""
	}
	return d.policy.Whole().Nodes(at.pool, at.domain).String()
}

// alike reports whether a workload has the same next pods before and after the change, and is treated alike until then.
func alike(a, b *decided) bool {
	if a.failed != nil || b.failed != nil {
		return a.replicas == b.replicas && sourceOf(a) == sourceOf(b)
	}
	if a.replicas != b.replicas || a.without.count != b.without.count || len(a.cells) != len(b.cells) || !sameShape(a.without.shape, b.without.shape) {
		return false
	}
	if a.vms != b.vms || a.vm != b.vm || !maps.Equal(a.vmTypes, b.vmTypes) {
		return false
	}
	return !a.divides() || sameRules(a, b) && sameCells(a, b)
}

// sameRules reports whether two policies that divide the pods of a workload treat those alike that there are.
func sameRules(a, b *decided) bool {
	if p, q := a.policy, b.policy; p.Evict != q.Evict || p.Repair != q.Repair || p.Preferred != q.Preferred {
		return false
	}
	return slices.Equal(a.noSpill, b.noSpill) && maps.Equal(a.closed, b.closed)
}

// sameCells reports whether the same nodes get the same pods of a workload. It has as many cells before as after the change.
func sameCells(a, b *decided) bool {
	if !slices.EqualFunc(a.ordinals, b.ordinals, func(x, y cell) bool { return a.cellName(x) == b.cellName(y) }) {
		return false
	}
	there := map[string]*group{}
	for at, g := range b.cells {
		there[b.cellName(at)] = g
	}
	for at, g := range a.cells {
		other := there[a.cellName(at)]
		if other == nil || other.count != g.count || !sameShape(g.shape, other.shape) {
			return false
		}
	}
	return true
}

// sameShape reports whether two pods take the same room on the same nodes.
func sameShape(a, b *corev1.Pod) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equality.Semantic.DeepEqual(nodefit.Shape(a).Spec, nodefit.Shape(b).Spec)
}

// recordUnsuitable records for each workload the pools in which no pod of it can run, as the leader does.
func recordUnsuitable(ctx context.Context, p *preview.Preview, in *preview.Inputs, l *live, now time.Time) error {
	for i := range in.Workloads {
		w := &in.Workloads[i]
		found, err := p.Policy(ctx, w)
		if err != nil {
			return err
		}
		if !judged(found) || w.Volumes() {
			continue
		}
		example, err := p.Example(ctx, w)
		if err == nil && example != nil { // the decisions return the error
			var was []stowage.UnsuitablePool
			if found.State != nil {
				was = found.State.Unsuitable
			}
			is := l.unsuitable(l.pods[keyOf(w)], in.Objects.Nodes, found, example, now)
			if !slices.EqualFunc(was, is, func(a, b stowage.UnsuitablePool) bool {
				of := nodeset.Set{Labels: a.NodeLabel, Expressions: a.MatchExpressions}
				return a.Domain == b.Domain && of.Equal(nodeset.Set{Labels: b.NodeLabel, Expressions: b.MatchExpressions})
			}) {
				in.PoolState(w.Namespace, found.Root.UID).Unsuitable = is
			}
		}
	}
	return nil
}

// judged reports whether the leader finds out in which pools of a policy the pods of a workload cannot run.
func judged(p *policy.Policy) bool {
	return laidOut(p) && !p.Preferred && p.Root != nil
}

// unsuitable returns the cells in which a pod like the example cannot run. Where one of the workload's pods is ready, what its node lacks may return.
func (l *live) unsuitable(pods []*pod, all []corev1.Node, p *policy.Policy, example *corev1.Pod, now time.Time) (unsuitable []stowage.UnsuitablePool) {
	whole := p.AsWritten()
	if pool, ok := p.PoolNamed(example.Labels[stowage.PoolLabel]); ok {
		own := p.TolerationsOf(pool) // which it has because of that pool
		example.Spec.Tolerations = slices.DeleteFunc(example.Spec.Tolerations, func(t corev1.Toleration) bool { return slices.Contains(own, t) })
	}
	runs, asks := map[string]nodefit.Evidence{}, requestsOf(example)
	for _, pod := range pods {
		switch {
		case pod.Ready && nodefit.Covers(pod.requests, asks):
			runs[pod.Node] = nodefit.RanAlike
		case pod.Ready:
			runs[pod.Node] = max(runs[pod.Node], nodefit.Ran)
		}
	}
	of, answers := whole.Cells(), []nodefit.Answer(nil)
	for i := range of.Len() {
		at := of.At(i)
		var nodes []corev1.Node
		q := poolroom.Question{Set: whole.NodesOf(at), Pod: p.InCell(example, "", at)}
		for n := range all {
			if node := &all[n]; whole.HasNode(at.Pool, node.Labels) && whole.DomainOfNode(node.Labels) == at.Domain {
				nodes = append(nodes, *node)
				q.Proven = max(q.Proven, runs[node.Name])
			}
		}
		answers = append(answers, q.Of(nodes, l.makers, nil, now))
	}
	for i, a := range answers {
		at := of.At(i)
		takes := slices.ContainsFunc(answers[i-at.Domain:][:of.OfPool()], func(a nodefit.Answer) bool { return a.Verdict != nodefit.Never })
		if a.Verdict == nodefit.Never && (takes || !p.AuthorKnows(a.Filter)) {
			pool := whole.Pool(at.Pool)
			unsuitable = append(unsuitable, stowage.UnsuitablePool{Name: pool.Name, NodeLabel: pool.Labels, MatchExpressions: pool.Expressions, Domain: whole.DomainName(at.Domain), Since: metav1.NewTime(now), Filter: a.Filter, Why: a.Why})
		}
	}
	return unsuitable
}

// roomFor returns how many pods of a shape fit into what is free of a node, if the node takes such pods at all.
func roomFor(node *corev1.Node, free corev1.ResourceList, shape *corev1.Pod) int64 {
	if !nodefit.Allows(node, shape) {
		return 0
	}
	return nodefit.Count(&corev1.Node{Status: corev1.NodeStatus{Allocatable: free}}, nil, shape)
}

// requestsOf is what a pod requests.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// ordinalOf returns the ordinal in the name of a StatefulSet's pod, or -1.
func ordinalOf(name string) int64 {
	n, err := strconv.ParseInt(placement.OrdinalInName(name), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
