package impact

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
)

// outlook is what the webhook would decide about the next pods of each workload.
type outlook struct {
	in *preview.Inputs
	of map[key]*decided
}

// decided is what the webhook would decide about all pods of a workload, were they created anew.
type decided struct {
	workload *preview.Workload
	policy   *policy.Policy // nil is none; otherwise it selects the workload, and divides it if there are seats
	replicas int64          // pods that there would be
	seats    []int64        // by pool; nil if no pod gets a seat
	domains  [][]int64      // by pool and domain; nil without domains
	without  int64          // pods without a seat
	// shapes are one pod of each pool as it would be created, and at the end one without a seat. They are nil where there is none.
	shapes    []*corev1.Pod
	leftAlone string // why no pod gets a seat though there is a policy
	vms       int64
	vm        preview.VM
	sizes     map[string]corev1.ResourceList // of a DaemonSet's pods, by node
	// noSpill are pools without room by the change whose pods would wait.
	noSpill []string
}

// look makes the webhook's decisions over inputs, which it completes with what the leader would record.
func (o *Options) look(ctx context.Context, l *live, in *preview.Inputs, exhausted map[string]int64) (*outlook, []string, error) {
	settings := o.Settings
	settings.Reaches = l.reaches(in)
	out := &outlook{in: in, of: map[key]*decided{}}

	// 1. Pools in which pods cannot run, as the leader finds out once pods wait there.
	p := preview.New(in, settings)
	for i := range in.Workloads {
		w := &in.Workloads[i]
		found, err := p.Policy(ctx, w)
		if err != nil {
			return nil, nil, err
		}
		if found != nil && found.Policy != nil && !found.Preferred && found.Whole != nil && found.Root != nil && !w.Volumes() {
			recordUnsuitable(in, l, w, found, o.Clock.Now())
		}
	}
	p = preview.New(in, settings)
	if len(exhausted) > 0 {
		if _, err := p.Exhaust(ctx, exhausted, -1); err != nil {
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
		d := &decided{workload: w, policy: found}
		if found != nil && found.Whole != nil {
			d.seats, d.shapes = make([]int64, found.Whole.Len()), make([]*corev1.Pod, found.Whole.Len())
			if across := found.Whole.Across(); across != nil {
				for range d.seats {
					d.domains = append(d.domains, make([]int64, len(across.Domains)))
				}
			}
			for n := range found.Whole.Len() {
				if _, closed := exhausted[found.Whole.Pool(n).Name]; closed && (found.Spill == nil || found.Spill[n].After == 0) {
					d.noSpill = append(d.noSpill, found.Whole.Pool(n).Name)
				}
			}
		}
		d.shapes = append(d.shapes, nil)
		out.of[keyOf(w)] = d
	}
	warnings, err := p.AdmitEach(ctx, -1, func(a *preview.Admitted) { out.of[keyOf(a.Workload)].count(a, settings.PeerPodConfig.VMResource) })
	for _, d := range out.of {
		if len(d.seats) > 0 && d.without == d.replicas {
			d.seats, d.domains = nil, nil
		}
	}
	return out, warnings, err
}

// count counts one pod.
func (d *decided) count(a *preview.Admitted, vmResource string) {
	d.replicas++
	vm, vms := a.VM(vmResource)
	if d.vms += vms; vms > 0 {
		d.vm = vm
	}
	if node, _, ok := a.Size(); ok {
		if d.sizes == nil {
			d.sizes = map[string]corev1.ResourceList{}
		}
		d.sizes[node] = resourcehelper.PodRequests(a.Pod, resourcehelper.PodResourcesOptions{})
	}
	at := len(d.shapes) - 1
	if name, ok := a.Pod.Labels[stowage.PoolLabel]; ok && d.seats != nil && a.Pod.Labels[stowage.SeatLabel] != "" {
		if pool, known := d.policy.PoolNamed(name); known {
			at = pool
			d.seats[pool]++
			if domain, known := d.policy.Whole.DomainNamed(a.Pod.Labels[stowage.DomainLabel]); d.domains != nil && known {
				d.domains[pool][domain]++
			}
		}
	}
	if at == len(d.shapes)-1 {
		d.without++
		if d.leftAlone == "" {
			d.leftAlone = a.WhyNoSeat()
		}
	}
	if d.shapes[at] == nil {
		d.shapes[at] = a.Pod
	}
}

// recordUnsuitable records for a workload the pools in which no pod of it can run, as the leader does.
func recordUnsuitable(in *preview.Inputs, l *live, w *preview.Workload, p *policy.Policy, now time.Time) {
	template := w.Template()
	example := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: template.Labels}, Spec: template.Spec}
	var unsuitable []stowage.UnsuitablePool
	compiled := p.Compiled
	whole := p.AsWritten()
	for i := range whole.Len() {
		pool := whole.Pool(i)
		var nodes []corev1.Node
		for n := range in.Objects.Nodes {
			if whole.HasNode(i, in.Objects.Nodes[n].Labels) {
				nodes = append(nodes, in.Objects.Nodes[n])
			}
		}
		pod := placement.Successor(example, whole, i, -1, compiled.TolerationsOf(i), false)
		if why := poolroom.Unsuitable(nodes, l.makers, pool.Labels, pod, now); why != "" {
			unsuitable = append(unsuitable, stowage.UnsuitablePool{Name: pool.Name, NodeLabel: pool.Labels, Since: metav1.NewTime(now), Why: why})
		}
	}
	same := func(a, b stowage.UnsuitablePool) bool { return maps.Equal(a.NodeLabel, b.NodeLabel) }
	if state := p.State; state == nil && unsuitable == nil || state != nil && slices.EqualFunc(state.Unsuitable, unsuitable, same) {
		return
	}
	in.PoolState(w.Namespace, p.Root.UID).Unsuitable = unsuitable
}

// roomFor returns how many pods such as one a node has room for, of which so much is free.
func roomFor(node *corev1.Node, free corev1.ResourceList, shape *corev1.Pod) int64 {
	if !nodefit.Allows(node, shape) {
		return 0
	}
	return nodefit.Count(&corev1.Node{Status: corev1.NodeStatus{Allocatable: free}}, nil, shape)
}
