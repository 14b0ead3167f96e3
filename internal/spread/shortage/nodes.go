package shortage

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// newNodesAfter is how long after the last look new nodes of a pool are looked at. They often come in groups.
const newNodesAfter = 5 * time.Second

// nodeChange is when a node became able to take pods that it did not take before.
type nodeChange struct {
	labels labels.Set
	at     time.Time
}

func (r *run) nodeChanged(node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodesChanged = r.Clock.Now()
	r.nodes[node.Name] = nodeChange{node.Labels, r.nodesChanged}
}

func (r *run) nodeGone(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
}

// changedSince reports whether a node with some labels has changed since a time.
func (r *run) changedSince(selected map[string]string, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodesChanged.Before(since) {
		return false
	}
	selector := labels.SelectorFromSet(selected)
	for _, c := range r.nodes {
		if !c.at.Before(since) && selector.Matches(c.labels) {
			return true
		}
	}
	return false
}

// lookForRoom counts for how many more pods the nodes of pools without room have room, where something has changed since the
// last look.
func (r *run) lookForRoom(ctx context.Context, v *picture, m *memory) error {
	left := r.Seats.Pods().Left()
	for i := range v.pools {
		name := v.policy.Whole.Pool(i).Name
		last, looked := m.looked[name]
		switch {
		case v.pools[i].Phase == spill.Available:
			delete(m.looked, name)
			continue
		case !looked:
			// Pods have just waited in vain for what room there seems to be. Only what changes from now on is evidence.
			m.looked[name] = look{v.Now, left}
			continue
		case v.Now.Sub(last.at) >= min(newNodesAfter, r.Timing.Probes.FirstProbe) && r.changedSince(v.policy.Whole.Pool(i).Labels, last.at):
			// A rollout may follow new nodes, and is divided by what is known then.
		case v.Now.Sub(last.at) < r.Timing.Probes.FirstProbe || left == last.left:
			continue
		}
		if !r.looks.Allow(m.workload.Namespace, v.Now) {
			continue // the next look may
		}
		pod, err := r.anyPod(ctx, v)
		if err != nil {
			return err
		}
		if pod == nil || !nodefit.Counted(pod) {
			m.looked[name] = look{v.Now, left}
			continue // no look proves room for it: a try is one pod
		}
		nodes, err := r.Room.Nodes(ctx, v.policy.Whole.Pool(i).Labels)
		if err != nil {
			return err
		}
		if v.Room[i], err = r.Room.Count(ctx, nodes, placement.Successor(pod, v.policy.Whole, i, v.policy.TolerationsOf(i), false), v.Replicas); err != nil {
			return err
		}
		m.looked[name] = look{v.Now, left}
	}
	return nil
}

// anyPod reads a pod of the workload's newest owner that has some, or returns nil.
func (r *run) anyPod(ctx context.Context, v *picture) (*corev1.Pod, error) {
	for _, one := range v.members {
		if len(one.records) == 0 {
			continue
		}
		pod := &corev1.Pod{}
		if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: one.records[0].Namespace, Name: one.records[0].Name}, pod); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return pod, nil
	}
	return nil, nil
}

// mayTakeMore reports whether a node may take pods now that it did not take before.
func mayTakeMore(was, is *corev1.Node) bool {
	if is.Spec.Unschedulable || len(is.Spec.Taints) > len(was.Spec.Taints) {
		return false
	}
	if !nodefit.Ready(is) {
		return false
	}
	if !nodefit.Ready(was) || was.Spec.Unschedulable || len(is.Spec.Taints) < len(was.Spec.Taints) {
		return true
	}
	for name, q := range is.Status.Allocatable {
		if before, ok := was.Status.Allocatable[name]; !ok || q.Cmp(before) > 0 {
			return true
		}
	}
	return false
}
